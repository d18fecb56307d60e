# SPDX-License-Identifier: Apache-2.0
"""Files of weightfs.torch and weightfs.safetensors while other programs replace them, and saves that fail or are
misused."""

import errno
import json
import os
import struct
import threading

import pytest
import safetensors.torch
import torch

import weightfs
import weightfs.safetensors
import weightfs.torch
from harness import needs
from weightfs._core import files, streams

STORE_SIZE = "512M"
SAVES = {"torch": weightfs.torch.save, "safetensors": weightfs.safetensors.save_file}
LOADS = {"torch": weightfs.torch.load, "safetensors": weightfs.safetensors.load_file}


def generation(value):
    """Each generation has the same size."""
    sizes = [100, 3 << 20, 50_000, 5 << 20, 7, 2 << 20]
    return {f"{i}": torch.full((size,), value, dtype=torch.uint8) for i, size in enumerate(sizes)}


def values_in(tensors):
    return {value for tensor in tensors.values() for value in tensor.unique().tolist()}


def test_small_tensors_that_are_conjugated_lazily_are_saved_as_they_look(local):
    for count in (8, 1000, 30_000, 100_000):
        tensors = {f"{i}": torch.randn(count, dtype=torch.complex64) for i in range(8)}
        weightfs.safetensors.save_file({name: tensor.conj() for name, tensor in tensors.items()}, local / "file")
        loaded = safetensors.torch.load_file(local / "file")
        assert all(torch.equal(loaded[name], tensor.conj().resolve_conj()) for name, tensor in tensors.items())


@pytest.mark.parametrize("library", LOADS)
def test_a_file_that_is_replaced_meanwhile_is_loaded_as_it_was_opened(folder, handle, library):
    SAVES[library](generation(1), folder / "file")

    def replacing(load):
        def replace_first(*arguments, **options):
            SAVES[library](generation(2), folder / "file")
            return load(*arguments, **options)

        return replace_first

    handle.read_into, handle.map = replacing(handle.read_into), replacing(handle.map)
    assert values_in(LOADS[library](folder / "file", handle=handle)) == {1}
    assert values_in(LOADS[library](folder / "file")) == {2}


@pytest.mark.parametrize("library", LOADS)
def test_a_load_beside_a_program_that_saves_is_never_a_mixture(folder, library):
    SAVES[library](generation(0), folder / "file")
    ended = threading.Event()

    def save():
        for value in range(1, 200):
            if ended.is_set():
                break
            SAVES[library](generation(value), folder / "file")

    writer = threading.Thread(target=save)
    writer.start()
    try:
        for _ in range(20):
            assert len(values_in(LOADS[library](folder / "file"))) == 1
    finally:
        ended.set()
        writer.join()


@pytest.mark.parametrize("library", LOADS)
def test_an_overwrite_writes_the_file_that_it_truncated(local, handle, library):
    (local / "file").write_bytes(b"old")
    write = handle.write_from

    def move_first(*arguments):
        if not (local / "moved").exists():
            (local / "file").rename(local / "moved")
            (local / "file").write_bytes(b"of another program")
        return write(*arguments)

    handle.write_from = move_first
    SAVES[library](generation(1), local / "file", handle=handle, atomic=False)
    assert (local / "file").read_bytes() == b"of another program"
    assert values_in(LOADS[library](local / "moved")) == {1}


@pytest.mark.parametrize("library", LOADS)
@pytest.mark.parametrize("atomic", [True, False])
def test_a_relative_path_is_that_of_the_start(local, handle, monkeypatch, library, atomic):
    (local / "folder").mkdir()
    monkeypatch.chdir(local)
    write = handle.write_from

    def leave_first(*arguments):
        os.chdir("/")
        return write(*arguments)

    handle.write_from = leave_first
    SAVES[library](generation(1), "folder/file", handle=handle, atomic=atomic, durable=True)
    assert values_in(LOADS[library](local / "folder/file")) == {1}
    assert os.listdir(local / "folder") == ["file"]


@pytest.mark.parametrize("library", LOADS)
def test_an_error_of_a_load_names_the_path(local, handle, library):
    SAVES[library](generation(1), local / "file")
    read = handle.read_into

    def shorten_first(*arguments):
        os.truncate(local / "file", 1 << 20)
        return read(*arguments)

    handle.read_into = shorten_first
    with pytest.raises(OSError) as caught:
        LOADS[library](local / "file", handle=handle)
    assert caught.value.filename == str(local / "file") and "/proc" not in str(caught.value)


@pytest.mark.usefixtures("weightfs_only")
def test_files_opened_once_use_leases_too(work):
    tensors = {"a": torch.randn(3 << 20)}
    for library, save in SAVES.items():
        for atomic in (True, False):
            with weightfs.aio_handle() as handle:
                save(tensors, work / "file", handle=handle, atomic=atomic)
                before = handle.direct_operations
                assert before > 0
                assert torch.equal(LOADS[library](work / "file", handle=handle)["a"], tensors["a"])
                assert handle.direct_operations > before


def test_loaded_tensors_are_a_forked_childs_own(local):
    weightfs.safetensors.save_file({"a": torch.arange(1000)}, local / "file")
    loaded = weightfs.safetensors.load_file(local / "file")["a"]
    child = os.fork()
    if child == 0:
        loaded.zero_()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(loaded, torch.arange(1000))


@pytest.mark.parametrize("library", SAVES)
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("limit", [100, 1 << 20, 6 << 20])
def test_a_save_beyond_the_limit_of_sizes_names_the_file(local, child, library, atomic, limit):
    save = "weightfs.torch.save" if library == "torch" else "weightfs.safetensors.save_file"
    out = child(f"""
import errno, resource, torch, weightfs.torch, weightfs.safetensors
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
tensors = {{f"{{i}}": torch.zeros(size) for i, size in enumerate((10, 1 << 19, 1 << 19, 1 << 21))}}
try:
    {save}(tensors, {str(local / "file")!r}, atomic={atomic})
except OSError as error:
    print(errno.errorcode[error.errno], error.filename, ".weightfs-" in str(error), "/proc" in str(error))
""")
    assert out.split() == ["EFBIG", str(local / "file"), "False", "False"]
    assert os.listdir(local) == ([] if atomic else ["file"])


def test_a_full_device_is_the_error_of_the_save(handle):
    for save in SAVES.values():
        with pytest.raises(OSError) as caught:
            save(generation(1), "/dev/full", handle=handle)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")


class Refused(Exception):
    pass


@pytest.mark.parametrize("library", SAVES)
def test_a_save_for_which_no_handle_can_be_made_leaves_nothing(local, monkeypatch, library):
    def refuse(*_, **__):
        raise OSError(errno.ENOMEM, "no contexts left")

    SAVES[library](generation(1), local / "file")
    monkeypatch.setattr(weightfs._core.handle, "_of_process", {})
    monkeypatch.setattr(weightfs.Handle, "_open", refuse)
    with pytest.raises(OSError, match="no contexts left"):
        SAVES[library](generation(2), local / "file")
    monkeypatch.undo()
    assert os.listdir(local) == ["file"] and values_in(LOADS[library](local / "file")) == {1}


def test_a_save_that_cannot_even_be_abandoned_leaves_nothing(local, monkeypatch):
    def refuse(_):
        raise Refused

    monkeypatch.setattr(streams.DirectWriter, "abandon", refuse)
    with pytest.raises(Refused), files.writing(local / "file", None, False, True) as stream:
        stream.write(b"begun")
        raise ValueError
    assert os.listdir(local) == []


def test_a_save_leaves_the_umask_of_all_threads_alone(local, monkeypatch):
    before = os.umask(0o027)
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("another thread may make a file now"))
    try:
        for name, save in SAVES.items():
            save({"a": torch.ones(3)}, local / name)
            assert (local / name).stat().st_mode & 0o777 == 0o640
    finally:
        monkeypatch.undo()
        os.umask(before)


@needs.root
def test_a_private_file_is_never_open_to_others_while_it_is_replaced(local, handle):
    SAVES["safetensors"](generation(1), local / "file")
    os.chmod(local / "file", 0o600)
    write, modes = handle.write_from, set()

    def look_first(*arguments):
        modes.update(path.stat().st_mode & 0o777 for path in local.iterdir())
        return write(*arguments)

    handle.write_from = look_first
    SAVES["safetensors"](generation(2), local / "file", handle=handle)
    assert modes == {0o600}


def test_safetensors_take_what_the_library_takes(local):
    tensors = {"a": torch.ones(3)}
    for metadata in ({"epoch": 3}, {3: "epoch"}, ["epoch"]):
        for library in (safetensors.torch, weightfs.safetensors):
            with pytest.raises(TypeError):
                library.save_file(tensors, local / "file", metadata)
    with pytest.raises(ValueError, match="__metadata__"):
        weightfs.safetensors.save_file({"__metadata__": torch.ones(3)}, local / "file")
    assert os.listdir(local) == []


def test_a_header_nested_without_end_is_damaged(local):
    for text in (b'{"a":' + b"[" * 200_000, b"[" * 200_000 + b"]" * 200_000):
        (local / "file").write_bytes(struct.pack("<Q", len(text)) + text)
        with pytest.raises(ValueError, match="damaged"):
            weightfs.safetensors.load_file(local / "file")
    text = json.dumps({"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}).encode()
    (local / "file").write_bytes(struct.pack("<Q", len(text)) + text + b"abc")
    assert weightfs.safetensors.load_file(local / "file")["a"].tolist() == list(b"abc")


def damaged(path, header, data=b""):
    """The error of load_file for the file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    with pytest.raises(ValueError, match="its header is damaged") as caught:
        weightfs.safetensors.load_file(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("change,reason", [
    ({"shape": [1 << 40, 1 << 40, 0], "data_offsets": [0, 0]}, "dimensions of a tensor are too large"),
    ({"shape": [0, 1 << 62, 4], "data_offsets": [0, 0]}, "dimensions of a tensor are too large"),
    ({"shape": [True]}, "the shape of 'a'"), ({"shape": [1.0]}, "the shape of 'a'"),
    ({"shape": {}}, "the shape of 'a'"), ({"shape": 1}, "the shape of 'a'"), ({"shape": [-1]}, "the shape of 'a'"),
    ({"data_offsets": [0.0, 4.0]}, "the data_offsets of 'a'"), ({"data_offsets": 4}, "the data_offsets of 'a'"),
    ({"data_offsets": [False, 4]}, "the data_offsets of 'a'"),
    ({"data_offsets": [0, 4, 4]}, "the data_offsets of 'a'"),
    ({"dtype": ["F32"]}, "'a' has no dtype"), ({"dtype": None}, "'a' has no dtype")])
def test_facts_of_other_types_are_damage(local, change, reason):
    facts = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | change
    assert reason in damaged(local / "file", {"a": facts}, bytes(4))


@pytest.mark.parametrize("header,reason", [
    (b"[]", "it is no dict"), (b"5 ", "it is no dict"), (b"null", "it is no dict"), ({"a": 5}, "'a' has no dtype"),
    ({"a": None}, "'a' has no dtype"), ({"__metadata__": 5}, "__metadata__ is no dict of strings"),
    ({"__metadata__": []}, "__metadata__ is no dict of strings"),
    ({"__metadata__": {"epoch": 3}}, "__metadata__ is no dict of strings")])
def test_a_header_that_is_no_dict_of_dicts_is_damaged(local, header, reason):
    assert reason in damaged(local / "file", header)


needs_float4 = pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no 4-bit floats")


def float4(*shape):
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.uint8).view(torch.float4_e2m1fn_x2).view(shape)


@needs_float4
def test_tensors_of_four_bits_are_those_of_the_library(local):
    tensors = {"row": float4(24), "matrix": float4(4, 6), "cube": float4(2, 3, 1), "empty": float4(0, 3),
               "none": float4(3, 0), "bytes": torch.ones(3, dtype=torch.uint8),
               "truths": torch.ones(3, dtype=torch.bool)}
    weightfs.safetensors.save_file(tensors, local / "ours")
    safetensors.torch.save_file(tensors, local / "theirs")
    assert (local / "ours").read_bytes() == (local / "theirs").read_bytes()
    for loaded in (weightfs.safetensors.load_file(local / "theirs"), safetensors.torch.load_file(local / "ours")):
        for name, tensor in tensors.items():
            assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8))
    weightfs.safetensors.save_file({"turned": tensors["matrix"].t()}, local / "file")
    turned = weightfs.safetensors.load_file(local / "file")["turned"]
    assert torch.equal(turned.view(torch.uint8), tensors["matrix"].view(torch.uint8).t())


@needs_float4
def test_half_a_byte_is_refused(local):
    with pytest.raises(ValueError, match="scalar: .* without a dimension"):
        weightfs.safetensors.save_file({"scalar": float4(1)[0]}, local / "file")
    for shape, size in (([2, 3], 3), ([3], 2), ([1], 1), ([], 1)):
        facts = {"dtype": "F4", "shape": shape, "data_offsets": [0, size]}
        assert "even last dimension" in damaged(local / "file", {"a": facts}, bytes(size))


def test_an_impossible_device_is_refused_with_a_list_of_possible_ones(local, handle, monkeypatch):
    weightfs.safetensors.save_file({"a": torch.ones(3)}, local / "file")
    for device in ("meta", torch.device("meta"), "gpu"):
        for used in (None, handle):
            with pytest.raises(ValueError, match=r'\("cpu"\).*\("cuda"'):
                weightfs.safetensors.load_file(local / "file", device, handle=used)
    monkeypatch.setenv("WEIGHTFS_CUDA_LIBRARY", "/nowhere/libcuda.so.1")
    for device in ("cuda", 0):
        with pytest.raises(RuntimeError, match="no GPU to use"):
            weightfs.safetensors.load_file(local / "file", device)


@pytest.mark.parametrize("wrong", [None, 5, [torch.ones(3)], torch.ones(3)], ids=lambda wrong: type(wrong).__name__)
def test_arguments_that_are_not_a_dict_of_tensors_are_refused(local, wrong):
    with pytest.raises(ValueError, match="expected a dict of names and tensors, not"):
        weightfs.safetensors.save_file(wrong, local / "file")
    assert os.listdir(local) == []
