# SPDX-License-Identifier: Apache-2.0
"""Other users: access control lists, mounts of an unprivileged user, and a mount that only its owner may use."""

import errno
import os
import shutil

import pytest

from harness import needs, process
from harness.filesystems import is_mounted, program, wait_until
from harness.syscalls import errno_of
from harness.users import NOBODY, OTHER, call_as

MOUNT_OPTIONS = "allow_other,dev,suid"


def errno_as(uid, function, *arguments, **options):
    return errno_of(call_as, uid, function, *arguments, **options)


def read(path):
    with open(path, "rb") as stream:
        return stream.read()


def write(path):
    with open(path, "r+b") as stream:
        stream.write(b"x")


def create(path, mode=0o666):
    os.umask(0o022)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, mode))


def acl(path):
    """The lines of getfacl with numeric IDs."""
    return process.run(["getfacl", "-pnc", path]).out.split()


acls = needs.program("setfacl", "getfacl")


@needs.root
@acls
def test_named_users_and_groups(mount, work):
    file = work / "file"
    file.write_bytes(b"secret")
    file.chmod(0o600)
    assert errno_as(NOBODY, read, file) == errno.EACCES
    process.run(["setfacl", "-m", f"u:{NOBODY}:r,g:1234:rw", file])
    mount.remount()
    assert errno_as(NOBODY, read, file) == 0 and errno_as(NOBODY, write, file) == errno.EACCES
    assert errno_as(OTHER, read, file) == errno.EACCES
    assert errno_as(OTHER, write, file, gid=1234) == 0 and errno_as(OTHER, write, file, gid=OTHER, groups=(1234,)) == 0
    assert acl(file) == ["user::rw-", f"user:{NOBODY}:r--", "group::---", "group:1234:rw-", "mask::rw-", "other::---"]
    assert file.stat().st_mode & 0o777 == 0o660
    process.run(["setfacl", "-b", file])
    assert errno_as(NOBODY, read, file) == errno.EACCES and file.stat().st_mode & 0o777 == 0o600


@needs.root
@acls
def test_chmod_changes_the_mask(mount, work):
    file = work / "file"
    file.touch()
    process.run(["setfacl", "-m", f"u:{NOBODY}:rw", file])
    file.chmod(0o640)
    mount.remount()
    assert "mask::r--" in acl(file) and f"user:{NOBODY}:rw-" in acl(file)[1]
    assert errno_as(NOBODY, write, file) == errno.EACCES and errno_as(NOBODY, read, file) == 0
    file.chmod(0o600)
    assert errno_as(NOBODY, read, file) == errno.EACCES
    file.chmod(0o660)
    assert errno_as(NOBODY, write, file) == 0


@needs.root
@acls
def test_default_lists_are_inherited(mount, work):
    process.run(["setfacl", "-d", "-m", f"u:{NOBODY}:rwx,g::r-x,o::-", work])
    os.umask(0o077)  # has no effect if the directory has a default ACL
    try:
        os.close(os.open(work / "file", os.O_CREAT | os.O_WRONLY, 0o666))
        (work / "directory").mkdir(0o777)
        os.mkfifo(work / "fifo", 0o666)
    finally:
        os.umask(0o022)
    mount.remount()
    assert acl(work / "file") == ["user::rw-", f"user:{NOBODY}:rwx", "#effective:rw-", "group::r-x", "#effective:r--",
                                  "mask::rw-", "other::---"]
    assert (work / "file").stat().st_mode & 0o777 == 0o660
    assert (work / "fifo").stat().st_mode & 0o777 == 0o660
    assert acl(work / "directory") == ["user::rwx", f"user:{NOBODY}:rwx", "group::r-x", "mask::rwx", "other::---",
                                       "default:user::rwx", f"default:user:{NOBODY}:rwx", "default:group::r-x",
                                       "default:mask::rwx", "default:other::---"]
    assert errno_as(NOBODY, create, work / "directory/new") == 0
    assert errno_as(OTHER, create, work / "directory/other") == errno.EACCES
    process.run(["setfacl", "-k", work / "directory"])
    assert len(acl(work / "directory")) == 5


@needs.root
@acls
def test_only_owners_change_lists_and_lists_are_copied(mount, work, local):
    file = work / "file"
    file.touch()
    os.chown(file, NOBODY, NOBODY)
    change = ["setfacl", "-m", "u:1:r", file]
    assert call_as(OTHER, lambda: process.run(change, codes=None).code) == 1
    assert call_as(NOBODY, lambda: process.run(change, codes=None).code) == 0
    process.run(["cp", "-a", file, work / "copy"])
    assert acl(work / "copy") == acl(file)
    process.run(["setfacl", "-b", file])
    mount.remount()
    assert acl(file) == ["user::rw-", "group::r--", "other::r--"] and "user:1:r--" in acl(work / "copy")


@needs.root
def test_files_belong_to_their_creators(mount, work):
    work.chmod(0o1777)
    call_as(NOBODY, create, work / "of nobody")
    call_as(OTHER, create, work / "of another")
    mount.remount()
    assert [(work / name).stat().st_uid for name in ("of nobody", "of another")] == [NOBODY, OTHER]
    assert errno_as(OTHER, os.unlink, work / "of nobody") == errno.EPERM
    assert errno_as(OTHER, write, work / "of nobody") == errno.EACCES
    assert errno_as(NOBODY, os.unlink, work / "of nobody") == 0


@needs.root
def test_mount_without_allow_other_is_its_owners(factory, weightfs_only):
    mount = factory.mount(factory.store(), "")
    (mount.path / "file").write_bytes(b"x")
    (mount.path / "file").chmod(0o644)
    assert (mount.path / "file").read_bytes() == b"x"
    options = process.run(["findmnt", "-no", "OPTIONS", mount.path]).out
    if "allow_other" not in options:
        assert errno_as(NOBODY, read, mount.path / "file") == errno.EACCES
    mount.fsck()


def run_as_nobody(command, **options):
    return process.run(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                        "env", "-i", "PATH=/usr/bin:/bin:/usr/sbin:/sbin", *command], **options)


@pytest.fixture
def users_program(local):
    """A copy of the program that other users can access."""
    path = local / "weightfs"
    shutil.copy(program(), path)
    path.chmod(0o755)
    return path


@needs.root
@needs.program("fusermount3", "setpriv")
def test_a_user_without_privileges_mounts(open_fuse, local, users_program, weightfs_only, request):
    home = local / "home"
    home.mkdir()
    (home / "mnt").mkdir()
    for path in (home, home / "mnt"):
        os.chown(path, NOBODY, NOBODY)
    store, directory = home / "store", home / "mnt"
    run_as_nobody([users_program, "format", store, "--size", "64M", "--sparse"])
    request.config.watchdog.watch(directory, "weightfs", store)
    run_as_nobody([users_program, "mount", store, directory])
    try:
        assert is_mounted(directory)
        script = f"echo text > {directory}/file && mkdir {directory}/d && mv {directory}/file {directory}/d/"
        run_as_nobody(["sh", "-c", script])
        assert run_as_nobody(["cat", directory / "d/file"]).out == "text\n"
        assert run_as_nobody(["stat", "-c", "%u %g", directory]).out.split() == [str(NOBODY)] * 2
        run_as_nobody([users_program, "umount", directory])
        assert not is_mounted(directory)
        run_as_nobody([users_program, "verify", "--catalog", store])
        run_as_nobody([users_program, "mount", store, directory])
        assert run_as_nobody(["cat", directory / "d/file"]).out == "text\n"
        # It does not wait for a system call of another process.
        assert wait_until(lambda: run_as_nobody(["fusermount3", "-u", directory], codes=(0, 1)).code == 0)
        assert not is_mounted(directory)
    finally:
        for pid in process.processes_with("weightfs", str(store)):
            process.kill(pid) if is_mounted(directory) else process.wait_gone(pid)
        process.run(["umount", "-l", directory], codes=None)
        request.config.watchdog.forget(directory)


@needs.root
@needs.program("setpriv")
def test_another_users_store_is_refused(factory, users_program, weightfs_only, local):
    store = factory.store()
    (local / "mnt").mkdir()
    os.chown(local / "mnt", NOBODY, NOBODY)
    store.directory.chmod(0o755)
    refused = run_as_nobody([users_program, "mount", store.directory, local / "mnt"], codes=None)
    assert refused.code not in (0, None) and len(refused.err.strip().splitlines()) == 1
    assert not is_mounted(local / "mnt")
