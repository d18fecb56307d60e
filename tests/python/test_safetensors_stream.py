# SPDX-License-Identifier: Apache-2.0
"""weightfs.safetensors.stream, and the interfaces of other loaders."""

import contextlib
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
            assert len(stream._under_way) <= concurrency
            assert left <= memory or len(stream._under_way) == 1
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


def test_the_interface_of_run_ai_streamer(folder):
    tensors = shards(folder)
    paths = sorted(map(str, folder.glob("*.safetensors")))
    with safetensors.SafetensorsStreamer() as streamer:
        assert list(streamer.get_tensors()) == []
        streamer.stream_files(paths)
        assert equal(streamer.get_tensors(), tensors)
        streamer.stream_file(paths[0], tensor_names=["1.b"], owned=False)
        assert equal(streamer.get_tensors(), {"1.b": tensors["1.b"]})
        with pytest.raises(ValueError, match="absent"):
            streamer.stream_file(paths[0], tensor_names=["absent"])
        with pytest.raises(ValueError, match="s3://bucket/x"):
            streamer.stream_files(["s3://bucket/x"])
        with pytest.raises(NotImplementedError, match="is_distributed"):
            streamer.stream_files(paths, is_distributed=True)


class Group:
    """A process group, as far as a loader looks at it."""

    def __init__(self, rank, size):
        self.rank, self.size = lambda: rank, lambda: size


def test_the_interface_of_fastsafetensors(folder):
    tensors = shards(folder)
    paths = sorted(map(str, folder.glob("*.safetensors")))
    for files in (paths, {0: paths[:1], 1: paths[1:]}):
        with safetensors.fastsafe_open(files, framework="pytorch", pg=None, device="cpu", nogds=True) as model:
            assert sorted(model.keys()) == sorted(tensors) and model.metadata()[paths[1]]["number"] == "1"
            assert equal(((name, model.get_tensor(name)) for name in model.keys()), tensors)
    ranks = []
    for rank in range(3):
        loader = safetensors.SafeTensorsFileLoader(Group(rank, 3), "cpu", nogds=True)
        assert loader.get_keys() == []
        loader.add_filenames({0: paths})
        assert sorted(loader.get_keys()) == sorted(tensors) and loader.get_shape("1.b") == [11, 8]
        buffer = loader.copy_files_to_device()
        assert same(buffer.get_sharded("1.c", -1), tensors["1.c"]) and same(buffer.get_tensor("1.c"), tensors["1.c"])
        ranks.append([buffer.get_sharded("1.b", dim) for dim in (0, 1)])
        buffer.close()
        loader.close()
    assert [part[0].shape[0] for part in ranks] == [4, 4, 3] and [part[1].shape[1] for part in ranks] == [3, 3, 2]
    for dim in (0, 1):
        assert same(torch.cat([part[dim] for part in ranks], dim), tensors["1.b"])


def test_parts_of_tensors_of_4_bits_and_impossible_dimensions(memory_folder):
    packed = getattr(torch, "float4_e2m1fn_x2", None)
    tensors = {"a": torch.arange(48, dtype=torch.uint8).view(6, 8)}
    if packed is not None:
        tensors["packed"] = tensors["a"].clone().view(packed)
    path = memory_folder / "file.safetensors"
    safetensors.save_file(tensors, path)
    parts = {name: [] for name in tensors}
    for rank in range(2):
        loader = safetensors.SafeTensorsFileLoader(Group(rank, 2))
        loader.add_filenames({0: [path]})
        buffer = loader.copy_files_to_device()
        for name in tensors:
            parts[name].append(buffer.get_sharded(name, 1).view(torch.uint8))
        with pytest.raises(ValueError, match="dim is -2: it must be a dimension, or -1"):
            buffer.get_sharded("a", -2)
        loader.close()
        buffer.close()
    for name, found in parts.items():
        assert [part.shape[1] for part in found] == [4, 4] and torch.equal(torch.cat(found, 1), tensors["a"])
