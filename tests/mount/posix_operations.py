# SPDX-License-Identifier: Apache-2.0
"""More operations of posix_script: those on descriptors that stay open, extended attributes, lists, ranges, limits.

`hold NAME PATH FLAGS [MODE]` opens a file. The operations on descriptors take NAME; as a path, @NAME is its link in
/proc/self/fd."""

import ctypes
import fcntl
import mmap
import os
import resource
import stat
import struct
import time

from harness.syscalls import (AT_EMPTY_PATH, AT_FDCWD, FALLOC_COLLAPSE, FALLOC_INSERT, FALLOC_KEEP_SIZE,
                              FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, checked, fallocate)

UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
AT_SYMLINK_NOFOLLOW = 0x100
FALLOCATE_MODES = {"allocate": 0, "keep": FALLOC_KEEP_SIZE, "punch": FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE,
                   "punch-and-grow": FALLOC_PUNCH_HOLE, "zero": FALLOC_ZERO_RANGE,
                   "zero-keep": FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE, "collapse": FALLOC_COLLAPSE,
                   "insert": FALLOC_INSERT, "unknown": 0x4000}
XATTR_FLAGS = {"": 0, "create": os.XATTR_CREATE, "replace": os.XATTR_REPLACE, "unknown": 64}
# linux/posix_acl.h and posix_acl_xattr.h
ACL_VERSION, ACL_NO_ID = 2, 0xFFFFFFFF
ACL_TAGS = {("u", True): 1, ("u", False): 2, ("g", True): 4, ("g", False): 8, ("m", True): 16, ("o", True): 32}
LISTS = {"access": "system.posix_acl_access", "default": "system.posix_acl_default"}


def encode_list(text):
    """"u::rw-,u:5:r--,g::r--,m::rw-,o::---" -> the value of the attribute. "" -> a list without entries."""
    value = struct.pack("<I", ACL_VERSION)
    for entry in filter(None, text.split(",")):
        kind, who, mode = entry.split(":")
        bits = sum(bit for letter, bit in zip(mode, (4, 2, 1)) if letter != "-")
        value += struct.pack("<HHI", ACL_TAGS[kind, who == ""], bits, int(who) if who else ACL_NO_ID)
    return value


def decode_list(value):
    names = {tag: name for (name, _), tag in ACL_TAGS.items()}
    entries = []
    for tag, bits, who in struct.iter_unpack("<HHI", value[4:]):
        mode = "".join(letter if bits & bit else "-" for letter, bit in zip("rwx", (4, 2, 1)))
        entries.append(f"{names[tag]}:{'' if who == ACL_NO_ID else who}:{mode}")
    return ",".join(entries)


def statx_of(path, flags=AT_SYMLINK_NOFOLLOW, mask=0xFFF, descriptor=AT_FDCWD):
    """The first 144 bytes of struct statx, by name."""
    buffer = ctypes.create_string_buffer(256)
    checked("statx", descriptor, os.fsencode(path), flags, ctypes.c_uint(mask), buffer)
    names = "mask blksize attributes nlink uid gid mode ino size blocks attributes_mask".split()
    result = dict(zip(names, struct.unpack_from("=IIQIIIH2xQQQQ", buffer)))
    for index, name in enumerate(("atime", "btime", "ctime", "mtime")):
        seconds, nanoseconds = struct.unpack_from("=qI4x", buffer, 64 + 16 * index)
        result[name] = seconds * 10**9 + nanoseconds
    return result


class DescriptorOperations:
    """Mixed into the operations of a script; each process has its own descriptors."""

    def __init__(self):
        self.held = {}

    def path(self, text):
        return f"/proc/self/fd/{self.held[text[1:]]}" if text.startswith("@") else text

    def hold(self, name, path, flags, mode="0644"):
        number = 0
        for flag in flags.split(","):
            number |= getattr(os, flag)
        self.held[name] = os.open(path, number, int(mode, 8))

    def drop(self, name):
        os.close(self.held.pop(name))

    def fstat(self, name, field):
        status = os.fstat(self.held[name])
        if field == "mode":
            return f"{stat.S_IMODE(status.st_mode):04o}"
        return getattr(status, f"st_{field}")

    def fwrite(self, name, text):
        return os.write(self.held[name], b"" if text == "nothing" else text.encode())

    def fread(self, name, count):
        return os.read(self.held[name], int(count)).decode()

    def pwrite(self, name, text, offset):
        return os.pwrite(self.held[name], text.encode(), int(offset))

    def pread(self, name, count, offset):
        return os.pread(self.held[name], int(count), int(offset)).decode()

    def seek(self, name, offset, whence):
        return os.lseek(self.held[name], int(offset), getattr(os, f"SEEK_{whence}"))

    def set_size(self, name, size):
        os.ftruncate(self.held[name], int(size))

    def note(self, name):
        """Keeps the times of an open file, and waits until the clock of file times has advanced."""
        self.noted = os.fstat(self.held[name])
        clock_realtime_coarse = 5
        while time.clock_gettime_ns(clock_realtime_coarse) <= self.noted.st_ctime_ns:
            time.sleep(0.0005)

    def moved(self, name):
        """Which times are later than noted."""
        now = os.fstat(self.held[name])
        fields = ("atime", "mtime", "ctime")
        return " ".join(each for each in fields
                        if getattr(now, f"st_{each}_ns") > getattr(self.noted, f"st_{each}_ns"))

    def fsync(self, name):
        os.fsync(self.held[name])

    def flist(self, name):
        return " ".join(sorted(os.listdir(self.held[name])))

    def create_at(self, name, path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=self.held[name]))

    def chmod_held(self, name, mode):
        os.fchmod(self.held[name], int(mode, 8))

    def chown_held(self, name, uid, gid):
        os.fchown(self.held[name], int(uid), int(gid))

    def set_append(self, name):
        fcntl.fcntl(self.held[name], fcntl.F_SETFL, os.O_APPEND)

    def link_held(self, name, target):
        checked("linkat", AT_FDCWD, os.fsencode(self.path("@" + name)), AT_FDCWD, os.fsencode(target), 0x400)

    def link_empty(self, name, target):
        checked("linkat", self.held[name], b"", AT_FDCWD, os.fsencode(target), AT_EMPTY_PATH)

    def range(self, name, mode, offset, length):
        fallocate(self.held[name], FALLOCATE_MODES[mode], int(offset), int(length))

    def copy_range(self, source, target, count, at_source, at_target):
        return os.copy_file_range(self.held[source], self.held[target], int(count), int(at_source), int(at_target))

    def map(self, name, mode):
        protection = {"r": mmap.PROT_READ, "w": mmap.PROT_WRITE}
        number = sum(protection[letter] for letter in mode)
        mmap.mmap(self.held[name], 1, mmap.MAP_SHARED, number).close()

    def store(self, name, text):
        """Writes through a mapping, and msync."""
        with mmap.mmap(self.held[name], 0) as mapping:
            mapping[:len(text)] = text.encode()
            mapping.flush()

    def times(self, path, atime, mtime, *, flags=0):
        special = {"now": UTIME_NOW, "omit": UTIME_OMIT}
        values = [(0, special[text]) if text in special else divmod(int(text), 10**9) for text in (atime, mtime)]
        raw = struct.pack("=qqqq", *values[0], *values[1])
        checked("utimensat", AT_FDCWD, os.fsencode(path), raw, flags)

    def ltimes(self, path, atime, mtime):
        self.times(path, atime, mtime, flags=AT_SYMLINK_NOFOLLOW)

    def raw_nanoseconds(self, path, nanoseconds):
        raw = struct.pack("=qqqq", 1, int(nanoseconds), 1, 0)
        checked("utimensat", AT_FDCWD, os.fsencode(path), raw, 0)

    def statx(self, path, field):
        return statx_of(path)[field]

    def statx_held(self, name, field):
        return statx_of("", AT_EMPTY_PATH, descriptor=self.held[name])[field]

    def born(self, path):
        return statx_of(path)["mask"] & 0x800 != 0

    def note_birth(self, path):
        self.birth = statx_of(path)["btime"]

    def same_birth(self, path):
        return statx_of(path)["btime"] == self.birth

    def attribute(self, path, name, value, flags="", size=None):
        """setxattr(2). A size in place of the value repeats a letter."""
        data = b"v" * int(size) if size is not None else value.encode()
        os.setxattr(path, name, data, XATTR_FLAGS[flags if flags != "-" else ""])

    def lattribute(self, path, name, value):
        os.setxattr(path, name, value.encode(), follow_symlinks=False)

    def read_attribute(self, path, name, size):
        """getxattr(2) with a buffer of that size; its answer."""
        buffer = ctypes.create_string_buffer(max(int(size), 1))
        return checked("getxattr", os.fsencode(path), name.encode(), buffer, ctypes.c_size_t(int(size)))

    def list_attributes(self, path, size=None):
        if size is None:
            return " ".join(sorted(name for name in os.listxattr(path) if name != "security.selinux"))
        buffer = ctypes.create_string_buffer(max(int(size), 1))
        return checked("listxattr", os.fsencode(path), buffer, ctypes.c_size_t(int(size)))

    def remove_attribute(self, path, name):
        os.removexattr(path, name)

    def acl(self, path, kind, text=""):
        os.setxattr(path, LISTS[kind], encode_list(text))

    def bad_acl(self, path, value):
        os.setxattr(path, LISTS["access"], bytes.fromhex(value))

    def show_acl(self, path, kind):
        return decode_list(os.getxattr(path, LISTS[kind]))

    def drop_acl(self, path, kind):
        os.removexattr(path, LISTS[kind])

    def limit_size(self, size):
        """RLIMIT_FSIZE of this process. Python ignores SIGXFSZ."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), resource.RLIM_INFINITY))

    def same_file(self, one, other):
        return os.path.samestat(os.lstat(one), os.lstat(other))

    def filesystem(self, path, field):
        return getattr(os.statvfs(path), f"f_{field}")

    def to_other_device(self, path, operation):
        """rename or link to a filesystem that is another one."""
        getattr(os, operation)(path, "/dev/shm/weightfs-posix-rules")

    def working_directory(self, path):
        os.chdir(path)

    def where(self):
        return os.path.basename(os.getcwd())
