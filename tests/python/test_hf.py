# SPDX-License-Identifier: Apache-2.0
"""weightfs.hf in the place of the safetensors package. test_hf_models.py has the real programs."""

import errno
import os
import sys
import threading
import types

import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import weightfs.hf
import weightfs.safetensors
from safetensors_files import PACKED, model_of_all_types, same
from tensors import flip_on_device

THEIRS = {name: getattr(module, name) for module, name in (
    (safetensors, "safe_open"), (safetensors.torch, "load_file"), (safetensors.torch, "save_file"))}


def bound():
    """Where the functions of the package are bound, by module and name."""
    return {(key, name) for key, module in sys.modules.items()
            if isinstance(module, types.ModuleType) and not key.startswith("weightfs")
            for name, value in vars(module).items() if any(value is theirs for theirs in THEIRS.values())}


@pytest.fixture(autouse=True)
def restored():
    before = bound()
    yield
    weightfs.hf.uninstall()
    assert bound() == before and not weightfs.hf._holders


def is_ours(path):
    with safetensors.safe_open(path, "pt") as opened:
        assert isinstance(opened, safetensors.safe_open)
        return isinstance(opened, weightfs.safetensors.SafeOpen)


@pytest.fixture
def importer(monkeypatch):
    def import_module(name):
        module = types.ModuleType(name)
        exec("from safetensors import safe_open\n"
             "from safetensors.torch import load_file as load, save_file", vars(module))
        monkeypatch.setitem(sys.modules, name, module)
        return module
    return import_module


def test_all_modules_get_the_functions_and_get_theirs_back(importer):
    early = importer("imported_before")
    early.other, early.list = THEIRS["safe_open"], [THEIRS["safe_open"]]
    before = bound()
    weightfs.hf.install()
    late = importer("imported_since")
    for module in (early, late):
        assert (module.safe_open, module.load, module.save_file) == tuple(weightfs.hf._OURS.values())
    assert early.other is early.safe_open and bound() == set()
    weightfs.hf.uninstall()
    assert bound() == before | {("imported_since", name) for name in ("safe_open", "load", "save_file")}
    assert late.load is THEIRS["load_file"] and early.list == [THEIRS["safe_open"]]
    del sys.modules["imported_since"]


def test_an_installation_ends_once(work, weightfs_only):
    safetensors.torch.save_file({"w": torch.ones(5)}, work / "file")
    weightfs.hf.uninstall()
    with weightfs.hf.install():
        with weightfs.hf.install():
            assert is_ours(work / "file")
        assert is_ours(work / "file")
        with pytest.raises(ZeroDivisionError), weightfs.hf.install():
            raise ZeroDivisionError
        kept, opened = safetensors.safe_open, safetensors.safe_open(work / "file", "pt")
        part = opened.get_slice("w")
    assert safetensors.safe_open is THEIRS["safe_open"] and not is_ours(work / "file")
    assert same(part[1:3], torch.ones(2)) and same(opened.get_tensor("w"), torch.ones(5))
    assert type(kept(work / "file", "pt")) is THEIRS["safe_open"]
    weightfs.hf.install()
    weightfs.hf.install()
    with weightfs.hf.install() as made:
        weightfs.hf.uninstall()
        assert not is_ours(work / "file")
        with made:
            assert is_ours(work / "file")
        weightfs.hf.install()
    assert is_ours(work / "file")
    weightfs.hf.uninstall()
    with weightfs.hf.install():
        weightfs.hf.install()   # as a module that the block imports
    assert is_ours(work / "file")


def test_what_another_library_put_in_place_comes_back(work, monkeypatch):
    calls = []
    monkeypatch.setattr(safetensors, "safe_open", lambda *rest: calls.append(rest) or THEIRS["safe_open"](*rest))
    patched = safetensors.safe_open
    with weightfs.hf.install():
        assert safetensors.safe_open is not patched
        with pytest.raises(FileNotFoundError):
            safetensors.safe_open(work / "missing", "pt")
        assert len(calls) == 1   # what is not ours goes to what was there
    assert safetensors.safe_open is patched


def test_threads_install_and_load_at_once(folder):
    tensors, errors = {"w": torch.arange(300_000), "v": torch.ones(3)}, []
    safetensors.torch.save_file(tensors, folder / "file")
    barrier = threading.Barrier(8)

    def run():
        try:
            barrier.wait()
            for _ in range(20):
                with weightfs.hf.install():
                    loaded = safetensors.torch.load_file(folder / "file")
                assert loaded.keys() == tensors.keys() and all(same(loaded[name], tensors[name]) for name in tensors)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and safetensors.safe_open is THEIRS["safe_open"]


def test_results_are_those_of_the_package(folder, tmp_path):
    tensors, mounted = model_of_all_types(), weightfs.hf.on_mount(folder)
    THEIRS["save_file"](tensors, tmp_path / "file", {"format": "pt"})
    expected = THEIRS["load_file"](tmp_path / "file")
    with weightfs.hf.install():
        safetensors.torch.save_file(tensors, folder / "file", metadata={"format": "pt"})
        assert (folder / "file").read_bytes() == (tmp_path / "file").read_bytes()
        assert is_ours(folder / "file") == mounted and not is_ours(tmp_path / "file")
        for path in (folder / "file", str(folder / "file")):
            loaded = safetensors.torch.load_file(path)
            assert loaded.keys() == expected.keys() and all(same(loaded[name], expected[name]) for name in expected)
        with safetensors.safe_open(filename=folder / "file", framework="pt", device="cpu") as opened:
            assert opened.metadata() == {"format": "pt"} and opened.keys() == sorted(expected)
            for name in expected:
                if expected[name].dtype != PACKED:
                    assert same(opened.get_slice(name)[...], expected[name])
        model, other = torch.nn.Linear(30, 7), torch.nn.Linear(30, 7)
        safetensors.torch.save_model(model, folder / "model")
        assert safetensors.torch.load_model(other, folder / "model") == (set(), [])
        assert same(other.weight, model.weight)
        safetensors.numpy.save_file({"w": tensors["type.F32"].numpy()}, folder / "array")
        assert same(torch.from_numpy(safetensors.numpy.load_file(folder / "array")["w"]), tensors["type.F32"])


def test_what_weightfs_does_not_have_is_left_to_the_package(work):
    """The package has its own errors, and its own results where it has some."""
    path = work / "file"
    THEIRS["save_file"]({"w": torch.ones(5)}, path)
    (work / "index.json").write_text("{}")
    (work / "damaged").write_bytes(b"x" * 100)
    calls = [lambda open: open(path, "tf"), lambda open: open(path, "pt", "npu:0"), lambda open: open(path),
             lambda open: open(5, "pt"), lambda open: open(work, "pt"), lambda open: open(work / "missing", "pt"),
             lambda open: open(work / "index.json", "pt"), lambda open: open([path], "pt"),
             lambda open: open(path, "pt", backend="none"), lambda open: open(path, "pt", other=1),
             lambda open: open(work / "a\0b", "pt")]
    for number, call in enumerate(calls):
        expected = outcome(call, THEIRS["safe_open"])
        with weightfs.hf.install():
            found = outcome(call, safetensors.safe_open)
        assert found == expected or number == 8, number   # the text for a backend is that of weightfs
    with weightfs.hf.install(), pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(work / "damaged", "pt")
    shared = torch.ones(10)
    for tensors in ({"w": torch.ones(3, 5).t()}, {"a": shared, "b": shared}, {"w": torch.ones(3, device="meta")},
                    {"w": 5}, [torch.ones(3)]):
        expected = outcome(lambda save: save(tensors, work / "new"), THEIRS["save_file"])
        with weightfs.hf.install():
            assert outcome(lambda save: save(tensors, work / "new"), safetensors.torch.save_file) == expected
    assert sorted(os.listdir(work)) == ["damaged", "file", "index.json"]


def outcome(call, function):
    try:
        return type(call(function))
    except BaseException as error:
        return type(error), str(error)


def test_damage_is_an_error(factory, weightfs_only):
    mount = factory.mount(factory.store("128M"))
    path = mount.path / "file"
    with weightfs.hf.install():
        safetensors.torch.save_file({"a": torch.zeros(1 << 20), "b": torch.zeros(1 << 20)}, path)
        flip_on_device(mount.store, path, 6 << 20)
        with safetensors.safe_open(path, "pt") as opened:
            assert same(opened.get_tensor("a"), torch.zeros(1 << 20))
            for read in (lambda: opened.get_tensor("b"), lambda: opened.get_slice("b")[...],
                         lambda: safetensors.torch.load_file(path)):
                with pytest.raises(OSError) as caught:
                    read()
                assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))
