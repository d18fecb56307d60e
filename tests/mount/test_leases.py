"""The direct path of a mount, by hand: what leases show and change, who gets them, and what ends them."""

import errno
import fcntl
import json
import mmap
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lease_client
from harness import needs, process
from harness.filesystems import wait_until, weightfs
from harness.users import NOBODY, OTHER, call_as
from lease_client import BLOCK, COMMIT, Lease, Refused, crc32c, read_direct, ticket, write_direct, write_many, write_opened

pytestmark = pytest.mark.usefixtures("weightfs_only")
STORE_SIZE = "64M"
MOUNT_OPTIONS = "allow_other,commit=0.05"
MIB = 1 << 20


def pattern(size, seed=0):
    return bytes((index * 31 + index // 251 + seed * 7) & 0xFF for index in range(size))


def statistics(mount):
    return json.loads(weightfs("info", "--json", mount.path).out)["statistics"]


def free(path):
    # What was deleted is free once its commit is durable.
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def refusal(function, *arguments, **options):
    """The errno that a call ends with."""
    with pytest.raises(OSError) as caught:
        function(*arguments, **options)
    return caught.value.errno


class Holder:
    """A process of its own that holds a lease; what it runs says when it has it, and then waits for ever."""

    def __init__(self, code, *arguments, **options):
        text = f"import sys, os, signal\nsys.path.insert(0, {os.fspath(Path(__file__).parent)!r})\n" \
               f"from lease_client import *\n{code}\nprint('held', flush=True)\nsignal.pause()\n"
        self.process = subprocess.Popen([sys.executable, "-c", text, *map(str, arguments)], stdout=subprocess.PIPE,
                                        **options)
        assert self.process.stdout.readline() == b"held\n"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


READS = """
file = os.open(sys.argv[1], os.O_RDONLY)
token, name = ticket(file)
lease = Lease(name)
lease.read(token)
"""
RESERVES = """
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
token, name = ticket(file)
lease = Lease(name)
lease.fill(lease.reserve(token, int(sys.argv[2])), b"never committed" * 1000)
os.close(file)
"""


PASSES = "socket.send_fds(socket.socket(fileno=int(sys.argv[3])), [b'x'], lease.devices)\n"


def test_reads_what_was_written_and_not_synced(work):
    data = pattern(300_001)
    (work / "a").write_bytes(data)
    assert read_direct(work / "a") == data
    assert read_direct(work / "a", 8192, 100) == data[8192:12288], "whole blocks"
    assert read_direct(work / "a", 1 << 40) == b""


def test_reads_what_a_shared_mapping_wrote(work):
    with open(work / "a", "w+b") as stream:
        stream.truncate(BLOCK)
        with mmap.mmap(stream.fileno(), BLOCK) as memory:
            memory[:] = b"m" * BLOCK
            assert read_direct(work / "a") == b"m" * BLOCK


def test_a_commit_comes_after_what_a_mapping_changed_before(work):
    path = work / "a"
    path.write_bytes(pattern(MIB))
    with open(path, "r+b") as stream, mmap.mmap(stream.fileno(), MIB) as memory:
        memory[BLOCK:2 * BLOCK] = b"m" * BLOCK
        write_opened(stream.fileno(), pattern(MIB, 1))   # Another open(2) would drop the pages.
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
    writer = subprocess.Popen([sys.executable, "-c", code, path, stop], stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"mapped\n"
    sizes = set()
    for _ in range(50):
        write_opened(file, pattern(BLOCK, 1), durable=False)
        sizes.add(os.fstat(file).st_size)
        os.ftruncate(file, 4 * BLOCK)
    stop.touch()
    writer.wait()
    writer.stdout.close()
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


def test_a_range_that_no_answer_takes_is_refused(work):
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
    for _ in range(4):   # Read again and again: from the second time on it is in the page cache.
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
        # The same connection again; the file ends with this one.
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
    before = free(work)
    file = os.open(path, os.O_RDONLY)
    token, name = ticket(file)
    with Lease(name) as lease:
        leased = lease.read(token)
        assert statistics(mounted)["leases"] == 1 and statistics(mounted)["pinned_bytes"] == len(data)
        write_direct(path, pattern(4 * MIB, 1))
        path.unlink()
        os.close(file)
        for seed in range(3):   # More than the store has, if nothing came back.
            (work / "b").write_bytes(pattern(16 * MIB, seed))
            (work / "b").unlink()
            free(work)
        assert lease.content(leased) == data
        assert free(work) <= before, "the leased blocks are still used"
        lease.release()
    assert wait_until(lambda: free(work) >= before + 4 * MIB), "the space did not come back"
    assert statistics(mounted)["leases"] == 0 and statistics(mounted)["pinned_bytes"] == 0


def test_a_reader_that_is_killed_holds_nothing(work, mounted):
    (work / "a").write_bytes(pattern(4 * MIB))
    before = free(work)
    with Holder(READS, work / "a") as holder:
        assert statistics(mounted)["pinned_bytes"] == 4 * MIB
        (work / "a").unlink()
        assert free(work) <= before
        holder.kill()
        assert wait_until(lambda: statistics(mounted)["leases"] == 0)
        assert statistics(mounted)["pinned_bytes"] == 0
        assert wait_until(lambda: free(work) >= before + 4 * MIB)


def test_a_writer_that_is_killed_leaves_the_old_file_and_its_space(work, mounted):
    data = pattern(MIB)
    (work / "a").write_bytes(data)
    before = free(work)
    with Holder(RESERVES, work / "a", 1024) as holder:
        assert statistics(mounted)["granted_bytes"] == 4 * MIB
        assert free(work) == before - 4 * MIB
        holder.kill()
        assert wait_until(lambda: statistics(mounted)["granted_bytes"] == 0)
    assert free(work) == before
    assert (work / "a").read_bytes() == data and read_direct(work / "a") == data


def test_blocks_that_somebody_may_still_write_go_to_nobody(work, mounted):
    """A killed writer's transfers may outlive it; here it is a copy of its descriptor that does."""
    before = free(work)
    here, there = socket.socketpair()
    with Holder(RESERVES + PASSES, work / "a", 1024, there.fileno(), pass_fds=[there.fileno()]) as holder:
        _, (device, *others), *_ = socket.recv_fds(here, 1, 64)
        holder.kill()
    assert not others
    assert wait_until(lambda: statistics(mounted)["leases"] == 0)
    assert statistics(mounted)["granted_bytes"] == 4 * MIB and free(work) == before - 4 * MIB
    files = {}
    while free(work) >= 2 * MIB:
        name = f"f{len(files)}"
        files[name] = pattern(MIB, len(files))
        (work / name).write_bytes(files[name])
    assert refusal((work / "more").write_bytes, bytes(4 * MIB)) == errno.ENOSPC
    assert statistics(mounted)["granted_bytes"] == 4 * MIB
    os.close(device)
    (work / "more").write_bytes(bytes(3 * MIB))   # Want of space looks at once.
    assert wait_until(lambda: statistics(mounted)["granted_bytes"] == 0)
    for name, data in files.items():
        assert read_direct(work / name, 0, BLOCK) == data[:BLOCK]
    for each in (here, there):
        each.close()


def test_what_does_not_fit_is_enospc_and_changes_nothing(work, mounted):
    (work / "a").write_bytes(b"whole")
    before = free(work)
    file = os.open(work / "a", os.O_RDWR)
    token, name = ticket(file)
    with Lease(name) as lease:
        for blocks in (before // BLOCK + 1, 1 << 50, (1 << 64) - 1):
            assert refusal(lease.reserve, token, blocks) == errno.ENOSPC
        assert free(work) == before
        lease.reserve(token, before // BLOCK)
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


def test_many_files_are_all_or_nothing(work):
    (work / "a").write_bytes(b"old")
    (work / "d").mkdir()
    before = free(work)
    with pytest.raises(Refused) as caught:
        write_many(work, {b"a": b"new", b"b": b"new", b"d": b"new"})
    assert (caught.value.errno, caught.value.failed) == (errno.EISDIR, 2)
    assert (work / "a").read_bytes() == b"old" and sorted(os.listdir(work)) == ["a", "d"]
    assert free(work) == before


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


def test_names_that_are_replaced_all_the_time_are_read_as_old_or_new(work):
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


def test_a_ticket_says_what_its_descriptor_may(work):
    path = work / "a"
    path.write_bytes(pattern(BLOCK))
    reads, writes = os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY)
    (of_reader, name), (of_writer, _) = ticket(reads), ticket(writes)
    assert ticket(reads)[0] == of_reader, "the same each time"
    with Lease(name) as lease:
        assert refusal(lease.reserve, of_reader, 1) == errno.EBADF
        assert refusal(lease.read, of_writer) == errno.EBADF
        assert refusal(lease.read, os.urandom(16)) == errno.EBADF, "a forged one"
        lease.read(of_reader)
        device = lease.devices[0]
        assert fcntl.fcntl(device, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        assert refusal(os.pwrite, device, bytes(BLOCK), 0) == errno.EBADF
        assert refusal(lease.reserve, of_writer, 1) == errno.EBUSY, "one lease for each connection"
        lease.release()
        sums = lease.fill(lease.reserve(of_writer, 1), b"new")
        assert refusal(lease.commit, of_reader, 3, sums, new_size=3) == errno.EBADF
        assert path.read_bytes() == pattern(BLOCK)
        os.close(reads)
        assert wait_until(lambda: refusal(lease.read, of_reader) == errno.EBADF), "its descriptor is closed"
    os.close(writes)


@needs.root
def test_other_users_get_nothing(work, mounted):
    path = work / "a"
    path.write_bytes(pattern(BLOCK))
    path.chmod(0o666)

    def asks():
        return ticket(os.open(path, os.O_RDONLY))

    assert refusal(call_as, NOBODY, asks) == errno.EPERM
    file = os.open(path, os.O_RDONLY)
    token, name = ticket(file)

    def shows():
        with Lease(name) as lease:
            lease.read(token)

    # Before anything of theirs is read the connection is ended.
    assert refusal(call_as, NOBODY, shows) in (errno.ECONNRESET, errno.EPIPE)
    os.close(file)


@needs.root
def test_the_trust_domain_is_a_mount_option(factory):
    store = factory.store("64M")
    for option, code in (("direct=off", errno.EOPNOTSUPP), ("direct=root", None), ("direct=owner", None)):
        mount = factory.mount(store, option)
        (mount.path / "a").write_bytes(b"x")
        if code is None:
            assert read_direct(mount.path / "a") == b"x"
        else:
            assert refusal(read_direct, mount.path / "a") == code
        mount.umount()
    assert "direct=" in weightfs("mount", store.directory, mount.path, "-o", "direct=all", codes=None).err


@needs.root
def test_the_mounts_own_user_is_trusted(factory):
    """A mount of an ordinary user gives him leases."""
    if stat.S_IMODE(os.stat("/dev/fuse").st_mode) & 0o006 != 0o006:
        pytest.skip("needs a /dev/fuse that every user may open")
    store = factory.store("64M")
    mount = factory.mount(store, "allow_other")
    mount.path.chmod(0o777)
    mount.umount()
    for folder, _, names in os.walk(store.directory):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            os.chown(path, NOBODY, NOBODY)
    os.chown(mount.path, NOBODY, NOBODY)
    call_as(NOBODY, lambda: process.run(mount.command("direct=owner")), limit=120)
    try:
        def works():
            write_direct(mount.path / "a", pattern(BLOCK), os.O_CREAT)
            return read_direct(mount.path / "a")

        assert call_as(NOBODY, works) == pattern(BLOCK)
    finally:
        call_as(NOBODY, lambda: process.run(["fusermount3", "-u", mount.path]), limit=60)
    assert wait_until(lambda: not store.daemons())


@needs.root
def test_a_set_group_id_directory_gives_its_group_to_many(work):
    work.chmod(0o2775)
    os.chown(work, 0, OTHER)
    write_many(work, {b"a": b"data"})
    assert (work / "a").stat().st_gid == OTHER


def test_set_id_bits_go_with_a_commit_of_a_user(work):
    path = work / "a"
    path.write_bytes(b"x")
    path.chmod(0o4755)
    write_direct(path, b"y")
    assert stat.S_IMODE(path.stat().st_mode) == (0o4755 if os.geteuid() == 0 else 0o755)


@needs.root
def test_capabilities_go_with_a_write_and_with_a_commit(work):
    path = work / "a"
    capabilities = struct.pack("<IIIII", 0x02000000, 1 << 10, 0, 0, 0)   # CAP_NET_BIND_SERVICE

    def gives():
        os.setxattr(path, "security.capability", capabilities)

    def has():
        return "security.capability" in os.listxattr(path)

    path.write_bytes(b"x" * BLOCK)
    os.setxattr(path, "user.other", b"stays")
    for change in (lambda: write_direct(path, b"y"), lambda: os.truncate(path, 1), lambda: path.write_bytes(b"z"),
                   lambda: write_in_place(path)):
        gives()
        assert has()
        change()
        assert not has()
    assert os.listxattr(path) == ["user.other"]


def write_in_place(path):
    with open(path, "r+b") as stream:
        stream.write(b"w")


def test_a_malformed_commit_of_many_blames_no_file(work):
    directory = os.open(work, os.O_RDONLY)
    token, name = ticket(directory)
    with Lease(name) as lease:
        lease.reserve(token, 1)
        with pytest.raises(Refused) as caught:
            lease.commit_many(token, [(b"a", 1)], [1, 2, 3])
        assert (caught.value.errno, caught.value.failed) == (errno.EINVAL, (1 << 64) - 1)
    os.close(directory)


GARBAGE = [b"", b"x", b"\xff" * 24, bytes(24), struct.pack("=IIiIQ", 1, 1, 0, 0, 0),
           struct.pack("=IIiIQ", 1, 1, 0, 1, 1 << 60), struct.pack("=IIiIQ", 2, 1, 0, 0, 0),
           struct.pack("=IIiIQ", 1, 99, 0, 0, 5) + b"abcde", os.urandom(30_000)]


def test_garbage_ends_a_connection_at_most(work, mounted):
    (work / "a").write_bytes(pattern(BLOCK))
    file = os.open(work / "a", os.O_RDWR)
    token, name = ticket(file)
    for piece in GARBAGE:
        with Lease(name) as lease:
            lease.socket.send(piece)
            if piece[:8] in (struct.pack("=II", 1, 1), struct.pack("=II", 1, 99)) and len(piece) < 1000:
                try:
                    lease.receive(struct.unpack_from("=I", piece, 4)[0])
                except (Refused, ConnectionResetError) as error:
                    assert error.errno in (errno.EINVAL, errno.ECONNRESET)
    with Lease(name) as lease:
        for body in (b"", token, bytes(10_000), token + struct.pack("=QQ", 0, 1 << 63)):
            for kind in range(1, 7):
                try:
                    lease.ask(kind, body)
                    lease.ask(lease_client.RELEASE)
                except Refused as refused:
                    assert refused.errno in (errno.EINVAL, errno.EBADF, errno.ENOSPC, errno.EISDIR, errno.ENOTDIR)
        # A body that could still be changed, and one that is a pipe.
        for body in (lease_client.memory_file(bytes(50_000), 0), os.pipe()[0]):
            with Lease(name) as other:
                import array
                other.socket.sendmsg([struct.pack("=IIiIQ", 1, 1, 0, 1, 50_000)],
                                     [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [body]))])
                assert refusal(other.receive, 1) == errno.ECONNRESET
            os.close(body)
    os.close(file)
    assert read_direct(work / "a") == pattern(BLOCK) and mounted.alive()


def test_who_takes_no_answers_is_let_go(work):
    (work / "a").write_bytes(pattern(BLOCK))
    file = os.open(work / "a", os.O_RDONLY)
    token, name = ticket(file)
    with Lease(name) as lease:
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(10_000):
                lease.send(lease_client.RELEASE)
    os.close(file)


def test_connections_are_bounded_and_all_come_back(work, mounted):
    (work / "a").write_bytes(pattern(BLOCK))
    file = os.open(work / "a", os.O_RDONLY)
    token, name = ticket(file)
    daemon = f"/proc/{mounted.pid}/fd"
    before = len(os.listdir(daemon))
    refused, held = 0, []
    for _ in range(1030):
        lease = Lease(name)
        try:
            lease.read(token)
            lease.forget_devices()
            held.append(lease)
        except OSError as error:
            assert error.errno in (errno.ECONNRESET, errno.EPIPE)
            lease.close()
            refused += 1
    assert len(held) == 1024 and refused == 6
    assert statistics(mounted)["leases"] == 1024
    for lease in held:
        lease.close()
    assert wait_until(lambda: statistics(mounted)["leases"] == 0)
    assert wait_until(lambda: len(os.listdir(daemon)) == before), "descriptors leaked"
    os.close(file)


def test_who_has_had_no_lease_for_longest_makes_room(work, mounted):
    (work / "a").write_bytes(pattern(BLOCK))
    file = os.open(work / "a", os.O_RDONLY)
    token, name = ticket(file)
    with Lease(name) as holds:
        leased = holds.read(token)
        idle = [Lease(name) for _ in range(1023)]
        assert refusal(idle[-1].read, bytes(16)) == errno.EBADF, "all are in"
        with Lease(name) as late:
            late.read(token)
            assert idle[0].socket.recv(1) == b"", "the first of them was let go"
            idle[0].close()
            assert refusal(idle[1].read, bytes(16)) == errno.EBADF
            assert holds.content(leased) == pattern(BLOCK)
            assert statistics(mounted)["leases"] == 2
        for lease in idle:
            lease.close()
    os.close(file)


CONNECTS = """
first = os.getpid()
for _ in range(int(sys.argv[2]) - 1):
    if os.getpid() == first:
        os.fork()
if os.getpid() == first:
    print("held", flush=True)
while os.getpid() == first or os.getppid() == first:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stranger.connect(b"\\0" + sys.argv[1].encode())
    stranger.close()
os._exit(0)
"""


def test_who_comes_and_goes_all_the_time_holds_nobody_up(work):
    (work / "a").write_bytes(pattern(BLOCK))
    file = os.open(work / "a", os.O_RDWR)
    token, name = ticket(file)
    with Lease(name) as lease, Holder(CONNECTS, name.decode(), 6):
        took = []
        for _ in range(300):
            begin = time.monotonic()
            lease.reserve(token, 1)
            lease.release()
            took.append(time.monotonic() - begin)
    os.close(file)
    assert max(took) < 0.3, sorted(took)[-5:]   # It was a second and more.


def test_a_thousand_leases_leave_nothing(work, mounted):
    daemon = f"/proc/{mounted.pid}/fd"
    write_direct(work / "a", pattern(BLOCK), os.O_CREAT)
    before, space = len(os.listdir(daemon)), free(work)
    for _ in range(500):
        write_direct(work / "a", pattern(BLOCK), durable=False)
        assert read_direct(work / "a") == pattern(BLOCK)
    assert wait_until(lambda: statistics(mounted)["leases"] == 0)
    assert wait_until(lambda: len(os.listdir(daemon)) == before)
    assert wait_until(lambda: free(work) == space)


def test_a_read_only_mount_leases_for_reading_only(factory):
    store = factory.store("64M")
    mount = factory.mount(store)
    (mount.path / "a").write_bytes(pattern(BLOCK))
    mount.remount("ro")
    assert read_direct(mount.path / "a") == pattern(BLOCK)
    assert refusal(write_direct, mount.path / "a", b"x") == errno.EROFS
    assert refusal(write_many, mount.path, {b"b": b"x"}) == errno.EROFS


def test_an_unmount_ends_the_leases(factory):
    mount = factory.mount(factory.store("64M"))
    path = mount.path / "a"
    path.write_bytes(pattern(MIB))
    file = os.open(path, os.O_RDONLY)
    token, name = ticket(file)
    os.close(file)
    file = os.open(path, os.O_RDONLY)
    token, name = ticket(file)
    with Lease(name) as lease:
        leased = lease.read(token)
        os.close(file)
        mount.umount()
        assert refusal(lease.read, token) in (errno.EPIPE, errno.ECONNRESET)
        assert lease.content(leased) == pattern(MIB), "the bytes are still there"
        mount.mount()
        assert path.read_bytes() == pattern(MIB)


def test_no_mount_while_a_writer_of_a_killed_one_lives(factory):
    store = factory.store("64M")
    mount = factory.mount(store)
    with open(mount.path / "a", "wb", buffering=0) as stream:
        stream.write(pattern(MIB))
        os.fsync(stream.fileno())
    with Holder(RESERVES, mount.path / "a", 256) as holder:
        pool = store.directory / "pool"
        mount.kill9()
        for words in (("mount", store.directory, mount.path), ("fsck", "--repair", store.directory),
                      ("format", store.directory, "--size", "64M", "--force")):
            refused = weightfs(*words, codes=None)
            assert refused.code not in (0, None), words
            lines = refused.err.strip().splitlines()
            assert len(lines) == 1 and str(pool) in lines[0] and "leases for writing" in lines[0], refused
        store.fsck()   # Looks only.
        holder.kill()
    mount.mount()
    assert (mount.path / "a").read_bytes() == pattern(MIB), "the old tensor is whole"
    mount.fsck()


def test_a_lock_of_writers_goes_with_their_leases(factory):
    """Also while the program lives: it closes its descriptors with the lease."""
    mount = factory.mount(factory.store("64M"))
    write_direct(mount.path / "a", pattern(MIB), os.O_CREAT)
    mount.kill9()
    mount.mount()
    assert (mount.path / "a").read_bytes() == pattern(MIB)


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
    """Once the committer has looked at the file: the kernel asks for a size when somebody does."""
    path = work / "a"
    path.write_bytes(b"short")
    appends = os.open(path, os.O_WRONLY | os.O_APPEND)
    write_direct(path, pattern(10_000))
    os.write(appends, b"tail")
    os.close(appends)
    assert path.read_bytes() == pattern(10_000) + b"tail"
