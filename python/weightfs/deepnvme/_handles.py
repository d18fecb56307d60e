# SPDX-License-Identifier: Apache-2.0
"""DeepNVMe's handles: counts and -1 in front of weightfs.Handle, whose own methods they have, too."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import operator
import os
from typing import Any

from weightfs import _native
from weightfs._core.arguments import WHOLE, file_name, labelled, offset_in_file, to_keep
from weightfs._core.future import log, with_label
from weightfs._core.handle import Handle, mode_of_process
from weightfs._core.memory import describe, is_pinned, new_like, unlock
from weightfs._core.types import File

_VALIDATED_AT_ONCE = 4 << 20


def _getter(position):
    def get(self) -> int:
        return self._options[position]
    return get


class aio_handle(Handle):  # noqa: N801  (DeepNVMe's name)
    """A handle with DeepNVMe's methods (sync_*, async_*, pread, pwrite, read, write), which return numbers. -1 means
    failure; the reason goes to the logger "weightfs" and to last_error. wait() raises, because a lost write must not go
    unnoticed. The arguments are those of Handle."""

    _last_error = None
    _undrained = 0, []   # of a wait() that an exception of a signal handler has ended

    def sync_pread(self, buffer: Any, filename: File, file_offset: int = 0) -> int:
        """Reads. Returns the number of completed operations, including earlier asynchronous ones, or -1."""
        return self._sync(self.read_into, buffer, filename, file_offset, False)

    def sync_pwrite(self, buffer: Any, filename: File, file_offset: int = WHOLE) -> int:
        """Writes. Returns the number of completed operations, including earlier asynchronous ones, or -1."""
        return self._sync(self.write_from, buffer, filename, file_offset, False)

    def async_pread(self, buffer: Any, filename: File | None = None, file_offset: int = 0, *,
                    fd: int | None = None) -> int:
        """Starts a read. Returns 0, or -1 if nothing was started. wait() waits for it. Until then the tensor must not
        be resized (resize_()), but it may be given other memory (`data`, set_())."""
        return self._async(self._start_read, buffer, _one_of(filename, fd), file_offset)

    def async_pwrite(self, buffer: Any, filename: File | None = None, file_offset: int = WHOLE, *,
                     fd: int | None = None) -> int:
        """Starts a write to a path or an open descriptor. Returns 0, or -1 if nothing was started. wait() waits for it.
        Until then the same rules apply as for async_pread; changes made to the tensor may or may not be in the file."""
        return self._async(self._start_write, buffer, _one_of(filename, fd), file_offset)

    def pread(self, buffer: Any, filename: File, validate: bool, *arguments: Any, **keywords: Any) -> int:
        """pread(buffer, filename, validate, async, file_offset=0)"""
        asynchronous, file_offset = _async_and_offset("pread", arguments, keywords, 0)
        if asynchronous:
            return self._async(self._start_read, buffer, filename, file_offset, validate)
        return self._sync(self.read_into, buffer, filename, file_offset, validate)

    def pwrite(self, buffer: Any, filename: File, validate: bool, *arguments: Any, **keywords: Any) -> int:
        """pwrite(buffer, filename, validate, async, file_offset=0)"""
        asynchronous, file_offset = _async_and_offset("pwrite", arguments, keywords, WHOLE)
        if asynchronous:
            return self._async(self._start_write, buffer, filename, file_offset, validate)
        return self._sync(self.write_from, buffer, filename, file_offset, validate)

    def read(self, buffer: Any, filename: File, validate: bool, file_offset: int = 0) -> int:
        """Reads a file that has exactly the buffer's size from file_offset on. Returns 0 or -1."""
        memory = describe(buffer, writable=True)
        with self._reporting():
            self._check_process()
            file_offset = offset_in_file(file_offset)
            name = file_name(filename)
            name, shown = (name, f"descriptor {name}") if isinstance(name, int) else (os.fsdecode(name),) * 2
            size = os.stat(name).st_size
            if size - file_offset != memory.nbytes:
                raise _os_error(errno.EINVAL, f"read of {memory.nbytes} bytes at offset {file_offset} of {shown}: the "
                                f"file has {size} bytes, not the buffer's size", filename, memory)
            memory.owner = memory.finish = None   # read_into() describes the buffer again
            self._now(self.read_into, buffer, filename, file_offset, validate)
            return 0
        return -1

    def write(self, buffer: Any, filename: File, validate: bool, file_offset: int = WHOLE) -> int:
        """Writes. Returns 0 or -1."""
        with self._reporting():
            self._now(self.write_from, buffer, filename, file_offset, validate)
            return 0
        return -1

    def wait(self) -> int:
        """Waits for all asynchronous operations. Returns how many completed since the last wait. Raises the OSError of
        the first one that failed; its attribute `errors` has all errors."""
        completed, errors = self._drain()
        if errors:
            errors[0].errors, errors[0].completed = errors, completed
            raise errors[0]
        return completed

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: Any = None, *, example_tenosr: Any = None) -> Any:
        """Returns a 1-D tensor of the example's type (an array, for an array) in page-aligned, locked memory."""
        example = example_tensor if example_tensor is not None else example_tenosr
        if example is None:
            raise TypeError("new_cpu_locked_tensor() missing required argument: 'example_tensor'")
        self._check_process()
        return new_like(num_elem, example)

    def free_cpu_locked_tensor(self, tensor: Any) -> bool:
        """Unlocks the memory of a tensor that any handle's new_cpu_locked_tensor made. Returns False for other tensors.
        The memory is freed with the last tensor that uses it."""
        self._check_process()
        return unlock(tensor)

    def is_pinned(self, buffer: Any) -> bool:
        """True if torch pinned the tensor, or if it is in locked memory of any handle of this process. Views count too.
        """
        self._check_process()
        return is_pinned(buffer)

    get_block_size, get_queue_depth, get_single_submit, get_overlap_events, get_intra_op_parallelism = map(
        _getter, range(5))
    get_thread_count = get_intra_op_parallelism

    def get_alignment(self) -> int:
        return 512 * self._options[4]

    @property
    def last_error(self) -> OSError | None:
        """The OSError behind the last -1, with errno, filename, offset and shape, or None."""
        return self._last_error

    # --- Internals ---

    def _now(self, run, buffer, file, offset, validate):
        _check_given(buffer, offset)
        run(buffer, file, offset)
        if validate:
            self._validate(describe(buffer), file, offset)

    def _sync(self, *arguments):
        with self._reporting():
            self._now(*arguments)
            completed, errors = self._drain()
            if errors:
                raise errors[0]
            return completed + 1
        return -1

    def _async(self, start, buffer, file, offset, validate=False):
        with self._reporting():
            _check_given(buffer, offset)
            start(buffer, file, offset, waited=(to_keep(file), offset) if validate else ())
            return 0
        return -1

    def _drain(self):
        """Waits. Returns (number of operations that succeeded, errors of those that failed)."""
        completed, done = self._native.wait(), self._pending.take_done()
        (earlier, futures), self._undrained = self._undrained, (0, [])
        try:
            return self._settle(earlier + completed, futures + done)
        except BaseException:
            self._undrained = earlier + completed, futures + done
            raise

    def _settle(self, completed, done):
        errors, differing = [], []
        for future in done:
            error = future._failure()
            if error is not None:
                errors.append(error)
                completed -= future._operation.error() is None   # the copy to the GPU failed after the read
            elif future._waited:
                try:
                    self._validate(future._memory, *future._waited)
                except OSError as differs:
                    differing.append(differs)
        for error in errors + differing:
            self._report(error)
        return completed - len(differing), errors + differing

    def _validate(self, memory, file, offset):
        """Compares the memory with the result of an ordinary read of the file."""
        if memory.nbytes == 0:
            return
        offset = operator.index(offset or 0)
        if memory.strides is None and not memory.on_device:
            wanted = memoryview((ctypes.c_ubyte * memory.nbytes).from_address(memory.address)).cast("B")
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
                    raise _os_error(errno.EIO, f"validation of {memory.nbytes} bytes at offset {offset} of {file} "
                                    f"failed: the file differs in the {len(piece)} bytes from {offset + at} on",
                                    file, memory)

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
        _log(error)

    @staticmethod
    def _log_failures(futures):
        """Logs what wait() has not reported."""
        errors = [error for error in (future._failure() for future in futures) if error is not None]
        failed = [error for error in errors if getattr(error, "errno", None) != errno.ECANCELED]
        for error in failed:
            _log(error)
        if len(errors) > len(failed):
            log.warning("%d operations were canceled: the handle was closed before wait()", len(errors) - len(failed))


class gds_handle(aio_handle):  # noqa: N801  (DeepNVMe's name)
    """An aio_handle for tensors of GPUs: a handle with a mode, by default that of the environment variable
    WEIGHTFS_GDS_MODE, or else "auto". CPU tensors are handled as by aio_handle."""

    _DEFAULT_MODE = staticmethod(mode_of_process)

    def new_pinned_device_tensor(self, num_elem: int, example_tensor: Any) -> Any:
        """Returns a pinned, uninitialized 1-D tensor of the example's type, on its GPU (for a CPU tensor: the current
        GPU)."""
        if not hasattr(example_tensor, "new_empty"):
            raise TypeError(f"example_tensor must be a tensor, not {type(example_tensor).__name__}")
        on_cpu = getattr(getattr(example_tensor, "device", None), "type", None) == "cpu"
        tensor = example_tensor.new_empty(operator.index(num_elem), **({"device": "cuda"} if on_cpu else {}))
        self.pin(tensor)
        return tensor

    def free_pinned_device_tensor(self, tensor: Any) -> bool:
        """Unpins a tensor. Returns False if it is not pinned. The memory is freed with the last tensor that uses it."""
        return self.unpin(tensor)

    def pin_device_tensor(self, tensor: Any) -> bool:
        """Pins a tensor. If that is not possible, returns False and sets last_error."""
        with self._reporting():
            self.pin(tensor)
            return True
        return False

    unpin_device_tensor = Handle.unpin

    def is_pinned(self, buffer: Any) -> bool:
        """For a CPU tensor, as in aio_handle. For a GPU tensor or view: True if this handle pinned it."""
        memory = describe(buffer)
        if memory.on_device:
            return self._native.is_device_pinned(memory.arguments)
        return super().is_pinned(buffer)


class pin_handle:  # noqa: N801  (DeepSpeed's name)
    """DeepSpeed's module pin_memory: locked tensors without a handle. They belong to the process: every handle
    recognizes them."""

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: Any) -> Any:
        """Returns a 1-D tensor of the example's type (an array, for an array) in page-aligned, locked memory."""
        return new_like(num_elem, example_tensor)

    def free_cpu_locked_tensor(self, locked_tensor: Any) -> bool:
        """Unlocks the memory of a locked tensor. Returns False for other tensors. The memory is freed with the last
        tensor that uses it."""
        return unlock(locked_tensor)

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        """Unlocks memory by the address at which it begins."""
        number = operator.index(address)
        return 0 <= number < 1 << 64 and _native.unlock(number)

    def is_pinned(self, buffer: Any) -> bool:
        """True if torch pinned the tensor, or if it is in locked memory of this process. Views count too."""
        return is_pinned(buffer)


def _log(error):
    log.error("%s", getattr(error, "strerror", None) or error)


def _check_given(buffer, offset):
    """An offset of None is invalid here, while a Handle writes the whole file."""
    if offset is None:
        with labelled(describe(buffer)):
            offset_in_file(offset)


def _one_of(filename, fd):
    if (filename is None) == (fd is None):
        raise TypeError("give either a filename or an fd")
    return filename if fd is None else fd


def _async_and_offset(method, arguments, keywords, offset):
    names = ("async", "file_offset")
    given = dict(zip(names, arguments))
    if len(arguments) > len(names) or set(keywords) - set(names) or set(keywords) & set(given):
        raise TypeError(f"{method}(buffer, filename, validate, async, file_offset=0) got unexpected arguments")
    given |= keywords
    if "async" not in given:
        raise TypeError(f"{method}() missing required argument: 'async'")
    return given["async"], given.get("file_offset", offset)


def _os_error(number, text, filename, memory):
    error = OSError(number, text, int(filename) if hasattr(filename, "__index__") else os.fspath(filename))
    error.offset = 0
    return with_label(error, memory)
