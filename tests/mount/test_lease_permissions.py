# SPDX-License-Identifier: Apache-2.0
"""Saving by a lease of a directory checks the directory's permissions: a ticket is granted for any directory that can
be opened."""

import errno
import os

import pytest

from harness import needs, process
from harness.users import OTHER, call_as, call_without_capabilities

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
        process.run(["umount", place])
    assert os.listdir(work) == ["a"]


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
