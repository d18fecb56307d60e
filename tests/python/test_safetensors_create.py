# SPDX-License-Identifier: Apache-2.0
"""weightfs.safetensors.create_file, and align."""

import os
import signal
import struct
import threading

import pytest
import safetensors.torch
import torch

import weightfs
from safetensors_files import large_model, model_of_all_types, same
from tensors import random_tensor
from weightfs.safetensors import create_file, load_file, save_file

STORE_SIZE = "512M"


def declared(tensors):
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize("options", [{}, {"align": 4096}, {"metadata": {"format": "pt"}}, {"durable": True}], ids=str)
def test_the_file_has_the_bytes_of_save_file(folder, options):
    tensors = model_of_all_types() | large_model()
    with create_file(folder / "created", declared(tensors), **options) as writer:
        for name in sorted(tensors, key=lambda name: name[::-1]):
            assert name in writer.missing()
            writer[name] = tensors[name]
            assert name not in writer.missing()
        assert os.listdir(folder) != ["created"]
    save_file(tensors, folder / "saved", **options)
    assert (folder / "created").read_bytes() == (folder / "saved").read_bytes()
    assert sorted(os.listdir(folder)) == ["created", "saved"]
    found = safetensors.torch.load_file(folder / "created")
    assert found.keys() == tensors.keys() and all(same(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("align", [8, 64, 4096, 1 << 20])
def test_the_data_begins_at_a_multiple_of_align(local, align):
    save_file({"a": torch.ones(3), "b": torch.ones(5)}, local / "file", align=align)
    begin = 8 + struct.unpack("<Q", (local / "file").read_bytes()[:8])[0]
    assert begin % align == 0
    assert same(safetensors.torch.load_file(local / "file")["b"], torch.ones(5))
    assert same(load_file(local / "file")["b"], torch.ones(5))
    weightfs.safetensors.save_model(torch.nn.Linear(3, 3), local / "model", align=align)
    assert ((local / "model").stat().st_size - 48) % align == 0


@pytest.mark.parametrize("align", [0, 4, 12, 2 << 20, "4096", 4096.0])
def test_an_impossible_alignment_is_rejected(local, align):
    for save in (lambda: save_file({"a": torch.ones(3)}, local / "file", align=align),
                 lambda: create_file(local / "file", {"a": (torch.float32, (3,))}, align=align).__enter__()):
        with pytest.raises((TypeError, ValueError), match="align"):
            save()
    assert os.listdir(local) == []


def test_threads_write_at_once(folder):
    tensors = large_model()
    failures = []

    def write(name):
        try:
            writer[name] = tensors[name]
        except BaseException as error:
            failures.append(error)

    with create_file(folder / "file", declared(tensors)) as writer:
        threads = [threading.Thread(target=write, args=(name,)) for name in tensors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert all(same(found, tensors[name]) for name, found in load_file(folder / "file").items())


def test_tensors_of_any_layout(folder):
    matrix = random_tensor(1200 * 1100, torch.float32).view(1200, 1100)
    shapes = {"t": (torch.float32, (1100, 1200)), "p": (torch.float32, [1200, 1100])}
    with create_file(folder / "file", shapes) as writer:
        writer["t"] = matrix.t()
        writer["p"] = torch.nn.Parameter(matrix)
    found = load_file(folder / "file")
    assert same(found["t"], matrix.t().contiguous()) and same(found["p"], matrix)


@pytest.mark.parametrize("old", [True, False])
def test_an_incomplete_file_does_not_appear(folder, old):
    if old:
        save_file({"old": torch.ones(3)}, folder / "file")
    with pytest.raises(ValueError, match="2 of 3 tensors were not written.*'b', 'c'"):
        with create_file(folder / "file", declared(dict.fromkeys("abc", torch.ones(3)))) as writer:
            writer["a"] = torch.ones(3)
    with pytest.raises(ZeroDivisionError):
        with create_file(folder / "file", declared({"a": torch.ones(3)})) as writer:
            writer["a"] = torch.ones(3)
            raise ZeroDivisionError
    assert os.listdir(folder) == (["file"] if old else [])
    assert not old or list(load_file(folder / "file")) == ["old"]


def test_what_was_not_declared_is_rejected_and_may_be_corrected(local):
    with create_file(local / "file", {"a": (torch.float32, (3, 4))}) as writer:
        with pytest.raises(KeyError, match="'b' was not declared"):
            writer["b"] = torch.ones(3)
        for wrong in (torch.ones(4, 3), torch.ones(12), torch.ones(3, 4).half()):
            with pytest.raises(ValueError, match=r"'a' was declared as torch.float32 of shape \(3, 4\)"):
                writer["a"] = wrong
        with pytest.raises(ValueError):
            writer["a"] = [1.0]
        writer["a"] = torch.ones(3, 4)
        with pytest.raises(ValueError, match="'a' was written before"):
            writer["a"] = torch.ones(3, 4)
    with pytest.raises(ValueError, match="complete"):
        writer.write("a", torch.ones(3, 4))
    for wrong in ({"a": torch.float32}, {"a": ("F32", (3,))}, {"a": (torch.float32, (-3,))}, {5: (torch.float32, (3,))},
                  ["a"]):
        with pytest.raises(TypeError):
            create_file(local / "wrong", wrong).__enter__()
    assert os.listdir(local) == ["file"]


def test_a_full_store_fails_the_write_and_keeps_the_old_file(work):
    save_file({"old": torch.ones(3)}, work / "file")
    with pytest.raises(OSError, match="No space left") as caught:
        with create_file(work / "file", {"a": (torch.uint8, (100 << 20,)), "b": (torch.uint8, (600 << 20,))}) as writer:
            writer["a"] = torch.zeros(100 << 20, dtype=torch.uint8)
            writer["b"] = torch.zeros(600 << 20, dtype=torch.uint8)
    assert caught.value.filename == str(work / "file")
    assert os.listdir(work) == ["file"] and list(load_file(work / "file")) == ["old"]


def test_a_failed_write_may_be_repeated(local):
    with weightfs.aio_handle() as handle:
        write = handle.write_from

        def fail(*_):
            handle.write_from = write
            raise OSError(5, "the device failed once")

        with create_file(local / "file", {"a": (torch.float32, (3,))}, handle=handle) as writer:
            handle.write_from = fail
            with pytest.raises(OSError, match="once") as caught:
                writer["a"] = torch.ones(3)
            assert caught.value.filename == str(local / "file")
            writer["a"] = torch.ones(3)
    assert same(load_file(local / "file")["a"], torch.ones(3))


@pytest.mark.parametrize("moment", ["before the first tensor", "between two tensors", "before the end"])
def test_a_killed_program_leaves_the_old_file(folder, moment):
    save_file({"old": torch.ones(3)}, folder / "file")
    tensors = large_model()
    child = os.fork()
    if child == 0:
        try:
            with create_file(folder / "file", declared(tensors), handle=weightfs.aio_handle()) as writer:
                for at, (name, tensor) in enumerate(tensors.items()):
                    if moment == ("before the first tensor", "between two tensors", "", "", "")[at]:
                        os.kill(os.getpid(), signal.SIGKILL)
                    writer[name] = tensor
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert list(load_file(folder / "file")) == ["old"]
    left = [name for name in os.listdir(folder) if name != "file"]
    assert len(left) == 1 and left[0].startswith(".file.weightfs-")


def test_only_a_regular_file_is_written_in_any_order(local):
    with pytest.raises(OSError, match="regular"):
        with create_file("/dev/null", {"a": (torch.float32, (3,))}) as writer:
            writer["a"] = torch.ones(3)
