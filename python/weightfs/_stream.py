"""File-like objects over a handle, for libraries that save and load by write() and readinto()."""

import contextlib
import io
import os
import tempfile

from weightfs._handle import aio_handle

# What is at least this large goes straight from the caller's memory; the rest is gathered into pieces.
_DIRECT = 1 << 20
_GATHERED = 8 << 20
_TEMPORARY_NAME = 200   # bytes of a file's name that its temporary file's name begins with
_MODE_OF_NEW_FILES = 0o666   # less the umask, as for every program that saves files


class DirectWriter(io.RawIOBase):
    """A sequential stream into a file at `path`. Large writes need no copy; each is done when write() returns, so that
    its memory may go. What was in the file behind the end is cut off by close()."""

    def __init__(self, path, handle):
        super().__init__()
        self._path, self._handle = path, handle
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _MODE_OF_NEW_FILES)
        self._end, self._gathered, self._under_way = 0, bytearray(), None

    def writable(self):
        return True

    def tell(self):
        return self._end + len(self._gathered)

    def write(self, data):
        view = memoryview(data).cast("B")
        if view.nbytes >= _DIRECT:
            self._send()
            self._handle.write_from(view, self._path, self._end)
            self._end += view.nbytes
        else:
            self._gathered += view
            if len(self._gathered) >= _GATHERED:
                self._send()
        return view.nbytes

    def write_tensor(self, tensor, nbytes):
        """Like write, for a tensor of any layout."""
        if nbytes >= _DIRECT:
            self._send()
            self._end += self._handle.write_from(tensor, self._path, self._end)
        else:
            self.write(_bytes_of(tensor, nbytes))

    def flush(self):
        if not self.closed:
            self._send()
            self._settle()

    def sync(self):
        self.flush()
        os.fsync(self._descriptor)

    def close(self):
        if self.closed:
            return
        try:
            self.flush()
            os.ftruncate(self._descriptor, self._end)
        finally:
            descriptor, self._descriptor = self._descriptor, -1
            with contextlib.suppress(OSError):
                self._settle()
            super().close()
            os.close(descriptor)

    def abandon(self):
        """Ends it without a promise about the content."""
        self._gathered.clear()
        with contextlib.suppress(OSError):
            self.close()

    def _send(self):
        """One gathered piece is under way while the next is gathered."""
        self._settle()
        if self._gathered:
            piece, self._gathered = self._gathered, bytearray()
            self._under_way = self._handle.write_async(piece, self._path, self._end)
            self._end += len(piece)

    def _settle(self):
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()


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


@contextlib.contextmanager
def writing(path, handle, durable, atomic):
    """A DirectWriter for the block. After an error an atomic write leaves the old file; another kind leaves nothing of
    use."""
    path = os.path.realpath(os.fsdecode(path)) if atomic else os.fsdecode(path)
    with the_handle(handle) as used:
        name = _temporary_beside(path) if atomic else path
        stream = DirectWriter(name, used)
        try:
            yield stream
            stream.sync() if durable else stream.flush()
            stream.close()
            if atomic:
                os.replace(name, path)
            if durable:
                _sync_folder(path)
        except BaseException:
            stream.abandon()
            if atomic:
                with contextlib.suppress(OSError):
                    os.unlink(name)
            raise


def _temporary_beside(path):
    folder, base = os.path.split(path)
    start = os.fsdecode(os.fsencode(base)[:_TEMPORARY_NAME])
    descriptor, name = tempfile.mkstemp(prefix=f".{start}.weightfs-", dir=folder or ".")
    try:
        mask = os.umask(0)
        os.umask(mask)
        mode = os.stat(path).st_mode & 0o7777 if os.path.exists(path) else _MODE_OF_NEW_FILES & ~mask
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
    return name


def _sync_folder(path):
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
