# SPDX-License-Identifier: Apache-2.0
"""The kernel gives the device number of an unmounted filesystem to the next one, while the daemon still closes its
store. The commands and the daemon do not take one for the other. No other mount namespace keeps the filesystems of these
tests, so an unmount frees their device numbers."""

import contextlib
import json
import os
import signal

import pytest

from harness import needs, process
from harness.filesystems import errors_of, is_mounted, program, wait_until, wait_until_it_polls, weightfs

pytestmark = [pytest.mark.usefixtures("weightfs_only"), needs.root, needs.program("mount")]

STILL_SERVED = 3
LOOKS = 75   # sleeps of a command, between which it has looked at the mount tables


@pytest.fixture
def mount(mount_apart):
    return mount_apart


@pytest.fixture
def other(factory):
    """Another store."""
    return factory.store("64M")


@contextlib.contextmanager
def stopped(mount):
    """The daemon of a mount is slow, and has not noticed the end of the mount."""
    pid = mount.pid
    process.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        process.kill(pid, signal.SIGCONT)
        assert process.wait_gone(pid)


class NumberTaken(Exception):
    """Another process of the machine has mounted a filesystem that has the number."""


@contextlib.contextmanager
def lowest_free_number(device, factory):
    """Within the block, the next filesystem gets this device number, which was freed."""
    fillers = []
    try:
        while not fillers or os.stat(fillers[-1]).st_dev < device:
            fillers.append(factory.directory("filler"))
            process.run(["mount", "-t", "tmpfs", "filler", fillers[-1]])
        if os.stat(fillers[-1]).st_dev != device:
            raise NumberTaken
        process.run(["umount", fillers.pop()])
        yield
    finally:
        for directory in fillers:
            process.run(["umount", "-l", directory])


def mount_with_number(device, factory, store, path=None):
    """Mounts a store so that its filesystem has a device number that was freed."""
    made = []

    def has_number():
        with contextlib.suppress(NumberTaken), lowest_free_number(device, factory):
            # The tmpfs of hot files would get the number.
            made[:] = [factory.mount(store, "cache_memory=0", path=path)]
        if made and os.stat(made[0].path).st_dev != device:
            made.pop().umount()
        return bool(made)

    if not wait_until(has_number):
        pytest.skip("other processes of the machine use the number")
    return made[0]


def test_umount_names_no_filesystem_that_reuses_the_device_number(mount, other, factory):
    device = os.stat(mount.path).st_dev
    with process.Processes() as processes:
        with stopped(mount):
            umount = processes.start([program(), "umount", mount.path, "--timeout", "3600"])
            assert wait_until(lambda: not is_mounted(mount.path))
            second = mount_with_number(device, factory, other)
            with open(second.path / "file", "wb"):
                wait_until_it_polls(umount, LOOKS)
        finished = process.finish(umount)
    assert not errors_of(finished) and str(second.path) not in finished.err
    assert (mount.store.directory / "lock").read_bytes() == b""


def test_umount_with_a_time_limit_names_no_user_of_another_filesystem(mount, other, factory):
    device = os.stat(mount.path).st_dev
    with process.Processes() as processes, stopped(mount) as daemon:
        umount = processes.start([program(), "umount", mount.path, "--timeout", "15"])
        assert wait_until(lambda: not is_mounted(mount.path))
        second = mount_with_number(device, factory, other)
        assert umount.poll() is None, "too slow: until then, anything of the machine may have the number"
        with open(second.path / "file", "wb"):
            finished = process.finish(umount, codes=(STILL_SERVED,))
        assert f"process {daemon} (weightfs) still serves" in finished.err
        assert "it has not ended yet" in finished.err and str(second.path) not in finished.err


@pytest.fixture
def closing(mount, other, factory):
    """A store whose daemon is slow to close, and the mount of another one with the device number of its filesystem."""
    device = os.stat(mount.path).st_dev
    with stopped(mount) as daemon:
        weightfs("umount", mount.path, "--timeout", "0", codes=(STILL_SERVED,))
        yield mount.store.directory, daemon, mount_with_number(device, factory, other)


def test_info_reports_no_mount_of_another_store(closing):
    store, daemon, second = closing
    text = weightfs("info", store).out
    assert str(second.path) not in text and f"still served by process {daemon}" in text
    report = json.loads(weightfs("info", "--json", store).out)
    assert report["mounted_on"] is None and report["served_by"] == daemon


@pytest.mark.parametrize("options", [[], ["--catalog"]], ids=["data", "catalog"])
def test_verify_waits_for_its_own_store(closing, options):
    store, daemon, second = closing
    with process.Processes() as processes:
        verify = processes.start([program(), "verify", *options, store])
        wait_until_it_polls(verify, LOOKS)
        process.kill(daemon, signal.SIGCONT)
        finished = process.finish(verify)
    assert f"{store}: files 1," in finished.out and str(second.path) not in finished.out + finished.err


def test_a_daemon_leaves_the_mount_of_another_store_on_its_directory(mount, other, factory):
    device = os.stat(mount.path).st_dev
    with stopped(mount):
        weightfs("umount", mount.path, "--timeout", "0", codes=(STILL_SERVED,))
        second = mount_with_number(device, factory, other, mount.path)
        (second.path / "other").write_bytes(b"content")
    assert is_mounted(second.path) and (second.path / "other").read_bytes() == b"content"
    second.fsck()
