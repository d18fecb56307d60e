# SPDX-License-Identifier: Apache-2.0
"""The backward of weightfs.offload runs each block's forward again. Its gradients are those of training in memory, also
of tensors that leave a block by other ways than its result; what cannot be repeated is refused."""

import random

import pytest
import torch

import weightfs.offload
from offload_models import TOKENS, WORDS, differing, made, offloading   # noqa: F401
from weightfs import _offload_run

pytestmark = pytest.mark.usefixtures("offloading")
WIDE = 300


class Chain(torch.nn.Module):
    """Blocks one after the other. The result is the sum of the last output, and of what they kept in `kept`."""

    def __init__(self, block, count=4):
        super().__init__()
        self.kept = []
        self.blocks = torch.nn.ModuleList([block(self) for _ in range(count)])

    def forward(self, x):
        self.kept.clear()
        for block in self.blocks:
            x = block(x)
        return sum([x.square().mean(), *self.kept])


class Block(torch.nn.Module):
    def __init__(self, chain):
        super().__init__()
        self.linear = torch.nn.Linear(WIDE, WIDE)

    def forward(self, x):
        return torch.nn.functional.dropout(self.linear(x), 0.1).relu() + x


class Routed(Block):
    """Keeps a loss as an attribute, as routers of experts do."""

    def __init__(self, chain):
        super().__init__(chain)
        self.router = torch.nn.Linear(WIDE, 4)

    def loss(self, x):
        return self.router(x).softmax(-1).square().mean()

    def forward(self, x):
        self.kept = self.loss(x)
        return super().forward(x)


class RoutedChain(Chain):
    def forward(self, x):
        return super().forward(x) + sum(block.kept for block in self.blocks)


class Hooked(Block):
    """A hook of a part of the block keeps its output, for a penalty."""

    def __init__(self, chain):
        super().__init__(chain)
        self.linear.register_forward_hook(lambda module, args, output: chain.kept.append(output.abs().mean()))


class Attending(torch.nn.MultiheadAttention):
    """Takes another path if its arguments are the same tensor."""

    def __init__(self, chain):
        super().__init__(256, 4, batch_first=True)

    def forward(self, x):
        return x + super().forward(x, x, x)[0]


class Attended(Chain):
    """The blocks themselves are called with one tensor three times."""

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x, x, x)[0]
        return x.square().mean()


class Normalized(Block):
    """All blocks share a small BatchNorm, which stays in memory."""

    def __init__(self, chain):
        super().__init__(chain)
        if not hasattr(chain, "norm"):
            chain.norm = torch.nn.BatchNorm1d(WIDE)
        self.norm = chain.norm

    def forward(self, x):
        return self.norm(super().forward(x))


class Replacing(Block):
    """Uses a buffer, and puts another one in its place."""

    def __init__(self, chain):
        super().__init__(chain)
        self.register_buffer("std", torch.ones(()))

    def forward(self, x):
        out = x / self.std
        self.std = 0.9 * self.std + 0.1 * x.detach().std()
        return self.linear(out)


class Scaling(Block):
    """Changes a buffer in place, and uses it."""

    def __init__(self, chain):
        super().__init__(chain)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        self.scale.data.mul_(1.5)
        return super().forward(x * self.scale)


class Spectral(Block):
    def __init__(self, chain):
        super().__init__(chain)
        torch.nn.utils.parametrizations.spectral_norm(self.linear)


MODELS = {
    "attribute": (lambda: RoutedChain(Routed), (8, WIDE)),
    "hook": (lambda: Chain(Hooked), (8, WIDE)),
    "one tensor as three arguments": (lambda: Attended(lambda _: torch.nn.MultiheadAttention(256, 4, batch_first=True)),
                                      (4, 7, 256)),
    "attention": (lambda: Chain(Attending), (4, 7, 256)),
    "shared batch norm": (lambda: Chain(Normalized), (8, WIDE)),
    "spectral norm": (lambda: Chain(Spectral), (8, WIDE)),
    "replaced buffer": (lambda: Chain(Replacing), (8, WIDE)),
    "changed buffer": (lambda: Chain(Scaling), (8, WIDE)),
}


def created(model):
    torch.manual_seed(1)
    return model()


def step(model, optimizer, number, shape):
    torch.manual_seed(number)
    optimizer.zero_grad()
    loss = model(torch.randn(shape))
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("name", list(MODELS))
def test_gradients_of_all_that_a_block_computes_are_those_in_memory(memory_folder, name):
    model, shape = MODELS[name]
    plain, ours = created(model), weightfs.offload.offload(created(model), memory_folder / "model", "8M")
    optimizers = torch.optim.Adam(plain.parameters(), foreach=False), weightfs.offload.Adam(ours)
    for number in range(3):
        assert step(plain, optimizers[0], number, shape) == step(ours, optimizers[1], number, shape)
    assert differing(ours, plain) == []


def test_tied_weights_of_several_passes_are_those_in_memory(memory_folder):
    plain, ours = made(), weightfs.offload.offload(made(), memory_folder / "model", "9M")
    for model, optimizer in ((plain, torch.optim.Adam(plain.parameters(), foreach=False)),
                             (ours, weightfs.offload.Adam(ours))):
        torch.manual_seed(0)
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(2):
                both = [model(torch.randint(0, WORDS, (2, TOKENS))).square().mean() for _ in range(2)]
                sum(both).backward()
            optimizer.step()
    assert differing(ours, plain) == []


def test_a_graph_that_is_kept_serves_two_backward_passes(memory_folder):
    plain, ours = created(lambda: Chain(Block)), created(lambda: Chain(Block))
    weightfs.offload.offload(ours, memory_folder / "model", "1500K")
    for model, optimizer in ((plain, torch.optim.Adam(plain.parameters(), foreach=False)),
                             (ours, weightfs.offload.Adam(ours))):
        torch.manual_seed(0)
        loss = model(torch.randn(8, WIDE))
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
    assert differing(ours, plain) == []


class Drawing(Block):
    def forward(self, x):
        return super().forward(x * random.random())


class Shuffling(Block):
    """The same numbers, in another order."""

    def forward(self, x):
        order = list(range(len(x)))
        random.shuffle(order)
        return self.linear(x[order]).relu()


class Permuting(Block):
    def forward(self, x):
        order = list(range(WIDE))
        random.shuffle(order)
        return super().forward(x @ torch.eye(WIDE)[order])


class Alternating(Block):
    """Uses another weight, of the same shape, each time."""

    def __init__(self, chain):
        super().__init__(chain)
        self.other, self.count = torch.nn.Linear(WIDE, WIDE), 0

    def forward(self, x):
        self.count += 1
        return (self.linear, self.other)[self.count % 2](x).relu() + x


class Caching(Block):
    """Fills an object that it is called with, as with keys and values."""

    def __init__(self, chain):
        super().__init__(chain)
        self.cache = []

    def forward(self, x):
        self.cache.append(x)
        return super().forward(torch.cat(self.cache))


class Doubling(Block):
    def forward(self, x):
        return super().forward(x.detach().mul_(2))


@pytest.mark.parametrize("block", [Drawing, Shuffling, Permuting, Alternating, Caching, Doubling])
def test_a_forward_that_cannot_be_repeated_is_refused(memory_folder, block):
    model = weightfs.offload.offload(Chain(block), memory_folder / "model", "4M")
    optimizer = weightfs.offload.Adam(model)
    with pytest.raises(RuntimeError, match=rf"the backward of {block.__name__} \(block.blocks.3\) runs its forward "
                                           "again, which (computed other|raised).*use_cache=False"):
        model(torch.randn(8, WIDE)).backward()
    optimizer.zero_grad()
    with torch.no_grad():
        model(torch.randn(8, WIDE))   # the module works on
    weightfs.offload.restore(model)


def test_a_forward_that_changes_a_weight_is_refused(memory_folder):
    class Shrinking(Block):
        def forward(self, x):
            with torch.no_grad():
                self.linear.weight.mul_(0.9)
            return super().forward(x)
    model = weightfs.offload.offload(Chain(Shrinking), memory_folder / "model", "4M")
    weightfs.offload.Adam(model)
    with pytest.raises(RuntimeError, match="changes blocks.3.linear.weight, .* change it outside the forward"):
        model(torch.randn(8, WIDE)).backward()


def test_every_checksum_tells_the_order(memory_folder):
    numbers = torch.randperm(3_000_000, dtype=torch.int32)
    for size in (2, 64, 4096, 3_000_000):
        some = numbers[:size]
        for checksum in (_offload_run._checksum, _offload_run._mixed):
            assert checksum(some) == checksum(some.clone())
            assert checksum(some) != checksum(some.flip(0))
    eye = torch.eye(64)
    assert len({_offload_run._mixed(eye[torch.randperm(64)].view(torch.int32).flatten()) for _ in range(100)}) == 100


def chain(folder, block=Block):
    model = weightfs.offload.offload(Chain(block), folder / "model", "4M")
    return model, weightfs.offload.Adam(model)


def test_gradients_of_gradients_are_refused(memory_folder):
    model, _ = chain(memory_folder)
    x = torch.randn(8, WIDE, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"Block \(block.blocks.3\) has no gradients of gradients"):
        torch.autograd.grad(model(x), x, create_graph=True)


def test_a_backward_after_the_step_is_refused(memory_folder):
    model, optimizer = chain(memory_folder)
    losses = [model(torch.randn(8, WIDE)) for _ in range(2)]
    losses[0].backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="must come after .* before the next step"):
        losses[1].backward()


def test_a_tensor_that_a_block_kept_in_the_backward_is_refused(memory_folder):
    model = weightfs.offload.offload(RoutedChain(Routed), memory_folder / "model", "4M")
    weightfs.offload.Adam(model)
    model(torch.randn(8, WIDE)).backward()
    with pytest.raises(RuntimeError, match="kept in its backward"):
        model.blocks[0].kept.backward()


def test_a_function_that_keeps_a_view_of_a_weight_is_refused(memory_folder):
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context, x, weight):
            context.weight = weight.t()
            return x @ context.weight

        @staticmethod
        def backward(context, gradient):
            return gradient @ context.weight.t(), None

    class Multiplying(Block):
        def forward(self, x):
            return Product.apply(x, self.linear.weight) + x

    model, _ = chain(memory_folder, Multiplying)
    with pytest.raises(RuntimeError, match="ProductBackward in the forward of Multiplying .*save_for_backward"):
        model(torch.randn(8, WIDE))


def test_gradients_of_inputs_alone_leave_the_parameters_without(memory_folder):
    plain, (model, _) = created(lambda: Chain(Block)), chain(memory_folder)
    weightfs.offload.restore(model)
    model.load_state_dict(plain.state_dict())
    weightfs.offload.offload(model, memory_folder / "other", "4M")
    optimizer = weightfs.offload.Adam(model)
    found = []
    for one in (plain, model):
        torch.manual_seed(4)
        x = torch.randn(8, WIDE, requires_grad=True)
        found += torch.autograd.grad(one(x), x)
    assert torch.equal(*found)
    optimizer.step()
    assert differing(model, plain) == []
