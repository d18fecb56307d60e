# SPDX-License-Identifier: Apache-2.0
"""The handle, with DeepNVMe's methods, and methods with futures, exceptions and durability."""

import contextlib
import errno
import logging
import operator
import os

from weightfs import _native
from weightfs._arguments import (DEFAULTS, WHOLE, async_and_offset, find_cufile, labelled, one_of, os_error, to_keep,
                                 written_offset)
from weightfs._future import Future
from weightfs._many import ManyFiles
from weightfs._memory import describe
from weightfs._numbers import file_name, flag, offset_in_file, whole
from weightfs._opened import Opened

log = logging.getLogger("weightfs")
_VALIDATED_AT_ONCE = 4 << 20
_MOST_BLOCK_SIZE, _MOST_QUEUE_DEPTH, _MOST_PARALLELISM = 1 << 40, 1 << 16, 1 << 10


class aio_handle(ManyFiles, Opened):  # noqa: N801  (DeepNVMe's name)
    """Reads and writes tensors between memory and files, at the speed of the device. GPU tensors pass through
    page-locked buffers, which are copied concurrently with other transfers; gds_handle may avoid that copy.

    block_size: bytes per transfer. queue_depth: maximum number of transfers in the kernel, per slice. single_submit:
    submit each transfer in a system call of its own. overlap_events: refill the queue after each completion; if false,
    submit in batches of queue_depth. intra_op_parallelism (or num_threads): number of slices per operation, each with
    its own thread. direct: on a weightfs mount, "auto" transfers operations of at least 1 MiB directly between memory
    and the devices of the store, bypassing the mount, if the mount allows it. "never" disables this. "require" bypasses
    the mount for operations of every size and raises an error if that is not possible. An operation can lease at most
    512 GiB. direct_operations counts the operations that bypassed the mount.

    DeepNVMe's methods (sync_*, async_*, pread, pwrite, read, write) return numbers. -1 means failure; the reason goes
    to the logger "weightfs" and to last_error. wait() raises, because a lost write must not go unnoticed. The other
    methods (read_async, write_async, read_into, write_from, save_many, load_many) raise, or set the exception in their
    future.

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

    _KIND, _CREATE = "handle", "create"

    def __init__(self, block_size=1 << 20, queue_depth=128, single_submit=False, overlap_events=False,
                 intra_op_parallelism=None, *, num_threads=None, direct="auto"):
        if intra_op_parallelism is not None and num_threads is not None:
            raise TypeError("intra_op_parallelism and num_threads are two names of one argument: give only one")
        threads = next((value for value in (intra_op_parallelism, num_threads) if value is not None), 1)
        self._options = (whole("block_size", block_size, 1, _MOST_BLOCK_SIZE),
                         whole("queue_depth", queue_depth, 1, _MOST_QUEUE_DEPTH), flag("single_submit", single_submit),
                         flag("overlap_events", overlap_events),
                         whole("intra_op_parallelism", threads, 1, _MOST_PARALLELISM))
        self._last_error, self._direct = None, direct
        super().__init__(self._open(direct))

    # --- DeepNVMe's methods ---

    def sync_pread(self, buffer, filename, file_offset=0):
        """Reads. Returns the number of completed operations, including earlier asynchronous ones, or -1."""
        return self._sync(self._read_now, buffer, filename, file_offset)

    def sync_pwrite(self, buffer, filename, file_offset=WHOLE):
        """Writes. Returns the number of completed operations, including earlier asynchronous ones, or -1."""
        return self._sync(self._write_now, buffer, filename, file_offset)

    def async_pread(self, buffer, filename=None, file_offset=0, *, fd=None):
        """Starts a read. Returns 0, or -1 if nothing was started. wait() waits for it. Until then the tensor must not
        be resized (resize_()), but it may be given other memory (`data`, set_())."""
        return self._async(self._start_read, buffer, one_of(filename, fd), file_offset)

    def async_pwrite(self, buffer, filename=None, file_offset=WHOLE, *, fd=None):
        """Starts a write to a path or an open descriptor. Returns 0, or -1 if nothing was started. wait() waits for it.
        Until then the same rules apply as for async_pread; changes made to the tensor may or may not be in the file."""
        return self._async(self._start_write, buffer, one_of(filename, fd), file_offset)

    def pread(self, buffer, filename, validate, *arguments, **keywords):
        """pread(buffer, filename, validate, async, file_offset=0)"""
        asynchronous, file_offset = async_and_offset("pread", arguments, keywords, 0)
        if asynchronous:
            return self._async(self._start_read, buffer, filename, file_offset, validate)
        return self._sync(self._read_now, buffer, filename, file_offset, validate)

    def pwrite(self, buffer, filename, validate, *arguments, **keywords):
        """pwrite(buffer, filename, validate, async, file_offset=0)"""
        asynchronous, file_offset = async_and_offset("pwrite", arguments, keywords, WHOLE)
        if asynchronous:
            return self._async(self._start_write, buffer, filename, file_offset, validate)
        return self._sync(self._write_now, buffer, filename, file_offset, validate)

    def read(self, buffer, filename, validate, file_offset=0):
        """Reads a file that has exactly the buffer's size from file_offset on. Returns 0 or -1."""
        memory = describe(buffer, writable=True)
        with self._reporting():
            self._check_process()
            file_offset = offset_in_file(file_offset)
            name = file_name(filename)
            name, shown = (name, f"descriptor {name}") if isinstance(name, int) else (os.fsdecode(name),) * 2
            size = os.stat(name).st_size
            if size - file_offset != memory.nbytes:
                raise os_error(errno.EINVAL, f"read of {memory.nbytes} bytes at offset {file_offset} of {shown}: the "
                                f"file has {size} bytes, not the buffer's size", filename, memory)
            self._read_now(memory, filename, file_offset, validate)
            return 0
        return -1

    def write(self, buffer, filename, validate, file_offset=WHOLE):
        """Writes. Returns 0 or -1."""
        with self._reporting():
            self._write_now(describe(buffer), filename, file_offset, validate)
            return 0
        return -1

    def wait(self):
        """Waits for all asynchronous operations. Returns how many completed since the last wait. Raises the OSError of
        the first one that failed; its attribute `errors` has all errors."""
        completed, errors = self._drain()
        if errors:
            errors[0].errors, errors[0].completed = errors, completed
            raise errors[0]
        return completed

    def new_cpu_locked_tensor(self, num_elem, example_tensor=None, *, example_tenosr=None):
        """Returns a 1-D tensor of the example's type (an array, for an array) in page-aligned, locked memory."""
        from weightfs._locked import new_like
        example = example_tensor if example_tensor is not None else example_tenosr
        if example is None:
            raise TypeError("new_cpu_locked_tensor() missing required argument: 'example_tensor'")
        self._check_process()
        return new_like(num_elem, example)

    def free_cpu_locked_tensor(self, tensor):
        """Unlocks the memory of a tensor that any handle's new_cpu_locked_tensor made. Returns False for other tensors.
        The memory is freed with the last tensor that uses it."""
        self._check_process()
        return unlock(tensor)

    def is_pinned(self, buffer):
        """True if torch pinned the tensor, or if it is in locked memory of any handle of this process. Views count too.
        """
        self._check_process()
        return is_pinned(buffer)

    def get_block_size(self):
        return self._options[0]

    def get_queue_depth(self):
        return self._options[1]

    def get_single_submit(self):
        return self._options[2]

    def get_overlap_events(self):
        return self._options[3]

    def get_intra_op_parallelism(self):
        return self._options[4]

    def get_thread_count(self):
        return self._options[4]

    def get_alignment(self):
        return 512 * self._options[4]

    # --- Methods with futures and exceptions ---

    def read_async(self, buffer, file, file_offset=0, *, progress=None, verify=False):
        """Starts a read from a path or descriptor and returns its Future.

        progress(bytes_done, bytes_total) is called on an I/O thread. The first exception that it raises is printed and
        otherwise ignored. verify: EIO if the bytes differ from those that were written. A weightfs mount always
        verifies. On other filesystems the whole file must be read (otherwise EINVAL), and it must have been written
        with `checksum` and not changed since (otherwise ENODATA)."""
        memory = describe(buffer, writable=True)
        operation = self._start_read(memory, file, file_offset, progress=progress, verify=verify, own_errors=True)
        return Future(operation, memory, self._pending.forget_done)

    def write_async(self, buffer, file, file_offset=None, *, durable=False, atomic=False, checksum=False,
                    progress=None, stable=False):
        """Starts a write and returns its Future. Without file_offset the file will contain exactly these bytes. Changes
        made to the tensor before the write is done may or may not be in the file.

        durable: fsync before the write is done. atomic: write a temporary file, then rename it over the target.
        checksum: for a whole file, store checksums for `verify` in its extended attribute user.weightfs.crc32c (not on
        a weightfs mount, which has its own). progress: as in read_async. stable: nobody changes the tensor before the
        write is done, so a lease needs no copy of it; if somebody does, the file may become unreadable (EIO)."""
        memory = describe(buffer)
        operation = self._start_write(memory, file, WHOLE if file_offset is None else file_offset, None, progress,
                                      durable, atomic, checksum, stable, own_errors=True)
        return Future(operation, memory, self._pending.forget_done)

    def read_into(self, buffer, file, file_offset=0, *, progress=None, verify=False):
        """Reads as read_async does and returns the number of bytes. Raises OSError."""
        memory = describe(buffer, writable=True)
        self._read_now(memory, file, file_offset, progress=progress, verify=verify)
        return memory.nbytes

    def read_ranges(self, buffer, file, ranges):
        """Reads several ranges of a file into a contiguous buffer of host memory, one behind the other, and returns the
        number of bytes. It is one operation: with a lease, one lease, and only the blocks of the ranges are read (and
        gaps of a few blocks between them).

        ranges: pairs of an offset and a number of bytes, in ascending order and without overlap; together they have
        the size of the buffer. Raises OSError."""
        memory = describe(buffer, writable=True)
        with labelled(memory):
            self._native.read_ranges(file_name(file), memory.arguments, ranges)
        return memory.nbytes

    def write_from(self, buffer, file, file_offset=None, *, durable=False, atomic=False, checksum=False, progress=None,
                   stable=False):
        """Writes as write_async does and returns the number of bytes. Raises OSError."""
        memory = describe(buffer)
        self._write_now(memory, file, WHOLE if file_offset is None else file_offset, False, progress, durable, atomic,
                        checksum, stable)
        return memory.nbytes

    @property
    def direct_operations(self):
        """The number of operations that bypassed a weightfs mount by a lease. A save_many counts as one operation, and
        so does each batch of 4,096 files of load_many."""
        return self._native.direct_operations()

    @property
    def last_error(self):
        """The OSError behind the last -1, with errno, filename, offset and shape, or None."""
        return self._last_error

    def pending(self):
        """The number of asynchronous operations under way."""
        return self._native.pending()

    def __repr__(self):
        names = ("block_size", "queue_depth", "single_submit", "overlap_events", "intra_op_parallelism")
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in zip(names, self._options))})"

    # --- Internals ---

    def _open(self, direct):
        return _native.Handle(*self._options, direct, "", find_cufile(), None)

    def _read_now(self, memory, file, offset, validate=False, *, progress=None, verify=False):
        with labelled(memory):
            native, name, offset = self._native, file_name(file), offset_in_file(offset)
            native.read(name, memory.arguments, offset, progress, verify)
        if memory.finish is not None:
            memory.finish()
        if validate:
            self._validate(memory, file, offset)

    def _write_now(self, memory, file, offset, validate=False, *options):
        with labelled(memory):
            native, name, native_offset = self._native, file_name(file), written_offset(offset)
            native.write(name, memory.arguments, native_offset, *(options or DEFAULTS))
        if validate:
            self._validate(memory, file, native_offset or 0)

    def _start_read(self, memory, file, offset, validate=None, *, progress=None, verify=False, own_errors=False):
        with labelled(memory):
            native, name, offset = self._native, file_name(file), offset_in_file(offset)
        return self._pending.start(
            memory, (to_keep(file), offset) if validate else None, own_errors,
            lambda: native.start_read(name, memory.arguments, offset, progress, verify, own_errors))

    def _start_write(self, memory, file, offset, validate=None, *options, own_errors=False):
        with labelled(memory):
            native, name, native_offset = self._native, file_name(file), written_offset(offset)
        return self._pending.start(
            memory, (to_keep(file), native_offset or 0) if validate else None, own_errors,
            lambda: native.start_write(name, memory.arguments, native_offset, *(options or DEFAULTS), own_errors))

    def _sync(self, run, buffer, file, offset, validate=False):
        memory = describe(buffer, writable=run == self._read_now)
        with self._reporting():
            run(memory, file, offset, validate)
            completed, errors = self._drain()
            if errors:
                raise errors[0]
            return completed + 1
        return -1

    def _async(self, start, buffer, file, offset, validate=False):
        memory = describe(buffer, writable=start == self._start_read)
        with self._reporting():
            start(memory, file, offset, validate)
            return 0
        return -1

    def _validate(self, memory, file, offset):
        """Compares the memory with the result of an ordinary read of the file."""
        if memory.nbytes == 0:
            return
        if memory.strides is None and not memory.on_device:
            wanted = _native.view(memory.address, memory.nbytes)
        else:
            gathered = bytearray(memory.nbytes)
            if memory.on_device:
                self._native.copy_out(memory.arguments, describe(gathered).arguments)
            else:
                _native.copy(describe(gathered).arguments, memory.arguments)
            wanted = memoryview(gathered)
        # The descriptor may be write-only or opened with O_DIRECT, so it is reopened.
        path = f"/proc/self/fd/{operator.index(file)}" if hasattr(file, "__index__") else file
        with open(path, "rb", buffering=0) as stream:
            for at in range(0, memory.nbytes, _VALIDATED_AT_ONCE):
                piece = wanted[at:at + _VALIDATED_AT_ONCE]
                if os.pread(stream.fileno(), len(piece), offset + at) != piece:
                    raise os_error(errno.EIO, f"validation of {memory.nbytes} bytes at offset {int(offset)} of {file} "
                                    f"failed: the file differs in the {len(piece)} bytes from {offset + at} on",
                                    file, memory)

    def _drain(self):
        """Waits. Returns (number of operations that succeeded, errors of those that failed)."""
        completed = self._native.wait()
        errors, validations = self._pending.collect()
        for memory, file, offset in validations:
            try:
                self._validate(memory, file, offset)
            except OSError as differs:
                errors.append(differs)
                completed -= 1
        for error in errors:
            self._report(error)
        return completed, errors

    @contextlib.contextmanager
    def _reporting(self):
        """Suppresses an OSError in the block and reports it, so that the caller returns -1 after the block."""
        try:
            yield
        except OSError as error:
            # last_error must not keep the stack frames, and the tensors that they refer to.
            self._report(error.with_traceback(None))

    def _report(self, error):
        self._last_error = error
        log.error("%s", error.strerror or error)

    def _report_all(self, errors):
        for error in errors:
            if error.errno != errno.ECANCELED:
                self._last_error = error
        self._log_all(errors)

    @staticmethod
    def _log_all(errors):
        cancelled = [error for error in errors if error.errno == errno.ECANCELED]
        for error in errors:
            if error not in cancelled:
                log.error("%s", error.strerror or error)
        if cancelled:
            log.warning("%d operations were canceled: the handle was closed before wait()", len(cancelled))


def unlock(tensor):
    """Unlocks a tensor's memory. Returns False if no locked memory begins at its address."""
    with contextlib.suppress(ValueError):
        return _native.unlock(describe(tensor).address)
    return False


def is_pinned(buffer):
    if callable(getattr(buffer, "is_pinned", None)):
        with contextlib.suppress(RuntimeError):   # torch without a GPU cannot pin memory
            if buffer.is_pinned():
                return True
    try:
        memory = describe(buffer)
    except ValueError:
        return False   # not a tensor with memory
    return memory.nbytes > 0 and not memory.on_device and _native.is_locked(memory.address, _span(memory))


def _span(memory):
    """The number of bytes from the first element to the end of the last one. For a view this does not exceed the region
    that it is part of."""
    if memory.strides is None:
        return memory.nbytes
    return sum((count - 1) * abs(step) for count, step in zip(memory.shape, memory.strides)) + memory.item_size
