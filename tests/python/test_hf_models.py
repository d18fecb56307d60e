# SPDX-License-Identifier: Apache-2.0
"""transformers, accelerate, diffusers and peft with weightfs.hf, on small random models."""

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys

import pytest
import torch

import weightfs.hf
from harness import process
from harness.filesystems import weightfs as weightfs_command
from safetensors_files import same
from tensors import flip_on_device
from weightfs._core.handle import the_handle
from weightfs._core.memory import LEAST_MAPPED

transformers = pytest.importorskip("transformers", reason="needs transformers: scripts/setup installs it")
accelerate = pytest.importorskip("accelerate", reason="needs accelerate: scripts/setup installs it")

CONFIG = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
          "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
TOKENS = torch.arange(24).view(2, 12)


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**CONFIG)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


@pytest.fixture
def installed():
    with weightfs.hf.install():
        yield


@pytest.fixture
def reads(monkeypatch):
    """Lists the size of each read of the handle of the process."""
    with the_handle(None) as handle:
        found = []
        for name in ("read_into", "read_ranges"):
            read = getattr(handle, name)
            monkeypatch.setattr(handle, name, lambda memory, *rest, read=read: found.append(memory.nbytes) or
                                read(memory, *rest))
        yield found


def total(model):
    return sum(tensor.nbytes for tensor in model.state_dict().values())


def equal(model, other):
    expected, found = other.state_dict(), model.state_dict()
    return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in expected)


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def test_transformers_saves_and_loads_shards(folder, tmp_path, llama, reads):
    llama.save_pretrained(tmp_path, max_shard_size="1MB")
    with weightfs.hf.install():
        llama.save_pretrained(folder / "model", max_shard_size="1MB")
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    files = sorted(os.listdir(tmp_path))
    assert len([name for name in files if name.endswith(".safetensors")]) > 3
    assert files == sorted(os.listdir(folder / "model"))
    for name in files:
        assert (folder / "model" / name).read_bytes() == (tmp_path / name).read_bytes(), name
    assert equal(loaded, llama) and same(logits(loaded), logits(llama))
    assert sum(reads) == (total(llama) if weightfs.hf.on_mount(folder) else 0)


def information(path):
    """Bytes that the mount has read from the devices, and those of hot memory that programs got."""
    found = json.loads(weightfs_command("info", "--json", path).out)
    return found["statistics"]["device_read_bytes"], found["hot"]["mapped"]


def test_a_large_model_is_loaded_from_hot_memory_and_trained(work, weightfs_only, installed):
    """Tensors from 1 MiB on are mapped, privately; smaller ones are read."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**CONFIG | {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 2048})
    saved = transformers.AutoModelForCausalLM.from_config(config).eval()
    saved.save_pretrained(work / "model")
    sizes = [tensor.nbytes for tensor in saved.parameters()]
    large = sum(size for size in sizes if size >= LEAST_MAPPED)
    assert min(sizes) < LEAST_MAPPED and large > total(saved) // 2

    def load():
        return transformers.AutoModelForCausalLM.from_pretrained(work / "model")

    expected = logits(saved)
    first = load()
    read, mapped = information(work)
    second = load()
    assert information(work)[0] == read
    assert information(work)[1] >= mapped + large
    assert same(logits(first), expected) and same(logits(second), expected)
    second.train()
    optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
    second(TOKENS, labels=TOKENS).loss.backward()
    optimizer.step()
    assert not any(same(found, tensor) for found, tensor in zip(second.parameters(), saved.parameters()))
    assert equal(first, saved) and equal(load(), saved)
    assert information(work)[0] == read


def test_transformers_offloads_to_the_disk(work, weightfs_only, installed, llama, reads):
    llama.save_pretrained(work / "model", max_shard_size="1MB")
    layers = {f"model.layers.{number}": "disk" if number else "cpu" for number in range(4)}
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"} | layers
    loaded = transformers.AutoModelForCausalLM.from_pretrained(work / "model", device_map=places,
                                                               offload_folder=work / "offload")
    on_disk = sum(tensor.nbytes for layer in llama.model.layers[1:] for tensor in layer.parameters())
    del reads[:]
    assert same(logits(loaded), logits(llama))
    assert sum(reads) == on_disk


@pytest.mark.parametrize("device_map", [None, {"": "cpu"}, {"model.layers": "cpu", "": "cpu", "lm_head": "disk"}],
                         ids=["none", "one", "disk"])
def test_accelerate_loads_checkpoints(folder, llama, installed, device_map):
    llama.save_pretrained(folder / "model", max_shard_size="3MB")
    with accelerate.init_empty_weights(include_buffers=False) if device_map else contextlib.nullcontext():
        model = transformers.AutoModelForCausalLM.from_config(llama.config, dtype=torch.bfloat16)
    (folder / "offload").mkdir()
    accelerate.load_checkpoint_in_model(model, folder / "model", device_map=device_map, dtype=torch.bfloat16,
                                        offload_folder=folder / "offload")
    found, expected = model.state_dict(), llama.state_dict()
    for name in expected:
        assert found[name].is_meta if device_map and len(device_map) > 1 and name == "lm_head.weight" else same(
            found[name], expected[name]), name


def test_accelerate_reads_offloaded_weights(work, weightfs_only, installed, llama, reads):
    from accelerate.utils import OffloadedWeightsLoader
    llama.save_pretrained(work, max_shard_size="1MB")
    weights = json.loads((work / "model.safetensors.index.json").read_text())["weight_map"]
    loader = OffloadedWeightsLoader(index={name: {"safetensors_file": str(work / file), "weight_name": name}
                                           for name, file in weights.items()})
    expected = llama.state_dict()
    assert len(loader) == len(weights) and all(same(loader[name], expected[name]) for name in weights)
    assert sorted(reads) == sorted(expected[name].nbytes for name in weights)


def test_diffusers_saves_and_loads(folder, tmp_path):
    diffusers = pytest.importorskip("diffusers", reason="needs diffusers: scripts/setup installs it")
    torch.manual_seed(1)
    model = diffusers.UNet2DModel(sample_size=8, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8,
                                  down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                                  up_block_types=("AttnUpBlock2D", "UpBlock2D")).to(torch.float16)
    model.save_pretrained(tmp_path / "model", max_shard_size="400KB")
    with weightfs.hf.install():
        model.save_pretrained(folder / "model", max_shard_size="400KB")
        loaded = diffusers.UNet2DModel.from_pretrained(folder / "model", torch_dtype=torch.float16)
        model.save_pretrained(folder / "one")
        one = diffusers.UNet2DModel.from_pretrained(folder / "one", torch_dtype=torch.float16, low_cpu_mem_usage=False)
    assert equal(loaded, model) and equal(one, model)
    files = sorted(os.listdir(tmp_path / "model"))
    assert len(files) > 3 and files == sorted(os.listdir(folder / "model"))
    for name in files:
        assert (folder / "model" / name).read_bytes() == (tmp_path / "model" / name).read_bytes(), name


def test_peft_saves_and_loads_adapters(folder, llama, installed):
    peft = pytest.importorskip("peft", reason="needs peft: scripts/setup installs it")
    adapted = peft.get_peft_model(llama, peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    try:
        adapted.save_pretrained(folder / "adapter")
        expected = {name: tensor.clone() for name, tensor in peft.get_peft_model_state_dict(adapted).items()}
        assert all(same(tensor, expected[name]) for name, tensor in peft.load_peft_weights(
            folder / "adapter", device="cpu").items())
    finally:
        adapted.unload()


def test_a_damaged_model_is_an_error(factory, weightfs_only, installed, llama):
    mount = factory.mount(factory.store("128M"))
    llama.save_pretrained(mount.path / "model")
    path = mount.path / "model/model.safetensors"
    flip_on_device(mount.store, path, path.stat().st_size // 2)
    with pytest.raises(OSError) as caught:
        transformers.AutoModelForCausalLM.from_pretrained(mount.path / "model")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))
    path.unlink()
    with pytest.raises(OSError, match="no file named model.safetensors"):
        transformers.AutoModelForCausalLM.from_pretrained(mount.path / "model")


def test_a_rank_reads_only_its_part(work, weightfs_only, llama):
    """Two ranks of transformers' tensor parallelism."""
    with weightfs.hf.install():
        llama.save_pretrained(work / "model", max_shard_size="1MB")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, work / "model", work / f"logits-{rank}"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                                                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
             for rank in range(2)]
    for rank in ranks:
        read, has = map(int, process.finish(rank).out.split())
        assert has <= read < 0.66 * total(llama)   # with the gaps of less than a block between rows that are cut
    for rank in range(2):
        assert torch.allclose(torch.load(work / f"logits-{rank}").float(), logits(llama).float(), atol=0.05)


RANK = """
import sys, torch, transformers, weightfs.hf
from weightfs._core.handle import the_handle
weightfs.hf.install()
reads = []
with the_handle(None) as handle:
    for name in ("read_into", "read_ranges"):
        read = getattr(handle, name)
        setattr(handle, name, lambda memory, *rest, read=read: reads.append(memory.nbytes) or read(memory, *rest))
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], tp_plan="auto")
    local = (getattr(tensor, "to_local", lambda: tensor)() for tensor in model.parameters())
    print(sum(reads), sum(tensor.nbytes for tensor in local))
    with torch.no_grad():
        found = model(torch.arange(24).view(2, 12)).logits
    torch.save(getattr(found, "full_tensor", lambda: found)(), sys.argv[2])
    torch.distributed.destroy_process_group()
"""
