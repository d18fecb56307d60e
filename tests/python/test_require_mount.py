# SPDX-License-Identifier: Apache-2.0
"""direct="require" without a mount, and saves into published directories: each error says what is wrong and the next
step, and nothing is created."""

import errno
import os
import shlex

import pytest
import torch

import weightfs
import weightfs.safetensors
import weightfs.safetensors.numpy
import weightfs.torch
from checkpoint_run import same, state
from harness import needs, process
from harness.filesystems import weightfs as command
from harness.namespaces import unmount
from weightfs import checkpoint

pytestmark = pytest.mark.usefixtures("weightfs_only")
STATE = {"large": torch.arange(3 << 18, dtype=torch.float32), "small": torch.ones(3)}


def same_state(loaded):
    return loaded.keys() == STATE.keys() and all(torch.equal(loaded[name], STATE[name]) for name in STATE)


def failure(call, *arguments, **options):
    with pytest.raises(OSError) as caught:
        call(*arguments, **options)
    return caught.value


SAVES = {
    "torch.save": lambda path, **how: weightfs.torch.save(STATE, path, **how),
    "torch.save in place": lambda path, **how: weightfs.torch.save(STATE, path, atomic=False, **how),
    "safetensors": lambda path, **how: weightfs.safetensors.save_file(STATE, path, **how),
    "safetensors.numpy": lambda path, **how: weightfs.safetensors.numpy.save_file(
        {name: tensor.numpy() for name, tensor in STATE.items()}, path, **how),
    "safetensors of a model": lambda path, **how: weightfs.safetensors.save_model(torch.nn.Linear(3, 3), path, **how),
    "manager": lambda path, **how: checkpoint.Manager(path, **how),
}
LOADS = {
    "torch.load": weightfs.torch.load,
    "torch.load, mapped": lambda path, **how: weightfs.torch.load(path, mmap=True, **how),
    "safetensors": weightfs.safetensors.load_file,
    "safetensors.numpy": weightfs.safetensors.numpy.load_file,
    "safetensors of a model": lambda path, **how: weightfs.safetensors.load_model(torch.nn.Linear(3, 3), path, **how),
}


@pytest.mark.parametrize("below", ["file", "missing/file"])
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
def test_nothing_is_saved_beside_a_missing_mount(local, save, below):
    kind, point = process.run(["findmnt", "-n", "-o", "FSTYPE,TARGET", "-T", local]).out.split()
    with weightfs.aio_handle(direct="require") as handle:
        for how in ({"direct": "require"}, {"handle": handle}):
            error = failure(save, local / below, **how)
            assert error.errno == errno.ENOTTY and error.filename == str(local / below)
            assert f"but on {kind} (" in error.strerror and f"mounted on {point})" in error.strerror
            assert "weightfs mount STORE" in error.strerror
    assert os.listdir(local) == []


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_nothing_is_loaded_beside_a_missing_mount(local, load):
    assert "on no weightfs mount" in failure(load, local / "missing", direct="require").strerror
    (local / "file").write_bytes(b"of another time")
    assert "on no weightfs mount" in failure(load, local / "file", direct="require").strerror


@pytest.mark.parametrize("atomic", [True, False])
def test_a_mount_is_required_and_found(work, local, atomic):
    for path in (work / "file", local / "link", work.parent / work.name / "." / "file"):
        if path.name == "link":
            path.symlink_to(work / "file")
        weightfs.torch.save(STATE, path, direct="require", atomic=atomic, durable=True)
        assert same_state(weightfs.torch.load(path, direct="require"))
        weightfs.safetensors.save_file(STATE, path, direct="require", atomic=atomic)
        assert same_state(weightfs.safetensors.load_file(path, direct="require"))
    weightfs.torch.save({"tiny": torch.ones(1)}, work / "tiny", direct="require", atomic=atomic)
    assert weightfs.torch.load(work / "tiny", direct="require") == {"tiny": torch.ones(1)}


def test_a_manager_on_a_mount(work):
    with checkpoint.Manager(work / "run", direct="require") as manager:
        for saved in (state(1), {"tiny": torch.ones(1)}):
            manager.save(1, saved, wait=True)
            assert same(manager.load(), saved)


def test_direct_belongs_to_the_handle_of_the_caller(local, handle):
    for save in SAVES.values():
        with pytest.raises(TypeError, match="give direct= to the handle"):
            save(local / "file", direct="require", handle=handle)
        with pytest.raises(ValueError, match="'auto', 'never' or 'require'"):
            save(local / "file", direct="maybe")
        assert os.listdir(local) == []


def test_a_mount_that_ends_between_two_saves(factory):
    mount = factory.mount(factory.store("128M"))
    with checkpoint.Manager(mount.path / "run", direct="require") as manager:
        manager.save(1, STATE, wait=True)
        mount.umount()
        error = failure(manager.save, 2, STATE)
        assert "on no weightfs mount" in error.strerror and error.filename == str(mount.path / "run")
        assert os.listdir(mount.path) == []
        mount.mount()
        manager.save(2, STATE, wait=True)
        assert manager.steps() == [1, 2]


def test_a_mount_that_ends_while_a_state_is_copied(factory, monkeypatch):
    """After the check of save(), and before the thread that writes begins."""
    mount = factory.mount(factory.store("128M"))
    with checkpoint.Manager(mount.path / "run", direct="require") as manager:
        take = manager._snapshot.take

        def unmount(content):
            take(content)
            mount.umount()

        monkeypatch.setattr(manager._snapshot, "take", unmount)
        assert "on no weightfs mount" in manager.save(1, STATE).exception().strerror
        assert os.listdir(mount.path) == []


def test_the_name_of_a_mount_point_may_have_spaces(factory):
    parent = factory.directory("with a space")
    path = parent / "a point"
    path.mkdir()
    mount = factory.mount(factory.store("128M"), path=path)
    weightfs.torch.save(STATE, path / "file", direct="require")
    mount.umount()
    assert f"{path}/file" == failure(weightfs.torch.save, STATE, path / "file", direct="require").filename


@needs.root
def test_a_filesystem_is_named_with_its_mount_point(local):
    point = local / "in memory"
    point.mkdir()
    process.run(["mount", "-t", "tmpfs", "of a test", point])
    try:
        text = failure(weightfs.torch.save, STATE, point / "file", direct="require").strerror
        assert f"on tmpfs (of a test, mounted on {point})" in text
        assert os.listdir(point) == []
    finally:
        unmount(point)


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
def test_a_save_into_a_published_directory_names_the_command(work, save):
    folder = work / "a step's"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/old").write_bytes(b"old")
    weightfs.publish(folder, 7)
    try:
        for path in (folder / "new", folder / "deep/new", folder / "deep/old"):
            if path.name == "old" and save is SAVES["manager"]:
                continue
            error = failure(save, path)
            assert error.errno == errno.EPERM and error.filename == str(path)
            assert "is published (version 7)" in error.strerror
            assert shlex.split(error.strerror.rpartition(": ")[2]) == ["weightfs", "publish", "--undo", str(folder)]
        command(*shlex.split(error.strerror.rpartition(": ")[2])[1:])
        save(folder / "new")
    finally:
        if weightfs.publication(folder):
            weightfs.unpublish(folder)


def test_a_step_that_is_published_names_the_command(work):
    with checkpoint.Manager(work / "run") as manager:
        step = manager.save(1, STATE, wait=True).result()
        weightfs.publish(step, 1)
        error = failure(manager.save, 1, STATE, wait=True)
        assert error.errno == errno.EPERM and f"weightfs publish --undo {step}" in error.strerror
        assert manager.steps() == [1] and os.listdir(work / "run") == ["step-00000001"]
        weightfs.unpublish(step)
        manager.save(1, STATE, wait=True)
