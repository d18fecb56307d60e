# SPDX-License-Identifier: Apache-2.0
"""Saves a file: writes a temporary file and renames it over the old one, or overwrites the old one if that is not
possible. With what a save checks beforehand (direct="require": nothing is created beside a missing mount), what
explains its error afterwards (a published directory), and locks of what it is about to write."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shlex
import stat

from weightfs import _native
from weightfs._core.handle import the_handle
from weightfs._core.publish import publication
from weightfs._core.streams import MODE_OF_NEW_FILES, DirectWriter, errors_of

_TEMPORARY_NAME = 200   # bytes of the file's name that the temporary name starts with
_TYPES = ("fuse.weightfs", "fuseblk.weightfs")
_UNKNOWN = ["", "", "", "", "?", "-", "an unknown filesystem", "?"]   # in no table that this process may read


@contextlib.contextmanager
def writing(path, handle, durable, atomic):
    """Opens a DirectWriter for the block. atomic: until the block ends without an error, the old file stays in place,
    even if the process is killed. Otherwise, and for files that cannot be replaced, the file has no head until then
    (see DirectWriter), and an error leaves it empty."""
    path = os.fsdecode(path)
    if not path or path.endswith("/"):
        number = errno.EISDIR if path else errno.ENOENT
        raise OSError(number, os.strerror(number), path)
    check_mounted(path, handle)
    with explaining_publication(path), the_handle(handle) as used:
        replaced = _replaced(path) if atomic else None
        target = replaced or os.path.realpath(path)   # resolved now, because the working directory may change
        name = _temporary_beside(path, replaced) if replaced is not None else None
        stream = None
        try:
            stream = DirectWriter(name or path, used, head_last=name is None, shown=path)
            with stream.raising_its_error():
                yield stream
            stream.complete(durable)
            stream.close()
            if name is not None:
                os.replace(name, replaced)
            if durable:
                sync_folder(os.path.dirname(target))
        except BaseException:
            try:
                if stream is not None:
                    stream.abandon()
            finally:
                if name is not None:
                    with contextlib.suppress(OSError):
                        os.unlink(name)
            raise


def _replaced(path):
    """The name of the new file, with all symbolic links resolved. None for anything but a regular file, and for files
    that cannot be replaced at their location. Raises the error of open(2) for a file that may not be written."""
    while True:
        target = _final(path)
        try:
            held = os.open(path, os.O_PATH | os.O_CLOEXEC)   # an open file keeps its inode number from being reused
        except FileNotFoundError:
            return target
        try:
            old = os.fstat(held)
            if not stat.S_ISREG(old.st_mode):
                return None
            with contextlib.suppress(FileNotFoundError):
                os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
            if _is_at(target, old):
                folder = os.stat(os.path.dirname(target))
                mounted = old.st_dev != folder.st_dev
                guarded = folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, folder.st_uid, old.st_uid)
                return None if mounted or guarded else target
            # Either another program has just replaced the file, or the path is a link like /proc/self/fd/3 to a deleted
            # file.
            if _is_at(path, old) and _final(path) == target:
                return None
        finally:
            os.close(held)


def _final(path):
    """The absolute name that a rename to `path` should use. PermissionError for a link that open(2) refuses."""
    folder, name = os.path.split(os.fsdecode(_native.final_path(os.fsencode(path))))
    return os.path.join(os.path.realpath(folder or "."), name)


def _is_at(path, file):
    try:
        return os.path.samestat(os.stat(path), file)
    except FileNotFoundError:
        return False


def _temporary_beside(path, target):
    """Creates a temporary file. None if the directory does not accept new files but the old file is writable."""
    folder, base = os.path.split(target)
    start = os.path.join(folder, f".{os.fsdecode(os.fsencode(base)[:_TEMPORARY_NAME])}.weightfs-")
    try:
        old = os.stat(target)
    except FileNotFoundError:
        old = None
    try:
        # Only the kernel can apply the umask: reading it means setting it, for all threads.
        descriptor, name = _make(start, MODE_OF_NEW_FILES if old is None else 0o600)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and old is not None:
            return None
        error.filename = path
        raise
    try:
        if old is not None:
            _native.take_over(descriptor, old.st_uid, old.st_gid, old.st_mode)
    except BaseException:
        os.unlink(name)
        raise
    finally:
        os.close(descriptor)
    return name


def new_file(path):
    """Creates an empty temporary file beside `path`, and returns its name."""
    folder, base = os.path.split(path)
    descriptor, name = _make(os.path.join(folder, f".{base}.weightfs-"), MODE_OF_NEW_FILES)
    os.close(descriptor)
    return name


def _make(start, mode):
    """Returns (descriptor, name) of a new file whose name begins with `start`."""
    while True:
        name = start + secrets.token_hex(4)
        with contextlib.suppress(FileExistsError):
            return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), name


def sync_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path):
    """Creates a directory and those above it that are missing, durably."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_folder(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(path).st_mode):   # otherwise its error, such as that of a mount for its user alone
            raise
    sync_folder(parent)


def check_mounted(path, chosen):
    """Checks that a path is on a weightfs mount, or would be if it existed.

    Args:
        chosen: a handle, or its `direct`. Without "require" nothing is checked.

    Raises:
        OSError: it is not. The text has the filesystem that it is on, and the next step."""
    if getattr(chosen, "_direct", chosen) != "require":
        return
    target = os.path.realpath(os.fsdecode(path))
    kind, source, point = _mount_above(target)
    if kind not in _TYPES:
        raise OSError(errno.ENOTTY, f"on no weightfs mount, which direct=\"require\" needs, but on {kind} ({source}, "
                                    f"mounted on {point}); mount the store first: weightfs mount STORE DIR", target)


def on_mount(path):
    """Whether a path is on a weightfs mount, or would be if it existed. False for a path that cannot be looked up."""
    try:
        return _mount_above(os.path.realpath(os.fsdecode(path)))[0] in _TYPES
    except (OSError, ValueError):
        return False


def _mount_above(point):
    """(type, source, mount point) of the filesystem of a file, or of the nearest directory above a missing one."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(point)   # a mount whose daemon is dead is no directory of another one
    while not os.path.ismount(point):
        point = os.path.dirname(point)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        # "36 35 8:1 / /mnt/my\040disk rw shared:1 - ext4 /dev/sda1 rw"
        found = [[re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), word) for word in line.split(" ")]
                 for line in mounts]
    fields = next((each for each in reversed(found) if each[4] == point), _UNKNOWN)   # the last one hides others
    return *fields[fields.index("-") + 1:][:2], fields[4]


@contextlib.contextmanager
def explaining_publication(path):
    """An EPERM in the block names the published directory that causes it, and the command that reverts it. `path` is
    what the block changes."""
    try:
        yield
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
        at, found = os.path.realpath(os.fsdecode(path)), None
        while found is None:
            with contextlib.suppress(OSError):
                found = publication(at)
            if found is None and at == (at := os.path.dirname(at)):
                raise
        raise PermissionError(
            errno.EPERM, f"{at} is published (version {found.version}), so nothing in it can change; save to another "
                         f"directory, or first run: weightfs publish --undo {shlex.quote(at)}",
                         os.fsdecode(path)) from None


def lock(path):
    """Returns a descriptor that holds the lock of a file or directory. flock(2) ends with the program, so the lock
    distinguishes the files of a living program from those that a killed one left. The descriptor cannot write, so a
    directory with the file can be published meanwhile.

    Raises:
        BlockingIOError: another descriptor holds the lock.
        FileNotFoundError: it is gone, or the path is another file by now.
        OSError: the filesystem has no flock(2), or the file cannot be opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with errors_of(path, None):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
            raise FileNotFoundError(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
