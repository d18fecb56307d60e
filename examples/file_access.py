# SPDX-License-Identifier: Apache-2.0
"""What load_tensor.py and store_tensor.py share: the ways of moving a tensor, and the loop that times them."""

import argparse
import os
import time
from pathlib import Path

import torch

import weightfs
from weightfs.bench.program import Parser

GB = 1024 ** 3
NO_GPU = "no GPU here: torch.cuda.is_available() is false"
DEVICES = {"cpu": "cpu", "gpu": "cuda"}


class Python:
    """Ordinary Python file I/O: what the others are compared with."""

    mode = None

    def tensor(self, size, device):
        return torch.empty(size, dtype=torch.uint8, device=device)

    def load(self, tensor, path):
        with open(path, "rb") as stream:
            data = bytearray(stream.read())
        if data:
            tensor.copy_(torch.frombuffer(data, dtype=torch.uint8))

    def store(self, tensor, path):
        with open(path, "wb") as stream:
            stream.write(tensor.cpu().numpy().tobytes())

    def close(self):
        pass


class Aio:
    """A handle of weightfs. A locked CPU tensor the device writes into, and reads from, directly; a GPU tensor passes
    through buffers of the handle, which are copied while the device works on others."""

    mode = None

    def __init__(self):
        self.handle = weightfs.aio_handle(block_size=1 << 20, queue_depth=128, overlap_events=True)

    def tensor(self, size, device):
        if device == "cpu":
            return self.handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
        return torch.empty(size, dtype=torch.uint8, device=device)

    def load(self, tensor, path):
        if self.handle.sync_pread(tensor, path) != 1:
            raise SystemExit(str(self.handle.last_error))

    def store(self, tensor, path):
        if self.handle.sync_pwrite(tensor, path) != 1:
            raise SystemExit(str(self.handle.last_error))

    def close(self):
        self.handle.close()


class Gds(Aio):
    """A handle of weightfs for GPU tensors: GPUDirect Storage where there is any, else as Aio."""

    def __init__(self):
        self.handle = weightfs.gds_handle(block_size=1 << 20, queue_depth=128, overlap_events=True)
        self.mode = self.handle.mode

    def tensor(self, size, device):
        if device == "cpu":
            return super().tensor(size, device)
        return self.handle.new_pinned_device_tensor(size, torch.empty(0, dtype=torch.uint8, device=device))


WAYS = {"py": Python, "aio": Aio, "gds": Gds}


def at_least_one(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 1 on")
    return int(text)


def folder(text):
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text}: no such directory")
    return text


def parser(description):
    made = Parser(description=description)
    made.add_argument("--with", dest="way", choices=WAYS, default="aio", help="py: Python's own; aio (default); gds")
    made.add_argument("--device", choices=["cpu", "gpu"], default="cpu", help="where the tensor lives (default cpu)")
    made.add_argument("--loop", type=at_least_one, default=3,
                      help="measured repetitions, after one warm-up (default 3)")
    made.add_argument("--validate", action="store_true", help="compare with what ordinary file I/O reads")
    return made


def the_way(args):
    if (args.device == "gpu" or args.way == "gds") and not torch.cuda.is_available():
        raise SystemExit(f"{args.way} with a {args.device} tensor: {NO_GPU}")
    return WAYS[args.way]()


def tensor_of(args, way, size):
    return way.tensor(size, DEVICES[args.device])


def timed(loops, run):
    """The mean seconds of a run."""
    run()
    start = time.perf_counter()
    for _ in range(loops):
        run()
    return (time.perf_counter() - start) / loops


def check(args, tensor, path):
    if args.validate and Path(path).read_bytes() != tensor.cpu().numpy().tobytes():
        raise SystemExit(f"validation failed: the tensor is not what {path} holds")


def say(verb, args, way, size, seconds):
    speed = f"{size / GB:.3f} GB at {size / seconds / GB:.2f} GB/sec"
    name = f"{args.way} ({way.mode})" if way.mode else args.way
    print(f"{name} {verb} of a {args.device} tensor: {speed}{', validated' if args.validate else ''}")


def size_of(path):
    if not os.path.isfile(path):
        raise SystemExit(f"{path}: no such file")
    return os.path.getsize(path)


if __name__ == "__main__":
    raise SystemExit("file_access.py is a part of other examples: "
                     "run load_tensor.py, store_tensor.py or run_file_access.py")
