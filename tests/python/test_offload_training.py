# SPDX-License-Identifier: Apache-2.0
"""weightfs.offload.Adam and AdamW give the numbers of torch, to the last bit."""

import pytest
import torch

import weightfs.offload
from offload_models import MEMORY, TOKENS, WORDS, differing, made, offloading, train_step   # noqa: F401

pytestmark = pytest.mark.usefixtures("offloading")
KINDS = {"Adam": (torch.optim.Adam, weightfs.offload.Adam), "AdamW": (torch.optim.AdamW, weightfs.offload.AdamW)}


def pair(directory, kind="Adam", memory=MEMORY, model=made, **options):
    """(plain model, its optimizer), (offloaded model, its optimizer)"""
    theirs, ours = KINDS[kind]
    plain, offloaded = model(), weightfs.offload.offload(model(), directory / "model", memory)
    return ((plain, theirs(plain.parameters(), foreach=False, **options)),
            (offloaded, ours(offloaded, **options)))


@pytest.mark.parametrize("kind", list(KINDS))
def test_training_equals_training_in_memory(folder, kind):
    (plain, theirs), (model, ours) = pair(folder, kind, lr=2e-3, betas=(0.8, 0.99), eps=1e-7, weight_decay=0.1)
    for number in range(4):
        assert train_step(plain, theirs, number) == train_step(model, ours, number)
    assert differing(model, plain) == []
    assert len(differing(model, made())) == len(plain.state_dict()) and ours.steps == 4
    assert model.offload_stats.peak_bytes <= 9 << 20


def test_gradients_of_several_backward_passes_add_up(memory_folder):
    # Of tied weights, torch adds up the gradients of each backward pass first: that is another order.
    (plain, theirs), (model, ours) = pair(memory_folder, model=lambda: made(tied=False))
    for number in range(3):
        assert train_step(plain, theirs, number, batches=3) == train_step(model, ours, number, batches=3)
    assert differing(model, plain) == []


def test_zero_grad_discards_gradients(memory_folder):
    (plain, theirs), (model, ours) = pair(memory_folder, memory="64M")
    model(torch.ones(1, TOKENS, dtype=torch.int64)).sum().backward()
    assert train_step(plain, theirs, 0) == train_step(model, ours, 0)
    assert differing(model, plain) == []


def test_schedulers_and_parameter_groups_work(memory_folder):
    (plain, theirs), (model, ours) = pair(memory_folder)
    weightfs.offload.close(model)

    def groups(model):
        decayed = [one for one in model.parameters() if one.dim() > 1]
        return [{"params": decayed, "weight_decay": 0.2},
                {"params": [one for one in model.parameters() if one.dim() < 2], "lr": 1e-4}]

    model = weightfs.offload.offload(made(), memory_folder / "model", MEMORY, resume=True)
    theirs, ours = torch.optim.AdamW(groups(plain), foreach=False), weightfs.offload.AdamW(model, groups(model))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (theirs, ours)]
    for number in range(3):
        assert train_step(plain, theirs, number) == train_step(model, ours, number)
        for schedule in schedules:
            schedule.step()
    assert differing(model, plain) == []
    assert ours.param_groups[1]["lr"] == theirs.param_groups[1]["lr"] == 1e-4 / 8
    saved = ours.state_dict()
    ours.param_groups[0]["lr"] = 5
    ours.load_state_dict(saved)
    assert ours.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]


def test_frozen_and_unused_parameters_stay(memory_folder):
    def model():
        made_now = made()
        for parameter in made_now.layers[1].parameters():
            parameter.requires_grad_(False)
        made_now.layers[2].linear1.bias.requires_grad_(False)
        made_now.unused = torch.nn.Linear(600, 600)
        return made_now

    (plain, theirs), (ours_model, ours) = pair(memory_folder, model=model)
    before = {name: tensor for name, tensor in weightfs.offload.tensors(ours_model)}
    for number in range(3):
        assert train_step(plain, theirs, number) == train_step(ours_model, ours, number)
    assert differing(ours_model, plain) == []
    after = dict(weightfs.offload.tensors(ours_model))
    assert torch.equal(before["layers.1.linear1.weight"], after["layers.1.linear1.weight"])
    assert not torch.equal(before["layers.0.linear1.weight"], after["layers.0.linear1.weight"])


def test_weights_of_16_bits_have_weights_of_32_bits_in_the_store(memory_folder):
    master = made(dropout=0)
    model = weightfs.offload.offload(made(dropout=0).bfloat16(), memory_folder / "model", "16M")
    working = made(dropout=0).bfloat16()
    with torch.no_grad():
        for parameter, half in zip(master.parameters(), working.parameters()):
            parameter.copy_(half)
    theirs, ours = torch.optim.AdamW(master.parameters(), foreach=False), weightfs.offload.AdamW(model)
    for number in range(4):
        torch.manual_seed(number)
        tokens = torch.randint(0, WORDS, (2, TOKENS))
        losses = []
        for one in (working, model):
            loss = torch.nn.functional.cross_entropy(one(tokens).float().flatten(0, 1), tokens.flatten())
            loss.backward()
            losses.append(loss.item())
        assert losses[0] == losses[1]
        with torch.no_grad():
            for parameter, half in zip(master.parameters(), working.parameters()):
                parameter.grad, half.grad = half.grad.float(), None
            theirs.step()
            for parameter, half in zip(master.parameters(), working.parameters()):
                half.copy_(parameter)
        ours.step()
    assert differing(model, working) == []


def test_autocast_gives_the_same_numbers(memory_folder):
    (plain, theirs), (model, ours) = pair(memory_folder)
    for number in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            assert train_step(plain, theirs, number) == train_step(model, ours, number)
    assert differing(model, plain) == []


def test_batch_norm_is_trained_as_in_memory(memory_folder):
    def model():
        torch.manual_seed(3)
        return torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300),
                                                         torch.nn.ReLU()) for _ in range(4)])

    (plain, theirs), (offloaded, ours) = pair(memory_folder, memory="2M", model=model)
    for number in range(3):
        for one, optimizer in ((plain, theirs), (offloaded, ours)):
            torch.manual_seed(number)
            one(torch.randn(8, 300)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert differing(offloaded, plain) == []


def test_training_continues_in_a_new_module(folder):
    (plain, theirs), (model, ours) = pair(folder)
    for number in range(2):
        assert train_step(plain, theirs, number) == train_step(model, ours, number)
    weightfs.offload.close(model)
    model = weightfs.offload.offload(made(seed=77), folder / "model", MEMORY, resume=True)
    ours = weightfs.offload.Adam(model)
    assert ours.steps == 2
    for number in range(2, 4):
        assert train_step(plain, theirs, number) == train_step(model, ours, number)
    assert differing(model, plain) == []


def test_reading_a_trained_model_keeps_its_optimizer(memory_folder):
    (plain, theirs), (model, ours) = pair(memory_folder)
    train_step(plain, theirs, 0)
    train_step(model, ours, 0)
    weightfs.offload.restore(model)
    model = weightfs.offload.offload(made(), memory_folder / "model", "8M", resume=True)
    with torch.no_grad():
        model(torch.ones(1, TOKENS, dtype=torch.int64))
    weightfs.offload.close(model)
    model = weightfs.offload.offload(made(), memory_folder / "model", MEMORY, resume=True)
    ours = weightfs.offload.Adam(model)
    assert train_step(plain, theirs, 1) == train_step(model, ours, 1)
    assert differing(model, plain) == []


def test_an_optimizer_of_another_kind_is_refused(memory_folder):
    model = weightfs.offload.offload(made(), memory_folder / "model", MEMORY)
    train_step(model, weightfs.offload.Adam(model), 0)
    with pytest.raises(ValueError, match="has an optimizer already"):
        weightfs.offload.Adam(model)
    weightfs.offload.close(model)
    model = weightfs.offload.offload(made(), memory_folder / "model", MEMORY, resume=True)
    with pytest.raises(ValueError, match="was trained with Adam, not with AdamW"):
        weightfs.offload.AdamW(model)
    with pytest.raises(ValueError, match="no parameter of the offloaded module"):
        weightfs.offload.Adam(model, [torch.ones(1)])
    with pytest.raises(ValueError, match="betas from 0 to less than 1"):
        weightfs.offload.Adam(model, betas=(0.9, 1))


def test_a_buffer_without_spare_room_is_not_divided(memory_folder):
    def model():
        torch.manual_seed(5)
        made_now = made(layers=2, tied=False)
        made_now.extra = torch.nn.Parameter(torch.zeros(150_000))   # stays in memory
        return made_now

    needed = weightfs.offload.offload(model(), memory_folder / "other", "64M")
    weightfs.offload.Adam(needed)
    groups = needed._weightfs_offload.groups
    least = groups[0].layout.nbytes + max(
        group.layout.nbytes + group.training.state_layout.nbytes + group.training.gradient_layout.nbytes
        for group in groups[1:])
    (plain, theirs), (offloaded, ours) = pair(memory_folder, memory=least, model=model)
    for number in range(3):
        assert train_step(plain, theirs, number) == train_step(offloaded, ours, number)
    assert differing(offloaded, plain) == [] and offloaded.offload_stats.peak_bytes == least
