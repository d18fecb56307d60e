# SPDX-License-Identifier: Apache-2.0
"""Large directories, long names and paths, extended attributes and their limits, many hard links."""

import errno
import os
import subprocess
import sys

import pytest

from harness import needs, process
from harness.syscalls import errno_of
from harness.users import NOBODY, call_as

MOUNT_OPTIONS = "allow_other,dev,suid"


@pytest.mark.limit(600)
def test_directory_of_many_entries(mount, work, pytestconfig):
    count = 100_000 if pytestconfig.getoption("full") else 20_000
    directory = work / "many"
    directory.mkdir()
    for index in range(count):
        os.close(os.open(f"{directory}/entry-{index:07}", os.O_CREAT | os.O_WRONLY, 0o644))
    expected = {f"entry-{index:07}" for index in range(count)}
    names = os.listdir(directory)
    assert len(names) == count and set(names) == expected
    mount.remount()
    names = os.listdir(directory)
    assert len(names) == count and set(names) == expected
    assert (directory / f"entry-{count - 1:07}").stat().st_size == 0
    assert not (directory / f"entry-{count:07}").exists()
    assert errno_of(os.rmdir, directory) == errno.ENOTEMPTY
    for name in names:
        os.unlink(f"{directory}/{name}")
    assert os.listdir(directory) == []
    directory.rmdir()


def test_listing_goes_on_while_entries_come_and_go(work):
    """Every entry that exists throughout is listed exactly once, and no entry is listed twice."""
    for index in range(3000):
        (work / f"stays-{index}").touch()
    seen, others = [], 0
    with os.scandir(work) as entries:
        for entry in entries:
            seen.append(entry.name)
            if others < 1500:
                (work / f"new-{others}").touch()
                if others % 3 == 0:
                    (work / f"new-{others}").unlink()
                others += 1
    stays = [name for name in seen if name.startswith("stays-")]
    assert len(set(seen)) == len(seen) and len(stays) == 3000


def test_directory_rewinds_and_shows_types(work):
    (work / "d").mkdir()
    (work / "f").touch()
    os.symlink("f", work / "l")
    os.mkfifo(work / "p")
    kinds = {entry.name: (entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False),
                          entry.is_symlink()) for entry in os.scandir(work)}
    assert kinds == {"d": (True, False, False), "f": (False, True, False), "l": (False, False, True),
                     "p": (False, False, False)}
    descriptor = os.open(work, os.O_RDONLY)
    assert sorted(os.listdir(descriptor)) == ["d", "f", "l", "p"]
    (work / "new").touch()
    os.lseek(descriptor, 0, os.SEEK_SET)
    assert sorted(os.listdir(descriptor)) == ["d", "f", "l", "new", "p"]
    os.close(descriptor)


def test_names_of_every_byte_and_of_255(mount, work):
    names = [bytes([value]) * 3 for value in range(1, 256) if value not in b"/."] + [b"n" * 255, "ü".encode() * 127]
    for name in names:
        os.close(os.open(os.fsencode(work) + b"/" + name, os.O_CREAT | os.O_WRONLY, 0o644))
    mount.remount()
    assert sorted(os.listdir(os.fsencode(work))) == sorted(names)
    assert errno_of(os.mkdir, os.fsencode(work) + b"/" + b"n" * 256) == errno.ENAMETOOLONG
    assert os.statvfs(work).f_namemax == 255


def test_deep_directories_beyond_the_longest_path(mount, work):
    """40 directory levels with names of 200 bytes: no path reaches the end, but working directories do."""
    here = os.open(work, os.O_RDONLY)
    for depth in range(40):
        os.mkdir(f"{depth:03}" * 66, dir_fd=here)
        below = os.open(f"{depth:03}" * 66, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    descriptor = os.open("file", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=here)
    os.write(descriptor, b"at the bottom")
    os.close(descriptor)
    os.close(here)
    mount.remount()
    here = os.open(work, os.O_RDONLY)
    for depth in range(40):
        below = os.open(f"{depth:03}" * 66, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    descriptor = os.open("file", os.O_RDONLY, dir_fd=here)
    assert os.read(descriptor, 100) == b"at the bottom"
    os.close(descriptor)
    os.close(here)


def test_path_of_4095_bytes_is_the_longest(work):
    base = str(work)
    path = base + "/" + "./" * ((4095 - len(base) - 5) // 2)
    path += "f" * (4095 - len(path))
    assert len(path) == 4095
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    assert os.stat(path).st_size == 0
    assert errno_of(os.stat, path + "f") == errno.ENAMETOOLONG


def test_extended_attributes_are_kept(mount, work):
    file, directory = work / "file", work / "directory"
    file.touch()
    directory.mkdir()
    values = {"user.empty": b"", "user.text": b"text", "user.binary": bytes(range(256)), "user." + "n" * 250: b"long"}
    for path in (file, directory):
        for name, value in values.items():
            os.setxattr(path, name, value)
    os.setxattr(file, "user.text", b"replaced", os.XATTR_REPLACE)
    values["user.text"] = b"replaced"
    os.setxattr(directory, "user.text", b"replaced")
    mount.remount()
    for path in (file, directory):
        assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == values
        os.removexattr(path, "user.text")
        assert sorted(os.listxattr(path)) == sorted(set(values) - {"user.text"})


def test_extended_attributes_fail_as_documented(work):
    file = work / "file"
    file.touch()
    os.symlink("file", work / "link")
    os.setxattr(file, "user.a", b"1", os.XATTR_CREATE)
    for expected, act in ((errno.EEXIST, lambda: os.setxattr(file, "user.a", b"2", os.XATTR_CREATE)),
                          (errno.ENODATA, lambda: os.setxattr(file, "user.b", b"2", os.XATTR_REPLACE)),
                          (errno.ENODATA, lambda: os.getxattr(file, "user.b")),
                          (errno.ENODATA, lambda: os.removexattr(file, "user.b")),
                          (errno.EOPNOTSUPP, lambda: os.setxattr(file, "nonsense.a", b"")),
                          (errno.ERANGE, lambda: os.setxattr(file, "user." + "n" * 251, b"")),
                          (errno.E2BIG, lambda: os.setxattr(file, "user.big", bytes(65537))),
                          (errno.EPERM, lambda: os.setxattr(work / "link", "user.a", b"", follow_symlinks=False))):
        assert errno_of(act) == expected
    assert os.getxattr(file, "user.a") == b"1"


def test_extended_attributes_of_64_kib_and_of_a_hundred(mount, work, weightfs_only):
    file = work / "file"
    file.touch()
    os.setxattr(file, "user.large", bytes(range(256)) * 256)
    for index in range(100):
        os.setxattr(file, f"user.number{index}", str(index).encode())
    mount.remount()
    assert os.getxattr(file, "user.large") == bytes(range(256)) * 256
    assert len(os.listxattr(file)) == 101
    os.removexattr(file, "user.large")
    assert "user.large" not in os.listxattr(file)


@needs.root
def test_trusted_and_security_attributes(mount, work):
    file = work / "file"
    file.touch()
    os.setxattr(file, "trusted.a", b"for root")
    os.setxattr(file, "security.a", b"for modules")
    os.symlink("file", work / "link")
    os.setxattr(work / "link", "trusted.a", b"of the link", follow_symlinks=False)
    mount.remount()
    assert os.getxattr(file, "trusted.a") == b"for root" and os.getxattr(file, "security.a") == b"for modules"
    assert os.getxattr(work / "link", "trusted.a", follow_symlinks=False) == b"of the link"
    # Other users cannot list or read trusted attributes.
    assert "trusted.a" in os.listxattr(file)
    assert "trusted.a" not in call_as(NOBODY, os.listxattr, file)
    with pytest.raises(OSError) as caught:
        call_as(NOBODY, os.getxattr, file, "trusted.a")
    assert caught.value.errno == errno.ENODATA


def test_ten_thousand_hard_links(mount, work):
    file = work / "file"
    file.write_bytes(b"one body")
    (work / "links").mkdir()
    for index in range(10_000):
        os.link(file, f"{work}/links/{index}")
    mount.remount()
    assert file.stat().st_nlink == 10_001
    file.unlink()
    assert (work / "links/7777").read_bytes() == b"one body"
    for index in range(0, 10_000, 2):
        os.unlink(f"{work}/links/{index}")
    assert (work / "links/1").stat().st_nlink == 5000


@pytest.mark.limit(600)
def test_links_end_at_the_limit(work, weightfs_only):
    file = work / "file"
    file.touch()
    for index in range(64_999):
        os.link(file, f"{work}/{index}")
    assert file.stat().st_nlink == 65_000
    assert errno_of(os.link, file, work / "one more") == errno.EMLINK
    os.unlink(work / "0")
    os.link(file, work / "one more")


MOVE = """
import os, sys
there, back = sys.argv[1:], sys.argv[:0:-1]
for source, target in (there, back) * 300:
    try:
        os.rename(source, target)
    except OSError:
        pass
"""


def test_directories_cannot_be_moved_into_loops_by_two_processes(mount, work):
    """Renames a/x into b and b/y into a concurrently and repeatedly: the tree must stay a tree."""
    for path in ("a/x", "b/y"):
        (work / path).mkdir(parents=True)
    movers = [subprocess.Popen([sys.executable, "-c", MOVE, f"{work}/{source}", f"{work}/{target}"])
              for source, target in (("a", "b/y/a"), ("b", "a/x/b"), ("a/x", "b/x"), ("b/y", "a/y"))]
    assert [mover.wait(timeout=60) for mover in movers] == [0] * 4
    mount.remount()
    found = process.run(["find", work, "-mindepth", "1", "-type", "d", "-printf", "%f\n"]).out.split()
    assert sorted(found) == ["a", "b", "x", "y"]


def test_statfs_counts_inodes(mount, work):
    before = os.statvfs(work)
    for index in range(500):
        (work / str(index)).touch()
    after = os.statvfs(work)
    used = (after.f_files - after.f_ffree) - (before.f_files - before.f_ffree)
    assert 400 <= used <= 600
    assert after.f_bsize >= 4096 and after.f_frsize >= 512 and after.f_bavail <= after.f_bfree <= after.f_blocks
