#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a model that is larger than the memory it may take: writes it layer by layer, then streams it from the store,
layer by layer, through weightfs.safetensors.

    examples/stream_weights.py /mnt/tensors --size 2G --memory 256M"""

import os
import resource
import sys
import tempfile

import torch

import weightfs.safetensors
from weightfs.bench.program import Parser, size

WIDTH = 2048


def layer(number):
    """The weight of a layer, which can be made again."""
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(number)) / WIDTH ** 0.5


def show(what, done, total):
    bar = "#" * (30 * done // total)
    print(f"\r{what:10} [{bar:30}] {done} of {total} layers", end="\n" if done == total else "", file=sys.stderr,
          flush=True)


def main():
    parser = Parser(description=__doc__)
    parser.add_argument("folder", metavar="DIR", help="a mount or any directory; the file there is removed afterwards")
    parser.add_argument("--size", type=size, default="1G", help="bytes of the model (default 1G)")
    parser.add_argument("--memory", default="128M", help="bound of the weights in memory (default 128M)")
    args = parser.parse_args()
    count = max(args.size // layer(0).nbytes, 1)
    x = expected = torch.ones(1, WIDTH)
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="stream-weights-") as folder:
        path = os.path.join(folder, "model.safetensors")
        declared = {f"layers.{number:05}.weight": (torch.float32, (WIDTH, WIDTH)) for number in range(count)}
        with weightfs.safetensors.create_file(path, declared, align=4096) as writer:
            for number, name in enumerate(declared):
                weight = layer(number)
                writer[name] = weight
                expected = torch.tanh(expected @ weight)
                show("writing", number + 1, count)
        with weightfs.safetensors.stream(path, memory=args.memory) as model:
            for number, (_, weight) in enumerate(model):
                x = torch.tanh(x @ weight)
                show("streaming", number + 1, count)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"{count} layers of {layer(0).nbytes >> 20} MiB streamed within {args.memory}; the process had at most "
          f"{peak >> 20} MiB, with torch and the buffers of the handle")
    if not torch.equal(x, expected):
        sys.exit("stream_weights: the result is another than with the weights in memory")
    print("the same result as with the weights in memory")


if __name__ == "__main__":
    main()
