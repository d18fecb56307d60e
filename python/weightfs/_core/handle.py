# SPDX-License-Identifier: Apache-2.0
"""The handle: transfers of tensors, with futures, exceptions and durability. Calls without a handle use that of the
process."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from weightfs import _native
from weightfs._core import process
from weightfs._core.arguments import (bytes_of_all, file_name, find_cufile, flag, items_of, labelled, offset_in_file,
                                      path_name, whole, written_offset)
from weightfs._core.future import Future, log, with_label
from weightfs._core.memory import describe
from weightfs._core.opened import Opened, closes_at_exit
from weightfs._core.types import Direct, File, Mode, Path, Progress

MODES = ("auto", "cufile", "bounce")
_BOUNCES = "GPU transfers by bounce buffers: %s"
_MOST_BLOCK_SIZE, _MOST_QUEUE_DEPTH, _MOST_PARALLELISM = 1 << 40, 1 << 16, 1 << 10


class Handle(Opened):
    """Reads and writes tensors between memory and files, at the speed of the device.

    block_size: bytes per transfer. queue_depth: maximum number of transfers in the kernel, per slice. single_submit:
    submit each transfer in a system call of its own. overlap_events: refill the queue after each completion; if false,
    submit in batches of queue_depth. intra_op_parallelism (or num_threads): number of slices per operation, each with
    its own thread. direct: on a weightfs mount, "auto" transfers operations of at least 1 MiB directly between memory
    and the devices of the store, bypassing the mount, if the mount allows it. "never" disables this. "require" bypasses
    the mount for operations of every size and raises an error if that is not possible. An operation can lease at most
    512 GiB. direct_operations counts the operations that bypassed the mount.

    mode: how tensors of GPUs are transferred. None: through page-locked buffers, which are copied concurrently with
    other transfers, once there is such a tensor. "bounce" does the same, "cufile" transfers whole blocks by cuFile
    (GPUDirect Storage), even in its compatibility mode, and "auto" uses cuFile for files that it accesses without a copy in host
    memory, and bounce buffers for all others; these three raise RuntimeError without a GPU, and OSError if the mode is
    not available. The attributes `mode` and `mode_reason` give the mode in use. Partial blocks at the ends of an
    operation always go through bounce buffers. So do operations that bypass a weightfs mount, because the host must
    verify their blocks; with mode "cufile" they go through the mount, which needs cuFile 1.16 or newer (CUDA 13.1).

    A write without file_offset replaces the whole file: longer old content is truncated once all data is written. A
    write with a file_offset (even 0) keeps the surrounding bytes, so several handles can write parts of one file in any
    order. A write to a descriptor never truncates.

    Whether readers can see a part of a write, or a killed program can leave one: on a weightfs mount, a whole-file
    write that uses a lease (`direct`) changes the file in one commit, and so do the whole blocks of a write at an
    offset. Every other write changes the file piece by piece, in any order, and a killed one leaves a mixture of old
    and new pieces. write_from and write_async with atomic=True replace a whole file atomically on any filesystem.

    Overlapping operations of one handle on one file or path, of which at least one writes, are carried out in the order
    of their start; this includes atomic writes. There is no order between different handles.

    Any thread and any signal handler may use a handle. A handler that runs during save_many or load_many of its thread
    cannot use the files of that call (EDEADLK): the call goes on when the handler has returned. A forked child must not
    use its parent's handle."""

    _KIND, _CREATE, _DEFAULT_MODE = "handle", "create", staticmethod(lambda: None)

    def __init__(self, block_size: int = 1 << 20, queue_depth: int = 128, single_submit: bool = False,
                 overlap_events: bool = False, intra_op_parallelism: int | None = None, *,
                 num_threads: int | None = None, direct: Direct = "auto", mode: Mode | None = None) -> None:
        if intra_op_parallelism is not None and num_threads is not None:
            raise TypeError("intra_op_parallelism and num_threads are two names of one argument: give only one")
        threads = next((value for value in (intra_op_parallelism, num_threads) if value is not None), 1)
        self._options = (whole("block_size", block_size, 1, _MOST_BLOCK_SIZE),
                         whole("queue_depth", queue_depth, 1, _MOST_QUEUE_DEPTH), flag("single_submit", single_submit),
                         flag("overlap_events", overlap_events),
                         whole("intra_op_parallelism", threads, 1, _MOST_PARALLELISM))
        mode = self._DEFAULT_MODE() if mode is None else mode
        if mode is not None and mode not in MODES:
            raise ValueError(f"mode is {mode!r}: it must be one of {', '.join(MODES)}")
        self._direct, self._mode = direct, mode
        self._pinned = {}   # address -> finalizer that unpins the tensor when it is gone
        super().__init__(self._open(direct))
        self._gpu = {} if mode is None else self._native.gpu()
        if mode is not None:
            log.info("%s on %s: mode %s: %s", type(self).__name__, self._gpu["name"], self.mode, self.mode_reason)

    def read_async(self, buffer: Any, file: File, file_offset: int = 0, *, progress: Progress = None,
                   verify: bool = False) -> Future[int]:
        """Starts a read from a path or descriptor and returns its Future.

        progress(bytes_done, bytes_total) is called on a thread for callbacks. The first exception that it raises is
        printed and otherwise ignored. verify: EIO if the bytes differ from those that were written. A weightfs mount
        always verifies. On other filesystems the whole file must be read (otherwise EINVAL), and it must have been
        written with `checksum` and not changed since (otherwise ENODATA)."""
        return self._start_read(buffer, file, file_offset, progress, verify)

    def write_async(self, buffer: Any, file: File, file_offset: int | None = None, *, durable: bool = False,
                    atomic: bool = False, checksum: bool = False, progress: Progress = None,
                    stable: bool = False) -> Future[int]:
        """Starts a write and returns its Future. Without file_offset the file will contain exactly these bytes. Changes
        made to the tensor before the write is done may or may not be in the file.

        durable: fsync before the write is done. atomic: write a temporary file, then rename it over the target.
        checksum: for a whole file, store checksums for `verify` in its extended attribute user.weightfs.crc32c (not on
        a weightfs mount, which has its own). progress: as in read_async. stable: nobody changes the tensor before the
        write is done, so a lease needs no copy of it; if somebody does, the file may become unreadable (EIO)."""
        return self._start_write(buffer, file, file_offset, progress, durable, atomic, checksum, stable)

    def read_into(self, buffer: Any, file: File, file_offset: int = 0, *, progress: Progress = None,
                  verify: bool = False) -> int:
        """Reads as read_async does and returns the number of bytes. Raises OSError."""
        memory = describe(buffer, writable=True)
        with labelled(memory):
            self._native.read(file_name(file), memory.arguments, offset_in_file(file_offset), progress, verify,
                              None)
        if memory.finish is not None:
            memory.finish()
        return memory.nbytes

    def read_ranges(self, buffer: Any, file: File, ranges: Sequence[tuple[int, int]]) -> int:
        """Reads several ranges of a file into a contiguous buffer of host memory, one behind the other, and returns the
        number of bytes. It is one operation: with a lease, one lease, and only the blocks of the ranges are read (and
        gaps of a few blocks between them).

        ranges: pairs of an offset and a number of bytes, in ascending order and without overlap; together they have
        the size of the buffer. Raises OSError."""
        memory = describe(buffer, writable=True)
        with labelled(memory):
            self._native.read_ranges(file_name(file), memory.arguments, ranges)
        return memory.nbytes

    def write_from(self, buffer: Any, file: File, file_offset: int | None = None, *, durable: bool = False,
                   atomic: bool = False, checksum: bool = False, progress: Progress = None,
                   stable: bool = False) -> int:
        """Writes as write_async does and returns the number of bytes. Raises OSError."""
        memory = describe(buffer)
        with labelled(memory):
            self._native.write(file_name(file), memory.arguments, written_offset(file_offset), progress, durable,
                               atomic, checksum, stable, None)
        return memory.nbytes

    def save_many(self, tensors: Mapping[str, Any], directory: Path, *, durable: bool = True, mode: int | None = None,
                  checksum: bool = False, progress: Progress = None) -> int:
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
        def tell(why):
            log.info("save_many: the files are written and renamed one by one: %s", why)

        _, items, total = _named(tensors)
        mode = None if mode is None else whole("mode", mode, 0, 0o777)
        self._native.save_many(path_name(directory), items, durable, mode, checksum, progress, tell)
        return total

    def load_many(self, buffers: Mapping[str, Any], directory: Path, *, verify: bool = False,
                  progress: Progress = None) -> int:
        """Loads files of a directory into the buffers of a dict, by name, and returns the number of bytes. Each file
        must be as large as its buffer. Buffers that share memory get a mixture of their files, or an error.

        Each tensor is a consistent snapshot of its file, but the set is not: while another program saves the files,
        some may come from one save_many and some from the next. A file that cannot be leased, such as a symbolic link,
        is read through the mount, unless direct="require".

        Raises the OSError of the first file that could not be read; its attribute `errors` has the errors of all files
        by name, and the other buffers are filled. verify and progress: as in read_async."""
        memories, items, total = _named(buffers, writable=True)
        errors = dict(self._native.load_many(path_name(directory), items, verify, progress))
        for name, memory in memories.items():
            if memory.finish is not None and name not in errors:
                memory.finish()
        if errors:
            errors = {os.fsdecode(name): with_label(error, memories[name]) for name, error in errors.items()}
            first = next(iter(errors.values()))
            first.errors = errors
            raise first
        return total

    def map(self, descriptor: int, offset: int, nbytes: int, *, load: bool = True) -> int | None:
        """Returns a descriptor of memory that programs share, in which the weightfs mount of an open file has bytes of
        it, at the same offsets; the caller closes it. It can be read and privately mapped, and keeps the bytes of one
        moment. None where that is not possible: on another filesystem, without a lease, if the mount has no room
        (option cache_memory=), or because of damage, which a read locates; without `load`, also if not all of the bytes
        are in that memory already."""
        try:
            return self._native.map(descriptor, offset, nbytes, load)
        except OSError as error:
            log.debug("no shared memory: %s", error)
            return None

    def pin(self, tensor: Any) -> None:
        """Prepares a contiguous GPU tensor for transfers of this handle, until it is unpinned or the last tensor that
        shares its memory is gone. Raises OSError if that is not possible."""
        memory = self._device_memory(tensor)
        if memory.nbytes == 0:
            return
        self._native.pin(memory.arguments)
        # The memory lives as long as any tensor that shares its storage.
        unpin = weakref.finalize(memory.owner, _forget, weakref.ref(self), memory.address)
        unpin.atexit = False
        self._pinned[memory.address] = unpin

    def unpin(self, tensor: Any) -> bool:
        """Unpins a tensor. Returns False if it is not pinned."""
        address = self._device_memory(tensor).address
        unpin = self._pinned.pop(address, None)
        if unpin is not None:
            unpin.detach()
        return self._native.unpin(address)

    @property
    def direct_operations(self) -> int:
        """The number of operations that bypassed a weightfs mount by a lease. A save_many counts as one operation, and
        so does each batch of 4,096 files of load_many."""
        return self._native.direct_operations()

    @property
    def mode(self) -> Literal["cufile", "bounce"] | None:
        """How tensors of GPUs are transferred: "cufile" or "bounce"; None if the handle was created without a mode."""
        return self._gpu.get("mode")

    @property
    def mode_reason(self) -> str | None:
        """The reason for the mode, as text."""
        return self._gpu.get("why")

    @property
    def refusal(self) -> str:
        """In mode "auto": why the first operation that cuFile does not carry out goes through bounce buffers, as text,
        which is also logged once. Empty if all whole blocks went by cuFile so far."""
        return (self._native.gpu() or {}).get("refusal", "")

    @property
    def gpu_bytes(self) -> dict[str, int]:
        """The number of bytes of GPU tensors transferred so far, by mode."""
        facts = self._native.gpu() or {}
        return {kind: facts.get(f"{kind}_bytes", 0) for kind in ("cufile", "bounce")}

    def pending(self) -> int:
        """The number of asynchronous operations under way."""
        return self._native.pending()

    def __repr__(self):
        names = ("block_size", "queue_depth", "single_submit", "overlap_events", "intra_op_parallelism")
        values = ", ".join(f"{name}={value}" for name, value in zip(names, self._options))
        return f"{type(self).__name__}({values}{'' if self._mode is None else f', mode={self.mode}'})"

    # --- Internals ---

    def _open(self, direct):
        try:
            return _native.Handle(*self._options, direct, self._mode or "", find_cufile(),
                                  self._mode and functools.partial(log.warning, _BOUNCES))
        except OSError as error:
            if self._mode is None or error.errno != errno.ENODEV:
                raise
            raise RuntimeError(f"weightfs: {error.strerror}; omit mode= (use aio_handle) for CPU tensors") from error

    def _start_read(self, buffer, file, offset, progress=None, verify=False, waited=None):
        """waited: see Pending.start."""
        memory = describe(buffer, writable=True)
        with labelled(memory):
            native, name, offset = self._native, file_name(file), offset_in_file(offset)
            return self._pending.start(memory, lambda: native.read(
                name, memory.arguments, offset, progress, verify, waited is None), waited)

    def _start_write(self, buffer, file, offset, progress=None, durable=False, atomic=False, checksum=False,
                     stable=False, waited=None):
        memory = describe(buffer)
        with labelled(memory):
            native, name, offset = self._native, file_name(file), written_offset(offset)
            return self._pending.start(memory, lambda: native.write(
                name, memory.arguments, offset, progress, durable, atomic, checksum, stable, waited is None), waited)

    @staticmethod
    def _device_memory(tensor):
        memory = describe(tensor, writable=True)
        if memory.nbytes and not memory.on_device:
            raise ValueError(f"{memory.label} is not on a GPU")
        if memory.finish is not None:
            raise ValueError(f"{memory.label} is not contiguous: it cannot be pinned")
        return memory


def _named(tensors, writable=False):
    """Returns (name -> Memory, pairs for the native module, bytes of all)."""
    # The pairs are no dict, because "a" and b"a" are the same name.
    named = [(os.fsencode(name), describe(tensor, writable)) for name, tensor in items_of(tensors)]
    total = bytes_of_all(memory for _, memory in named)
    return dict(named), [(name, memory.arguments) for name, memory in named], total


def mode_of_process():
    """The mode of handles for tensors of GPUs, if the program chooses none."""
    return os.environ.get("WEIGHTFS_GDS_MODE") or "auto"


def _forget(handle, address):
    """Unpins the memory of a tensor that is gone. A closed handle has already unpinned it."""
    handle = handle()
    if handle is not None and handle._pinned.pop(address, None) is not None:
        with contextlib.suppress(ValueError, PermissionError):
            handle._native.unpin(address)


_THREADS = min(2, os.cpu_count() or 1)   # of the handle of the process: pages are mapped in parallel
_of_process = {}   # the handle of each mode and `direct`


def chosen(handle, direct):
    """What the_handle() and check_mounted() take: the caller's handle, or `direct` of that of the process."""
    if handle is None:
        if not isinstance(direct, str):
            raise TypeError(f"direct must be a string, not {type(direct).__name__}")
        if direct not in get_args(Direct):
            raise ValueError(f"direct must be 'auto', 'never' or 'require', not {direct!r}")
        return direct
    if not isinstance(handle, Handle):
        raise TypeError(f"handle must be a Handle, not {type(handle).__name__}")
    if direct != "auto":
        raise TypeError("give direct= to the handle, or omit handle=")
    return handle


def the_handle(handle, mode=None):
    """A context manager for the caller's handle, or that of the process (for None, or a value of `direct`), which stays
    open: to open and close one takes tens of milliseconds. A forked child opens its own. A process that has changed its
    user opens another one, because a mount knows the user of a connection. While the interpreter exits, each call has
    its own."""
    if isinstance(handle, Handle):
        return contextlib.nullcontext(handle)
    key = mode, handle or "auto"
    make = functools.partial(Handle, overlap_events=True, intra_op_parallelism=_THREADS, direct=key[1], mode=mode)
    if not closes_at_exit():
        return make()
    with process.lock:
        made = replaced = _of_process.get(key)
        if made is None or (made._process, made._user) != (process.pid, os.geteuid()) or made._opened.closed():
            made = _of_process[key] = make()
            made._user = os.geteuid()
    del replaced   # without the lock, because its callbacks, for which it waits, may call this function
    return contextlib.nullcontext(made)
