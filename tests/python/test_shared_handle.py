# SPDX-License-Identifier: Apache-2.0
"""Calls without a handle use one of the process."""

import os
import threading

import pytest
import torch

import weightfs
import weightfs.offload
import weightfs.safetensors
import weightfs.torch
from harness import needs
from harness.filesystems import weightfs as command
from harness.users import NOBODY
from tensors import content, random_tensor
from weightfs import checkpoint

TENSOR = random_tensor(2 << 20)


@pytest.fixture
def opened(monkeypatch):
    """The handles that are opened; there is none at the beginning."""
    handles, original = [], weightfs.Handle._open

    def opens(handle, direct):
        handles.append(handle)
        return original(handle, direct)

    monkeypatch.setattr(weightfs._core.handle, "_of_process", {})
    monkeypatch.setattr(weightfs.Handle, "_open", opens)
    return handles


def save_and_load(path):
    weightfs.torch.save(TENSOR, path)
    # Not torch.equal, whose threads (OpenMP) a forked child does not have.
    assert content(weightfs.torch.load(path)) == content(TENSOR)


def in_a_child(work):
    """Calls work() in a forked child, which must return."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def test_all_calls_use_one_handle(folder, opened):
    for i in range(3):
        save_and_load(folder / f"{i}.pt")
        weightfs.safetensors.save_file({"a": TENSOR}, folder / f"{i}.safetensors")
        assert torch.equal(weightfs.safetensors.load_file(folder / f"{i}.safetensors")["a"], TENSOR)
    assert len(opened) == 1
    with weightfs.aio_handle() as handle:
        weightfs.torch.load(folder / "0.pt", handle=handle)
    save_and_load(folder / "again")
    assert len(opened) == 2


def test_the_files_of_a_distributed_checkpoint_use_it(local, opened):
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from weightfs.dcp import StorageReader, StorageWriter
    state = {"a": TENSOR.clone(), "b": torch.ones(3)}
    for i in range(2):
        dcp.save(state, storage_writer=StorageWriter(local / f"{i}"), no_dist=True)
        dcp.load(state, storage_reader=StorageReader(local / f"{i}"), no_dist=True)
    assert len(opened) == 1


def test_an_offloaded_module_and_a_manager_use_it(local, opened):
    with checkpoint.Manager(local / "run") as manager:
        manager.save(1, {"a": TENSOR}, wait=True)
        assert torch.equal(manager.load()["a"], TENSOR)
    model = weightfs.offload.offload(torch.nn.Linear(600, 600), local / "model", "4M")
    weightfs.offload.restore(model)
    save_and_load(local / "file")   # by the same handle, which is still open
    assert len(opened) == 1


def test_many_threads_open_one_handle(folder, opened):
    barrier, failures = threading.Barrier(8), []

    def work(i):
        barrier.wait()
        try:
            for _ in range(3):
                save_and_load(folder / f"{i}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(opened) == 1


def test_a_forked_child_opens_its_own(folder, opened):
    save_and_load(folder / "parent")
    stop, begun = threading.Event(), threading.Event()

    def save():
        while not stop.is_set():
            save_and_load(folder / "parent")
            begun.set()

    thread = threading.Thread(target=save)   # whose locks and operations the child inherits
    thread.start()
    assert begun.wait(60)

    def work():
        for i in range(2):
            save_and_load(folder / f"child{i}")
        assert len(opened) == 2
        in_a_child(lambda: save_and_load(folder / "grandchild"))

    try:
        for _ in range(5):
            in_a_child(work)
    finally:
        stop.set()
        thread.join()
    assert len(opened) == 1


def test_a_handle_that_was_closed_is_replaced(folder, opened):
    save_and_load(folder / "file")
    opened[0].close()
    save_and_load(folder / "file")
    assert len(opened) == 2


def test_the_interpreter_closes_it_and_each_call_of_later_exit_functions_has_its_own(child):
    assert child("""
import atexit
def last():
    of_process = weightfs._core.handle._of_process
    assert all(handle._opened.closed() for handle in of_process.values()) and of_process
    weightfs.torch.save(tensor, "last.pt")
    print(torch.equal(weightfs.torch.load("last.pt"), tensor))
    weightfs.safetensors.save_file({"a": tensor}, "last.safetensors")
    print(torch.equal(weightfs.safetensors.load_file("last.safetensors")["a"], tensor))
    print(any("weightfs-io" in open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")))
atexit.register(last)
import os, torch, weightfs, weightfs.safetensors, weightfs.torch
tensor = torch.ones(1 << 20)
weightfs.torch.save(tensor, "file.pt")
""") == "True\nTrue\nFalse\n"


@needs.root
def test_a_process_that_changes_its_user_opens_another(local, opened):
    os.chmod(local, 0o777)
    save_and_load(local / "root")

    def work_as_nobody():
        save_and_load(local / "child of root")
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        save_and_load(local / "nobody")
        assert (local / "nobody").stat().st_uid == NOBODY
        assert len(opened) == 3

    in_a_child(work_as_nobody)


def test_it_keeps_no_mount_busy_and_finds_the_next_one(factory, weightfs_only, opened):
    mount = factory.mount(factory.store("128M"))
    save_and_load(mount.path / "file")
    command("umount", mount.path)
    mount = factory.mount(mount.store)
    save_and_load(mount.path / "file")
    mount.kill9()
    mount = factory.mount(mount.store)
    save_and_load(mount.path / "file")
    assert len(opened) == 1
