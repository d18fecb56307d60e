# SPDX-License-Identifier: Apache-2.0
"""weightfs.safetensors in the place of the safetensors package: names, signatures, results and exceptions."""

import copy
import inspect
import os
import re
import types
from pathlib import Path

import numpy
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import weightfs.safetensors
import weightfs.safetensors.numpy
import weightfs.safetensors.torch
from harness import process
from safetensors_files import model_of_all_types, same
from weightfs import aio_handle

MODULES = {"safetensors": (safetensors, weightfs.safetensors),
           "safetensors.torch": (safetensors.torch, weightfs.safetensors.torch),
           "safetensors.numpy": (safetensors.numpy, weightfs.safetensors.numpy)}
# docs/SAFETENSORS.md says so.
NOT_OFFERED = {"TensorSpec", "serialize", "serialize_file", "deserialize", "storage_ptr", "storage_size"}
MODULES_NOT_OFFERED = {"flax", "mlx", "paddle", "tensorflow"}
DOCUMENT = Path(__file__).resolve().parents[2] / "docs/SAFETENSORS.md"


def public_names(module):
    """The names that a module of the library defines, also those that C defines without naming a module."""
    found = {name for name, value in vars(module).items() if not name.startswith("_")
             and not isinstance(value, types.ModuleType) and callable(value)
             and getattr(value, "__module__", None) in (module.__name__, "builtins", None,
                                                        "safetensors._safetensors_rust")}
    return found if module is safetensors else found - public_names(safetensors)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_offered_with_its_parameters(name):
    theirs, ours = MODULES[name]
    names = public_names(theirs) - NOT_OFFERED
    assert names >= {"safetensors": {"safe_open", "SafetensorError"},
                     "safetensors.torch": {"save", "save_file", "save_model", "load", "load_file", "load_model"},
                     "safetensors.numpy": {"save", "save_file", "load", "load_file"}}[name]
    for one in names:
        assert one in ours.__all__
        if not isinstance(getattr(theirs, one), type) or one == "safe_open":
            assert_accepts(getattr(theirs, one), getattr(ours, one), one)


def assert_accepts(theirs, ours, where):
    """Each call that `theirs` accepts is one of `ours`: its parameters come first, and further ones have names only."""
    wanted, found = (list(inspect.signature(one).parameters.values()) for one in (theirs, ours))
    for one, other in zip(wanted, found):
        names_agree = one.name == other.name or (one.kind is one.POSITIONAL_ONLY or where == "load")
        assert names_agree and other.kind in (one.kind, other.POSITIONAL_OR_KEYWORD), (where, one, other)
        if one.default is inspect.Parameter.empty:
            continue
        assert other.default == one.default or (one.default is ... and other.default is not other.empty), (where, one)
    assert all(one.kind is one.KEYWORD_ONLY for one in found[len(wanted):]), where


def test_open_files_and_slices_have_the_methods_of_the_library(local):
    weightfs.safetensors.save_file({"a": torch.ones(3, 4)}, local / "file")
    path = local / "file"
    with safetensors.safe_open(path, "pt") as theirs, weightfs.safetensors.safe_open(path, "pt") as ours:
        for one, other in ((theirs, ours), (theirs.get_slice("a"), ours.get_slice("a"))):
            methods = [name for name in dir(one) if not name.startswith("_")]
            assert len(methods) >= 2
            for name in methods:
                assert_accepts(getattr(one, name), getattr(other, name), name)
            for name in ("__enter__", "__exit__", "__getitem__"):
                assert hasattr(other, name) or not hasattr(one, name)


def test_modules_and_names_that_are_not_offered_are_documented():
    text = DOCUMENT.read_text(encoding="utf-8")
    folder = Path(safetensors.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert modules - {"torch", "numpy"} <= MODULES_NOT_OFFERED
    for name in NOT_OFFERED | MODULES_NOT_OFFERED:
        assert re.search(rf"`(safetensors\.)?{name}`", text), name


def test_bytes_are_those_of_the_library():
    tensors = model_of_all_types()
    for metadata in (None, {}, {"made": "here"}):
        data = weightfs.safetensors.torch.save(tensors, metadata)
        assert type(data) is bytes and data == safetensors.torch.save(tensors, metadata)
    for one in (data, bytearray(data), memoryview(data)):
        loaded = weightfs.safetensors.torch.load(one)
        assert loaded.keys() == tensors.keys() and all(same(loaded[name], tensors[name]) for name in tensors)
    assert weightfs.safetensors.load(weightfs.safetensors.save({})) == {}


ARRAYS = {"f": numpy.arange(12, dtype=numpy.float32).reshape(3, 4), "big-endian": numpy.arange(5, dtype=">f8"),
          "truths": numpy.array([True, False]), "empty": numpy.empty((0, 3), numpy.int16), "scalar": numpy.array(2.5),
          "complex": numpy.arange(3, dtype=numpy.complex64), "u": numpy.arange(7, dtype=numpy.uint64)[::-1].copy(),
          "large": numpy.arange(3_000_000, dtype=numpy.int32)}


def equal_arrays(ours, theirs):
    return ours.keys() == theirs.keys() and all(
        type(ours[name]) is numpy.ndarray and ours[name].dtype == array.dtype and ours[name].shape == array.shape
        and numpy.array_equal(ours[name], array) for name, array in theirs.items())


def test_arrays_of_numpy_are_saved_and_loaded_as_by_the_library(folder):
    data = weightfs.safetensors.numpy.save(ARRAYS, {"a": "b"})
    assert data == safetensors.numpy.save(ARRAYS, {"a": "b"})
    weightfs.safetensors.numpy.save_file(ARRAYS, folder / "file", {"a": "b"}, durable=True)
    assert (folder / "file").read_bytes() == data
    theirs = safetensors.numpy.load_file(folder / "file")
    assert equal_arrays(weightfs.safetensors.numpy.load_file(folder / "file", backend="pread"), theirs)
    assert equal_arrays(weightfs.safetensors.numpy.load(data), theirs)
    with weightfs.safetensors.safe_open(folder / "file", framework="np") as ours:
        assert equal_arrays(ours.get_tensors(), theirs)
        assert equal_arrays({name: ours.get_tensor(name) for name in ours.keys()}, theirs)
        assert equal_arrays({name: ours.get_slice(name)[...] for name in ours.keys()}, theirs)
        assert numpy.array_equal(ours.get_slice("f")[1:, [0, 2]], ARRAYS["f"][1:, [0, 2]])
        assert numpy.array_equal(ours.get_slice("large")[5:2_999_999:3], ARRAYS["large"][5:2_999_999:3])
        ours.get_tensor("f")[0, 0] = 7   # it may be changed


def test_arrays_that_are_not_contiguous_are_saved_in_row_major_order():
    turned = ARRAYS["f"].T
    assert equal_arrays(weightfs.safetensors.numpy.load(weightfs.safetensors.numpy.save({"a": turned})), {"a": turned})


INDICES = [5, -4, 1, numpy.int64(1), (slice(None),) * 3, slice(None, None, -1), slice(None, None, 0), 1.5, None, True,
           [0, 1], (0, [1, 2]), torch.tensor([2, 0]), torch.tensor([True, False, True]), slice(2, 1), (..., 0),
           (..., 0, 0, 0), (), [5], (None, slice(1, 2)), numpy.array([0, 2])]


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_an_index_gives_what_it_gives_in_the_library(local, index):
    tensor = torch.arange(12.0).view(3, 4)
    weightfs.safetensors.save_file({"a": tensor}, local / "file")
    with weightfs.safetensors.open(local / "file") as ours, safetensors.safe_open(local / "file", "pt") as theirs:
        expected = outcome(lambda: theirs.get_slice("a")[index])
        found = outcome(lambda: ours.get_slice("a")[index])
    if isinstance(expected, torch.Tensor):
        assert same(found, expected)
    else:
        assert isinstance(found, type(expected))


def outcome(call):
    """The result of a call, or its exception."""
    try:
        return call()
    except Exception as error:
        return error


def test_a_slice_outlives_its_open_file(folder):
    tensor = torch.arange(3_000_000).view(1000, 3000)
    weightfs.safetensors.save_file({"a": tensor, "b": tensor + 1}, folder / "file")
    with weightfs.safetensors.open(folder / "file") as model:
        part, other = model.get_slice("a"), model.get_slice("b")
    os.unlink(folder / "file")
    assert same(part[1:3], tensor[1:3]) and same(part[:, 5], tensor[:, 5]) and same(other[...], tensor + 1)
    assert len(open_files(folder)) == 1
    del part
    assert len(open_files(folder)) == 1
    del other
    assert open_files(folder) == []


def test_a_kept_error_keeps_no_file_open(local):
    weightfs.safetensors.save_file({"a": torch.ones(1000), "b": torch.ones(1000)}, local / "file")
    stream = weightfs.safetensors.stream(local / "file")
    with weightfs.safetensors.open(local / "file") as model:
        os.truncate(local / "file", 5000)
        kept = []
        for read in (lambda: model.get_tensor("b"), model.get_tensors, lambda: dict(stream)):
            with pytest.raises(OSError) as caught:
                read()
            kept.append(caught.value)
    assert open_files(local) == [] and len(kept) == 3   # whose tracebacks refer to what was open


def open_files(folder):
    return [target for target in process.open_files("self") if target.startswith(f"{folder}/")]


def test_a_file_that_was_opened_with_a_handle_is_read_in_a_forked_child(local, handle):
    tensor = torch.rand(1 << 18)
    weightfs.safetensors.save_file({"a": tensor}, local / "file")
    with weightfs.safetensors.open(local / "file", handle=handle) as model:
        child = os.fork()
        if child == 0:
            right = False
            try:
                right = (torch.equal(model.get_tensor("a"), tensor) and torch.equal(model.get_slice("a")[3:], tensor[3:])
                         and torch.equal(model.get_tensors()["a"], tensor))
            finally:
                os._exit(0 if right else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(model.get_tensor("a"), tensor)


def test_a_slice_of_a_closed_file_is_read_in_a_forked_child(local):
    weightfs.safetensors.save_file({"a": torch.arange(1000)}, local / "file")
    with weightfs.safetensors.open(local / "file") as model:
        part = model.get_slice("a")
    assert part[5].item() == 5
    child = os.fork()
    if child == 0:
        os._exit(part[10:12].tolist() != [10, 11])
    assert os.waitpid(child, 0)[1] == 0
    assert part[7].item() == 7


def test_a_slice_by_the_callers_handle_ends_with_the_handle(local):
    weightfs.safetensors.save_file({"a": torch.arange(1000)}, local / "file")
    with aio_handle() as handle, weightfs.safetensors.open(local / "file", handle=handle) as model:
        part = model.get_slice("a")
        assert part[5].item() == 5
    with pytest.raises(ValueError, match="closed"):
        part[5]


def closed(module, path):
    with module.safe_open(path, "pt") as model:
        pass
    return model


VIEW = torch.ones(4)
# Calls that fail: with the package in the place of `m`, and the path of a file with one tensor "a".
FAILURES = {
    "no file": lambda m, path: m.safe_open(f"{path}-absent", "pt"),
    "no file to load": lambda m, path: m.torch.load_file(f"{path}-absent"),
    "no file for a model": lambda m, path: m.torch.load_model(torch.nn.Linear(2, 2), f"{path}-absent"),
    "directory": lambda m, path: m.safe_open(path.parent, "pt"),
    "framework": lambda m, path: m.safe_open(path, "xx"),
    "device": lambda m, path: m.safe_open(path, "pt", device="tpu"),
    "device of arrays": lambda m, path: m.safe_open(path, "np", device="cuda").get_tensor("a"),
    "backend": lambda m, path: m.safe_open(path, "pt", backend="other"),
    "backend of load_file": lambda m, path: m.torch.load_file(path, backend="other"),
    "backend of arrays": lambda m, path: m.numpy.load_file(path, backend="other"),
    "path": lambda m, path: m.safe_open(5, "pt"),
    "no path": lambda m, path: m.torch.load_file(None),
    "damaged": lambda m, path: m.safe_open(damage(path, b"x" * 100), "pt"),
    "cut": lambda m, path: m.torch.load_file(damage(path, b"xx")),
    "damaged bytes": lambda m, path: m.torch.load(b"x" * 100),
    "no bytes": lambda m, path: m.torch.load(b""),
    "not bytes": lambda m, path: m.torch.load(5),
    "arrays of damaged bytes": lambda m, path: m.numpy.load(b"x" * 100),
    "tensor": lambda m, path: m.safe_open(path, "pt").get_tensor("absent"),
    "slice": lambda m, path: m.safe_open(path, "pt").get_slice("absent"),
    "name": lambda m, path: m.safe_open(path, "pt").get_tensor(5),
    "closed keys": lambda m, path: closed(m, path).keys(),
    "closed offset_keys": lambda m, path: closed(m, path).offset_keys(),
    "closed metadata": lambda m, path: closed(m, path).metadata(),
    "closed get_tensor": lambda m, path: closed(m, path).get_tensor("a"),
    "closed get_tensors": lambda m, path: closed(m, path).get_tensors(),
    "closed get_slice": lambda m, path: closed(m, path).get_slice("a"),
    "type of arrays": lambda m, path: m.numpy.load_file(saved(path, torch.ones(3, dtype=torch.bfloat16))),
    "list": lambda m, path: m.torch.save_file([VIEW], path),
    "None": lambda m, path: m.torch.save(None),
    "value": lambda m, path: m.torch.save({"a": 5}),
    "array": lambda m, path: m.torch.save_file({"a": numpy.ones(3)}, path),
    "sparse": lambda m, path: m.torch.save({"a": torch.ones(3, 4).to_sparse()}),
    "key": lambda m, path: m.torch.save({5: VIEW}),
    "shared": lambda m, path: m.torch.save({"a": VIEW, "b": VIEW}),
    "metadata": lambda m, path: m.torch.save({"a": VIEW}, {"a": 5}),
    "metadata list": lambda m, path: m.torch.save_file({"a": VIEW}, path, ["a"]),
    "file name": lambda m, path: m.torch.save_file({"a": VIEW}, 5),
    "other model": lambda m, path: m.torch.load_model(torch.nn.Linear(2, 2), path),
    "objects": lambda m, path: m.numpy.save({"a": numpy.array([object()])}),
    "strings": lambda m, path: m.numpy.save({"a": numpy.array(["a"])}),
    "long doubles": lambda m, path: m.numpy.save_file({"a": numpy.ones(2, numpy.longdouble)}, path),
    "key of an array": lambda m, path: m.numpy.save({5: numpy.ones(2)}),
    "metadata of arrays": lambda m, path: m.numpy.save({"a": numpy.ones(2)}, {"a": 5}),
}


def damage(path, data):
    path.write_bytes(data)
    return path


def saved(path, tensor):
    weightfs.safetensors.save_file({"a": tensor}, path)
    return path


@pytest.mark.parametrize("call", FAILURES.values(), ids=FAILURES)
def test_a_call_that_fails_raises_what_the_library_raises(local, call):
    raised = []
    for module in (safetensors, weightfs.safetensors):
        with pytest.raises(Exception) as caught:
            call(module, saved(local / "file", torch.ones(3)))
        raised.append(caught.value)
    assert isinstance(raised[1], type(raised[0])), raised
    copy.copy(raised[1])


def test_errors_are_also_those_of_python(local):
    saved(local / "file", torch.ones(3))
    with weightfs.safetensors.open(local / "file") as model, pytest.raises(KeyError) as caught:
        model.get_tensor("b")
    assert str(caught.value) == f"{local / 'file'}: there is no tensor 'b'"
    for call in (model.keys, lambda: weightfs.safetensors.open(damage(local / "file", b"xx")),
                 lambda: weightfs.safetensors.save({"a": torch.ones(3, dtype=torch.complex128)})):
        with pytest.raises(ValueError) as caught:
            call()
        assert isinstance(caught.value, weightfs.safetensors.SafetensorError)


@pytest.mark.parametrize("index", [(slice(2, None), -6), (slice(2, None), 20), 20, (0, 0, 0), "x", 1.0,
                                   slice(None, None, -1)], ids=str)
def test_indices_that_both_reject_for_arrays_raise_the_same_class(folder, index):
    weightfs.safetensors.numpy.save_file({"a": numpy.ones((10, 5))}, folder / "file")
    for module in (safetensors, weightfs.safetensors):
        with module.safe_open(folder / "file", framework="np") as model:
            with pytest.raises(safetensors.SafetensorError):
                model.get_slice("a")[index]
    with weightfs.safetensors.safe_open(folder / "file", framework="np") as model, pytest.raises(IndexError):
        model.get_slice("a")[20]


def test_without_the_safetensors_package_all_works_alike(local, child):
    assert child(f"""
import sys
sys.modules["safetensors"] = None
import torch, weightfs.safetensors as s
s.save_file({{"a": torch.ones(3)}}, {str(local / "file")!r})
print(s.load_file({str(local / "file")!r}))
try:
    s.open({str(local / "file")!r}).get_tensor("b")
except s.SafetensorError as error:
    print(isinstance(error, KeyError), s.SafetensorError.__module__)
""").split("\n")[:2] == ["{'a': tensor([1., 1., 1.])}", "True weightfs.safetensors._format"]
