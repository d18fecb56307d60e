# SPDX-License-Identifier: Apache-2.0
"""Kills the daemon repeatedly with SIGKILL under three writers: nothing guaranteed is lost, and nothing is incomplete.
"""

import contextlib
import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crash_checks import CHECKS, Record
from crash_writers import content, length_of, write_whole
from harness import process
from harness.filesystems import wait_until, weightfs
from harness.syscalls import RENAME_EXCHANGE, rename_flags

STORE_SIZE = "512M"
WRITERS = Path(__file__).with_name("crash_writers.py")
# Space that a used store may occupy in addition to a fresh one: none, because the reserve is the same.
LEAK_ALLOWED_BYTES = 0


def rounds(config):
    return config.getoption("rounds") or (200 if config.getoption("full") else 8)


def start_writers(directory, names, seed):
    """Starts a writer for each name. A name begins with the writer's kind: "append", "truncate-2"."""
    for name in names:
        (directory / name).mkdir(exist_ok=True)
    sync_directory(directory)   # a kill may lose the names of the last 50 ms
    writers = {}
    for name in names:
        command = [sys.executable, WRITERS, name.split("-")[0], directory / name, f"{name} {seed}"]
        writers[name] = subprocess.Popen(command, stdout=subprocess.PIPE)
    return writers


def listen(writers, records, count, watched):
    """Records the writers' lines until there are `count` of them. Then calls `watched` and records the rest."""
    streams = {writer.stdout.fileno(): (kind, []) for kind, writer in writers.items()}
    heard = 0
    while streams:
        ready, _, _ = select.select(list(streams), [], [], 60)
        if not ready:
            raise process.Failure(f"the writers said nothing for 60 s; last: "
                                  f"{ {kind: record.last for kind, record in records.items()} }")
        for descriptor in ready:
            kind, rest = streams[descriptor]
            piece = os.read(descriptor, 65536)
            if not piece:
                del streams[descriptor]
                continue
            *lines, tail = (b"".join(rest) + piece).split(b"\n")
            rest[:] = [tail]
            for line in lines:
                records[kind].hear(line)
            heard += len(lines)
        if watched is not None and heard >= count:
            watched()
            watched = None
    for writer in writers.values():
        process.finish(writer, codes=None)


def stop(mount, writers):
    """Simulates the crash. A local filesystem has no daemon, so there the writers are killed instead, which it must
    also survive."""
    if mount.store.kind == "weightfs":
        mount.kill9()
    else:
        for writer in writers.values():
            writer.kill()


def new_records(mount, names=("append", "replace", "churn")):
    return {name: Record(mount.store.kind == "weightfs") for name in names}


def used_space(directory):
    sync_directory(directory)
    status = os.statvfs(directory)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def is_back(directory, fresh):
    """Waits until no more space is used than in a fresh store. The kernel reports the end of a file's use later."""
    return wait_until(lambda: used_space(directory) <= fresh + LEAK_ALLOWED_BYTES)


# Number of lines before the crash, from the first moments of a mount to the middle of its work.
LINES = [1, 5, 30, 100, 300, 900]


def one_round(mount, base, records, seed, lines=LINES):
    generator = random.Random(seed)
    writers = start_writers(base, records, seed)
    try:
        listen(writers, records, generator.choice(lines), lambda: stop(mount, writers))
    finally:
        for writer in writers.values():
            writer.kill()
            writer.wait(timeout=30)
    if mount.store.kind == "weightfs":
        mount.mount()
    for name, record in records.items():
        try:
            CHECKS[name.split("-")[0]](base / name, record)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {name}: {error}; last said: {record.last}") from None


@pytest.mark.limit(3600)
def test_nothing_guaranteed_is_lost(mounted, pytestconfig):
    base = mounted.path / "writers"
    base.mkdir()
    fresh, records = used_space(mounted.path), new_records(mounted)
    seed = pytestconfig.getoption("seed") or 1
    for number in range(seed, seed + rounds(pytestconfig)):
        one_round(mounted, base, records, number)
        mounted.fsck()
        mounted.mount()
        if number % 4 == 3:
            shutil.rmtree(base)
            base.mkdir()
            assert is_back(mounted.path, fresh), f"space is lost after seed {number}"
            records = new_records(mounted)
    shutil.rmtree(base)
    mounted.remount()
    assert is_back(mounted.path, fresh), "space is lost at the end"


@pytest.mark.limit(1200)
@pytest.mark.parametrize("size", ["4G", "160M"], ids=["much space", "little space"])
def test_truncated_files_are_old_or_new(factory, pytestconfig, size):
    """Replaces files repeatedly under O_TRUNC, without a sync. A later replacement begins before the earlier one is
    durable, and with little space the freed blocks are soon needed."""
    mount = factory.mount(factory.store(size))
    records = new_records(mount, ("truncate-1", "truncate-2", "truncate-3"))
    for writer, record in records.items():
        (mount.path / writer).mkdir()
        for name in ("truncated-0", "truncated-1", "truncated-2"):
            write_whole(mount.path / writer / name, content(name, 0, length_of(name, 0)), sync=True)
            record.done_synced(name, 0)
    seed = pytestconfig.getoption("seed") or 1
    for number in range(seed, seed + max(4, rounds(pytestconfig) // 2)):
        one_round(mount, mount.path, records, number, lines=[300, 1500, 3000])
    mount.fsck()


def commits(mount):
    return json.loads(weightfs("info", mount.path, "--json").out)["statistics"]["commits"]


def test_the_commit_of_an_earlier_close_leaves_out_a_half_replaced_file(factory, weightfs_only):
    """A close schedules a commit, but by then the next replacement may have begun."""
    mount = factory.mount(factory.store("64M"))
    write_whole(mount.path / "model", b"1" * 300_000, sync=True)
    write_whole(mount.path / "model", b"2" * 5000, sync=False)
    descriptor = os.open(mount.path / "model", os.O_WRONLY | os.O_TRUNC)
    before = commits(mount)
    write_whole(mount.path / "other", b"its close asks for a commit too", sync=False)
    assert wait_until(lambda: commits(mount) > before)
    mount.kill9()
    close_on_dead_mount(descriptor)
    mount.mount()
    assert (mount.path / "model").read_bytes() in (b"1" * 300_000, b"2" * 5000)
    mount.fsck()


def test_a_lack_of_space_does_not_commit_a_half_replaced_file(factory, weightfs_only):
    """Freed space that waits for a commit is needed. The commit must leave out the file that is being replaced."""
    mount = factory.mount(factory.store("64M"))
    write_whole(mount.path / "model", b"old" * 100_000, sync=True)
    descriptor = os.open(mount.path / "model", os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"new" * 100_000)
    for _ in range(6):
        write_whole(mount.path / "other", os.urandom(20 << 20), sync=False)
        os.unlink(mount.path / "other")
    mount.kill9()
    close_on_dead_mount(descriptor)
    mount.mount()
    assert (mount.path / "model").read_bytes() == b"old" * 100_000
    mount.fsck()


def publish_by_directory(base):
    (base / "step.tmp").rename(base / "step")


def publish_by_exchange(base):
    (base / "step").mkdir()
    rename_flags(base / "step.tmp", base / "step", RENAME_EXCHANGE)


def publish_by_symbolic_link(base):
    (base / "latest.tmp").symlink_to("step.tmp")
    (base / "latest.tmp").rename(base / "step")


def publish_by_hard_links(base):
    (base / "step" / "rank").mkdir(parents=True)
    for path in PUBLISHED:
        os.link(base / "step.tmp" / path, base / "step" / path)


PUBLISHED = {"model.pt": 3_000_000, "config.json": 700, "rank/optimizer.pt": 400_000}


@pytest.mark.parametrize("publish", [publish_by_directory, publish_by_exchange, publish_by_symbolic_link,
                                     publish_by_hard_links])
@pytest.mark.parametrize("delay", [0, 0.02, 0.05, 1])
def test_a_new_name_that_survives_a_kill_has_its_data(factory, weightfs_only, publish, delay):
    """Nothing is synced: a new name is ordered after the data that it refers to. Names are written within 50 ms."""
    mount = factory.mount(factory.store("64M"), "commit=3600")
    data = {path: os.urandom(size) for path, size in PUBLISHED.items()}
    (mount.path / "step.tmp" / "rank").mkdir(parents=True)
    for path, content_of_path in data.items():
        (mount.path / "step.tmp" / path).write_bytes(content_of_path)
    publish(mount.path)
    time.sleep(delay)
    mount.kill9()
    mount.mount()
    for path, content_of_path in data.items():
        with contextlib.suppress(FileNotFoundError) if delay < 1 else contextlib.nullcontext():
            assert (mount.path / "step" / path).read_bytes() == content_of_path
    mount.fsck()


@pytest.mark.limit(300)
def test_files_deleted_while_open_give_their_space_back_after_a_crash(mounted, weightfs_only):
    fresh = used_space(mounted.path)
    descriptor = os.open(mounted.path / "orphan", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, os.urandom(8 << 20))
    os.fsync(descriptor)
    os.unlink(mounted.path / "orphan")
    sync_directory(mounted.path)
    assert used_space(mounted.path) >= fresh + (8 << 20)
    mounted.kill9()
    close_on_dead_mount(descriptor)
    mounted.mount()
    assert os.listdir(mounted.path) == [] and is_back(mounted.path, fresh)


def close_on_dead_mount(descriptor):
    with contextlib.suppress(OSError):
        os.close(descriptor)


def sync_directory(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_programs_see_an_error_when_the_daemon_dies_and_the_mount_is_recovered(mounted, weightfs_only):
    descriptor = os.open(mounted.path / "file", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"synced")
    os.fsync(descriptor)
    process.kill(mounted.pid)
    with pytest.raises(OSError):
        while True:
            os.write(descriptor, b"x")
    close_on_dead_mount(descriptor)
    # The ordinary command removes the dead mount, and the next mount recovers by itself.
    mounted.umount()
    mounted.mount()
    assert (mounted.path / "file").read_bytes()[:6] == b"synced"
    (mounted.path / "file").unlink()


def test_a_crash_while_recovering_is_recovered(mounted, weightfs_only):
    data = os.urandom(20 << 20)
    with open(mounted.path / "file", "wb", buffering=0) as stream:
        stream.write(data)
        os.fsync(stream.fileno())
    for _ in range(5):
        mounted.kill9()
        mounted.mount()
    mounted.kill9()
    started = subprocess.Popen(mounted.command("") + ["-f"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    started.kill()
    started.wait(timeout=30)
    mounted.detach()
    mounted.mount()
    assert (mounted.path / "file").read_bytes() == data
    (mounted.path / "file").unlink()
