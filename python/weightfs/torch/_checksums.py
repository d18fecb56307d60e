# SPDX-License-Identifier: Apache-2.0
"""Adds checksums to an archive of torch.save. torch itself computes them at 1 to 2 GB/s, before each write; here a
thread computes them at 10 GB/s or more, during the write."""

import io
import struct

from weightfs import _native
from weightfs._core.memory import describe

_PARALLEL = 1 << 20   # bytes; the checksum of a shorter record is computed at once
_HEADER, _DESCRIPTOR, _ENTRY = b"PK\3\4", b"PK\7\10", b"PK\1\2"
_HEADER_SIZE, _ENTRY_SIZE = 30, 46
_HAS_DESCRIPTOR = 8   # bit of the flags: the record has data, and its checksum is behind it
# torch's last record: 20 digits from the names of the other records, and 20 from their checksums.
_ID_NAME, _ID_DIGITS = b"/.data/serialization_id", 20


class ZipChecksums(io.RawIOBase):
    """A stream for torch.save that writes to a DirectWriter. torch must not compute checksums (compute_crc32=False).

    It follows torch's writes, which are one for each part of a record: header, name, extra field, data, descriptor. At
    the end there is one write for the directory. ValueError when a write does not fit: torch has changed its layout."""

    def __init__(self, stream):
        super().__init__()
        self._stream, self._archive = stream, self._follow()
        next(self._archive)

    def writable(self):
        return True

    def tell(self):
        return self._stream.tell()

    def write(self, data):
        view = memoryview(data).cast("B")
        self._archive.send(view)
        return view.nbytes

    def flush(self):
        if not self.closed:   # close() flushes, too, and leaves the other stream open
            self._stream.flush()

    def _follow(self):
        """A generator that takes the writes one after the other."""
        checksums, combined = [], 0   # of all records, and from those of the records with data
        while (view := (yield))[:4] != _ENTRY:
            if view.nbytes != _HEADER_SIZE or view[:4] != _HEADER:
                self._reject("a header")
            flags, checksum, name_size, extra_size = struct.unpack_from("<6xH6xL8xHH", view)
            if checksum != 0:
                self._reject("a header without a checksum")
            self._stream.write(view)
            names = b""   # the name, and the extra field in one write or two
            while len(names) < name_size + extra_size:
                names += (view := (yield))
                if len(names) > name_size + extra_size:
                    self._reject("a name or an extra field")
                self._stream.write(view)
            if flags & _HAS_DESCRIPTOR:
                view = yield
                if names[:name_size].endswith(_ID_NAME):
                    if view.nbytes != 2 * _ID_DIGITS:
                        self._reject("an id of 40 digits")
                    view = memoryview(bytes(view[:_ID_DIGITS]) + b"%020d" % combined)
                checksum, size = self._write_data(view), view.nbytes
                combined = _combine(combined, checksum)
                del view   # of torch's memory
                self._write_descriptor((yield), size, checksum)
            checksums.append(checksum)
        self._write_directory(view, checksums)
        while True:
            self._stream.write((yield))   # the ends of the directory have no checksums

    def _write_data(self, view):
        """Returns the checksum."""
        memory = describe(view)
        if view.nbytes < _PARALLEL:
            self._stream.write(view)
            return _native.zip_crc32(memory.address, view.nbytes) if view.nbytes else 0
        thread = _native.ZipCrc32Thread(memory.address, view.nbytes)
        try:
            self._stream.write(view)
        finally:
            checksum = thread.result()   # it no longer uses the memory
        return checksum

    def _write_descriptor(self, view, size, checksum):
        # The sizes have 8 bytes each in archives of 4 GiB or more.
        sizes = {16: "<LL", 24: "<QQ"}.get(view.nbytes)
        if sizes is None or view[:4] != _DESCRIPTOR or struct.unpack_from(sizes, view, 8) != (size, size):
            self._reject("a descriptor")
        descriptor = bytearray(view)
        struct.pack_into("<L", descriptor, 4, checksum)
        self._stream.write(descriptor)

    def _write_directory(self, view, checksums):
        directory, at = bytearray(view), 0
        for checksum in checksums:
            if directory[at:at + 4] != _ENTRY:
                self._reject("a directory with an entry for each record")
            struct.pack_into("<L", directory, at + 16, checksum)
            at += _ENTRY_SIZE + sum(struct.unpack_from("<HHH", directory, at + 28))   # name, extra field, comment
        if at != len(directory):
            self._reject("the end of the directory")
        self._stream.write(directory)

    def _reject(self, expected):
        error = ValueError(f"torch did not write {expected} where it was expected in an archive: save with crc32=False, "
                           f"and report this version of torch")
        self._stream.error = self._stream.error or error   # torch raises another exception
        raise error


def _combine(seed, value):
    """c10::hash_combine of torch, on 64 bits."""
    return (seed ^ (value + 0x9E3779B9 + (seed << 6) + (seed >> 2))) & ((1 << 64) - 1)
