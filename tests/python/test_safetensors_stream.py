# SPDX-License-Identifier: Apache-2.0
"""weightfs.safetensors.stream."""

import contextlib
import itertools
import os
import subprocess
import sys

import pytest
import torch

import weightfs
from safetensors_files import large_model, model_of_all_types, same, shards
from tensors import random_tensor
from weightfs import safetensors


def equal(streamed, tensors):
    streamed = dict(streamed)
    return streamed.keys() == tensors.keys() and all(same(streamed[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("options", [{}, {"memory": 1}, {"memory": "5M", "concurrency": 8}, {"concurrency": 1}],
                         ids=str)
def test_all_tensors_come_in_the_order_of_the_files(folder, options):
    tensors = shards(folder)
    with safetensors.open(folder) as model:
        order = model.offset_keys()
    streamed = list(safetensors.stream(folder, **options))
    assert [name for name, _ in streamed] == order
    assert equal(streamed, tensors)


def test_tensors_of_all_types(folder):
    tensors = model_of_all_types()
    safetensors.save_file(tensors, folder / "file")
    assert equal(safetensors.stream(folder / "file"), tensors)


def test_names_choose_tensors(folder):
    tensors = shards(folder)
    chosen = {name: tensors[name] for name in ("1.b", "1.d", "3.e")}
    assert equal(safetensors.stream(folder, names=list(chosen)), chosen)
    with pytest.raises(KeyError, match="'4.x', '4.y'"):
        safetensors.stream(folder, names=["4.y", "1.b", "4.x"])
    with pytest.raises(TypeError, match="list"):
        safetensors.stream(folder, names="1.b")


class Watched(weightfs.aio_handle):
    """Records the sizes of the reads that are under way."""

    def __init__(self):
        super().__init__()
        self.reads, self.most, self.most_bytes = [], 0, 0

    def read_async(self, memory, *rest):
        future = super().read_async(memory, *rest)
        self.reads.append(future)
        return future


@pytest.mark.parametrize("memory, concurrency", [(13 << 20, 10), (1 << 40, 2), (1, 10)])
def test_what_is_under_way_is_bounded(local, memory, concurrency):
    shards(local, 4)
    with Watched() as handle:
        stream = safetensors.stream(local, memory, concurrency, handle=handle)
        seen = 0
        for name, tensor in stream:
            seen += tensor.nbytes
            started = sum(read.nbytes for read in handle.reads)
            left = started - seen   # not yet yielded
            ends = itertools.accumulate(read.nbytes for read in handle.reads)
            under_way = sum(end > seen for end in ends)
            assert under_way <= concurrency
            assert left <= memory or under_way == 1
        assert len(handle.reads) > 4


def test_a_kept_tensor_does_not_keep_its_neighbors(local):
    safetensors.save_file({"a": torch.ones(1000), "b": torch.ones(200_000)}, local / "file")
    kept = dict(safetensors.stream(local / "file"))
    assert kept["a"].untyped_storage().nbytes() == 4000


def test_a_failed_read_raises_in_its_place(folder):
    tensors = {name: random_tensor(10 << 20, seed=at) for at, name in enumerate("abc")}
    safetensors.save_file(tensors, folder / "file")
    stream = safetensors.stream(folder / "file", concurrency=3)
    os.truncate(folder / "file", 25 << 20)
    assert same(next(stream)[1], tensors["a"]) and same(next(stream)[1], tensors["b"])
    with pytest.raises(OSError) as caught:
        next(stream)
    assert caught.value.filename == str(folder / "file")
    assert list(stream) == []


def files_open_in(folder):
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.startswith(f"{folder}/")]


def test_an_early_close_cancels_and_waits(folder):
    shards(folder)
    with Watched() as handle:
        with safetensors.stream(folder, handle=handle) as stream:
            next(stream)
            assert len(handle.reads) > 1
        assert all(read.done() for read in handle.reads) and handle.pending() == 0
        assert list(stream) == [] and files_open_in(folder) == []
        stream.close()
        for _ in safetensors.stream(folder, handle=handle):
            break
        assert all(read.done() for read in handle.reads) and files_open_in(folder) == []


def test_wrong_arguments_are_rejected(local):
    safetensors.save_file({"a": torch.ones(3)}, local / "file")
    for options in ({"memory": 0}, {"memory": "many"}, {"concurrency": 0}, {"device": "tpu"}):
        with pytest.raises(ValueError, match=next(iter(options)) if options != {"memory": "many"} else "many"):
            safetensors.stream(local / "file", **options)
    with pytest.raises(FileNotFoundError):
        safetensors.stream(local / "missing")
    assert files_open_in(local) == []


MEASURED = """
import resource, sys, torch
from weightfs import safetensors
first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = sum(tensor.nbytes for _, tensor in safetensors.stream(sys.argv[1], memory="32M"))
print(total, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first) << 10)
"""


def test_a_model_larger_than_the_bound_streams_within_it(local):
    for number in range(4):
        safetensors.save_file({f"{number}.{at}": random_tensor(8 << 20) for at in range(8)},
                              local / f"{number}.safetensors")
    done = subprocess.run([sys.executable, "-c", MEASURED, local], capture_output=True, text=True, check=True)
    total, grown = map(int, done.stdout.split())
    # The bound, the tensor that the program holds, and the handle's buffers.
    assert total == 256 << 20 and grown < 100 << 20
