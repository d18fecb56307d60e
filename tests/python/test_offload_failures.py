# SPDX-License-Identifier: Apache-2.0
"""weightfs.offload with kills, full pools and damaged directories: a step is applied completely or not at all."""

import contextlib
import errno
import json
import multiprocessing
import os
import signal

import pytest
import torch

import weightfs.offload
from offload_models import MEMORY, backward, differing, generate, made, offloading, train, train_step   # noqa: F401

pytestmark = pytest.mark.usefixtures("offloading")
STEPS = 3


@pytest.fixture(scope="module")
def children():
    """Processes that start quickly, because torch is loaded already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["offload_models"])
    return context


def run(children, *arguments):
    """The exit code of train(*arguments) in a child."""
    child = children.Process(target=train, args=[str(one) for one in arguments[:1]] + list(arguments[1:]))
    child.start()
    child.join()
    return child.exitcode


def trained(steps):
    model = made()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for number in range(steps):
        train_step(model, optimizer, number)
    return model


# Of about 50 writes: within the first filling, at its commit, within the steps, and at their commits.
@pytest.mark.parametrize("deadly", [3, 7, 8, 13, 20, 28, 36, 44])
def test_a_killed_program_continues_with_the_numbers_of_one_that_was_not(memory_folder, children, deadly):
    assert run(children, memory_folder / "model", STEPS, deadly) == -signal.SIGKILL
    model = weightfs.offload.offload(made(), memory_folder / "model", MEMORY, resume=True)
    optimizer = weightfs.offload.Adam(model)
    assert differing(model, trained(optimizer.steps)) == []   # the last complete step, and nothing else
    while optimizer.steps < STEPS:
        train_step(model, optimizer, optimizer.steps)
    assert differing(model, trained(STEPS)) == []


def test_a_program_that_is_killed_again_and_again_ends_with_the_same_numbers(work, children):
    kills = 0
    while run(children, work / "model", STEPS, 24) == -signal.SIGKILL:   # a bit more than a step, each time
        kills += 1
        assert kills < 20
    model = weightfs.offload.offload(made(), work / "model", MEMORY, resume=True)
    assert kills >= 2 and differing(model, trained(STEPS)) == []


@pytest.mark.usefixtures("weightfs_only")
def test_a_full_pool_fails_the_offload_and_leaves_the_module(factory):
    mount = factory.mount(factory.store("24M"))
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)])
    expected = model(torch.ones(1, 1024))
    with pytest.raises(OSError) as caught:
        weightfs.offload.offload(model, mount.path / "model", "16M")
    assert caught.value.errno == errno.ENOSPC
    assert torch.equal(model(torch.ones(1, 1024)), expected)
    assert os.listdir(mount.path / "model") == ["lock"]


@pytest.mark.usefixtures("weightfs_only")
def test_a_step_that_finds_the_pool_full_is_not_applied(factory):
    mount = factory.mount(factory.store("64M"))
    model = weightfs.offload.offload(made(), mount.path / "model", MEMORY)
    optimizer = weightfs.offload.Adam(model)
    train_step(model, optimizer, 0)
    backward(model, optimizer, 1)
    filler = mount.path / "filler"
    with open(filler, "wb", buffering=0) as stream, pytest.raises(OSError, match="No space"):
        while True:
            stream.write(bytes(1 << 20))
            os.fsync(stream.fileno())
    with pytest.raises(OSError) as caught:
        optimizer.step()
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="not applied .*offload the module again with resume=True"):
        generate(model)
    filler.unlink()
    weightfs.offload.close(model)
    model = weightfs.offload.offload(made(), mount.path / "model", MEMORY, resume=True)
    optimizer = weightfs.offload.Adam(model)
    assert differing(model, trained(optimizer.steps)) == []
    train_step(model, optimizer, optimizer.steps)
    assert differing(model, trained(optimizer.steps)) == []


def offloaded(folder):
    weightfs.offload.close(weightfs.offload.offload(made(), folder / "model", MEMORY))
    return folder / "model"


def resume(directory, model=None):
    return weightfs.offload.offload(model or made(), directory, MEMORY, resume=True)


def test_a_missing_parent_is_an_error(folder):
    with pytest.raises(FileNotFoundError):
        weightfs.offload.offload(made(), folder / "missing" / "model", MEMORY)


def test_an_offloaded_module_is_not_overwritten(folder):
    directory = offloaded(folder)
    with pytest.raises(FileExistsError, match="continue it with resume=True, or delete"):
        weightfs.offload.offload(made(seed=1), directory, MEMORY)
    assert differing(resume(directory), made()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"groups": {}}'])
def test_a_damaged_state_is_named(memory_folder, content):
    directory = offloaded(memory_folder)
    (directory / "state.json").write_bytes(content)
    with pytest.raises(ValueError, match="state.json is damaged: restore it from a backup"):
        resume(directory)


def test_a_state_of_another_format_is_named(memory_folder):
    directory = offloaded(memory_folder)
    state = json.loads((directory / "state.json").read_text())
    (directory / "state.json").write_text(json.dumps(state | {"format": 2}))
    with pytest.raises(ValueError, match="has the format 2; this version of weightfs reads the format 1"):
        resume(directory)


def test_files_that_are_missing_or_short_are_named(folder):
    directory = offloaded(folder)
    path = directory / "block.layers.2.weights.0"
    os.truncate(path, 8192)
    with pytest.raises(ValueError, match=r"block.layers.2.weights.0 has 8192 bytes instead of \d+: it is damaged"):
        resume(directory)
    path.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        resume(directory)
    assert caught.value.filename == str(path)


def test_another_module_is_refused(memory_folder):
    directory = offloaded(memory_folder)
    with pytest.raises(ValueError, match="belongs to another module or other blocks: block.layers.4 has None"):
        resume(directory, made(layers=5))


def test_a_file_that_is_lost_while_the_module_is_used_fails_the_forward(memory_folder):
    directory = offloaded(memory_folder)
    model = weightfs.offload.offload(made().eval(), directory, "3M", resume=True)
    kept = directory / "block.layers.1.weights.0"
    kept.rename(memory_folder / "elsewhere")
    with pytest.raises(FileNotFoundError, match="layers.1.weights.0"):
        generate(model)
    (memory_folder / "elsewhere").rename(kept)
    assert generate(model) == generate(made().eval())   # a read that failed changes nothing


@pytest.mark.usefixtures("weightfs_only")
def test_a_mount_that_dies_fails_the_step_and_the_next_mount_continues(factory):
    mount = factory.mount(factory.store("128M"))
    model = weightfs.offload.offload(made(), mount.path / "model", MEMORY)
    optimizer = weightfs.offload.Adam(model)
    train_step(model, optimizer, 0)
    mount.kill()
    with pytest.raises(OSError):
        for number in range(1, 4):
            train_step(model, optimizer, number)
    steps = optimizer.steps
    with contextlib.suppress(OSError):
        weightfs.offload.close(model)
    mount.close()
    mount.mount()
    model = resume(mount.path / "model")
    assert weightfs.offload.Adam(model).steps == 1 <= steps
    assert differing(model, trained(1)) == []
