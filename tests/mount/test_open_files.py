# SPDX-License-Identifier: Apache-2.0
"""Files in use while their names change or vanish, nameless files, and many open files at once."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from harness import process
from harness.filesystems import wait_until
from harness.syscalls import link_descriptor

OPEN_FILES = 10_000


def test_unlinked_file_lives_while_it_is_open(mount, work):
    path = work / "file"
    free = os.statvfs(work).f_bfree
    with open(path, "w+b", buffering=0) as stream:
        stream.write(os.urandom(3 << 20))
        os.unlink(path)
        assert os.fstat(stream.fileno()).st_nlink == 0 and not path.exists()
        stream.seek(1 << 20)
        stream.write(b"after the unlink")
        os.ftruncate(stream.fileno(), 5 << 20)
        os.fsync(stream.fileno())
        assert os.pread(stream.fileno(), 16, 1 << 20) == b"after the unlink"
        with open(f"/proc/self/fd/{stream.fileno()}", "rb") as second:
            assert second.seek(0, os.SEEK_END) == 5 << 20
        os.fchmod(stream.fileno(), 0o600)
        path.write_bytes(b"another file of that name")
        assert os.pread(stream.fileno(), 5, 1 << 20) == b"after"
    mount.remount()
    assert path.read_bytes() == b"another file of that name"
    path.unlink()
    mount.remount()
    assert os.statvfs(work).f_bfree >= free - 16


@pytest.mark.parametrize("size", [0, 5000, 3 << 20])
def test_a_deleted_file_is_opened_again_through_a_descriptor(mount, work, size):
    path, content = work / "file", os.urandom(size)
    free = os.statvfs(work).f_bfree
    for by_rename in (False, True):
        path.write_bytes(content)
        mount.remount()  # so that every handle is closed
        descriptor = os.open(path, os.O_PATH)
        try:
            if by_rename:
                (work / "other").write_bytes(b"")
                os.rename(work / "other", path)
            path.unlink()
            (work / "more").write_bytes(os.urandom(2 * size))
            assert os.fstat(descriptor).st_nlink == 0
            with open(f"/proc/self/fd/{descriptor}", "r+b", buffering=0) as again:
                assert again.read() == content
                again.write(b"more")
                os.fsync(again.fileno())
            assert Path(f"/proc/self/fd/{descriptor}").read_bytes() == content + b"more"
            Path(f"/proc/self/fd/{descriptor}").chmod(0o600)
        finally:
            os.close(descriptor)
        (work / "more").unlink()
    mount.remount()
    assert not os.listdir(work) and os.statvfs(work).f_bfree >= free - 16


def test_replaced_file_lives_while_it_is_open(work):
    (work / "old").write_bytes(b"old")
    (work / "new").write_bytes(b"new")
    with open(work / "old", "rb") as stream:
        os.rename(work / "new", work / "old")
        assert stream.read() == b"old" and (work / "old").read_bytes() == b"new"
        assert os.fstat(stream.fileno()).st_nlink == 0


def test_renamed_file_goes_on_under_its_new_name(mount, work):
    (work / "directory").mkdir()
    with open(work / "a", "wb", buffering=0) as stream:
        stream.write(b"before ")
        os.rename(work / "a", work / "directory/b")
        os.rename(work / "directory", work / "elsewhere")
        stream.write(b"after")
        assert os.readlink(f"/proc/self/fd/{stream.fileno()}") == str(work / "elsewhere/b")
    mount.remount()
    assert (work / "elsewhere/b").read_bytes() == b"before after"


def test_removed_working_directory(work):
    (work / "gone").mkdir()
    descriptor = os.open(work / "gone", os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir(work / "gone")
    assert os.listdir(descriptor) == []
    with pytest.raises(FileNotFoundError):
        os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor)
    os.close(descriptor)


@pytest.fixture
def nameless(work):
    try:
        descriptor = os.open(work, os.O_RDWR | os.O_TMPFILE, 0o640)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR):
            pytest.skip("O_TMPFILE: the FUSE library of this system is too old for it")
        raise
    yield descriptor
    os.close(descriptor)


def test_nameless_file_gets_a_name(mount, work, nameless):
    os.write(nameless, b"complete before it is seen")
    assert os.listdir(work) == [] and os.fstat(nameless).st_nlink == 0
    link_descriptor(nameless, work / "named")
    assert os.fstat(nameless).st_nlink == 1
    mount_independent = (work / "named").stat()
    assert mount_independent.st_mode & 0o777 == 0o640 and mount_independent.st_size == 26


def test_busy_program_may_not_be_written(work):
    process.run(["cp", "/bin/sleep", work / "program"])
    running = subprocess.Popen([work / "program", "1000"])
    try:
        # Waits until it runs: exec has finished once the command line is the new one.
        command_line = Path(f"/proc/{running.pid}/cmdline")
        assert wait_until(lambda: b"1000" in command_line.read_bytes().split(b"\0"))
        for act in (lambda: open(work / "program", "r+b"), lambda: os.truncate(work / "program", 0)):
            with pytest.raises(OSError) as caught:
                act()
            assert caught.value.errno == errno.ETXTBSY
        os.rename(work / "program", work / "moved")
        os.unlink(work / "moved")
    finally:
        running.kill()
        running.wait(timeout=60)


def test_open_for_writing_may_not_be_run(work):
    process.run(["cp", "/bin/true", work / "program"])
    with open(work / "program", "r+b"):
        with pytest.raises(OSError) as caught:
            subprocess.run([work / "program"], check=False, timeout=60)
        assert caught.value.errno == errno.ETXTBSY
    process.run([work / "program"])


HOLD_OPEN = """
import os, resource, sys
directory, count = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = [os.open(f"{directory}/{index}", os.O_RDWR | os.O_CREAT) for index in range(count)]
for index, descriptor in enumerate(files):
    os.write(descriptor, str(index).encode() * 10)
for index, descriptor in enumerate(files):
    assert os.pread(descriptor, 200, 0) == str(index).encode() * 10, index
os.fsync(files[-1])
for index in range(0, count, 2):
    os.unlink(f"{directory}/{index}")
for index, descriptor in enumerate(files):
    assert os.pread(descriptor, 200, 0) == str(index).encode() * 10, index
"""


@pytest.mark.limit(300)
def test_ten_thousand_open_files(mount, work):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < OPEN_FILES + 100:
        pytest.skip(f"needs a hard limit of {OPEN_FILES + 100} open files (ulimit -Hn)")
    process.run([sys.executable, "-c", HOLD_OPEN, work, str(OPEN_FILES)], limit=240)
    mount.remount()
    names = os.listdir(work)
    assert sorted(map(int, names)) == list(range(1, OPEN_FILES, 2))
    assert all((work / name).read_bytes() == name.encode() * 10 for name in names[::97])


def test_append_writers_do_not_overwrite_each_other(mount, work):
    script = ("import os, sys; fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n"
              "for i in range(500): os.write(fd, (sys.argv[2] * 99 + '\\n').encode())")
    writers = [subprocess.Popen([sys.executable, "-c", script, work / "log", letter]) for letter in "abcd"]
    assert [writer.wait(timeout=60) for writer in writers] == [0] * 4
    mount.remount()
    lines = (work / "log").read_text().splitlines()
    assert sorted(lines) == sorted(letter * 99 for letter in "abcd" for _ in range(500))
