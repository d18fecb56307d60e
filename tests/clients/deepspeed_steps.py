# SPDX-License-Identifier: Apache-2.0
"""Programs for DeepSpeed, which know nothing of weightfs. Usage: deepspeed_steps.py train|infer|write FOLDER|none"""

import json
import os
import sys

import deepspeed
import torch
import transformers

# DeepSpeed 0.19 ignores the type of the parameters on a CPU without half precision, and takes bfloat16.
deepspeed.get_accelerator().is_fp16_supported = lambda: True

# Shared memory between the processes of a machine: with one process it is not used, and its compilation takes minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

WIDTH = 1024   # a parameter has the 4 MiB from which operations take leases


def offload(folder, **options):
    return {"device": "none"} if folder == "none" else {"device": "nvme", "nvme_path": folder, "pin_memory": False,
                                                        **options}


def zero(folder):
    buffers = {"buffer_count": 8, "buffer_size": 3 << 20}
    return {"stage": 3, "offload_param": offload(folder, **buffers),
            "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0, "stage3_prefetch_bucket_size": 0}


AIO = {"block_size": 1 << 20, "queue_depth": 8, "single_submit": False, "overlap_events": True,
       "intra_op_parallelism": 1}


def train(folder):
    """Prints the losses of four steps."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)], torch.nn.Linear(WIDTH, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    settings = zero(folder) | {"offload_optimizer": offload(folder, buffer_count=4)}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={
        "train_micro_batch_size_per_gpu": 4, "zero_optimization": settings, "aio": AIO,
        "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True})
    losses = []
    for step in range(4):
        torch.manual_seed(step)
        loss = torch.nn.functional.cross_entropy(engine(torch.randn(4, WIDTH)), torch.randint(0, 10, (4,)))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item().hex())
    return losses


def infer(folder):
    """Prints the tokens that a small OPT with random weights generates by ZeRO-Inference."""
    torch.manual_seed(2)
    model = transformers.OPTForCausalLM(transformers.OPTConfig(
        vocab_size=2000, hidden_size=512, num_hidden_layers=3, ffn_dim=2200, num_attention_heads=8,
        max_position_embeddings=64, word_embed_proj_dim=512)).eval()
    engine, *_ = deepspeed.initialize(model=model, config={
        "train_micro_batch_size_per_gpu": 1, "zero_optimization": zero(folder), "aio": AIO})
    engine.module.eval()
    with torch.no_grad():
        tokens = engine.module.generate(torch.tensor([[2, 5, 7, 11]]), max_new_tokens=6, do_sample=False)
    return tokens.tolist()


def write(folder):
    """Saves by FastFileWriter, and by torch.save with a stream; prints whether the files are equal."""
    from deepspeed.io import fast_file_writer
    from deepspeed.ops.op_builder import AsyncIOBuilder

    class Utils:   # the accelerator of the CPU has no UtilsBuilder
        def load(self):
            return self

        def cast_to_byte_tensor(self, tensors):
            one = lambda tensor: tensor.flatten().view(torch.uint8)
            return [one(tensor) for tensor in tensors] if isinstance(tensors, list) else one(tensors)

    fast_file_writer.UtilsBuilder = Utils
    torch.manual_seed(3)
    state = {f"layer.{number}": torch.randn(1000 + number, 1500) for number in range(4)}
    handle = AsyncIOBuilder().load().aio_handle(1 << 20, 8, False, True, 1)
    buffer = handle.new_cpu_locked_tensor(16 << 20, torch.empty(0, dtype=torch.uint8))
    config = fast_file_writer.FastFileWriterConfig(dnvme_handle=handle, pinned_tensor=buffer)
    fast, plain = (os.path.join(folder, name) for name in ("fast", "plain"))
    writer = fast_file_writer.FastFileWriter(fast, config)
    torch.save(state, writer)
    writer.close()
    with open(plain, "wb") as stream:
        torch.save(state, stream)
    with open(fast, "rb") as one, open(plain, "rb") as other:
        return one.read() == other.read()


if __name__ == "__main__":
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    torch.set_num_threads(1)
    if sys.argv[1] != "write":
        deepspeed.init_distributed("gloo")
    print("result", json.dumps({"train": train, "infer": infer, "write": write}[sys.argv[1]](sys.argv[2])))
