# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of stores and mounts."""

import contextlib
import shutil

import pytest

from harness.namespaces import own_mounts
from small_filesystem import FILESYSTEMS, small_filesystem
from store_files import filled_store


@pytest.fixture
def store(factory):
    """An unmounted store with one file. A module may override this fixture."""
    return filled_store(factory)


@pytest.fixture
def apart(scratch):
    """The mounts of the test and of those that run at the same time are in different namespaces. Otherwise each new
    namespace of one test would keep the mounts of all others."""
    with own_mounts(own=scratch):
        yield


@pytest.fixture
def mount_apart(apart, factory):
    """A mount with one file."""
    made = factory.mount(factory.store("64M"))
    (made.path / "file").write_bytes(b"content")
    return made


# Of what is true everywhere, the answers of other filesystems change only with the kernel.
OTHERS = [pytest.param(*kind.values, marks=[pytest.mark.full, *kind.marks]) for kind in FILESYSTEMS]


@pytest.fixture(params=FILESYSTEMS)
def small(factory, request):
    """A small filesystem for a store."""
    with small_filesystem(factory, request.param) as path:
        yield path


@pytest.fixture(scope="module", params=["weightfs", *OTHERS])
def anywhere(session_factory, request):
    """(kind, root): the module's mount, and a new filesystem of each other kind, for what is true on all of them."""
    if session_factory.kind != "weightfs":
        pytest.skip("compares weightfs with others: not for --target")
    if request.param == "weightfs":
        yield request.param, request.getfixturevalue("mount").path
        return
    mark = session_factory.mark()
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(small_filesystem(session_factory, request.param))
        path.chmod(0o755)
        yield request.param, path
    session_factory.close(mark)


@pytest.fixture
def place(anywhere):
    """An empty directory on each kind of filesystem."""
    path = anywhere[1] / "place"
    path.mkdir()
    yield path
    shutil.rmtree(path)
