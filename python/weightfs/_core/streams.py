# SPDX-License-Identifier: Apache-2.0
"""File-like objects on top of a handle, for libraries that save by write() and load by readinto()."""

import contextlib
import errno
import io
import os
import stat

from weightfs import _native
from weightfs._core.memory import HUGE, advise_huge_pages, describe

# Data of at least this size is transferred directly from the caller's memory; smaller data is gathered into pieces.
_DIRECT = 1 << 20
_GATHERED = 8 << 20
_HEAD = 4096   # maximum number of bytes at the start of a file that a writer may write last
MODE_OF_NEW_FILES = 0o666   # subject to the umask, as for any program that saves files


def name_of(descriptor):
    """A name by which a handle can open the file behind `descriptor` again, with O_DIRECT or by a lease, whatever its
    path names by now. Returns the descriptor itself if /proc is missing."""
    name = f"/proc/self/fd/{descriptor}"
    return name if os.path.lexists(name) else descriptor


@contextlib.contextmanager
def errors_of(path, opened_as):
    """Errors in the block name `path`, regardless of how the file was opened."""
    try:
        yield
    except OSError as error:
        error.filename = path
        if isinstance(opened_as, str) and error.strerror:
            error.strerror = error.strerror.replace(opened_as, os.fsdecode(path))
        raise


class ErrorKeeping(io.RawIOBase):
    """`error` is the stream's first error or interrupt. It is kept because torch raises another exception when a stream
    fails."""

    error = None

    @contextlib.contextmanager
    def raising_its_error(self):
        """Raises this stream's own error, whatever exception the block makes of it."""
        try:
            yield
        except Exception:
            if self.error is not None:
                raise self.error from None
            raise

    @contextlib.contextmanager
    def keeping_its_error(self):
        try:
            yield
        except BaseException as error:   # includes exceptions of signal handlers and of a closed handle
            self.error = self.error or error
            raise


class _Stream(ErrorKeeping):
    _descriptor = -1

    def __init__(self, path, shown, flags):
        super().__init__()
        self.shown = os.fsdecode(shown)
        with errors_of(self.shown, None):
            self._descriptor = os.open(path, flags | os.O_CLOEXEC, MODE_OF_NEW_FILES)
        self._name = name_of(self._descriptor)

    def close(self):
        try:
            super().close()
        finally:
            # Closed only once: the number may belong to another file later.
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    @contextlib.contextmanager
    def _failing(self):
        with self.keeping_its_error(), errors_of(self.shown, self._name):
            yield


class DirectWriter(_Stream):
    """A sequential stream into the file at `path`, which is emptied first and need not be a regular file. Large writes
    are not copied; each is done when write() returns, so the caller may free its memory.

    head_last: the first bytes of a regular file are written after all others. Until then the file has no head, so no
    program takes it for a checkpoint. shown: the path that errors name."""

    def __init__(self, path, handle, head_last, shown):
        self._end, self._gathered, self._under_way = 0, bytearray(), None
        super().__init__(path, shown, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._handle = handle
        self._regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self._head_last, self._head = head_last and self._regular, b""

    def writable(self):
        return True

    def tell(self):
        return self._end + len(self._gathered)

    def seek(self, offset, whence=os.SEEK_SET):
        """Moves forward only; skipped bytes read as zeros (torch.serialization.skip_data)."""
        position = offset + (self.tell() if whence == os.SEEK_CUR else 0)
        if not self._regular or whence == os.SEEK_END or position < self.tell():
            raise io.UnsupportedOperation("a stream that saves goes forward alone")
        if position > self.tell():
            self._send()
            self._end = position
        return position

    def write(self, data):
        view = memoryview(data).cast("B")
        with self._failing():
            if view.nbytes >= _DIRECT:
                self._send()
                self._put(self._behind_head(view))
            else:
                self._gathered += view
                if len(self._gathered) >= _GATHERED:
                    self._send()
        return view.nbytes

    def write_tensor(self, tensor, nbytes):
        """Like write, for a tensor of any layout."""
        if nbytes >= _DIRECT and self._regular and (self.tell() or not self._head_last):
            self._send()
            with self._failing():
                self._end += self._handle.write_from(tensor, self._name, self._end)
        else:
            self.write(bytes_of(tensor, nbytes))

    def write_at(self, tensor, offset):
        """Writes a tensor at an offset behind everything that was written by write(). Several threads may call it at
        once, and nothing else then. An error concerns this tensor alone."""
        if not self._regular:
            raise OSError(errno.ESPIPE, "only a regular file can be written in any order", self.shown)
        with errors_of(self.shown, self._name):
            if self._fills_no_block(tensor.nbytes):
                _write_all(self._descriptor, bytes_of(tensor, tensor.nbytes), offset)
            else:
                self._handle.write_from(tensor, self._name, offset)

    def flush(self):
        """Writes the gathered data and waits for it."""
        if not self.closed:
            self._send()
            self._settle()

    def complete(self, durable):
        """Finishes the file after all data was written. durable: also syncs it to the device."""
        self.flush()
        with self._failing():
            if durable and self._regular:
                os.fsync(self._descriptor)
            if self._head:
                _write_all(self._descriptor, self._head)
                self._head = b""
                if durable:
                    os.fsync(self._descriptor)

    def close(self):
        """Closes the file, complete or not."""
        if self.closed:
            return
        try:
            self.flush()
        finally:
            self._gathered.clear()
            with contextlib.suppress(OSError):
                self._settle()
            super().close()

    def abandon(self):
        """Closes the file and leaves it empty."""
        self._gathered.clear()
        with contextlib.suppress(OSError):
            self._settle()
        with contextlib.suppress(OSError):
            if not self.closed and self._regular:
                os.ftruncate(self._descriptor, 0)
        with contextlib.suppress(OSError):
            self.close()

    def _behind_head(self, data):
        """The part of the next data that must be written now, rather than with the head."""
        if self._end or not self._head_last:
            return data
        self._head = bytes(data[:_HEAD])
        self._end = len(self._head)
        return data[_HEAD:]

    def _send(self):
        """Starts the write of the gathered piece, so that the next one can be gathered meanwhile."""
        self._settle()
        if not self._gathered:
            return
        piece, self._gathered = self._behind_head(self._gathered), bytearray()
        if self._regular and piece and not self._fills_no_block(len(piece)):
            with self._failing():
                self._under_way = self._handle.write_async(piece, self._name, self._end)
            self._end += len(piece)
        else:
            self._put(piece)

    def _put(self, data):
        with self._failing():
            if self._regular and not self._fills_no_block(len(data)):
                self._handle.write_from(data, self._name, self._end)
            else:
                _write_all(self._descriptor, data, self._end if self._regular else None)
        self._end += len(data)

    def _fills_no_block(self, nbytes):
        """True for data that a handle with direct="require" may refuse. As small reads, it needs no lease."""
        return nbytes < _DIRECT and self._handle._direct == "require"

    def _settle(self):
        if self._under_way is None:
            return
        self._under_way.wait()   # if a signal handler raises here, the write is still under way
        under_way, self._under_way = self._under_way, None
        with self._failing():
            under_way.result()


def _write_all(descriptor, data, offset=None):
    rest = memoryview(data)
    while rest:
        written = os.write(descriptor, rest) if offset is None else os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], None if offset is None else offset + written


def bytes_of(tensor, nbytes):
    """The bytes of a tensor or an array, in row-major order."""
    gathered = bytearray(nbytes)
    if nbytes:
        # Keeps the copy of a GPU tensor or a conjugated tensor.
        source = describe(tensor.cpu() if hasattr(tensor, "cpu") else tensor)
        _native.copy(describe(gathered).arguments, source.arguments)
    return gathered


class DirectReader(_Stream):
    """Reads a file as a stream. Large reads go directly to the caller's memory."""

    def __init__(self, path, handle):
        super().__init__(path, path, os.O_RDONLY)
        self._handle = handle
        status = os.fstat(self._descriptor)
        if stat.S_ISDIR(status.st_mode):
            self.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.shown)
        self.limit(0, status.st_size)

    def map(self, least, begin, load):
        """Handle.map of the whole file; None if it has fewer bytes than `least`, or does not begin with `begin`."""
        size = os.fstat(self._descriptor).st_size
        if size < least or os.pread(self._descriptor, len(begin), 0) != begin:
            return None
        shared = self._handle.map(self._descriptor, 0, size, load=load)
        if shared is not None and os.fstat(shared).st_size != size:   # it has grown meanwhile
            os.close(shared)
            return None
        return shared

    def limit(self, begin, nbytes):
        """Makes a part of the file the whole stream."""
        self._begin, self._size, self._at = begin, nbytes, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=os.SEEK_SET):
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence])
        return self._at

    def tell(self):
        return self._at

    def readinto(self, buffer):
        with self._failing():
            view = memoryview(buffer).cast("B")
            wanted = min(view.nbytes, max(0, self._size - self._at))
            if wanted >= HUGE:
                advise_huge_pages(view[:wanted])
            if wanted >= _DIRECT:
                done = self._handle.read_into(view[:wanted], self._name, self._begin + self._at)
            else:
                done = os.preadv(self._descriptor, [view[:wanted]], self._begin + self._at)
            self._at += done
        return done

    def read_tensor(self, tensor, offset):
        """Fills a CPU or CUDA tensor of any layout with the bytes at `offset`, in row-major order."""
        with self._failing():
            self._handle.read_into(tensor, self._name, self._begin + offset)
