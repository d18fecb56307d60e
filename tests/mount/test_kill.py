"""SIGKILL of the filesystem's process at random moments under five writers, and what is there after the next mount."""

import os
import random
import selectors
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import crash_writers
from harness import process
from harness.filesystems import is_mounted
from harness.tree import differences, snapshot

pytestmark = pytest.mark.usefixtures("weightfs_only")

PROGRAM = Path(__file__).with_name("crash_writers.py")
# What a store may keep for itself after everything was deleted: no block of the pool.
KEPT_BLOCKS = 0
ROUND_LIMIT_S = 180


def rounds(config):
    return (config.getoption("rounds") or int(os.environ.get("WEIGHTFS_ROUNDS", 0)) or
            (200 if config.getoption("full") else 8))


class Writers:
    """The five programs of one round. `lines` of a kind are what it has said."""

    def __init__(self, directory, seed):
        self.directory, self.seed = directory, seed
        self.lines = {kind: [] for kind in crash_writers.KINDS}
        self._rests, self._selector, self._processes = {}, selectors.DefaultSelector(), []
        for kind in crash_writers.KINDS:
            (directory / kind).mkdir()
            program = subprocess.Popen([sys.executable, PROGRAM, kind, directory / kind, str(seed)],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
            self._processes.append(program)
            self._selector.register(program.stdout, selectors.EVENT_READ, kind)
            self._rests[kind] = b""

    def listen(self, limit):
        """Takes what they say within `limit` seconds. Returns the number of new lines; None when all have ended."""
        if not self._selector.get_map():
            return None
        count = 0
        for key, _ in self._selector.select(limit):
            piece = os.read(key.fd, 65536)
            if not piece:
                self._selector.unregister(key.fileobj)
                continue
            *complete, self._rests[key.data] = (self._rests[key.data] + piece).split(b"\n")
            self.lines[key.data] += [line.decode().split() for line in complete]
            count += len(complete)
        return count

    def listen_until_moment(self, random_source):
        """A moment that nobody could foresee: a number of steps, and then up to 20 ms."""
        wanted = random_source.choice([0, 10, 60, 200, 400]) + random_source.randrange(60)
        deadline = time.monotonic() + 60
        while wanted > 0:
            heard = self.listen(5)
            assert heard is not None, f"the writers ended by themselves: {self.outcome()}"
            assert time.monotonic() < deadline, f"the writers make no progress: {self.outcome()}"
            wanted -= heard
        end = time.monotonic() + random_source.random() * 0.02
        while (rest := end - time.monotonic()) > 0:
            self.listen(rest)
        failed = {kind: lines[-1] for kind, lines in self.lines.items() if lines and lines[-1][0] in ("ended", "failed")}
        assert not failed, f"before the kill: {failed}"

    def collect(self):
        """After the kill: the rest of what they said. They end, for the filesystem is gone."""
        deadline = time.monotonic() + 60
        while self.listen(5) is not None:
            assert time.monotonic() < deadline, "a writer still waits for the filesystem that was killed"
        for program in self._processes:
            finished = process.finish(program)
            assert finished.code == 0 and not finished.err, finished
        for kind, lines in self.lines.items():
            assert lines[-1][0] == "ended", f"{kind} was refused before the kill: {lines[-1]}"
            del lines[-1]

    def outcome(self):
        return {kind: lines[-1:] for kind, lines in self.lines.items()}

    def check(self):
        for kind, lines in self.lines.items():
            crash_writers.KINDS[kind](self.directory / kind, self.seed).check(lines)

    def end(self):
        for program in self._processes:
            if program.poll() is None:
                process.end_hung(program)


def kill_the_next_mount(mount):
    """Another kill while the mount recovers, or shortly after."""
    command = subprocess.Popen([str(word) for word in mount.command("")], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    mount.watchdog.watch(mount.path, mount.command("")[0].name, mount.store.directory)
    lock = mount.store.directory / "lock"
    before = lock.read_text()
    deadline = time.monotonic() + 60
    # The lock's text is the daemon's number once it has opened the catalog.
    while command.poll() is None and lock.read_text() in ("", before):
        assert time.monotonic() < deadline, "the mount does not begin"
    for pid in mount.store.daemons():
        process.kill(pid)
        assert process.wait_gone(pid)
    process.finish(command, codes=None)
    if is_mounted(mount.path):
        mount.detach()


def space(path):
    status = os.statvfs(path)
    return status.f_blocks, status.f_bfree, status.f_bavail


def crash_once(mount, number, random_source):
    """One round. Returns its directory and what is in it, all checked and durable."""
    directory = mount.path / f"round-{number}"
    directory.mkdir()
    writers = Writers(directory, random_source.randrange(1 << 30))
    try:
        writers.listen_until_moment(random_source)
        mount.kill9()
        writers.collect()
    finally:
        writers.end()
    if random_source.random() < 0.3:
        kill_the_next_mount(mount)
    mount.mount()
    if not directory.exists():
        # Nothing was synced before the kill: that is all that may be lost with it.
        acknowledged = [line for lines in writers.lines.values() for line in lines if line[0] in ("synced", "durable")]
        assert not acknowledged, f"{directory} is gone, and with it {acknowledged}"
        return None, {}
    for kind in crash_writers.KINDS:
        (directory / kind).mkdir(exist_ok=True)
    writers.check()
    before = snapshot(directory)
    mount.fsck()
    mount.mount()
    assert differences(before, snapshot(directory)) == []
    return directory, before


def test_killed_at_random_moments_nothing_acknowledged_is_lost(factory, request):
    seed = request.config.getoption("seed") or 1
    count = rounds(request.config)
    mount = factory.mount(factory.store("256M"))
    fresh = space(mount.path)
    last, settled = None, {}
    for number in range(count):
        request.config.watchdog.arm(ROUND_LIMIT_S, f"{request.node.nodeid} round {number}")
        try:
            directory, content = crash_once(mount, number, random.Random(f"{seed}/{number}"))
            if last is not None:
                assert differences(settled, snapshot(last)) == [], "what had survived the kill before did not survive this"
        except AssertionError as error:
            raise AssertionError(f"round {number} of seed {seed}: {error}\n{mount.store.log()}") from error
        if last is not None:
            shutil.rmtree(last)
        last, settled = directory, content
    for entry in mount.path.iterdir():
        shutil.rmtree(entry)
    mount.remount()
    total, free, available = space(mount.path)
    assert total == fresh[0]
    assert free >= fresh[1] - KEPT_BLOCKS, f"{fresh[1] - free} blocks have leaked in {count} rounds"
    assert available >= fresh[2] - KEPT_BLOCKS
    mount.fsck()
