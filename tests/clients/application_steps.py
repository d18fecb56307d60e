# SPDX-License-Identifier: Apache-2.0
"""Saves state 1 and then state 2 in the directory of work, by the ways that programs have. A directory BETWEEN is made
between them.

Usage: application_steps.py WAY
"""
import os
import subprocess
import sys

BETWEEN = "between"


def torch_save(number):
    import torch
    torch.save({"a": torch.full((3000,), number)}, "model.pt")


def safetensors(number):
    import torch
    from safetensors.torch import save_file
    save_file({"a": torch.full((3000,), number)}, "model.safetensors")


def numpy_save(number):
    import numpy
    numpy.save("array.npy", numpy.full(3000, number))


def h5py_file(number):
    import h5py
    import numpy
    with h5py.File("data.h5", "w") as file:
        file["a"] = numpy.full(3000, number)


def sqlite(number, journal="delete"):
    import sqlite3
    connection = sqlite3.connect("data.db")
    connection.execute(f"pragma journal_mode={journal}")
    connection.execute("pragma synchronous=extra")   # the deletion of the journal, too
    connection.execute("create table if not exists a(b)")
    connection.execute("delete from a")
    connection.executemany("insert into a values (?)", [(number,)] * 2000)
    connection.commit()
    connection.close()


def sqlite_wal(number):
    sqlite(number, "wal")


def git(number):
    with open("file", "w") as file:
        file.write(f"{number}\n" * 1000)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "gc.auto=0"]
    if number == 1:
        subprocess.run(["git", "init", "-q", "--template=", "."], check=True)
    subprocess.run(["git", "add", "file"], check=True)
    subprocess.run(["git", *identity, "commit", "-q", "-m", str(number)], check=True)


def hub_cache(number):
    """As huggingface_hub stores a download: a blob, written under another name, and a link to it."""
    os.makedirs("blobs", exist_ok=True)
    os.makedirs(f"snapshots/{number}", exist_ok=True)
    os.makedirs("refs", exist_ok=True)
    with open(f"blobs/{number}.incomplete", "wb") as file:
        file.write(bytes([number]) * 20000)
    os.replace(f"blobs/{number}.incomplete", f"blobs/{number}")
    os.symlink(f"../../blobs/{number}", f"snapshots/{number}/model")
    with open("refs/main.new", "w") as file:
        file.write(str(number))
    os.replace("refs/main.new", "refs/main")


def weightfs_torch(number):
    import torch
    import weightfs.torch
    weightfs.torch.save({"a": torch.full((3000,), number)}, "model.pt", durable=True)


def weightfs_safetensors(number):
    import torch
    import weightfs.safetensors
    weightfs.safetensors.save_file({"a": torch.full((3000,), number)}, "model.safetensors", durable=True)


def weightfs_save_many(number):
    """Without a lease, because the recorder sees system calls alone."""
    import numpy
    import weightfs
    os.makedirs("many", exist_ok=True)
    with weightfs.Handle(direct="never") as handle:
        handle.save_many({"a": numpy.full(3000, number), "b": numpy.full(10, number)}, "many")


def weightfs_hdf5(number):
    import numpy
    import weightfs.hdf5
    with weightfs.hdf5.File("data.h5", "w", sync="close") as file:
        file["a"] = numpy.full(3000, number)


def dcp(writer, directory, number):
    """torch.distributed.checkpoint, in one process."""
    import warnings

    import torch
    import torch.distributed.checkpoint
    warnings.simplefilter("ignore")
    state = {"a": torch.full((3000,), number), "step": number}
    torch.distributed.checkpoint.save(state, storage_writer=writer(directory))


def dcp_steps(number):
    """A directory for each state: FileSystemWriter removes an older `.metadata` before it renames the new one."""
    from torch.distributed.checkpoint import FileSystemWriter
    dcp(FileSystemWriter, f"step-{number}", number)


def weightfs_dcp(number):
    from weightfs.dcp import StorageWriter
    dcp(StorageWriter, "step", number)


def weightfs_manager(number):
    import torch
    import weightfs.checkpoint
    with weightfs.checkpoint.Manager("checkpoints", keep=2) as manager:
        manager.save(number, {"a": torch.full((3000,), number)})
        manager.wait()


if __name__ == "__main__":
    globals()[sys.argv[1]](1)
    os.mkdir(BETWEEN)
    globals()[sys.argv[1]](2)
