# SPDX-License-Identifier: Apache-2.0
"""A client of the lease protocol without the client library: the messages of lease/protocol.h over a socket."""

import array
import errno
import fcntl
import mmap
import os
import socket
import struct

from harness.crc32c import crc32c

BLOCK = 4096
VERSION = 1
READ, RESERVE, COMMIT, RELEASE, READ_MANY, COMMIT_MANY, IDENTIFY, RESERVE_IN_PLACE, MAP, MAP_LOADED = range(1, 11)
TO_END = (1 << 64) - 1
INLINE_BODY = 32 << 10
MAXIMUM_FILES = 1 << 17
HEADER = struct.Struct("=IIiIQ")
EXTENT = struct.Struct("=QQQII")
TICKET = struct.Struct("=II16s96s")
IOC_LEASE = (3 << 30) | (TICKET.size << 16) | (ord("W") << 8) | 5
REQUEST = struct.Struct("=IIQQQ16s16x")
IOC_LEASE_REQUEST = (3 << 30) | (REQUEST.size << 16) | (ord("W") << 8) | 8
SCM_CREDENTIALS = 2
ANSWER_LIMIT_S = 60
F_ADD_SEALS, SEALS = 1033, 2 | 4 | 8

def blocks_of(data):
    """`data` in whole blocks, the last one padded with zeros."""
    return [data[at:at + BLOCK].ljust(BLOCK, b"\0") for at in range(0, len(data), BLOCK)]


class Refused(OSError):
    """An error of the server; `body` is the message that came with it."""

    def __init__(self, code, body):
        super().__init__(code, body.decode(errors="replace"))
        self.body = body


def ticket(descriptor):
    """Returns the token and socket name for an open file or directory."""
    answer = fcntl.ioctl(descriptor, IOC_LEASE, TICKET.pack(1, 0, bytes(16), bytes(96)))
    version, protocol, token, name = TICKET.unpack(answer)
    assert (version, protocol) == (1, VERSION)
    return token, name.rstrip(b"\0")


def permit(descriptor, token):
    """Lets the kernel check that the mount of a directory is not read-only, before one change of it."""
    os.setxattr(descriptor, "system.weightfs.change", token)


def request(descriptor, kind, connection, offset=0, length=TO_END):
    """Asks for a lease on a connection, by its identity."""
    fcntl.ioctl(descriptor, IOC_LEASE_REQUEST, REQUEST.pack(1, kind, connection, offset, length, bytes(16)))


def memory_file(data, seals=SEALS):
    file = os.memfd_create("body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(file, data)
    fcntl.fcntl(file, F_ADD_SEALS, seals)
    return file


def read_device(device, block, count):
    """Reads whole blocks, bypassing the page cache."""
    memory = mmap.mmap(-1, count * BLOCK)
    done = 0
    while done < count * BLOCK:
        got = os.preadv(device, [memoryview(memory)[done:]], block * BLOCK + done)
        assert got > 0
        done += got
    return memory[:]


def write_device(device, block, data):
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    assert os.pwritev(device, [memory], block * BLOCK) == len(data)


class Lease:
    """A connection and the descriptors it holds, which are closed at its end."""

    def __init__(self, name):
        """`name`: in the abstract namespace, or a path."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(name if name.startswith(b"/") else b"\0" + name)   # Blocks until it is accepted, which a socket with a timeout would not do.
        self.socket.settimeout(ANSWER_LIMIT_S)
        self.devices = []

    def close(self):
        self.forget_devices()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def forget_devices(self):
        for device in self.devices:
            os.close(device)
        self.devices = []

    def send(self, kind, body=b""):
        # The server needs the sender's credentials. It asks for them after it has accepted the connection.
        passed = [(socket.SOL_SOCKET, SCM_CREDENTIALS, struct.pack("=3i", os.getpid(), os.geteuid(), os.getegid()))]
        if len(body) <= INLINE_BODY:
            self.socket.sendmsg([HEADER.pack(VERSION, kind, 0, 0, len(body)), body], passed)
            return
        file = memory_file(body)
        passed += [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
        self.socket.sendmsg([HEADER.pack(VERSION, kind, 0, 1, len(body))], passed)
        os.close(file)

    def receive(self, kind):
        data, control, flags, _ = self.socket.recvmsg(HEADER.size + INLINE_BODY, socket.CMSG_SPACE(65 * 4))
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the mount ended the connection")
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        descriptors = array.array("i")
        for level, which, passed in control:
            assert (level, which) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            descriptors.frombytes(passed)
        version, answered, error, in_memfd, size = HEADER.unpack_from(data)
        assert (version, answered) == (VERSION, kind)
        body = data[HEADER.size:]
        if in_memfd:
            file = descriptors.pop(0)
            body = os.pread(file, size, 0)
            os.close(file)
        assert len(body) == size
        if error:
            assert not descriptors
            raise Refused(error, body)
        if descriptors:
            self.forget_devices()
            self.devices = list(descriptors)
        return body

    def ask(self, kind, body=b""):
        self.send(kind, body)
        return self.receive(kind)

    def identify(self, token):
        return struct.unpack("=Q", self.ask(IDENTIFY, token))[0]

    def read(self, token, offset=0, length=TO_END):
        """Returns the file size, the first block and number of blocks of the range, the extents and the checksums."""
        body = self.ask(READ, struct.pack("=16sQQ", token, offset, length))
        size, first, blocks, count = struct.unpack_from("=QQQQ", body)
        extents = [EXTENT.unpack_from(body, 32 + EXTENT.size * index)[:4] for index in range(count)]
        sums = struct.unpack_from(f"={blocks}I", body, 32 + EXTENT.size * count)
        assert len(body) == 32 + EXTENT.size * count + 4 * blocks
        return size, first, blocks, extents, sums

    def map(self, token, offset, length, kind=MAP):
        """Returns a descriptor of hot memory with a range that lies in the file and is small enough for one request. The
        caller closes it."""
        size, content, end = struct.unpack("=QQQ", self.ask(kind, struct.pack("=16sQQ", token, offset, length)))
        assert (content != 0) == (kind == MAP) and end == offset + length <= size
        return self.devices.pop()

    def content(self, leased):
        """The bytes of a leased range, after each block's checksum was verified."""
        size, first, blocks, extents, sums = leased
        out = bytearray(blocks * BLOCK)
        for file_block, count, device_block, device in extents:
            at = (file_block - first) * BLOCK
            data = read_device(self.devices[device], device_block, count)
            for index in range(count):
                block = data[index * BLOCK:(index + 1) * BLOCK]
                assert crc32c(block) == sums[file_block - first + index], f"block {file_block + index} is not what it was"
            out[at:at + len(data)] = data
        return bytes(out[:size - first * BLOCK])

    def reserve(self, token, blocks, offset=0, kind=RESERVE):
        body = self.ask(kind, struct.pack("=16sQQ", token, offset, blocks))
        count, = struct.unpack_from("=Q", body)
        return [EXTENT.unpack_from(body, 8 + EXTENT.size * index)[:4] for index in range(count)]

    def fill(self, extents, data):
        """Writes the first blocks of a reservation. Returns the checksums to commit them with."""
        blocks = blocks_of(data)
        for first, count, device_block, device in extents:
            mine = blocks[first:first + count]
            if mine:
                write_device(self.devices[device], device_block, b"".join(mine))
        return [crc32c(block) for block in blocks]

    def commit(self, token, length, sums, *, offset=0, new_size=TO_END, durable=True):
        try:
            body = struct.pack("=16sQQQII", token, offset, length, new_size, durable, 0)
            self.ask(COMMIT, body + struct.pack(f"={len(sums)}I", *sums))
        finally:
            self.forget_devices()

    def release(self):
        self.ask(RELEASE)
        self.forget_devices()

    def read_many(self, token, names):
        """For each name, its errno or its content."""
        body = self.ask(READ_MANY, struct.pack("=16sQ", token, len(names)) + b"".join(name + b"\0" for name in names))
        extent_count, sum_count = struct.unpack_from("=QQ", body)
        files = [struct.unpack_from("=iIQQQ", body, 16 + 32 * index) for index in range(len(names))]
        at = 16 + 32 * len(names)
        extents = [EXTENT.unpack_from(body, at + EXTENT.size * index)[:4] for index in range(extent_count)]
        sums = struct.unpack_from(f"={sum_count}I", body, at + EXTENT.size * extent_count)
        answers = []
        for error, _, size, extent, checksum in files:
            mine, extents = extents[:extent], extents[extent:]
            of_mine, sums = sums[:checksum], sums[checksum:]
            answers.append(error or self.content((size, 0, checksum, mine, of_mine)))
        assert not extents and not sums
        return answers

    def commit_many(self, token, files, sums, *, mode=0o644, durable=True):
        """`files`: (name, size). Raises Refused with the index in `failed`."""
        body = struct.pack("=16sQII", token, len(files), mode, durable)
        body += b"".join(struct.pack("=Q", size) for _, size in files) + b"".join(name + b"\0" for name, _ in files)
        try:
            self.ask(COMMIT_MANY, body + struct.pack(f"={len(sums)}I", *sums))
        except Refused as refused:
            refused.failed, = struct.unpack_from("=Q", refused.body)
            raise
        finally:
            self.forget_devices()


def write_opened(descriptor, data, **commit):
    """Writes the file's content from offset 0 through a lease, as the client library does for a whole tensor."""
    token, name = ticket(descriptor)
    with Lease(name) as lease:
        sums = lease.fill(lease.reserve(token, -(-len(data) // BLOCK)), data)
        lease.commit(token, len(data), sums, **{"new_size": len(data), **commit})
    os.fstat(descriptor)   # This makes the kernel learn the new size.


def write_direct(path, data, flags=0, **commit):
    descriptor = os.open(path, os.O_RDWR | flags, 0o644)
    try:
        write_opened(descriptor, data, **commit)
    finally:
        os.close(descriptor)


def read_direct(path, offset=0, length=TO_END):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        token, name = ticket(descriptor)
        with Lease(name) as lease:
            return lease.content(lease.read(token, offset, length))
    finally:
        os.close(descriptor)


def map_hot(descriptor, offset, length, *, load=True):
    """Returns a descriptor of memory that keeps these bytes of an open file as they are now."""
    token, name = ticket(descriptor)
    with Lease(name) as lease:
        return lease.map(token, offset, length, MAP if load else MAP_LOADED)


def write_many(directory, files, **commit):
    """Writes `files`, {name: bytes}, in one commit."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        token, name = ticket(descriptor)
        with Lease(name) as lease:
            data = b"".join(b"".join(blocks_of(content)) for content in files.values())
            permit(descriptor, token)
            sums = lease.fill(lease.reserve(token, max(1, len(data) // BLOCK)), data)
            permit(descriptor, token)
            lease.commit_many(token, [(name, len(content)) for name, content in files.items()], sums, **commit)
    finally:
        os.close(descriptor)
