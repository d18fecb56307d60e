# SPDX-License-Identifier: Apache-2.0
"""The optimizers of weightfs.offload: other trainable parameters, clipping, settings, and the memory that they need."""

import itertools
import json
import random
import threading

import pytest
import torch

import weightfs.offload
from offload_models import MEMORY, TOKENS, differing, made, offloading, train_step   # noqa: F401
from weightfs.offload._store import Cache

pytestmark = pytest.mark.usefixtures("offloading")
EVERY_TOKEN = torch.ones(1, TOKENS, dtype=torch.int64)


class Adapted(torch.nn.Module):
    """A frozen weight with two adapters, and a parameter without a gradient."""

    def __init__(self):
        super().__init__()
        self.base = torch.nn.Linear(300, 300)
        self.a, self.b = (torch.nn.Linear(300, 300, bias=False) for _ in range(2))
        self.unused = torch.nn.Parameter(torch.ones(5000))

    def forward(self, x):
        return self.base(x) + self.a(x) + self.b(x)


def adapted(trainable, dtype=torch.float32):
    torch.manual_seed(3)
    model = torch.nn.Sequential(*[Adapted() for _ in range(3)]).to(dtype)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.split(".")[1] in trainable)
    return model


def resumed(folder, trainable, dtype=torch.float32):
    model = weightfs.offload.offload(adapted(trainable, dtype), folder / "model", "8M", resume=True)
    return model, weightfs.offload.Adam(model, lr=1e-2)


def step(model, optimizer, number, dtype=torch.float32):
    torch.manual_seed(number)
    optimizer.zero_grad()
    model(torch.randn(4, 300, dtype=dtype)).square().mean().backward()
    optimizer.step()


def forget_names(directory):
    """Makes state.json that of an earlier version."""
    state = json.loads((directory / "state.json").read_text())
    del state["optimizer"]["states"]
    (directory / "state.json").write_text(json.dumps(state))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("earlier_version", [False, True])
def test_parameters_that_were_not_trained_before_start_with_new_states(memory_folder, dtype, earlier_version):
    model, optimizer = resumed(memory_folder, "a", dtype)
    step(model, optimizer, 0, dtype)
    weightfs.offload.close(model)
    if earlier_version:
        forget_names(memory_folder / "model")
    model, optimizer = resumed(memory_folder, "b", dtype)
    before = dict(weightfs.offload.tensors(model))
    optimizer.param_groups[0]["lr"] = 0
    step(model, optimizer, 1, dtype)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weightfs.offload.tensors(model))
    assert optimizer.steps == 2 and set(optimizer._counts) == {f"{number}.b.weight" for number in range(3)}


@pytest.mark.parametrize("earlier_version", [False, True])
@pytest.mark.parametrize("first, second", [("a", "ab"), ("ab", "b"), ("ab", "base"), ("a", "a")])
def test_the_states_of_parameters_that_were_trained_before_continue(folder, first, second, earlier_version):
    first, second = [part if part == "base" else tuple(part) for part in (first, second)]
    plain, (model, ours) = adapted(first), resumed(folder, first)

    def parameters(kept):
        return [one for name, one in plain.named_parameters() if name.split(".")[1] in kept]

    theirs = torch.optim.Adam(parameters(first), lr=1e-2, foreach=False)
    for number in range(2):
        step(plain, theirs, number)
        step(model, ours, number)
    weightfs.offload.close(model)
    if earlier_version:
        forget_names(folder / "model")
    states = theirs.state
    plain.requires_grad_(False)
    theirs = torch.optim.Adam(parameters(second), lr=1e-2, foreach=False)
    theirs.state.update({one: states[one] for one in parameters(second) if one in states})
    for one in parameters(second):
        one.requires_grad_(True)
    model, ours = resumed(folder, second)
    for number in range(2, 4):
        step(plain, theirs, number)
        step(model, ours, number)
    assert differing(model, plain) == []
    weightfs.offload.close(model)
    model, ours = resumed(folder, second)
    step(plain, theirs, 4)
    step(model, ours, 4)
    assert differing(model, plain) == [] and ours.steps == 5


def test_states_that_are_converted_are_committed_by_the_step(memory_folder):
    model, optimizer = resumed(memory_folder, "a")
    step(model, optimizer, 0)
    weightfs.offload.close(model)
    state = (memory_folder / "model" / "state.json").read_text()
    files = {one: (memory_folder / "model" / f"{one}.{generation}").read_bytes()
             for one, generation in json.loads(state)["generations"].items()}
    model, optimizer = resumed(memory_folder, "b")
    weightfs.offload.close(model)   # without a step
    model, optimizer = resumed(memory_folder, "b")   # killed here
    assert optimizer.steps == 1 and not optimizer._counts
    assert (memory_folder / "model" / "state.json").read_text() == state
    for one, generation in json.loads(state)["generations"].items():
        assert (memory_folder / "model" / f"{one}.{generation}").read_bytes() == files[one]
    weightfs.offload.close(model)


def test_an_earlier_version_that_does_not_say_whose_states_it_has_is_refused(memory_folder):
    model, optimizer = resumed(memory_folder, ("a", "unused"))   # `unused` has no count
    step(model, optimizer, 0)
    weightfs.offload.close(model)
    forget_names(memory_folder / "model")
    model = weightfs.offload.offload(adapted("b"), memory_folder / "model", "8M", resume=True)
    with pytest.raises(ValueError, match="does not say which parameters the states of block.0 belong to: make the same "
                                         "ones trainable as in that run"):
        weightfs.offload.Adam(model)
    weightfs.offload.close(model)
    model, optimizer = resumed(memory_folder, ("a", "unused"))
    assert optimizer.steps == 1


class Halving(torch.nn.Linear):
    def forward(self, x, halve=False):
        if halve:
            with torch.no_grad():
                self.weight.mul_(0.5)
        return super().forward(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_changes_by_the_program_survive_the_next_step(memory_folder, dtype):
    model = torch.nn.Sequential(*[Halving(300, 300) for _ in range(3)]).to(dtype)
    model.scale = torch.nn.Parameter(torch.ones(300, dtype=dtype))   # stays in memory
    model = weightfs.offload.offload(model, memory_folder / "model", "8M")
    optimizer = weightfs.offload.Adam(model)
    x = torch.randn(4, 300, dtype=dtype)

    def train():
        optimizer.zero_grad()
        (model(x) * model.scale).square().mean().backward()
        optimizer.step()

    train()
    before = dict(weightfs.offload.tensors(model))
    with torch.no_grad():
        model[1](x, halve=True)
        model.scale[7] = 0.25
    optimizer.param_groups[0]["lr"] = 0
    train()
    after = dict(weightfs.offload.tensors(model))
    assert torch.equal(after["1.weight"], before["1.weight"] * 0.5) and after["scale"][7] == 0.25
    assert torch.equal(after["0.weight"], before["0.weight"]) and torch.equal(after["scale"][:7], before["scale"][:7])


@pytest.mark.parametrize("kind", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("batches", [1, 3])
def test_clipping_by_torch_gives_the_same_numbers(memory_folder, kind, batches):
    plain = made(tied=batches == 1)
    model = weightfs.offload.offload(made(tied=batches == 1), memory_folder / "model", MEMORY)
    theirs, ours = torch.optim.Adam(plain.parameters(), foreach=False), weightfs.offload.Adam(model)
    for number in range(3):
        norms = []
        for one, optimizer in ((plain, theirs), (model, ours)):
            torch.manual_seed(number)
            one.zero_grad()
            for _ in range(batches):
                tokens = torch.randint(0, 2500, (2, TOKENS))
                torch.nn.functional.cross_entropy(one(tokens).flatten(0, 1), tokens.flatten()).backward()
                norms.append(torch.nn.utils.clip_grad_norm_(one.parameters(), 0.1, kind))   # within a sum, too
            optimizer.step()
        assert norms[:batches] == norms[batches:] and norms[0] > 0.1
        assert torch.nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None]) == 0
    assert differing(model, plain) == []


def test_gradients_are_read_for_the_first_clipping_alone(memory_folder, monkeypatch):
    model = weightfs.offload.offload(made(), memory_folder / "model", MEMORY)
    optimizer, acquire, acquired = weightfs.offload.Adam(model), Cache.acquired, []

    def noted(cache, entries, **options):
        acquired.extend(entries)
        return acquire(cache, entries, **options)

    for expected in (True, False):
        model(EVERY_TOKEN).square().mean().backward()
        with monkeypatch.context() as patch:
            patch.setattr(Cache, "acquired", noted)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert bool(acquired) == expected
        acquired.clear()
        optimizer.step()


def test_other_uses_of_gradients_in_the_store_are_refused(memory_folder):
    model = weightfs.offload.offload(made(), memory_folder / "model", MEMORY)
    optimizer = weightfs.offload.Adam(model)
    weight = model.layers[0].linear1.weight
    assert weight.grad is None
    model(EVERY_TOKEN).square().mean().backward()
    assert weight.grad.shape == weight.shape and "layers.0.linear1.weight" in repr(weight.grad)
    for use in (lambda: torch.nn.utils.clip_grad_value_(model.parameters(), 1), lambda: weight.grad + 1,
                lambda: weight.grad.data, lambda: model.zero_grad(set_to_none=False)):
        with pytest.raises(RuntimeError, match="clip_grad_norm_.. works"):
            use()
    with pytest.raises(RuntimeError, match="its gradient can be deleted, but not set"):
        weight.grad = torch.zeros(512, 128)
    model.zero_grad()
    assert weight.grad is None and all(one.grad is None for one in model.parameters())
    optimizer.step()
    assert differing(model, made()) == []


def test_settings_that_are_not_supported_are_refused(memory_folder):
    model = weightfs.offload.offload(made(), memory_folder / "model", MEMORY)
    with pytest.raises(ValueError, match="AdamW does not support amsgrad=True"):
        weightfs.offload.AdamW(model, [{"params": model.parameters(), "amsgrad": True}])
    optimizer = weightfs.offload.AdamW(model)
    plain = made()
    theirs = torch.optim.AdamW(plain.parameters(), foreach=False)
    train_step(plain, theirs, 0)
    with pytest.raises(ValueError, match="the state_dict has states of 52 parameters: an offloaded module has them"):
        optimizer.load_state_dict(theirs.state_dict())
    model(EVERY_TOKEN).square().mean().backward()
    for name in ("amsgrad", "differentiable"):
        optimizer.param_groups[0][name] = True
        with pytest.raises(ValueError, match=f"does not support {name}=True: delete it from the group"):
            optimizer.step()
        del optimizer.param_groups[0][name]
    with pytest.raises(ValueError, match="set_to_none=False. is not supported"):
        optimizer.zero_grad(set_to_none=False)
    optimizer.param_groups[0]["decoupled_weight_decay"] = False
    with pytest.raises(ValueError, match="does not support decoupled_weight_decay=False"):
        optimizer.step()
    optimizer.param_groups[0]["decoupled_weight_decay"] = True
    optimizer.step()
    assert optimizer.steps == 1


def test_maximize_is_that_of_torch(memory_folder):
    plain, model = made(), weightfs.offload.offload(made(), memory_folder / "model", MEMORY)
    theirs = torch.optim.Adam(plain.parameters(), foreach=False, maximize=True)
    ours = weightfs.offload.Adam(model, maximize=True)
    for number in range(2):
        assert train_step(plain, theirs, number) == train_step(model, ours, number)
    assert differing(model, plain) == []


def test_tensors_in_place_of_the_offloaded_ones_are_refused(memory_folder):
    model = weightfs.offload.offload(made().eval(), memory_folder / "model", MEMORY)
    others = {name: torch.zeros_like(value) for name, value in made().named_parameters()}
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="words.weight is offloaded, and its block has another tensor"):
            torch.func.functional_call(model, others, EVERY_TOKEN)
        assert torch.equal(model(EVERY_TOKEN), made().eval()(EVERY_TOKEN))


def test_a_second_thread_in_the_module_is_refused(memory_folder):
    caught = []

    class Calling(torch.nn.Linear):
        def forward(self, x):
            for use in uses:
                thread = threading.Thread(target=attempt, args=(use,))
                thread.start()
                thread.join()
            return super().forward(x)

    def attempt(use):
        try:
            use()
        except RuntimeError as error:
            caught.append("another thread uses the offloaded module" in str(error))

    uses, x = [], torch.ones(1, 300)
    model = torch.nn.Sequential(Calling(300, 300), torch.nn.Linear(300, 300))
    model = weightfs.offload.offload(model, memory_folder / "model", "4M")
    optimizer = weightfs.offload.Adam(model)
    uses += [lambda: model[1](x), optimizer.step, optimizer.zero_grad, lambda: list(weightfs.offload.tensors(model)),
             lambda: weightfs.offload.close(model)]
    with torch.no_grad():
        model(x)
    assert caught == [True] * len(uses)
    attempt(lambda: model[1](x))
    uses.clear()
    model(x).sum().backward()
    optimizer.step()


def test_a_step_that_was_not_committed_is_not_counted(memory_folder, monkeypatch):
    model = weightfs.offload.offload(made(), memory_folder / "model", MEMORY)
    optimizer = weightfs.offload.Adam(model)
    train_step(model, optimizer, 0)

    def failing(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Cache, "flush", failing)
    with pytest.raises(OSError):
        train_step(model, optimizer, 1)
    assert optimizer.steps == 1
    weightfs.offload.close(model)   # ends the writes


class Tied(torch.nn.Module):
    """A block that uses one large weight of its own and some that other blocks use, too."""

    def __init__(self, width, shared):
        super().__init__()
        self.own = torch.nn.Linear(width, width)
        for number, weight in enumerate(shared):
            self.register_parameter(f"shared{number}", weight)

    def forward(self, x):
        x = self.own(x)
        for number in range(3):
            weight = getattr(self, f"shared{number}")
            x = x + (x[:, :weight.shape[0]] @ weight).mean(1, keepdim=True)
        return x


def tied_model(seed):
    draw, width = random.Random(seed), 600
    torch.manual_seed(seed)
    shared = [torch.nn.Parameter(torch.randn(draw.randrange(530, 600), 600) * 0.01) for _ in range(3)]
    return torch.nn.Sequential(*[Tied(width, shared) for _ in range(4)])


@pytest.mark.parametrize("seed", range(8))
def test_an_accepted_memory_suffices_for_the_training(memory_folder, seed):
    page = 1 << 12
    low, high = 1 << 20, 64 << 20
    while high - low > page:   # the least memory that is accepted
        memory = (low + high) // 2 // page * page
        directory = memory_folder / f"{memory}"
        try:
            model = weightfs.offload.offload(tied_model(seed), directory, memory)
            weightfs.offload.Adam(model)
            high = memory
            weightfs.offload.close(model)
        except MemoryError:
            low = memory
    draw = random.Random(seed)
    for extra in (0, draw.randrange(1 << 20)):
        plain = tied_model(seed)
        model = weightfs.offload.offload(tied_model(seed), memory_folder / f"used {extra}", high + extra)
        theirs, ours = torch.optim.Adam(plain.parameters(), foreach=False), weightfs.offload.Adam(model)
        for number in range(3):
            for one, optimizer in ((plain, theirs), (model, ours)):
                torch.manual_seed(number)
                optimizer.zero_grad()
                one(torch.randn(4, 600)).square().mean().backward()
                optimizer.step()
        assert differing(model, plain) == []
        weightfs.offload.close(model)


def test_a_module_within_a_block_is_counted(memory_folder):
    class Calling(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.own, self.inner = torch.nn.Linear(600, 600), inner

        def forward(self, x):
            return self.inner(self.own(x))

    def model():
        torch.manual_seed(1)
        inner = torch.nn.Linear(600, 600)
        made_now = torch.nn.Module()
        made_now.inner = inner
        made_now.blocks = torch.nn.ModuleList([Calling(inner) for _ in range(2)])
        made_now.forward = lambda x: made_now.blocks[1](made_now.blocks[0](x))
        return made_now

    for memory in itertools.count(1 << 20, 1 << 18):   # the least memory that is accepted
        try:
            ours = weightfs.offload.offload(model(), memory_folder / f"{memory}", memory)
            break
        except MemoryError:
            pass
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(4, 600)
            assert torch.equal(ours.forward(x), model().forward(x))
