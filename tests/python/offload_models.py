# SPDX-License-Identifier: Apache-2.0
"""A small transformer for the tests of weightfs.offload, and programs that are killed."""

import gc
import os
import signal

import pytest
import torch

import weightfs.offload
from weightfs.offload._store import Directory

WORDS, WIDTH, TOKENS = 2500, 128, 12
MEMORY = "9M"   # the model with its gradients and states has 30 MiB


class Transformer(torch.nn.Module):
    """Blocks, tied weights beside them, and small tensors that belong to the root."""

    def __init__(self, layers=4, tied=True, dropout=0.1):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        torch.nn.init.normal_(self.words.weight, std=0.02)   # so that the gradients are not almost 0
        self.positions = torch.nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.02)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout, batch_first=True) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.positions[:tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@pytest.fixture
def offloading():
    """One thread, because the models are small. Frees the modules of the test: their locks would keep a mount busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    gc.collect()
    torch.set_num_threads(threads)


def made(seed=0, **options):
    torch.manual_seed(seed)
    return Transformer(**options)


def generate(model, count=4):
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        for _ in range(count):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
    return tokens.tolist()


def train_step(model, optimizer, number, batches=1):
    loss = backward(model, optimizer, number, batches)
    optimizer.step()
    return loss


def backward(model, optimizer, number, batches=1):
    torch.manual_seed(number)
    optimizer.zero_grad()
    loss = 0
    for _ in range(batches):
        tokens = torch.randint(0, WORDS, (2, TOKENS))
        part = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        part.backward()
        loss += part.item()
    return loss


def differing(model, other):
    """The names of tensors that are not bit for bit equal."""
    ours, theirs = dict(weightfs.offload.tensors(model)), other.state_dict()
    assert ours.keys() == theirs.keys()
    return [name for name in ours if not torch.equal(ours[name], theirs[name])]


def train(directory, steps, deadly=None):
    """Trains up to a number of steps in all. Kills itself before the write, or the change of state.json, with the
    number `deadly`."""
    calls = 0

    def counting(function):
        def called(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)
        return called

    weightfs.Handle.write_from = counting(weightfs.Handle.write_from)
    Directory.write_state = counting(Directory.write_state)
    torch.set_num_threads(1)
    model = weightfs.offload.offload(made(), directory, MEMORY, resume=True, durable=False)
    optimizer = weightfs.offload.Adam(model)
    while optimizer.steps < steps:
        train_step(model, optimizer, optimizer.steps)
