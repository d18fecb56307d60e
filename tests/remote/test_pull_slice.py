# SPDX-License-Identifier: Apache-2.0
"""weightfs pull --slice: some tensors of a safetensors file."""
import json
import struct

import pytest
import safetensors
import safetensors.torch
import torch

from versions import SERIES, URL, is_untouched, pull, refused, write


@pytest.fixture
def model(local):
    """Two shards, and a file that is none."""
    root = local / "model"
    (root / "shards").mkdir(parents=True)
    for shard in range(2):
        tensors = {}
        for layer in range(4):
            name = f"layers.{4 * shard + layer}"
            tensors[f"{name}.weight"] = torch.randn(700, 1001)
            tensors[f"{name}.scale"] = torch.randn(13).to(torch.bfloat16)
            tensors[f"{name}.mask"] = torch.randint(0, 255, (layer * 7 + 1,), dtype=torch.uint8)
        tensors[f"empty.{shard}"] = torch.empty(0, 5)
        metadata = {"format": "pt", "shard": str(shard)}
        safetensors.torch.save_file(tensors, root / f"shards/{shard}.safetensors", metadata)
    (root / "config.json").write_text("{}" * 10)
    return root


def test_a_slice_has_the_matching_tensors_and_nothing_else(server, model, local):
    write(server, model, 1)
    report = pull(server, local / "pulled", "--slice", "shards/*:layers.[25].*", "--files", "*.json")
    assert (local / "pulled/config.json").read_bytes() == (model / "config.json").read_bytes()
    for shard, layer in ((0, 2), (1, 5)):
        name = f"shards/{shard}.safetensors"
        whole = safetensors.torch.load_file(model / name)
        part = safetensors.torch.load_file(local / "pulled" / name)
        assert sorted(part) == [f"layers.{layer}.{kind}" for kind in ("mask", "scale", "weight")]
        for tensor, value in part.items():
            assert value.dtype == whole[tensor].dtype and torch.equal(value, whole[tensor])
        with safetensors.safe_open(local / "pulled" / name, "pt") as opened:
            assert opened.metadata() == {"format": "pt", "shard": str(shard)}
        header, = struct.unpack("<Q", (local / "pulled" / name).read_bytes()[:8])
        assert header % 8 == 0
    sizes = sum((model / f"shards/{shard}.safetensors").stat().st_size for shard in range(2))
    assert report["downloaded"] < sizes / 2


def test_every_tensor_can_be_a_slice(server, model, local):
    write(server, model, 1)
    pull(server, local / "pulled", "--slice", "shards/0.safetensors:*")
    whole = safetensors.torch.load_file(model / "shards/0.safetensors")
    part = safetensors.torch.load_file(local / "pulled/shards/0.safetensors")
    assert sorted(part) == sorted(whole) and all(torch.equal(part[name], whole[name]) for name in whole)
    pull(server, local / "empty", "--slice", "shards/*:empty.1")
    assert list(safetensors.torch.load_file(local / "empty/shards/1.safetensors")) == ["empty.1"]
    assert not (local / "empty/shards/0.safetensors").exists()


@pytest.mark.parametrize("text, reason", [
    ("shards/0.safetensors", "write PATH:PATTERN"), ("nothing*:x", "matches no file"),
    ("shards/*:nothing*", "no name of a tensor matches"), ("config.json:*", "it is no safetensors file")])
def test_a_slice_of_nothing_is_an_error(server, model, local, text, reason):
    write(server, model, 1)
    assert reason in refused(server, "pull", URL, local / "pulled", "--slice", text)
    assert is_untouched(local / "pulled")


@pytest.mark.parametrize("header", [
    b"", b"[]", b'{"a":1}', b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,5000]}}', b"{", b'{"a":{}}',
    b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[4,2]}}', b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,2]}}',
    json.dumps({name: {"dtype": "U8", "shape": [4], "data_offsets": [at, at + 4]}
                for name, at in (("a", 0), ("b", 2))}).encode(),
    b'{"a":{"dtype":"U8","data_offsets":[0,1],"shape":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"],
    ids=lambda header: header[:50].decode())
def test_a_damaged_header_is_an_error(server, local, header):
    root = local / "model"
    root.mkdir()
    (root / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(100))
    write(server, root, 1)
    error = refused(server, "pull", URL, local / "pulled", "--slice", "*:*")
    assert f"{SERIES}/1/model.safetensors: it is no safetensors file" in error
    assert is_untouched(local / "pulled")


def test_headers_of_many_and_of_large_files_are_read_in_batches(server, local):
    """Those of the large files are read after the others, and are more than the 128 MiB of one batch."""
    root = local / "model"
    root.mkdir()
    large = range(3, 20, 5)
    for number in range(20):
        padding = "x" * (36_000_000 if number in large else 10)
        safetensors.torch.save_file({"wanted": torch.tensor([float(number)]), "other": torch.zeros(1)},
                                    root / f"{number:02}.safetensors", {"padding": padding})
    assert len(large) * 36_000_000 > 128 << 20
    write(server, root, 1)
    assert pull(server, local / "pulled", "--slice", "*:wanted")["files"] == 20
    for number in range(20):
        pulled = safetensors.torch.load_file(local / "pulled" / f"{number:02}.safetensors")
        assert pulled == {"wanted": torch.tensor([float(number)])}
