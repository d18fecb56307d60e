"""File-like objects over a handle, for libraries that save and load by write() and readinto()."""

import contextlib
import io
import os
import stat

from weightfs._handle import aio_handle

# What is at least this large goes straight from the caller's memory; the rest is gathered into pieces.
_DIRECT = 1 << 20
_GATHERED = 8 << 20
_HEAD = 4096   # bytes of a file's beginning that a writer may keep for the end
MODE_OF_NEW_FILES = 0o666   # less the umask, as for every program that saves files


class DirectWriter(io.RawIOBase):
    """A sequential stream into the file at `path`, which is empty first; into what is no regular file, too. Large writes
    need no copy; each is done when write() returns, so that its memory may go.

    head_last: the first bytes of a regular file are written when all others are there. Until then it has no head, and
    nothing that reads checkpoints takes it for one."""

    def __init__(self, path, handle, head_last):
        super().__init__()
        self._path, self._handle = path, handle
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, MODE_OF_NEW_FILES)
        self._regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self._head_last, self._head = head_last and self._regular, b""
        self._end, self._gathered, self._under_way = 0, bytearray(), None

    def writable(self):
        return True

    def tell(self):
        return self._end + len(self._gathered)

    def write(self, data):
        view = memoryview(data).cast("B")
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
            self._end += self._handle.write_from(tensor, self._path, self._end)
        else:
            self.write(_bytes_of(tensor, nbytes))

    def flush(self):
        """Sends what was gathered, and waits for it."""
        if not self.closed:
            self._send()
            self._settle()

    def complete(self, durable):
        """All was written: the file is what it should be. durable: and on the device."""
        self.flush()
        if durable and self._regular:
            os.fsync(self._descriptor)
        if self._head:
            _write_all(self._descriptor, self._head)
            self._head = b""
            if durable:
                os.fsync(self._descriptor)

    def close(self):
        """Whether it is complete or not."""
        if self.closed:
            return
        try:
            self.flush()
        finally:
            descriptor, self._descriptor = self._descriptor, -1
            with contextlib.suppress(OSError):
                self._settle()
            super().close()
            os.close(descriptor)

    def abandon(self):
        """Ends it, and leaves an empty file."""
        self._gathered.clear()
        with contextlib.suppress(OSError):
            self._settle()
        with contextlib.suppress(OSError):
            if not self.closed and self._regular:
                os.ftruncate(self._descriptor, 0)
        with contextlib.suppress(OSError):
            self.close()

    def _behind_head(self, data):
        """What is to be written now of the data that comes next."""
        if self._end or not self._head_last:
            return data
        self._head = bytes(data[:_HEAD])
        self._end = len(self._head)
        return data[_HEAD:]

    def _send(self):
        """One gathered piece is under way while the next is gathered."""
        self._settle()
        if not self._gathered:
            return
        piece, self._gathered = self._behind_head(self._gathered), bytearray()
        if self._regular and piece:
            self._under_way = self._handle.write_async(piece, self._path, self._end)
            self._end += len(piece)
        else:
            self._put(piece)

    def _put(self, data):
        if self._regular:
            self._handle.write_from(data, self._path, self._end)
        else:
            _write_all(self._descriptor, data)
        self._end += len(data)

    def _settle(self):
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()


def _write_all(descriptor, data):
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest):]


def _bytes_of(tensor, nbytes):
    from weightfs import _native
    from weightfs._memory import describe
    gathered = bytearray(nbytes)
    if nbytes:
        _native.copy(describe(gathered).arguments, describe(tensor.cpu()).arguments)
    return gathered


class DirectReader(io.RawIOBase):
    """The content of a file; large reads go straight into the caller's memory."""

    def __init__(self, path, handle):
        super().__init__()
        self._path, self._handle = path, handle
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size, self._at = os.fstat(self._descriptor).st_size, 0

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
        view = memoryview(buffer).cast("B")
        wanted = min(view.nbytes, max(0, self._size - self._at))
        if wanted >= _DIRECT:
            done = self._handle.read_into(view[:wanted], self._path, self._at)
        else:
            done = os.preadv(self._descriptor, [view[:wanted]], self._at)
        self._at += done
        return done

    def close(self):
        if not self.closed:
            super().close()
            os.close(self._descriptor)


@contextlib.contextmanager
def the_handle(handle, kind=aio_handle):
    """The caller's handle, or one for the occasion."""
    if handle is not None:
        yield handle
    else:
        with kind(overlap_events=True) as own:
            yield own
