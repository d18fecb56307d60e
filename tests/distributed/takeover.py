# SPDX-License-Identifier: Apache-2.0
"""Scenarios in which a second machine takes over a store. Run by test_takeover.py as `takeover.py SCENARIO DIRECTORY`
in namespaces of its own."""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from distributed.gluster import TIMEOUT_S, Cluster  # noqa: E402
from harness import process  # noqa: E402
from harness.filesystems import wait_until  # noqa: E402
from harness.namespaces import detach_mounts_of_others  # noqa: E402
from harness.syscalls import errno_of  # noqa: E402

MIB = 1 << 20
LOST = "has taken over the store"


def save(path, seed, count=4):
    """Writes a file and fsyncs it. Returns its content."""
    content = bytes([seed]) * (count * MIB)
    with open(path, "wb", buffering=0) as stream:
        assert stream.write(content) == len(content)
        os.fsync(stream.fileno())
    return content


def started(root, **settings):
    """A mounted store with one durable file on the first of two machines."""
    cluster = Cluster(root)
    for option, value in settings.items():
        cluster.set(option.replace("__", ".").replace("_", "-"), value)
    first, second = cluster.start()
    first.weightfs("format", first.store, "--size", "64M")
    first.mount()
    refused = second.mount(codes=None)
    assert refused.code != 0 and "in use" in refused.err, refused
    return first, second, save(first.mounted / "old", 1)


def takes_over(second, old, limit=20 * TIMEOUT_S):
    """The second machine mounts, finds what the first had synced, and saves a file."""
    seconds = second.mount_when_free(limit)
    assert (second.mounted / "old").read_bytes() == old
    print(f"the second machine serves the store after {seconds:.1f} s", flush=True)
    return save(second.mounted / "new", 2)


def is_fenced(first, second, new):
    """The first machine is back. It writes nothing, says why, and leaves the store to the second."""
    assert errno_of(save, first.mounted / "late", 3) != 0
    assert wait_until(lambda: LOST in second.log()), second.log()
    assert [line for line in second.log().splitlines() if LOST in line and "critical" in line], second.log()
    assert errno_of(os.mkdir, first.mounted / "directory") != 0
    process.kill(first.daemon, signal.SIGTERM)
    assert wait_until(lambda: not os.path.ismount(first.mounted))
    assert (second.mounted / "new").read_bytes() == new
    newer = save(second.mounted / "newer", 4)
    second.umount()
    second.fsck()
    second.mount()
    assert (second.mounted / "new").read_bytes() == new and (second.mounted / "newer").read_bytes() == newer
    assert not (second.mounted / "late").exists()
    second.umount()


def killed_daemon(root):
    """The daemon dies and its machine lives: the kernel releases the locks at once."""
    first, second, old = started(root)
    process.kill(first.daemon)
    takes_over(second, old)
    second.umount()
    second.fsck()


def stopped_daemon(root):
    """A daemon that is stopped keeps its locks: nobody takes the store, and nothing is lost."""
    first, second, old = started(root)
    daemon = first.daemon
    process.kill(daemon, signal.SIGSTOP)
    assert not wait_until(lambda: second.mount(codes=None).code == 0, 3 * TIMEOUT_S)
    process.kill(daemon, signal.SIGCONT)
    new = save(first.mounted / "new", 2)
    assert (first.mounted / "old").read_bytes() == old and (first.mounted / "new").read_bytes() == new
    first.umount()
    second.fsck()


def stopped_machine(root):
    """The machine stops with its network, as a virtual machine that is paused."""
    first, second, old = started(root)
    paused = (first.daemon, first.client)
    for pid in paused:
        process.kill(pid, signal.SIGSTOP)
    first.cut()
    new = takes_over(second, old)
    first.connect()
    for pid in reversed(paused):
        process.kill(pid, signal.SIGCONT)
    is_fenced(first, second, new)


def cut_network(root):
    first, second, old = started(root)
    first.cut()
    new = takes_over(second, old)
    first.connect()
    assert wait_until(lambda: errno_of(os.listdir, first.volume) == 0)
    is_fenced(first, second, new)


def cut_network_and_writing(root):
    """The first machine goes on writing while it has no network. By default the client of GlusterFS caches such writes
    and sends them later, whatever happened meanwhile; with client.strict-locks it does not."""
    first, second, old = started(root, client__strict_locks="on")
    first.cut()
    assert errno_of(save, first.mounted / "during", 5) != 0
    new = takes_over(second, old)
    first.connect()
    assert wait_until(lambda: errno_of(os.listdir, first.volume) == 0)
    assert errno_of(save, first.mounted / "late", 3) != 0
    process.kill(first.daemon, signal.SIGTERM)
    assert wait_until(lambda: not os.path.ismount(first.mounted))
    assert (second.mounted / "new").read_bytes() == new
    second.umount()
    second.fsck()


def short_cut(root):
    """The server drops the locks, and nobody takes them: the first machine takes them again and goes on."""
    first, second, old = started(root)
    # Mounted again, so that nothing is left to write: a write or flush that fails during the cut ends all writing.
    first.umount()
    first.mount()
    first.cut()
    assert wait_until(lambda: errno_of(os.listdir, first.volume) != 0, 10 * TIMEOUT_S)
    first.connect()
    assert wait_until(lambda: errno_of(os.listdir, first.volume) == 0)
    assert errno_of(os.mkdir, first.mounted / "directory") == 0, first.log()
    new = save(first.mounted / "new", 2)
    refused = second.mount(codes=None)
    assert refused.code != 0 and "in use" in refused.err, refused
    assert (first.mounted / "old").read_bytes() == old and (first.mounted / "new").read_bytes() == new
    first.umount()
    second.fsck()


SCENARIOS = (killed_daemon, stopped_daemon, stopped_machine, cut_network, cut_network_and_writing, short_cut)

if __name__ == "__main__":
    detach_mounts_of_others(sys.argv[2])
    {scenario.__name__: scenario for scenario in SCENARIOS}[sys.argv[1]](Path(sys.argv[2]))
