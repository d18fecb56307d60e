# SPDX-License-Identifier: Apache-2.0
"""Devices whose root of the replica was made to keep a reader busy: every command ends, and a mount that starts can be
ended."""

import os
import shutil
import signal
import struct
import subprocess

import pytest

from harness import process
from harness.crc32c import crc32c
from harness.filesystems import is_mounted, program, wait_until, weightfs
from harness.tree import snapshot
from store_files import ROOT_OFFSETS, patch, read_at

pytestmark = pytest.mark.usefixtures("weightfs_only")

ROOT_CAPACITY = 384 << 10
HEADER, SEQUENCE, STREAMS = 24, 48, 88   # docs/FORMAT.md, section 10
SEGMENT = struct.Struct("<HQIQQ")
BLOCK, DATA = 4096, 512   # the first block of the data area
LARGEST = 2048            # blocks of a segment


def sequence_of(root):
    return struct.unpack_from("<Q", root, SEQUENCE)[0]


def newest_root(pool):
    roots = [read_at(pool, offset, ROOT_CAPACITY) for offset in ROOT_OFFSETS]
    return max((root for root in roots if root[:8] == b"WFSFROOT"), key=sequence_of)


def give_log(pool, segments):
    """Writes a root that is newer than the others, with these (first block, blocks) as segments of the log."""
    old = newest_root(pool)
    size = struct.unpack_from("<I", old, 12)[0]
    count = struct.unpack_from("<I", old, STREAMS + 8)[0]
    log = STREAMS + 12 + count * SEGMENT.size
    count = struct.unpack_from("<I", old, log + 8)[0]
    rest = old[log + 12 + count * SEGMENT.size:size]
    body = bytearray(old[HEADER:log + 8])
    struct.pack_into("<Q", body, SEQUENCE - HEADER, sequence_of(old) + 10)
    body += struct.pack("<I", len(segments))
    for number, (start, blocks) in enumerate(segments):
        body += SEGMENT.pack(0, start, blocks, number, 0)
    body += rest
    head = old[:8] + struct.pack("<IIII", 1, HEADER + len(body), crc32c(body), 0)
    root = head + body
    assert len(root) <= ROOT_CAPACITY
    for offset in ROOT_OFFSETS:
        patch(pool, offset, root)


HOSTILE = {
    "segments that overlap": [(DATA, LARGEST)] * 12_000,
    "segments that overlap a little": [(DATA + number, 2) for number in range(12_000)],
    "an endless segment": [(DATA, 0xffffffff)],
    "segments beyond the device": [(1 << 40, LARGEST)] * 12_000,
}


@pytest.fixture
def filled(factory):
    mount = factory.mount(factory.store("64M"))
    for number in range(20):
        (mount.path / f"f{number}").write_bytes(os.urandom(5000))
    content = snapshot(mount.path, times=True)
    mount.umount()
    return mount, content


@pytest.mark.parametrize("segments", HOSTILE.values(), ids=HOSTILE)
def test_every_command_ends(filled, segments):
    mount, content = filled
    give_log(mount.store.directory / "pool", segments)
    weightfs("verify", "--catalog", mount.store.directory, codes=(0, 1))
    mount.mount("ro")
    assert snapshot(mount.path, times=True) == content
    mount.umount()
    mount.mount()
    assert snapshot(mount.path, times=True) == content
    mount.umount()
    mount.store.fsck()
    give_log(mount.store.directory / "pool", segments)
    shutil.rmtree(mount.store.directory / "meta")
    weightfs("recover", mount.store.directory, codes=(0, 1))


def test_a_signal_ends_a_mount_that_starts(filled):
    """The log has 100 GiB of holes, which take a while to read."""
    mount, content = filled
    pool = mount.store.directory / "pool"
    begin = pool.stat().st_size // BLOCK
    os.truncate(pool, (begin + 12_800 * LARGEST) * BLOCK)
    give_log(pool, [(begin + number * LARGEST, LARGEST) for number in range(12_800)])
    starting = subprocess.Popen([program(), "mount", "-f", mount.store.directory, mount.path])

    def reads_pool():
        files = process.run(["ls", "-l", f"/proc/{starting.pid}/fd"], codes=None).out   # some vanish meanwhile
        return f"{pool}\n" in files

    assert wait_until(reads_pool)
    starting.send_signal(signal.SIGTERM)
    process.finish(starting, codes=(-signal.SIGTERM,))
    assert not is_mounted(mount.path)
    os.truncate(pool, begin * BLOCK)
    mount.mount()
    assert snapshot(mount.path, times=True) == content
