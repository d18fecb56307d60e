# SPDX-License-Identifier: Apache-2.0
"""The part of a handle that saves and loads thousands of tensors at once."""

import logging
import os

from weightfs._arguments import items_of
from weightfs._future import with_label
from weightfs._memory import describe
from weightfs._numbers import bytes_of_all, whole

log = logging.getLogger("weightfs")


class ManyFiles:
    """save_many and load_many, for a class with a native handle."""

    def save_many(self, tensors, directory, *, durable=True, mode=None, checksum=False, progress=None):
        """Saves each tensor of a dict to a file of its name in the directory, and returns the number of bytes. Intended
        for thousands of small tensors. A name is one path component. Files of the same names are replaced.

        With a lease of a weightfs mount all files are saved in one commit: they appear at once or not at all, even
        after a crash. EINVAL for more than 131,072 files or about 1 TiB of data: save those in several calls.

        Without a lease the files are written to a temporary directory `.weightfs-*` beside them and then renamed one
        after the other. Each file is complete, but another program, or a crash, may see some new and some old files. A
        lease is not possible with direct="never", on another filesystem, if the mount's option direct= refuses it, for
        GPU tensors, if the store is full, for more than the 512 GiB of a lease, or if a pool file extends beyond the
        process's RLIMIT_FSIZE. Errors that can be detected before the first rename (a directory or a mount point in
        place of a file, permissions, sticky directories) change nothing. The logger "weightfs" reports at level INFO
        why there is no lease; with direct="require" the call raises instead.

        durable: data and names are on the device on return. mode: permission bits of the files; None: a file that
        replaces another one has its mode, and its owner and group if this process may set them, and the umask decides
        for the others. checksum and progress: as in write_async."""
        # Not a dict, because "a" and b"a" are the same name.
        named = [(os.fsencode(name), describe(tensor)) for name, tensor in items_of(tensors)]

        def tell(why):
            log.info("save_many: the files are written and renamed one by one: %s", why)

        total = bytes_of_all(memory for _, memory in named)
        items = [(name, memory.arguments) for name, memory in named]
        mode = None if mode is None else whole("mode", mode, 0, 0o777)
        self._native.save_many(os.fsencode(directory), items, durable, mode, checksum, progress, tell)
        return total

    def load_many(self, buffers, directory, *, verify=False, progress=None):
        """Loads files of a directory into the buffers of a dict, by name, and returns the number of bytes. Each file
        must be as large as its buffer.

        Each tensor is a consistent snapshot of its file, but the set is not: while another program saves the files,
        some may come from one save_many and some from the next. A file that cannot be leased, such as a symbolic link,
        is read through the mount, unless direct="require".

        Raises the OSError of the first file that could not be read; its attribute `errors` has the errors of all files
        by name, and the other buffers are filled. verify and progress: as in read_async."""
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
