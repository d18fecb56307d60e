# SPDX-License-Identifier: Apache-2.0
"""Saving by a lease of a directory checks the directory's permissions: a ticket is granted for any directory that can
be opened."""

import errno
import os

import pytest

from harness import needs, process
from harness.namespaces import unmount
from harness.users import OTHER, call_as, call_without_capabilities
from lease_checks import refusal
from lease_client import BLOCK, RESERVE, Lease, permit, request, ticket

weightfs = pytest.importorskip("weightfs")
pytest.importorskip("weightfs._native")
pytestmark = [pytest.mark.usefixtures("weightfs_only"), needs.root]
STORE_SIZE = "64M"
MOUNT_OPTIONS = "allow_other"


def save(folder, direct="require"):
    with weightfs.aio_handle(direct=direct) as handle:
        handle.save_many({"a": b"new"}, folder)


@pytest.mark.parametrize("direct", ["require", "auto", "never"])
def test_a_read_only_bind_mount_takes_no_files(work, scratch, direct):
    place = scratch / f"bound-{direct}"
    place.mkdir()
    process.run(["mount", "--bind", work, place])
    try:
        save(place, direct)
        process.run(["mount", "-o", "remount,bind,ro", place])
        with pytest.raises(OSError) as caught:
            save(place, direct)
        assert caught.value.errno == errno.EROFS
    finally:
        unmount(place)
    assert os.listdir(work) == ["a"]


@pytest.fixture
def read_only(work, local):
    """A read-only bind mount of the directory."""
    place = local / "read-only"
    place.mkdir()
    process.run(["mount", "--bind", work, place])
    process.run(["mount", "-o", "remount,bind,ro", place])
    yield place
    unmount(place)


def test_a_ticket_of_a_read_only_bind_mount_reads_only(work, read_only):
    """A client of its own does not look at the mount's flags."""
    (work / "a").write_bytes(bytes(BLOCK))
    file, folder = os.open(read_only / "a", os.O_RDONLY), os.open(read_only, os.O_RDONLY)
    (of_file, name), (of_folder, _) = ticket(file), ticket(folder)
    with Lease(name) as lease:
        assert refusal(permit, folder, of_folder) == errno.EROFS
        assert refusal(lease.reserve, of_folder, 1) == errno.EROFS
        assert refusal(lease.reserve, of_file, 1) == errno.EBADF
        assert refusal(lease.commit_many, of_folder, [(b"b", 0)], []) == errno.EROFS
        identity = lease.identify(of_folder)
        request(folder, RESERVE, identity, length=1)
        assert refusal(lease.receive, RESERVE) == errno.EROFS
        assert lease.devices == []
        assert lease.read_many(of_folder, [b"a"]) == [bytes(BLOCK)]
        lease.release()
    os.close(file)
    os.close(folder)
    assert os.listdir(work) == ["a"]


def test_a_writable_mount_permits_one_change_through_one_descriptor(work, read_only):
    folder, other = os.open(work, os.O_RDONLY), os.open(read_only, os.O_RDONLY)
    (token, name), (of_other, _) = ticket(folder), ticket(other)
    with Lease(name) as lease:
        permit(folder, token)
        assert refusal(lease.reserve, of_other, 1) == errno.EROFS
        lease.reserve(token, 1)
        assert refusal(lease.commit_many, token, [(b"a", 1)], [0]) == errno.EROFS, "another change"
        permit(folder, token)
        lease.reserve(token, 1)
        lease.release()
        (work / "file").touch()
        assert refusal(permit, work / "file", of_other) == errno.EBADF
        assert refusal(permit, folder, os.urandom(16)) == errno.EBADF
        for wrong in (b"", bytes(1000)):
            assert refusal(permit, folder, wrong) == errno.EINVAL
        assert refusal(lease.reserve, token, 1) == errno.EROFS
    assert os.listxattr(work) == []
    for descriptor in (folder, other):
        os.close(descriptor)


def test_root_without_its_capabilities_is_a_user_like_others(work):
    os.chmod(work, 0o555)
    os.chown(work, OTHER, OTHER)
    for direct in ("require", "auto", "never"):
        with pytest.raises(PermissionError):
            call_without_capabilities(save, work, direct)
    call_as(None, save, work)
    assert os.listdir(work) == ["a"]


def test_a_file_that_may_not_be_read_is_named_and_the_others_are_loaded(work):
    def load():
        buffers = {"a": bytearray(5), "b": bytearray(5)}
        with weightfs.aio_handle() as handle:
            try:
                handle.load_many(buffers, work)
            except OSError as error:
                return {name: each.errno for name, each in error.errors.items()}, buffers
        return {}, buffers

    for name in ("a", "b"):
        (work / name).write_bytes(b"12345")
        os.chmod(work / name, 0o644)
    os.chmod(work / "b", 0)
    errors, buffers = call_as(OTHER, load)
    assert errors == {"b": errno.EACCES} and buffers["a"] == b"12345"
    assert call_as(None, load)[0] == {}
    # Like root in many containers, whose user ID alone gives no access.
    os.chown(work / "b", OTHER, OTHER)
    os.chmod(work / "b", 0o600)
    assert call_without_capabilities(load)[0] == {"b": errno.EACCES}
    assert call_as(None, load)[0] == {}
