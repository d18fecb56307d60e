# SPDX-License-Identifier: Apache-2.0
"""safetensors: save_file sets the size first, safe_open maps the file."""

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file as load_numpy, save_file as save_numpy
from safetensors.torch import load, load_file, save_file

from torch_steps import equal, state


def test_save_and_load(mount, work):
    save_file(state(), work / "model.safetensors", metadata={"format": "pt"})
    assert equal(load_file(work / "model.safetensors"), state())
    mount.remount()
    assert equal(load_file(work / "model.safetensors"), state())
    assert equal(load((work / "model.safetensors").read_bytes()), state())


def test_saved_file_equals_the_one_on_the_local_disk(mount, work, local):
    for place in (work, local):
        save_file(state(), place / "model.safetensors", metadata={"format": "pt"})
    mount.remount()
    assert (work / "model.safetensors").read_bytes() == (local / "model.safetensors").read_bytes()


def test_save_over_a_longer_file(mount, work):
    path = work / "model.safetensors"
    path.write_bytes(b"x" * 5_000_000)
    save_file(state(), path)
    mount.remount()
    assert equal(load_file(path), state())


def test_open_reads_single_tensors_and_slices(mount, work):
    expected, path = state(), work / "model.safetensors"
    save_file(expected, path, metadata={"made": "here"})
    mount.remount()
    with safe_open(path, framework="pt") as model:
        assert model.metadata() == {"made": "here"} and set(model.keys()) == set(expected)
        assert model.get_tensor("weight").equal(expected["weight"])
        part = model.get_slice("weight")
        assert part.get_shape() == [513, 1024]
        assert part[100:300, 7:900].equal(expected["weight"][100:300, 7:900])


def test_numpy_framework(mount, work):
    expected = {f"block.{index}": np.random.default_rng(index).random((index * 100 + 1, 64)) for index in range(10)}
    save_numpy(expected, work / "model.safetensors")
    mount.remount()
    found = load_numpy(work / "model.safetensors")
    assert found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)
    with safe_open(work / "model.safetensors", framework="np") as model:
        assert np.array_equal(model.get_slice("block.9")[5:50], expected["block.9"][5:50])
