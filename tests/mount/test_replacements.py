# SPDX-License-Identifier: Apache-2.0
"""Files that are being replaced (O_TRUNC) on a real mount: their old content stays until their last writer has closed
them, whatever ends the mount or commits beside them. The rules are also in tests/unit/store/replacements_test.cc."""

import os
import re
import signal
import urllib.request

import pytest

from harness import process
from harness.filesystems import wait_until, weightfs
from harness.ports import free_port

pytestmark = pytest.mark.usefixtures("weightfs_only")
MIB = 1 << 20
OLD = b"old" * MIB


@pytest.fixture
def mount(factory):
    mount = factory.mount(factory.store("128M"))
    with open(mount.path / "ckpt", "wb") as stream:
        stream.write(OLD)
        os.fsync(stream.fileno())
    (mount.path / "other").mkdir()
    (mount.path / "other" / "file").write_bytes(b"published")
    return mount


def half(mount):
    """Replaces the checkpoint with half of a new one, and leaves it open."""
    descriptor = os.open(mount.path / "ckpt", os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"new" * (MIB // 3))
    return descriptor


def close(descriptor):
    try:
        os.close(descriptor)
    except OSError:
        pass   # the mount has ended


def again(mount):
    mount.close()
    mount.mount()
    return (mount.path / "ckpt").read_bytes()


def publish(mount):
    weightfs("publish", mount.path / "other")


def unpublish(mount):
    publish(mount)
    weightfs("publish", "--undo", mount.path / "other")


def rename(mount):
    os.rename(mount.path / "other", mount.path / "renamed")


@pytest.mark.parametrize("neighbor", [publish, unpublish, rename], ids=lambda function: function.__name__)
def test_a_change_elsewhere_commits_no_replacement(mount, neighbor):
    descriptor = half(mount)
    neighbor(mount)
    mount.kill9()
    close(descriptor)
    assert again(mount) == OLD
    mount.fsck()


def test_a_signal_to_the_mount_commits_no_replacement(mount):
    descriptor, pid = half(mount), mount.pid
    process.kill(pid, signal.SIGTERM)
    assert process.wait_gone(pid, 60)
    close(descriptor)
    assert again(mount) == OLD
    mount.fsck()


@pytest.mark.parametrize("flags", ["-f", "-fl"])
def test_a_forced_unmount_commits_no_replacement(mount, flags):
    """The program umount closes its copy of the descriptor, which says nothing about the writer."""
    descriptor, pid = half(mount), mount.pid
    process.run(["umount", flags, mount.path], codes=None)
    assert process.wait_gone(pid, 60)
    close(descriptor)
    assert again(mount) == OLD
    mount.fsck()


@pytest.mark.parametrize("end", ["umount", "signal", "force"])
def test_a_replacement_that_was_closed_is_there_after_the_mount_ends(mount, end):
    """The close has returned; its release may still be on its way."""
    for count in range(10):
        with open(mount.path / f"file-{count}", "wb") as stream:
            stream.write(OLD)
    for count in range(10):
        with open(mount.path / f"file-{count}", "wb") as stream:
            stream.write(b"new %d" % count)
    pid = mount.pid
    if end == "umount":
        mount.umount()
    elif end == "signal":
        process.kill(pid, signal.SIGTERM)
    else:
        process.run(["umount", "-f", mount.path], codes=None)
    assert process.wait_gone(pid, 60)
    again(mount)
    for count in range(10):
        assert (mount.path / f"file-{count}").read_bytes() == b"new %d" % count


def commits(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return float(re.search(rb"^weightfs_commits_total\S* (\S+)$", answer.read(), re.MULTILINE).group(1))


def with_metrics(mount, options=""):
    """Mounts again, and returns the port of the metrics."""
    port = free_port()
    mount.remount(f"metrics=127.0.0.1:{port}{options}")
    return port


def test_a_reader_does_not_hold_back_a_replacement(mount):
    """The close of the writer starts the commit, which shows in the metrics."""
    port = with_metrics(mount)
    with open(mount.path / "ckpt", "rb") as reader:
        before = commits(port)
        os.close(half(mount))
        assert wait_until(lambda: commits(port) > before, 60)
        mount.kill9()
        assert not reader.closed
    assert again(mount) == b"new" * (MIB // 3)
    mount.fsck()


def test_the_close_of_the_last_writer_starts_a_commit(mount):
    """No other commit is due."""
    port = with_metrics(mount, ",commit=3600")
    first, second = half(mount), os.open(mount.path / "ckpt", os.O_WRONLY)
    os.close(first)
    before = commits(port)
    os.close(second)
    assert wait_until(lambda: commits(port) > before, 60)
    mount.kill9()
    assert again(mount) == b"new" * (MIB // 3)


def test_changed_data_of_an_open_file_is_committed_in_time(mount):
    port = with_metrics(mount, ",commit=0.1")
    descriptor, before = os.open(mount.path / "other" / "file", os.O_WRONLY), commits(port)
    os.write(descriptor, b"unsynced!")
    assert wait_until(lambda: commits(port) > before, 60)
    mount.kill9()
    close(descriptor)
    again(mount)
    assert (mount.path / "other" / "file").read_bytes() == b"unsynced!"


def test_a_replacement_that_does_not_fit_beside_the_old_content_is_committed(factory):
    """The writer goes on, in the space of the old content, which is lost."""
    mount = factory.mount(factory.store("64M"), "commit=3600")
    old, new = b"o" * MIB, b"n" * MIB
    with open(mount.path / "ckpt", "wb") as stream:
        for _ in range(40):
            stream.write(old)
        os.fsync(stream.fileno())
    descriptor = os.open(mount.path / "ckpt", os.O_WRONLY | os.O_TRUNC)
    for _ in range(40):
        assert os.write(descriptor, new) == MIB
    mount.kill9()
    close(descriptor)
    found = again(mount)
    assert found and found == b"n" * len(found)
    mount.fsck()


def test_a_replacement_that_stays_open_is_committed_in_time(mount):
    """After 30 seconds."""
    port = with_metrics(mount)
    before = commits(port)
    descriptor = half(mount)
    assert wait_until(lambda: commits(port) > before, 100)
    mount.kill9()
    close(descriptor)
    assert again(mount) == b"new" * (MIB // 3)
