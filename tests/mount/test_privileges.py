# SPDX-License-Identifier: Apache-2.0
"""Checks that the kernel leaves to the filesystem, based on the caller's capabilities and groups: leases, set-ID bits,
names of trusted attributes, and dropping caches. User ID 0 alone gives no rights."""

import errno
import fcntl
import os
import stat
import struct
import sys

import pytest

from harness import needs, process
from harness.syscalls import errno_of
from harness.users import NOBODY, OTHER, call_as, call_without_capabilities
from lease_client import BLOCK, ticket, write_direct, write_many

pytestmark = needs.root
MOUNT_OPTIONS = "allow_other,dev,suid"
CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_SYS_ADMIN = 1, 3, 4, 21
TOP_SIZE = 14440
IOC_TOP = (3 << 30) | (TOP_SIZE << 16) | (ord("W") << 8) | 10
IOC_DROP_CACHE = (ord("W") << 8) | 4
IOC_CHECK_CATALOG = (3 << 30) | (512 << 16) | (ord("W") << 8) | 16
acls = needs.program("setfacl", "getfacl")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def open_ticket(path, flags=os.O_RDONLY):
    return ticket(os.open(path, flags))


# Leases.
def test_root_without_the_capability_gets_no_ticket(work, weightfs_only):
    (work / "a").write_bytes(bytes(BLOCK))
    for path in (work / "a", work):
        assert errno_of(call_without_capabilities, open_ticket, path) == errno.EPERM
        assert errno_of(call_without_capabilities, open_ticket, path, keep=[CAP_SYS_ADMIN]) == errno.EPERM
        assert errno_of(call_without_capabilities, open_ticket, path, keep=[CAP_DAC_OVERRIDE]) == 0


def test_root_without_the_capability_does_not_see_what_others_do(work, weightfs_only):
    """The processes and files of everybody: an ordinary user does not see them either."""
    def looks():
        fcntl.ioctl(os.open(work, os.O_RDONLY), IOC_TOP, bytearray(struct.pack("=I", 1) + bytes(TOP_SIZE - 4)))

    assert errno_of(call_as, OTHER, looks) == errno.EPERM
    assert errno_of(call_without_capabilities, looks) == errno.EPERM
    assert errno_of(call_without_capabilities, looks, keep=[CAP_DAC_OVERRIDE]) == 0


def test_root_without_the_capability_does_not_check_the_catalog(work, weightfs_only):
    def check():
        answer = bytearray(struct.pack("=I", 1) + bytes(508))
        fcntl.ioctl(os.open(work, os.O_RDONLY), IOC_CHECK_CATALOG, answer)
        assert answer[4:8] == bytes(4), "not damaged"

    assert errno_of(call_as, OTHER, check) == errno.EPERM
    assert errno_of(call_without_capabilities, check) == errno.EPERM
    assert errno_of(call_without_capabilities, check, keep=[CAP_DAC_OVERRIDE]) == 0


@needs.program("unshare")
def test_root_of_another_user_namespace_gets_no_ticket(work, weightfs_only):
    """It has every capability, but not over our user namespace."""
    (work / "a").write_bytes(bytes(BLOCK))
    code = ("import os, sys; sys.path[:0] = sys.argv[2:]; import lease_client\n"
            "try: lease_client.ticket(os.open(sys.argv[1], os.O_RDONLY))\n"
            "except OSError as error: print(error.errno)")
    here = os.path.dirname(__file__)
    command = [sys.executable, "-c", code, work / "a", here, os.path.dirname(here)]
    assert process.run(command).out == ""
    unshared = process.run(["unshare", "--user", "--map-root-user", *command])
    assert unshared.out == f"{errno.EPERM}\n"


def test_a_sticky_directory_asks_for_cap_fowner(work, weightfs_only):
    """For many files at once, where no unlink(2) checks the names."""
    secret = work / "secret"
    secret.write_bytes(b"secret")
    os.chown(secret, OTHER, OTHER)
    work.chmod(0o1777)
    os.chown(work, OTHER, OTHER)
    assert errno_of(call_without_capabilities, write_many, work, {b"secret": b"x"},
                    keep=[CAP_DAC_OVERRIDE]) == errno.EPERM
    assert secret.read_bytes() == b"secret"
    call_without_capabilities(write_many, work, {b"secret": b"x"}, keep=[CAP_DAC_OVERRIDE, CAP_FOWNER])
    assert secret.read_bytes() == b"x"


# Set-id bits.
def truncate_open(path):
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))


@pytest.mark.parametrize("change", [truncate_open, lambda path: write_direct(path, b"y")], ids=["truncate", "commit"])
def test_set_id_bits_stay_for_cap_fsetid_alone(work, weightfs_only, change):
    path = work / "a"
    path.write_bytes(b"x")
    for keep, left in (([CAP_DAC_OVERRIDE], 0o777), ([CAP_DAC_OVERRIDE, CAP_FSETID], 0o6777)):
        path.chmod(0o6777)
        call_without_capabilities(change, path, keep=keep)
        assert mode(path) == left


@acls
@pytest.mark.parametrize("entries", ["u::rwx,g::rwx,o::rwx", "u::rwx,g::rx,o::rx,u:1234:r,m::rwx"])
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_an_access_control_list_clears_set_group_id_unless_the_caller_is_in_the_group(work, entries, kind):
    """generic/375 of xfstests."""
    path = work / "a"
    path.mkdir() if kind == "directory" else path.touch()
    os.chown(path, NOBODY, OTHER)
    cases = [({"gid": NOBODY}, 0), ({"gid": NOBODY, "groups": (1, 2)}, 0), ({"gid": OTHER}, stat.S_ISGID),
             ({"gid": NOBODY, "groups": (1, OTHER)}, stat.S_ISGID)]
    for groups, left in cases:
        path.chmod(0o2755)
        call_as(NOBODY, process.run, ["setfacl", "-m", entries, path], **groups)
        assert path.stat().st_mode & stat.S_ISGID == left, groups
        process.run(["setfacl", "-b", path])
    path.chmod(0o2755)
    process.run(["setfacl", "-m", entries, path])
    assert path.stat().st_mode & stat.S_ISGID, "root has CAP_FSETID"
    process.run(["setfacl", "-b", path])
    path.chmod(0o2700)   # setfacl does not set what is already set
    call_without_capabilities(process.run, ["setfacl", "-m", entries, path], keep=[CAP_FOWNER])
    assert not path.stat().st_mode & stat.S_ISGID


@acls
def test_set_user_id_and_default_lists_stay_as_they_are(work):
    path = work / "a"
    path.mkdir()
    os.chown(path, NOBODY, OTHER)
    path.chmod(0o6755)
    call_as(NOBODY, process.run, ["setfacl", "-d", "-m", "u::rwx,g::rwx,o::-", path])
    assert mode(path) == 0o6755, "a default list is no permission of the directory itself"
    call_as(NOBODY, process.run, ["setfacl", "-k", path])
    call_as(NOBODY, process.run, ["setfacl", "-b", path])
    assert mode(path) & stat.S_ISUID
    call_as(NOBODY, process.run, ["setfacl", "-m", "u::rwx,g::rwx,o::rx", path])
    assert mode(path) == 0o4775


def test_chmod_and_chown_take_the_bits_as_elsewhere(work):
    path = work / "a"
    path.touch()
    os.chown(path, NOBODY, OTHER)
    call_as(NOBODY, os.chmod, path, 0o2775)
    assert mode(path) == 0o775, "not in the group"
    call_as(NOBODY, os.chmod, path, 0o2775, groups=(OTHER,))
    assert mode(path) == 0o2775
    call_as(NOBODY, os.chown, path, NOBODY, NOBODY, groups=(OTHER,))
    assert mode(path) == 0o775


# Trusted attributes.
def test_names_of_trusted_attributes_are_for_cap_sys_admin_alone(work):
    path = work / "a"
    path.touch()
    os.setxattr(path, "trusted.a", b"x")
    os.setxattr(path, "user.b", b"y")
    assert sorted(os.listxattr(path)) == ["trusted.a", "user.b"]
    assert call_without_capabilities(os.listxattr, path) == ["user.b"]
    assert sorted(call_without_capabilities(os.listxattr, path, keep=[CAP_SYS_ADMIN])) == ["trusted.a", "user.b"]
    assert call_as(NOBODY, os.listxattr, path) == ["user.b"]


# Dropping caches.
def test_dropping_the_caches_of_a_file_needs_permission(work, weightfs_only):
    path = work / "a"
    path.write_bytes(b"x" * BLOCK)
    path.chmod(0o666)

    def empties(flags):
        fcntl.ioctl(os.open(path, flags), IOC_DROP_CACHE)

    assert errno_of(call_as, NOBODY, empties, os.O_RDONLY) == errno.EPERM
    assert errno_of(call_without_capabilities, empties, os.O_RDONLY) == 0, "the owner"
    for flags in (os.O_WRONLY, os.O_RDWR):
        assert errno_of(call_as, NOBODY, empties, flags) == 0
    os.chown(path, OTHER, OTHER)
    assert errno_of(call_as, OTHER, empties, os.O_RDONLY) == 0
    assert errno_of(call_without_capabilities, empties, os.O_RDONLY) == errno.EPERM
    assert errno_of(call_without_capabilities, empties, os.O_RDONLY, keep=[CAP_FOWNER]) == 0
