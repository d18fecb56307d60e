# SPDX-License-Identifier: Apache-2.0
"""Reads of a file on a mount that a lease rewrites meanwhile."""

import mmap
import os
import threading

import pytest
import torch

import weightfs

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("weightfs_only")


@pytest.mark.parametrize(("read", "options", "offset"), [
    ("handle", "", 12288), ("O_DIRECT", "", 12288), ("pread", "cache=never", 12305)])
def test_one_request_without_a_lease_returns_one_state(factory, read, options, offset):
    """Other reads may mix two states: those through the page cache, and those by a handle that have partial blocks or
    pass the end of a `block_size`."""
    mount = factory.mount(factory.store("128M"), options) if options else factory.mount(factory.store("128M"))
    path, size, stop, mixed = mount.path / "file", 256 << 10, threading.Event(), []
    with weightfs.aio_handle(direct="require") as writer:
        writer.write_from(torch.zeros(4 * MIB, dtype=torch.uint8), path)

        def look():
            memory = mmap.mmap(-1, size)   # aligned
            flags = os.O_DIRECT if read == "O_DIRECT" else 0
            descriptor = os.open(path, os.O_RDONLY | flags)
            with weightfs.aio_handle(direct="never") as reader:
                while not stop.is_set():
                    if read == "handle":
                        reader.read_into(memory, path, offset)
                    else:
                        assert os.preadv(descriptor, [memory], offset) == size
                    content = memory[:]
                    if content != content[:1] * size:
                        mixed.append(content)
            os.close(descriptor)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            for i in range(60):
                writer.write_from(torch.full((4 * MIB,), i, dtype=torch.uint8), path)
        finally:
            stop.set()
            thread.join()
    assert not mixed
