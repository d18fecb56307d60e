# SPDX-License-Identifier: Apache-2.0
"""A store fills the filesystem of its catalog: what makes the catalog grow is refused, everything can be deleted, and
then the store is written again, without a remount and without help."""

import base64
import errno
import os
import random

import pytest

from harness import needs
from harness.filesystems import wait_until
from harness.user_mount import mount_of_user
from harness.users import NOBODY, call_as
from lease_client import Lease, Refused, permit, ticket
from small_filesystem import fill, free_bytes, is_refused, new_store, until_refused

pytestmark = [pytest.mark.usefixtures("weightfs_only"), needs.root]


@pytest.fixture
def store(factory, small):
    return new_store(factory, small, 256 << 20)


def delete_and_write_again(mount):
    for name in os.listdir(mount.path):
        os.unlink(mount.path / name)
    assert wait_until(lambda: not is_refused(lambda: (mount.path / "again").write_bytes(b"again")))
    assert "read-only" not in mount.store.log()
    mount.fsck()
    mount.mount()
    assert os.listdir(mount.path) == ["again"] and (mount.path / "again").read_bytes() == b"again"


def make_attributes(path):
    path.touch()
    for number in range(4):
        os.setxattr(path, f"user.{number}", b"x" * 4000)


MAKE = {"files": lambda path: path.touch(), "links": lambda path: os.symlink("x" * 4000, path),
        "attributes": make_attributes}


@pytest.mark.parametrize("kind", MAKE)
def test_a_store_that_filled_the_filesystem_is_emptied_and_written_again(factory, store, small, kind):
    mount = factory.mount(store)
    fill(small, 24 << 20)
    names = {}

    def name(number):
        """Long and random, so that fewer files fill the filesystem; their deletion also takes more of it."""
        return names.setdefault(number, base64.urlsafe_b64encode(random.randbytes(186)).decode())

    assert until_refused(lambda number: MAKE[kind](mount.path / name(number))) > 100
    os.chmod(mount.path / name(0), 0o600, follow_symlinks=False) if kind != "links" else None
    os.rename(mount.path / name(1), mount.path / "renamed")
    delete_and_write_again(mount)


def fill_and_empty(directory):
    """In a process of its own."""
    def link(number):
        os.symlink("x" * 4000, directory / f"link-{number}")

    assert until_refused(link) > 100
    for name in os.listdir(directory):
        os.unlink(directory / name)
    assert wait_until(lambda: not is_refused(lambda: link(0)))


@needs.program("fusermount3", "setpriv")
def test_a_mount_of_a_user_is_emptied_and_written_again(open_fuse, factory, small, request):
    home = small / "home"
    with mount_of_user(factory, request.config.watchdog, home, 256 << 20) as (point, run):
        call_as(NOBODY, fill_and_empty, point, limit=600)
        run("umount", point)
        run("verify", "--catalog", home / "store")


def test_many_files_that_do_not_fit_are_refused_together(factory, store, small):
    mount = factory.mount(store)
    fill(small, 20 << 20)
    files = [(b"file-%d" % number, 0) for number in range(100_000)]
    folder = os.open(mount.path, os.O_RDONLY)
    token, name = ticket(folder)
    with Lease(name) as lease:
        permit(folder, token)
        lease.reserve(token, 1)
        permit(folder, token)
        with pytest.raises(Refused) as refused:
            lease.commit_many(token, files, [])
    os.close(folder)
    assert refused.value.errno == errno.ENOSPC
    assert os.listdir(mount.path) == []
    delete_and_write_again(mount)


def test_overwrites_that_do_not_fit_leave_a_store_that_can_be_emptied(factory, store, small):
    """Each write of one block makes the mapping of its file longer."""
    mount = factory.mount(store)
    files = [os.open(mount.path / f"file-{number}", os.O_RDWR | os.O_CREAT) for number in range(8)]
    for file in files:
        os.write(file, bytes(12 << 20))
        os.fsync(file)
    fill(small, 16 << 20)
    block = 4096
    errors = set()
    for offset in [*range(0, 12 << 20, 2 * block), *range(block, 12 << 20, 2 * block)]:
        for file in files:
            try:
                os.pwrite(file, b"x" * block, offset)
            except OSError as error:
                errors.add(error.errno)
    for file in files:
        try:
            os.fsync(file)
        except OSError as error:
            errors.add(error.errno)
        os.close(file)
    assert errors <= {errno.ENOSPC}
    for number in range(8):
        assert set((mount.path / f"file-{number}").read_bytes()) <= {0, ord("x")}
    assert free_bytes(small) > 0
    delete_and_write_again(mount)
