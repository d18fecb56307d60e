# SPDX-License-Identifier: Apache-2.0
"""The backward of weightfs.offload runs each block's forward again. Its gradients are those of training in memory, also
of tensors that leave a block by other ways than its result; what cannot be repeated is refused."""

import gc
import itertools
import random
import weakref

import pytest
import torch

import weightfs.offload
from offload_models import TOKENS, WORDS, differing, made, offloading   # noqa: F401
from weightfs.offload import _recomputation, _training

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


class Large(torch.nn.Module):
    """Changes its buffers in place, and uses them, in a forward with or without a graph."""

    def __init__(self, graph):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(600, 600), torch.nn.BatchNorm1d(WIDE)
        self.graph = graph
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        with torch.set_grad_enabled(self.graph):
            self.count.add_(1)
            return self.norm(self.linear(torch.cat([x, x], 1))[:, :WIDE]) / float(self.count)


class Nesting(Block):
    """All blocks call two modules that are blocks themselves."""

    def __init__(self, chain):
        super().__init__(chain)
        if not hasattr(chain, "large"):
            chain.large = torch.nn.ModuleDict({"trained": Large(True), "frozen": Large(False)})
        self.trained, self.frozen = chain.large.values()

    def forward(self, x):
        return super().forward(self.trained(x) + self.frozen(x))


class Recurrent(torch.nn.Module):
    """Its operators save workspaces."""

    def __init__(self, chain):
        super().__init__()
        self.lstm = torch.nn.LSTM(WIDE, WIDE)

    def forward(self, x):
        return x + self.lstm(x)[0]


class Rectifying(Block):
    """Changes its argument in place."""

    def forward(self, x):
        return self.linear(x.relu_())


class Counting(Block):
    """Counts its forwards in attributes."""

    def __init__(self, chain):
        super().__init__(chain)
        self.count, self.first = 0, None

    def forward(self, x):
        self.count += 1
        self.later = getattr(self, "later", 0) + 1
        if self.first is None:
            self.first = torch.randn(WIDE)
        return (self.linear(x) / (self.count if self.later < 3 else 2)).relu() + self.first


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
    "buffers of modules within blocks": (lambda: Chain(Nesting), (8, WIDE)),
    "counters": (lambda: Chain(Counting), (8, WIDE)),
    "recurrent": (lambda: Chain(Recurrent, 2), (8, WIDE)),
    "changed argument": (lambda: Chain(Rectifying), (8, WIDE)),
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
    plain, ours = created(model), weightfs.offload.offload(created(model), memory_folder / "model", "16M")
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


class Bytes(torch.autograd.Function):
    @staticmethod
    def forward(context, x, mask):
        context.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(context, gradient):
        return gradient * context.saved_tensors[0], None


class Masking(Block):
    """Draws a mask of bytes."""

    def forward(self, x):
        return Bytes.apply(super().forward(x), torch.tensor([random.random() > 0.5 for _ in range(WIDE)]).byte())


class Sparse(Block):
    """Draws a sparse matrix."""

    def forward(self, x):
        order = list(range(WIDE))
        random.shuffle(order)
        return torch.sparse.mm(torch.eye(WIDE)[order].to_sparse(), self.linear(x).t()).t()


class Alternating(Block):
    """Uses another weight, of the same shape, each time."""

    def __init__(self, chain):
        super().__init__(chain)
        self.other, self.count = torch.nn.Linear(WIDE, WIDE), itertools.count()

    def forward(self, x):
        return (self.linear, self.other)[next(self.count) % 2](x).relu() + x


class Dividing(Block):
    """Autograd saves none of its numbers."""

    def __init__(self, chain):
        super().__init__(chain)
        self.count = itertools.count(1)

    def forward(self, x):
        return self.linear(x) / next(self.count)


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


@pytest.mark.parametrize("block", [Drawing, Shuffling, Permuting, Masking, Sparse, Alternating, Dividing,
                                   Caching, Doubling])
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


def test_a_forward_that_registers_a_hook_on_a_weight_is_refused(memory_folder):
    class Halving(Block):
        def forward(self, x):
            if torch.is_grad_enabled():
                self.linear.weight.register_hook(lambda gradient: gradient / 2)
            return super().forward(x)
    model, _ = chain(memory_folder, Halving)
    with pytest.raises(RuntimeError, match="changes blocks.3.linear.weight"):
        model(torch.randn(8, WIDE)).backward()


def test_every_checksum_tells_the_order(memory_folder):
    numbers = torch.randperm(3_000_000, dtype=torch.int32)
    for size in (2, 64, 4096, 3_000_000):
        some = numbers[:size]
        for checksum in (_recomputation._checksum, _recomputation._mixed):
            assert checksum(some) == checksum(some.clone())
            assert checksum(some) != checksum(some.flip(0))
    eye = torch.eye(64)
    assert len({_recomputation._mixed(eye[torch.randperm(64)].view(torch.int32).flatten()) for _ in range(100)}) == 100


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


class Product(torch.autograd.Function):
    """Keeps what keep(weight) returns until the backward."""

    @staticmethod
    def forward(context, x, weight, keep):
        context.kept = keep(weight)
        return x @ weight.t()

    @staticmethod
    def backward(context, gradient):
        kept = context.kept() if callable(context.kept) else context.kept
        return gradient @ (kept[0] if isinstance(kept, list) else kept), None, None


@pytest.mark.parametrize("keep", [lambda weight: weight.view_as(weight), lambda weight: [weight.detach()],
                                  lambda weight: lambda view=weight.data: view], ids=["view", "list", "closure"])
def test_a_view_of_a_weight_that_a_forward_keeps_is_refused(memory_folder, keep):
    class Multiplying(Block):
        def forward(self, x):
            return Product.apply(self.linear(x), self.linear.weight, keep)

    model, _ = chain(memory_folder, Multiplying)
    with pytest.raises(RuntimeError, match="Multiplying .block.blocks.0. keeps a view .*save_for_backward"):
        model(torch.randn(8, WIDE))


@pytest.mark.parametrize("keep", [lambda weight: weight, lambda weight: [weight], lambda weight: lambda: weight],
                         ids=["weight", "list", "closure"])
def test_a_weight_that_a_forward_keeps_cannot_be_used_later(memory_folder, keep):
    class Multiplying(Block):
        def forward(self, x):
            return Product.apply(self.linear(x), self.linear.weight, keep)

    model, _ = chain(memory_folder, Multiplying)
    with pytest.raises(RuntimeError, match="blocks.3.linear.weight is offloaded.*save_for_backward"):
        model(torch.randn(8, WIDE)).backward()


def test_tensors_of_a_block_that_the_program_keeps_cannot_be_used(memory_folder):
    class Keeping(Block):
        def forward(self, x):
            self.list = [self.linear.weight]
            if views:
                self.list.append(self.linear.weight[0])
            return super().forward(x)

    views = False
    model, _ = chain(memory_folder, Keeping)
    for graph in (True, False):
        with torch.set_grad_enabled(graph):
            model(torch.randn(8, WIDE))
            for use in (lambda weight: weight.sum(), lambda weight: torch.cat([weight]), lambda weight: weight.data):
                with pytest.raises(RuntimeError, match="blocks.2.linear.weight is offloaded"):
                    use(model.blocks[2].list[0])
            views = True
            with pytest.raises(RuntimeError, match="keeps a view of a weight or buffer of block.blocks.0"):
                model(torch.randn(8, WIDE))
            views = False


def test_weights_that_save_on_cpu_keeps_are_refused(memory_folder):
    class Saving(Block):
        def forward(self, x):
            with torch.autograd.graph.save_on_cpu():
                return super().forward(x)

    model, _ = chain(memory_folder, Saving)
    with pytest.raises(RuntimeError, match="keeps a view .*no save_on_cpu"):
        model(torch.randn(8, WIDE, requires_grad=True))


def test_a_weight_that_changes_before_the_backward_is_refused(memory_folder):
    class Doubled(Block):
        def forward(self, x, double=False):
            if double:
                with torch.no_grad():
                    self.linear.weight.mul_(2)
            return self.linear(x)

    model, _ = chain(memory_folder, Doubled)
    x = torch.randn(8, WIDE, requires_grad=True)
    loss = model(x)
    with torch.no_grad():
        model.blocks[3](x, double=True)
    with pytest.raises(RuntimeError, match=r"Doubled \(block.blocks.3\) .*a weight was changed after it"):
        loss.backward()


def test_weights_in_memory_that_a_step_has_changed_are_refused(memory_folder):
    model = Chain(Block)
    model.scale = torch.nn.Parameter(torch.ones(WIDE))   # stays in memory
    model = weightfs.offload.offload(model, memory_folder / "model", "4M")
    optimizer = weightfs.offload.Adam(model)
    losses = [model(torch.randn(8, WIDE) * model.scale), (model.scale ** 2).sum()]
    losses[0].backward()
    optimizer.step()
    written = model.offload_stats.bytes_written
    _training.Offloaded.commit(model._weightfs_offload)
    assert model.offload_stats.bytes_written == written   # the step counts as no change by the program
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        losses[1].backward()


def test_a_forward_without_a_backward_keeps_no_memory(memory_folder):
    model, optimizer = chain(memory_folder, Rectifying)
    calls = []
    for backward in (False, True):
        x = torch.randn(8, WIDE, requires_grad=True)
        loss = model(x * 1)
        calls += [weakref.ref(one) for one in gc.get_objects()
                  if type(one) is _recomputation._Call and one._store is model._weightfs_offload]
        if backward:
            loss.backward()
            optimizer.step()
    del loss
    assert len(calls) >= 8 and all(call() is None for call in calls)


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
