# SPDX-License-Identifier: Apache-2.0
"""The direct path of a mount, tested with protocol messages: what leases show and change, and how their space is freed.
"""

import errno
import mmap
import os
import socket
import stat
import sys
import threading

import pytest

from harness import process
from harness.filesystems import wait_until, weightfs
from harness.syscalls import RENAME_EXCHANGE, rename_flags
from lease_checks import (
    MIB,
    PASSES,
    READS,
    RESERVES,
    Holder,
    comes_to,
    descriptors_at_rest,
    free,
    free_at_rest,
    pattern,
    refusal,
    statistics,
)
from lease_client import BLOCK, Lease, Refused, read_direct, ticket, write_direct, write_many, write_opened

pytestmark = pytest.mark.usefixtures("weightfs_only")
STORE_SIZE = "64M"
MOUNT_OPTIONS = "allow_other,commit=0.05"


def test_reads_unsynced_data(work):
    data = pattern(300_001)
    (work / "a").write_bytes(data)
    assert read_direct(work / "a") == data
    assert read_direct(work / "a", 8192, 100) == data[8192:12288], "whole blocks"
    assert read_direct(work / "a", 1 << 40) == b""


def test_statistics_count_what_leases_move(work, mounted):
    """Leases are counted separately, and also in the totals of programs and devices."""
    def moved_since(before):
        return {field: value - before[field] for field, value in statistics(mounted).items() if field.endswith("_bytes")}

    def expect(before, file_bytes, device_bytes, way):
        moved = moved_since(before)
        assert moved[f"{way}_bytes"] == file_bytes
        assert moved[f"device_{way}_bytes"] == moved[f"leased_{way}_bytes"] == device_bytes
        other = "written" if way == "read" else "read"
        assert moved[f"{other}_bytes"] == moved[f"device_{other}_bytes"] == moved[f"leased_{other}_bytes"] == 0

    size, blocks = 8 * MIB + 100, 8 * MIB + BLOCK
    free_at_rest(mounted, work)
    before = statistics(mounted)
    write_direct(work / "a", bytes(size), os.O_CREAT)
    expect(before, size, blocks, "written")
    before = statistics(mounted)
    assert read_direct(work / "a") == bytes(size)
    expect(before, size, blocks, "read")
    before = statistics(mounted)
    write_many(work, {b"b": bytes(100), b"c": bytes(5000), b"d": b""})
    expect(before, 5100, 3 * BLOCK, "written")
    os.truncate(work / "d", MIB)
    before = statistics(mounted)
    assert read_direct(work / "d") == bytes(MIB)
    expect(before, MIB, 0, "read")   # reading a hole reads no device
    assert weightfs("info", mounted.path).out.count("of it by leases)") == 2


def test_reads_data_of_a_shared_mapping(work):
    with open(work / "a", "w+b") as stream:
        stream.truncate(BLOCK)
        with mmap.mmap(stream.fileno(), BLOCK) as memory:
            memory[:] = b"m" * BLOCK
            assert read_direct(work / "a") == b"m" * BLOCK


def test_a_commit_is_ordered_after_earlier_changes_of_a_mapping(work):
    path = work / "a"
    path.write_bytes(pattern(MIB))
    with open(path, "r+b") as stream, mmap.mmap(stream.fileno(), MIB) as memory:
        memory[BLOCK:2 * BLOCK] = b"m" * BLOCK
        # Uses the open descriptor, because another open(2) would drop the pages.
        write_opened(stream.fileno(), pattern(MIB, 1))
        assert os.pread(stream.fileno(), 2 * MIB, 0) == pattern(MIB, 1)
        memory[5 * BLOCK] = 0xFF
        memory.flush()
    expected = bytearray(pattern(MIB, 1))
    expected[5 * BLOCK] = 0xFF
    assert path.read_bytes() == expected, "a later change of the mapping is in the file"


def test_a_mapping_makes_no_file_longer_that_a_commit_cut(work):
    path = work / "a"
    path.write_bytes(pattern(4 * BLOCK))
    with open(path, "r+b") as stream, mmap.mmap(stream.fileno(), 4 * BLOCK) as memory:
        memory[3 * BLOCK:] = b"m" * BLOCK
        write_opened(stream.fileno(), pattern(BLOCK, 1))
        assert path.stat().st_size == BLOCK
    assert path.read_bytes() == pattern(BLOCK, 1)


def test_pages_changed_while_a_commit_cuts_the_file_do_not_grow_it(work):
    path = work / "a"
    stop = work / "stop"
    code = "import mmap, os, signal, sys\n" \
           "file = os.open(sys.argv[1], os.O_RDWR)\n" \
           "memory = mmap.mmap(file, 4 * 4096)\n" \
           "print('mapped', flush=True)\n" \
           "signal.signal(signal.SIGBUS, lambda *_: None)\n" \
           "while not os.path.exists(sys.argv[2]): memory[3 * 4096] = 1 + memory[3 * 4096] % 2\n"
    path.write_bytes(pattern(4 * BLOCK))
    file = os.open(path, os.O_RDWR)
    with process.Processes() as processes:
        writer = processes.start([sys.executable, "-c", code, path, stop])
        assert writer.stdout.readline() == "mapped\n"
        sizes = set()
        for _ in range(50):
            write_opened(file, pattern(BLOCK, 1), durable=False)
            sizes.add(os.fstat(file).st_size)
            os.ftruncate(file, 4 * BLOCK)
        stop.touch()
        writer.wait()
    os.close(file)
    assert sizes == {BLOCK}


def test_holes_have_no_extents(work):
    with open(work / "a", "wb") as stream:
        stream.seek(MIB)
        stream.write(b"tail")
    file = os.open(work / "a", os.O_RDONLY)
    token, name = ticket(file)
    with Lease(name) as lease:
        size, first, blocks, extents, sums = leased = lease.read(token)
        assert (size, first, blocks) == (MIB + 4, 0, 257)
        assert [extent[:2] for extent in extents] == [(256, 1)] and sums[:256] == (0,) * 256
        assert lease.content(leased) == bytes(MIB) + b"tail"
    os.close(file)


def test_a_range_too_large_for_an_answer_is_refused(work):
    with open(work / "a", "wb") as stream:
        stream.truncate(1 << 50)
    assert refusal(read_direct, work / "a") == errno.EFBIG
    assert read_direct(work / "a", 1 << 49, 100) == bytes(BLOCK)


def test_a_commit_replaces_the_file_for_everybody(work):
    path = work / "a"
    path.write_bytes(pattern(MIB))
    before = path.stat()
    with open(path, "rb", buffering=0) as reader:
        reader.read(100)
        data = pattern(500_123, 1)
        write_direct(path, data)
        assert reader.readall() == data[100:], "an open descriptor sees it"
    assert path.read_bytes() == data
    after = path.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, len(data)) and after.st_mtime_ns > before.st_mtime_ns
    assert read_direct(path) == data


def test_the_kernels_pages_show_a_commit(work):
    path = work / "a"
    path.write_bytes(pattern(MIB))
    for _ in range(4):   # Reads repeatedly; from the second time on the file is in the page cache.
        assert path.read_bytes() == pattern(MIB)
    write_direct(path, pattern(MIB, 2))
    assert path.read_bytes() == pattern(MIB, 2)


def test_a_commit_of_a_part(work):
    path = work / "a"
    data = bytearray(pattern(20 * BLOCK + 5))
    path.write_bytes(data)
    file = os.open(path, os.O_RDWR)
    token, name = ticket(file)
    with Lease(name) as lease:
        part = pattern(3 * BLOCK, 3)
        sums = lease.fill(lease.reserve(token, 8, 4 * BLOCK), part)
        lease.commit(token, len(part), sums, offset=4 * BLOCK, durable=False)
        data[4 * BLOCK:7 * BLOCK] = part
        assert path.read_bytes() == data
        # Uses the same connection again. The file ends with this write.
        sums = lease.fill(lease.reserve(token, 1, 8 * BLOCK), b"the end")
        lease.commit(token, 7, sums, offset=8 * BLOCK, new_size=8 * BLOCK + 7)
        assert path.read_bytes() == data[:8 * BLOCK] + b"the end"
    os.close(file)


def test_durable_commits_survive_the_daemons_death(factory):
    mount = factory.mount(factory.store("64M"), "commit=3600")
    old, new = pattern(MIB), pattern(MIB + 5, 1)
    (mount.path / "a").write_bytes(old)
    write_direct(mount.path / "a", new, durable=True)
    write_many(mount.path, {b"b": old, b"c": new}, durable=True)
    mount.kill9()
    mount.mount()
    assert (mount.path / "a").read_bytes() == new
    assert (mount.path / "b").read_bytes() == old and (mount.path / "c").read_bytes() == new
    mount.fsck()


def test_a_reader_keeps_its_blocks_whatever_happens_to_the_file(work, mounted):
    path = work / "a"
    data = pattern(4 * MIB)
    path.write_bytes(data)
    before = free_at_rest(mounted, work)
    file = os.open(path, os.O_RDONLY)
    token, name = ticket(file)
    with Lease(name) as lease:
        leased = lease.read(token)
        assert statistics(mounted).items() >= {"leases": 1, "pinned_bytes": len(data)}.items()
        write_direct(path, pattern(4 * MIB, 1))
        path.unlink()
        os.close(file)
        for seed in range(3):   # In total more than the store has, unless the space is freed.
            (work / "b").write_bytes(pattern(16 * MIB, seed))
            (work / "b").unlink()
            free(work)
        assert lease.content(leased) == data
        assert free(work) <= before, "the leased blocks are still used"
        lease.release()
    assert wait_until(lambda: free(work) >= before + 4 * MIB), "the space did not come back"
    assert statistics(mounted).items() >= {"leases": 0, "pinned_bytes": 0}.items()


def test_a_reader_that_is_killed_holds_nothing(work, mounted):
    (work / "a").write_bytes(pattern(4 * MIB))
    before = free_at_rest(mounted, work)
    with Holder(READS, work / "a") as holder:
        assert statistics(mounted)["pinned_bytes"] == 4 * MIB
        (work / "a").unlink()
        assert free(work) <= before
        holder.kill()
        assert comes_to(mounted, leases=0, pinned_bytes=0)
        assert wait_until(lambda: free(work) >= before + 4 * MIB)


def test_a_writer_that_is_killed_leaves_the_old_file_and_its_space(work, mounted):
    data = pattern(MIB)
    (work / "a").write_bytes(data)
    before = free_at_rest(mounted, work)
    with Holder(RESERVES, work / "a", 1024) as holder:
        assert statistics(mounted)["granted_bytes"] == 4 * MIB
        assert wait_until(lambda: free(work) == before - 4 * MIB)
        holder.kill()
        assert comes_to(mounted, granted_bytes=0)
    assert wait_until(lambda: free(work) == before)
    assert (work / "a").read_bytes() == data and read_direct(work / "a") == data


def test_blocks_that_may_still_be_written_are_not_reused(work, mounted):
    """Transfers of a killed writer may outlive it; here a copy of its descriptor does."""
    before = free_at_rest(mounted, work)
    here, there = socket.socketpair()
    with Holder(RESERVES + PASSES, work / "a", 1024, there.fileno(), pass_fds=[there.fileno()]) as holder:
        _, (device, *others), *_ = socket.recv_fds(here, 1, 64)
        holder.kill()
    assert not others
    assert comes_to(mounted, leases=0)
    assert statistics(mounted)["granted_bytes"] == 4 * MIB and wait_until(lambda: free(work) == before - 4 * MIB)
    files = {}
    while free(work) >= 2 * MIB:
        name = f"f{len(files)}"
        files[name] = pattern(MIB, len(files))
        (work / name).write_bytes(files[name])
    assert refusal((work / "more").write_bytes, bytes(4 * MIB)) == errno.ENOSPC
    assert statistics(mounted)["granted_bytes"] == 4 * MIB
    os.close(device)
    (work / "more").write_bytes(bytes(3 * MIB))   # A lack of space triggers an immediate check.
    assert comes_to(mounted, granted_bytes=0)
    for name, data in files.items():
        assert read_direct(work / name, 0, BLOCK) == data[:BLOCK]
    for each in (here, there):
        each.close()


def test_a_write_that_does_not_fit_is_enospc_and_changes_nothing(work, mounted):
    (work / "a").write_bytes(b"whole")
    free_at_rest(mounted, work)
    file = os.open(work / "a", os.O_RDWR)
    token, name = ticket(file)

    def all_refused():
        """True if the free space is the same afterwards: meanwhile a checkpoint may have taken some for the log."""
        before = free(work)
        for blocks in (before // BLOCK + 1, 1 << 50, (1 << 64) - 1):
            assert refusal(lease.reserve, token, blocks) == errno.ENOSPC
        return free(work) == before

    with Lease(name) as lease:
        assert wait_until(all_refused)
        lease.reserve(token, free(work) // BLOCK)
        assert refusal((work / "b").write_bytes, pattern(MIB)) == errno.ENOSPC
        lease.release()
        (work / "b").write_bytes(pattern(MIB))
    os.close(file)
    assert (work / "a").read_bytes() == b"whole"


def test_many_files_in_one_commit(work):
    (work / "f3").write_bytes(b"before")
    old = os.open(work / "f3", os.O_RDONLY)
    assert not (work / "f4").exists(), "the kernel remembers that"
    files = {b"f%d" % index: pattern(index * 3000 % 50_001, index) for index in range(300)}
    write_many(work, files, mode=0o640)
    assert sorted(os.listdir(os.fsencode(work))) == sorted(files)
    for name, content in files.items():
        assert (work / name.decode()).read_bytes() == content
    found = (work / "f4").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_nlink) == (0o640, os.geteuid(), 1)
    assert os.read(old, 100) == b"before", "an open file stays what it was"
    os.close(old)
    directory = os.open(work, os.O_RDONLY)
    token, name = ticket(directory)
    os.mkdir(work / "d")
    os.symlink("f1", work / "s")
    with Lease(name) as lease:
        answers = lease.read_many(token, [*files, b"none", b"d", b"s", b"f1/x", b"n" * 300])
        assert answers[:len(files)] == list(files.values())
        assert answers[len(files):] == [errno.ENOENT, errno.EISDIR, errno.EINVAL, errno.EINVAL, errno.ENAMETOOLONG]
        lease.release()
        assert refusal(lease.read, token) == errno.EISDIR
    os.close(directory)


def test_renames_beside_a_commit_of_many_files(work):
    """The kernel has the old inodes until the commit tells it, file by file."""
    names = [f"f{number:05}" for number in range(6000)]
    write_many(work, {name.encode(): b"" for name in names}, durable=False)
    before = {name: os.stat(work / name).st_ino for name in names}
    (work / "to").mkdir()
    (work / "to/other").write_bytes(b"")
    committer = threading.Thread(target=write_many, args=(work, {name.encode(): b"new" for name in names}))
    committer.start()
    while os.stat(work / names[0]).st_ino == before[names[0]]:
        assert committer.is_alive()
    os.rename(work / names[-1], work / "to/once")
    os.rename(work / "to/once", work / "moved")
    rename_flags(work / names[-2], work / "to/other", RENAME_EXCHANGE)
    os.rename(work / names[-3], work / "to" / names[-3])
    try:
        os.link(work / names[-4], work / "linked")   # ESTALE would pass for a loss of the file
    except FileNotFoundError:
        pytest.fail("the file has its name all the time")
    committer.join()
    for path in (work / "moved", work / "to/other", work / "to" / names[-3]):
        status = os.stat(path)
        assert (status.st_nlink, status.st_size) == (1, 3), path
        assert path.read_bytes() == b"new" and status.st_ino not in before.values(), path


def test_many_files_are_all_or_nothing(work, mounted):
    (work / "a").write_bytes(b"old")
    (work / "d").mkdir()
    before = free_at_rest(mounted, work)
    with pytest.raises(Refused) as caught:
        write_many(work, {b"a": b"new", b"b": b"new", b"d": b"new"})
    assert (caught.value.errno, caught.value.failed) == (errno.EISDIR, 2)
    assert (work / "a").read_bytes() == b"old" and sorted(os.listdir(work)) == ["a", "d"]
    assert wait_until(lambda: free(work) == before)


def test_links_and_open_files_know_that_a_name_is_gone(work):
    for name in ("a", "b"):
        (work / name).write_bytes(b"old")
    os.link(work / "a", work / "other")
    with open(work / "b", "rb") as opened:
        assert (work / "other").stat().st_nlink == 2 and os.fstat(opened.fileno()).st_nlink == 1
        write_many(work, {b"a": b"new", b"b": b"new"})
        assert (work / "other").stat().st_nlink == 1
        assert os.fstat(opened.fileno()).st_nlink == 0
        assert opened.read() == b"old"


REPLACES = """
print("held", flush=True)
for seed in range(1 << 30):
    write_many(sys.argv[1], {b"t%d" % index: b"%d" % (seed % 10) * 5000 for index in range(8)}, durable=False)
"""


def test_names_that_are_replaced_all_the_time_are_read_as_old_or_new(work, mounted):
    names = [b"t%d" % index for index in range(8)]
    write_many(work, {name: b"0" * 5000 for name in names})
    directory = os.open(work, os.O_RDONLY)
    token, name = ticket(directory)
    with Holder(REPLACES, work), Lease(name) as lease:
        for _ in range(400):
            for answer in lease.read_many(token, names):
                assert isinstance(answer, bytes), errno.errorcode[answer]
                assert answer == answer[:1] * 5000
            lease.release()
    os.close(directory)
    descriptors_at_rest(mounted)   # the last commit of the killed process may still be adding names


def test_several_devices(factory, local):
    devices = [local / "one", local / "two"]
    for device in devices:
        with open(device, "wb") as stream:
            stream.truncate(64 * MIB)
    mount = factory.mount(factory.store(devices=devices))
    data = pattern(20 * MIB)
    write_direct(mount.path / "a", data, os.O_CREAT)
    assert (mount.path / "a").read_bytes() == data
    file = os.open(mount.path / "a", os.O_RDONLY)
    token, name = ticket(file)
    with Lease(name) as lease:
        *_, extents, _ = lease.read(token, 0, 20 * MIB)
        assert {extent[3] for extent in extents} == {0, 1} and len(lease.devices) == 2
    os.close(file)
    mount.fsck()


def test_an_append_sees_the_size_of_a_commit(work):
    """After the committer has processed the file: the kernel learns of a size only when it is asked for."""
    path = work / "a"
    path.write_bytes(b"short")
    appends = os.open(path, os.O_WRONLY | os.O_APPEND)
    write_direct(path, pattern(10_000))
    os.write(appends, b"tail")
    os.close(appends)
    assert path.read_bytes() == pattern(10_000) + b"tail"
