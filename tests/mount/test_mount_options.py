# SPDX-License-Identifier: Apache-2.0
"""Options of mount(8) and fstab, remounts of a mount in use, and options that a machine cannot satisfy."""

import errno
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness import needs, process
from harness.filesystems import is_mounted, program, wait_until, weightfs
from store_files import refused

pytestmark = pytest.mark.usefixtures("weightfs_only")


@pytest.fixture
def mount(factory):
    made = factory.mount(factory.store("64M"))
    (made.path / "file").write_bytes(b"content")
    return made


def flags_of(path):
    """The flags of the mount and of its superblock."""
    wanted = os.fspath(path).replace(" ", "\\040")
    for line in open("/proc/self/mountinfo", encoding="utf-8", errors="replace"):   # other tests mount any names
        fields = line.split()
        if fields[4] == wanted:
            return set(fields[5].split(",")) | set(fields[-1].split(","))
    raise AssertionError(f"{path} is not mounted")


# Flags.
@pytest.mark.parametrize("options, there, gone", [
    ("noatime,nodiratime", {"noatime", "nodiratime"}, {"relatime"}),
    ("strictatime", set(), {"relatime", "noatime"}),
    ("strictatime,noatime", {"noatime"}, {"relatime"}),
    ("noatime,strictatime,nosuid,suid", set(), {"relatime", "noatime", "nosuid"}),
    ("lazytime,silent", {"lazytime", "relatime"}, set()),
    ("nosymfollow,noexec", {"nosymfollow", "noexec"}, set()),
    ("dev,suid,sync,dirsync,iversion,nomand,loud", {"sync", "dirsync"}, {"nodev", "nosuid"}),
    ("ro,nodiratime", {"ro", "nodiratime"}, {"rw"})])
@needs.root
def test_flags_of_the_kernel(factory, options, there, gone):
    mount = factory.mount(factory.store("64M"), options)
    flags = flags_of(mount.path)
    assert there <= flags and not gone & flags
    mount.umount()


@needs.root
def test_atime_of_a_remount_ends_noatime(factory):
    mount = factory.mount(factory.store("64M"), "noatime")
    weightfs("mount", mount.store.directory, mount.path, "-o", "remount,atime")
    assert "relatime" in flags_of(mount.path) and "noatime" not in flags_of(mount.path)


@needs.root
def test_nosymfollow_forbids_links(factory):
    mount = factory.mount(factory.store("64M"), "nosymfollow")
    (mount.path / "file").write_bytes(b"x")
    (mount.path / "link").symlink_to("file")
    with pytest.raises(OSError) as caught:
        (mount.path / "link").read_bytes()
    assert caught.value.errno == errno.ELOOP
    mount.fsck()


# Remounts.
@needs.root
def test_remount_read_only_and_back(mount):
    path, store = mount.path, mount.store.directory
    weightfs("mount", store, path, "-o", "remount,ro")
    assert {"ro"} <= flags_of(path) and "(read-only)" in weightfs("info", path).out
    for change in (lambda: (path / "file").write_bytes(b"x"), lambda: (path / "new").touch(),
                   lambda: (path / "file").unlink()):
        with pytest.raises(OSError) as caught:
            change()
        assert caught.value.errno == errno.EROFS
    assert (path / "file").read_bytes() == b"content"
    weightfs("mount", store, path, "-o", "remount,rw")
    (path / "file").write_bytes(b"new content")
    mount.fsck()


@needs.root
def test_after_remount_read_only_everything_is_on_the_device(mount):
    """The daemon is killed right after the remount: the file must be complete."""
    data = os.urandom(20 << 20)
    (mount.path / "large").write_bytes(data)
    weightfs("mount", mount.store.directory, mount.path, "-o", "remount,ro")
    mount.kill9()
    mount.mount("")
    assert (mount.path / "large").read_bytes() == data
    mount.fsck()


@needs.root
def test_remount_read_only_while_a_file_is_open_for_writing(mount):
    with open(mount.path / "file", "r+b"):
        line = refused("mount", mount.store.directory, mount.path, "-o", "remount,ro", saying="open for writing")
        assert f"{os.getpid()} " in line
        (mount.path / "new").write_bytes(b"still writable")
        # umount -r: unmount, or make it read-only if that fails.
        finished = weightfs("umount", "-r", mount.path, codes=(1,))
        assert "open for writing" in finished.err
    with open(mount.path / "file", "rb"):
        assert "read-only from now on" in weightfs("umount", "-r", mount.path).err
        assert "ro" in flags_of(mount.path)
    # A system call of another process keeps it busy, and read-only, for a moment.
    assert wait_until(lambda: weightfs("umount", "-r", mount.path) and not is_mounted(mount.path))


@needs.root
def test_a_store_that_was_opened_read_only_cannot_be_remounted_for_writing(mount):
    mount.remount("ro")
    where = shlex.quote(str(mount.path))
    refused("mount", mount.store.directory, mount.path, "-o", "remount,rw",
            saying=f"weightfs umount {where} && weightfs mount {mount.store.directory} {where}")
    assert "ro" in flags_of(mount.path) and "(read-only)" in weightfs("info", mount.path).out


@needs.root
def test_a_remount_keeps_a_mount_read_only_by_its_own_flag(mount):
    process.run(["mount", "-o", "remount,bind,ro", mount.path])
    weightfs("mount", mount.store.directory, mount.path, "-o", "remount,nosymfollow")
    assert {"ro", "nosymfollow"} <= flags_of(mount.path)
    weightfs("mount", mount.store.directory, mount.path, "-o", "remount,rw")
    (mount.path / "file").write_bytes(b"new content")


@needs.root
def test_a_remount_keeps_options_that_it_does_not_name(mount):
    mount.remount("noatime,noexec")
    finished = weightfs("mount", mount.store.directory, mount.path, "-o", "remount,nosymfollow,commit=1")
    assert {"noatime", "noexec", "nosymfollow", "rw"} <= flags_of(mount.path)
    assert "commit" in finished.err, "an option that a remount cannot change is named"
    weightfs("mount", mount.store.directory, mount.path, "-o", "remount,ro")
    weightfs("mount", mount.store.directory, mount.path, "-o", "remount,exec")
    assert "ro" in flags_of(mount.path) and "noexec" not in flags_of(mount.path)


def test_remount_of_a_directory_that_is_not_mounted(factory, mount):
    point = factory.directory("point")
    refused("mount", mount.store.directory, point, "-o", "remount,ro", saying="no weightfs is mounted")
    refused("mount", factory.store("64M").directory, mount.path, "-o", "remount,ro",
            saying=f"is the mount of {mount.store.directory}")


# Uses mount(8) with the helpers mounted over /usr/sbin in a separate mount namespace, so the machine is unchanged.
@pytest.fixture
def overlaid(factory):
    helpers = factory.directory("helpers")
    for name in ("mount.weightfs", "mount.fuse.weightfs", "umount.weightfs", "umount.fuse.weightfs"):
        (helpers / name).symlink_to(program().resolve())
    command = ["unshare", "-m", "sh", "-ec",
               "sbin=$(readlink -f /sbin); mount -t overlay overlay -o lowerdir=\"$0\":$sbin $sbin; "
               "exec \"$@\"", helpers]
    if process.run([*command, "true"], codes=None).code != 0:
        pytest.skip("needs a mount namespace of its own and overlayfs, which this machine does not allow")
    return lambda script: process.run([*command, "sh", "-ec", script])


@needs.root
@needs.program("unshare", "mount")
@pytest.mark.parametrize("options, there, gone", [
    ("dev,suid", set(), {"nodev", "nosuid"}), ("defaults", set(), {"nodev", "nosuid"}),
    ("nodev,nosuid", {"nodev", "nosuid"}, set()), ("user,exec", {"nodev", "nosuid"}, {"noexec"}),
    ("noatime,nodiratime,lazytime,nosymfollow", {"noatime", "nodiratime", "lazytime", "nosymfollow"}, set())])
def test_fstab_options_are_honored(factory, overlaid, local, options, there, gone):
    store, path, fstab = factory.store("64M"), factory.directory("point"), local / "fstab"
    fstab.write_text(f"{store.directory} {path} weightfs {options},noauto 0 0\n")
    finished = overlaid(f"mount -T {fstab} {path}\nfindmnt -n -o OPTIONS {path}\numount {path}\n")
    flags = set(finished.out.strip().split(","))
    assert there <= flags and not gone & flags, finished


@needs.root
@needs.program("unshare", "mount")
@pytest.mark.parametrize("kind", ["weightfs", "fuse.weightfs"])
def test_remounted_by_mount(factory, overlaid, local, kind):
    store, path, fstab = factory.store("64M"), factory.directory("point"), local / "fstab"
    fstab.write_text(f"{store.directory} {path} {kind} noatime,commit=1,noauto 0 0\n")
    finished = overlaid(f"mount -T {fstab} {path}\necho one > {path}/file\n"
                        f"mount -o remount,ro {path}\n! touch {path}/file\nfindmnt -n -o OPTIONS {path}\n"
                        f"mount -T {fstab} -o remount,rw {path}\necho two > {path}/file\nfindmnt -n -o OPTIONS {path}\n"
                        f"umount {path}\n")
    first, second = (set(line.split(",")) for line in finished.out.splitlines())
    assert {"ro", "noatime"} <= first and {"rw", "noatime"} <= second, finished
    assert "Read-only file system" in finished.err
    assert "remount" not in finished.err, "nobody is warned about what fstab and the mount table say"


@needs.root
@needs.program("unshare", "mount")
def test_umount_of_the_system_hands_its_options_on(factory, overlaid):
    store, path = factory.store("64M"), factory.directory("point")
    finished = overlaid(f"mount -t weightfs {store.directory} {path}\nexec 5> {path}/file\n"
                        f"! umount {path}\numount -l {path}\n! findmnt {path}\necho held >&5\nexec 5>&-\n"
                        # Possible at once: the mount waits for the end of the previous one.
                        f"mount -t weightfs {store.directory} {path}\ncat {path}/file\nexec 5< {path}/file\n"
                        f"umount -f {path}\n! findmnt {path}\n")
    assert finished.out == "held\n", finished


@needs.root
@needs.program("unshare", "mount")
def test_mount_in_the_namespace_of_another_process(factory, overlaid):
    store, path = factory.store("64M"), factory.directory("point")
    holder = subprocess.Popen(["unshare", "-m", "sh", "-c", "echo ready; read line"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "ready\n"
        weightfs("mount", "-N", holder.pid, store.directory, path)
        assert not is_mounted(path)
        assert os.fsencode(path) in Path(f"/proc/{holder.pid}/mountinfo").read_bytes()
        weightfs("umount", "-N", holder.pid, path)
    finally:
        holder.communicate("\n", timeout=60)


# Memory limits. The kernel would need 4 TiB for so many inodes, more than any machine that runs these tests has.
@pytest.mark.parametrize("option", ["memory=900T", "write_buffers=900T", "read_ahead=900T", "inodes=4294967296"])
def test_more_memory_than_the_machine_has(factory, option):
    point = factory.directory("point")
    line = refused("mount", factory.store("64M").directory, point, "-o", option, saying=" of memory, but ")
    assert f"option {option.partition('=')[0]}=" in line
    assert not is_mounted(point)


# /dev/fuse.
AS_NOBODY = """
import os, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.execv(sys.argv[1], sys.argv[1:])
"""


@needs.root
@needs.program("unshare", "mount")
@pytest.mark.parametrize("mode, group, advice", [("0600", "root", "chmod 0666 /dev/fuse"),
                                                 ("0660", "adm", "usermod -aG adm")])
def test_a_user_who_may_not_open_dev_fuse_is_told_what_to_do(factory, local, mode, group, advice):
    store, point = factory.directory("store"), factory.directory("point")
    for path in (store, point):
        os.chown(path, 65534, 65534)
    device = local / "fuse"
    os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(10, 229))
    process.run(["chgrp", group, device])
    process.run(["chmod", mode, device])
    words = [sys.executable, "-c", AS_NOBODY, program().resolve()]
    process.run([*words, "format", store / "s", "--size", "32M", "--sparse"])
    bound = ["unshare", "-m", "sh", "-ec", "mount --bind \"$0\" /dev/fuse; exec \"$@\"", device]
    finished = process.run([*bound, *words, "mount", store / "s", point], codes=(1,))
    assert "/dev/fuse: Permission denied" in finished.err and advice in finished.err, finished
    assert f"its mode is {mode} and its group {group}" in finished.err
    told = process.run([*bound, *words, "doctor"], codes=None)
    assert advice in told.out + told.err
