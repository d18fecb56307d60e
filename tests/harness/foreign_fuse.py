# SPDX-License-Identifier: Apache-2.0
"""A FUSE filesystem that is not weightfs, with files in one directory, whose answer to every ioctl a test chooses."""
import ctypes
import errno
import os
import stat
import struct
import threading

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
OPENDIR, READDIR, RELEASEDIR, INTERRUPT, IOCTL, BATCH_FORGET = 27, 28, 29, 36, 39, 42
ROOT, MNT_DETACH, TIME = 1, 2, 1_700_000_000
libc = ctypes.CDLL(None, use_errno=True)


class ForeignFuse:
    """Mounted while it is used as a context manager. `ioctl` is an errno, or 0 for success without an answer."""

    def __init__(self, point, files, ioctl):
        self.point, self.files, self.ioctl = point, sorted(files.items()), ioctl
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        options = f"fd={self.device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},allow_other"
        if libc.mount(b"foreign", os.fsencode(self.point), b"fuse.foreign", 0, options.encode()) != 0:
            raise OSError(ctypes.get_errno(), "mount")
        self.thread.start()
        return self

    def __exit__(self, *_):
        libc.umount2(os.fsencode(self.point), MNT_DETACH)
        self.thread.join()
        os.close(self.device)

    def _serve(self):
        while True:
            try:
                request = os.read(self.device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                return   # ENODEV: unmounted
            _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
            if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            try:
                error, answer = 0, self._answer(opcode, node, request[40:])
            except OSError as raised:
                error, answer = -raised.errno, b""
            os.write(self.device, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)

    def _answer(self, opcode, node, body):
        if opcode == INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 12, 9, 65536, 1, 0, 0, 0)
        if opcode == LOOKUP:
            return self._lookup(body.rstrip(b"\0").decode())
        if opcode == GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
        if opcode in (OPEN, OPENDIR):
            return bytes(16)
        if opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self.files[node - ROOT - 1][1][offset:offset + size]
        if opcode == READDIR:
            return self._list(struct.unpack_from("<QQ", body)[1])
        if opcode == STATFS:
            return struct.pack("<QQQQQIIII24x", 1000, 500, 500, 1000, 500, 4096, 255, 4096, 0)
        if opcode in (RELEASE, RELEASEDIR, FLUSH):
            return b""
        if opcode == IOCTL and self.ioctl == 0:
            return bytes(16)
        raise OSError(self.ioctl if opcode == IOCTL else errno.ENOSYS, "")

    def _lookup(self, name):
        for at, (known, _) in enumerate(self.files):
            if known == name:
                return struct.pack("<QQQQII", ROOT + 1 + at, 0, 0, 0, 0, 0) + self._attributes(ROOT + 1 + at)
        raise OSError(errno.ENOENT, "")

    def _attributes(self, node):
        mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o644
        size = 0 if node == ROOT else len(self.files[node - ROOT - 1][1])
        return struct.pack("<6Q3I7I", node, size, 0, TIME, TIME, TIME, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _list(self, offset):
        entries = b""
        for at, (name, _) in list(enumerate(self.files))[offset:]:
            encoded = name.encode()
            entry = struct.pack("<QQII", ROOT + 1 + at, at + 1, len(encoded), 8) + encoded
            entries += entry + bytes(-len(entry) % 8)
        return entries
