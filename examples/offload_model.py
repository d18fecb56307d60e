# SPDX-License-Identifier: Apache-2.0
"""What the offload examples share: a transformer with random weights, a training step, and the output."""

import argparse
import os
import shutil
import sys
import tempfile
import time

import torch

from weightfs.bench.program import Parser


class Transformer(torch.nn.Module):
    def __init__(self, layers, width, words=4096, tokens=512):
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.positions = torch.nn.Embedding(tokens, width)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, "gelu", batch_first=True,
                                             norm_first=True) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        torch.nn.init.normal_(self.words.weight, std=0.02)
        self.head = torch.nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x, mask, is_causal=True)
        return self.head(self.norm(x))


def made(args):
    torch.manual_seed(0)
    return Transformer(args.layers, args.width)


def loss_of(model, number, args):
    """The loss on data that the number determines."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, 4096, (args.batch, 64), generator=generator)
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def train_step(model, optimizer, number, args):
    """One training step with data that the number determines. Returns the loss."""
    optimizer.zero_grad()
    loss = loss_of(model, number, args)
    loss.backward()
    optimizer.step()
    return loss.item()


def size_of(model):
    return sum(parameter.nbytes for parameter in model.parameters())


def parser(description, layers, width):
    result = Parser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    result.add_argument("folder", help="where the files are written, such as a mount; they are deleted at the end")
    result.add_argument("--layers", type=int, default=layers, help="blocks of the transformer")
    result.add_argument("--width", type=int, default=width, help="its width; a multiple of 64")
    result.add_argument("--json", action="store_true", help="print all measurements as JSON")
    return result


class Folder:
    """A new directory, which is removed at the end."""

    def __init__(self, parent):
        if not os.path.isdir(parent):
            raise SystemExit(f"{parent}: no such directory")
        self._parent = parent

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="weightfs-offload-", dir=self._parent)
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path)


class Bar:
    """A progress bar on stderr, if that is a terminal."""

    def __init__(self, total):
        self._total, self._done, self._shown = total, 0, sys.stderr.isatty()

    def advance(self, what):
        self._done += 1
        if self._shown:
            filled = 30 * self._done // self._total
            print(f"\r[{'#' * filled}{'.' * (30 - filled)}] {what:40}", end="", file=sys.stderr, flush=True)
            if self._done == self._total:
                print(file=sys.stderr)


def seconds(function):
    """Returns (its result, seconds)."""
    begin = time.perf_counter()
    result = function()
    return result, time.perf_counter() - begin


if __name__ == "__main__":
    raise SystemExit("offload_model.py is a part of other examples: "
                     "run offload_generate.py, offload_train.py or offload_deepspeed.py")
