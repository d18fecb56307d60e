# SPDX-License-Identifier: Apache-2.0
"""Thousands of tensors at once: the part of a handle that saves and loads them."""

import logging
import os

from weightfs._arguments import items_of
from weightfs._future import with_label
from weightfs._memory import describe
from weightfs._numbers import bytes_of_all, whole

log = logging.getLogger("weightfs")


class ManyFiles:
    """save_many and load_many, for a class with a native handle."""

    def save_many(self, tensors, directory, *, durable=True, mode=0o600, checksum=False, progress=None):
        """Saves each tensor of a dict in the directory, in a file of its name (one component of a path), and returns
        the number of bytes; made for thousands of small ones. Files that have these names are replaced.

        By a lease of a weightfs mount they are saved in one commit: all are there at once, also after a crash, or none.
        EINVAL for more than 131,072 files, or about 1 TiB of them: save those in several calls.

        Where there is no lease (direct="never", no weightfs mount or its option direct= says no, tensors of a GPU, a
        full store, more than the 512 GiB of a lease, a pool file beyond the process's RLIMIT_FSIZE) they are written
        into a directory beside them, `.weightfs-*`, and then renamed one after the other: each is complete, and
        another program, or a crash, may see some new and some old. All that can be known before the first rename (a
        directory or a mount in a file's place, permissions, sticky directories) is an error that leaves everything as
        it was. The logger "weightfs" says at INFO why there is no lease; direct="require" raises that instead.

        durable: on the device, names too, when it returns. mode: the permission bits of the files. checksum and
        progress as in write_async."""
        # No dict: "a" and b"a" are one name.
        named = [(os.fsencode(name), describe(tensor)) for name, tensor in items_of(tensors)]

        def tell(why):
            log.info("save_many: the files are written and renamed one by one: %s", why)

        total = bytes_of_all(memory for _, memory in named)
        items = [(name, memory.arguments) for name, memory in named]
        mode = whole("mode", mode, 0, 0o777)
        self._native.save_many(os.fsencode(directory), items, durable, mode, checksum, progress, tell)
        return total

    def load_many(self, buffers, directory, *, verify=False, progress=None):
        """Loads the files of a directory into the buffers of a dict by their names, and returns the number of bytes.
        Each file must be as large as its buffer.

        Each tensor is whole, as its file was at one time; the set is no snapshot: while another program saves the
        files, some may be of one save_many and some of the next. What has no lease of its own, as a symbolic link, is
        read through the mount, unless direct="require".

        Raises the OSError of the first file that could not be read; `errors` has those of all, by name, and the other
        buffers are filled. verify and progress as in read_async."""
        named = [(os.fsencode(name), describe(buffer, writable=True)) for name, buffer in items_of(buffers)]
        total = bytes_of_all(memory for _, memory in named)
        items = [(name, memory.arguments) for name, memory in named]
        errors = self._native.load_many(os.fsencode(directory), items, verify, progress)
        memories, failed = dict(named), {name for name, _ in errors}
        for name, memory in memories.items():
            if memory.finish is not None and name not in failed:
                memory.finish()
        if errors:
            errors = {os.fsdecode(name): with_label(error, memories[name]) for name, error in errors}
            first = next(iter(errors.values()))
            first.errors = errors
            raise first
        return total
