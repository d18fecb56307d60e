# SPDX-License-Identifier: Apache-2.0
"""weightfs.reader: random rows, on disks, in memory and by leases of a mount."""

import array
import copy
import errno
import json
import os
import pickle
import subprocess
import sys
import threading

import numpy
import pytest
import torch

import weightfs
from harness import process
from harness.filesystems import wait_until
from harness.filesystems import weightfs as command
from tensors import content, flip_on_device, misaligned, random_tensor

STORE_SIZE = "512M"
MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def table(folder):
    """A file of 20,000 rows of 400 bytes, on each kind of filesystem."""
    values = random_tensor(20_000 * 100, torch.float32).view(20_000, 100)
    (folder / "table").write_bytes(content(values))
    return folder / "table", values


@pytest.fixture
def leased(work, weightfs_only):
    """A file of 6 MiB and its bytes, on a mount."""
    data = content(random_tensor(6 * MIB))
    (work / "file").write_bytes(data)
    return work / "file", data


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def failure(call, *arguments, **options):
    with pytest.raises(OSError) as caught:
        call(*arguments, **options)
    return caught.value


def test_rows_of_a_table(table):
    path, values = table
    indices = torch.randint(0, len(values), (500,), generator=torch.Generator().manual_seed(3))
    with weightfs.reader(path) as reader:
        assert reader.size == values.nbytes
        out = torch.empty(500, 100)
        for chosen in (indices, indices.int(), indices.numpy(), indices.tolist(), array.array("q", indices.tolist())):
            out.zero_()
            assert reader.rows(chosen, out) == out.nbytes
            assert torch.equal(bits(out), bits(values[indices]))
        one = torch.empty(100)
        reader.rows(indices[7], one)
        assert torch.equal(bits(one), bits(values[indices[7]]))
        # The first columns of each row, into columns of a wider tensor.
        wide = torch.zeros(500, 60)
        reader.rows(indices, wide[:, :25], row_bytes=400)
        assert torch.equal(bits(wide[:, :25]), bits(values[indices, :25]))
        assert not wide[:, 25:].any()
        reader.rows([0, 2], out[:2], base=400)
        assert torch.equal(bits(out[:2]), bits(values[[1, 3]]))


@pytest.mark.parametrize("length", [1, 512, 4096, 4097, 100_000])
def test_any_offset_and_alignment(table, length):
    path, values = table
    data, generator = content(values), torch.Generator().manual_seed(length)
    with weightfs.reader(path, queue_depth=7) as reader:
        for by in (0, 64, 1):
            offsets = torch.randint(0, len(data) - length, (40,), generator=generator)
            out = misaligned(torch.zeros(40 * length, dtype=torch.uint8), by).view(40, length)
            assert reader.read(offsets, out) == 40 * length
            assert all(content(row) == data[at:at + length] for at, row in zip(offsets.tolist(), out))
            buffer = bytearray(length)
            reader.read(len(data) - length, buffer)
            assert buffer == data[-length:]


def test_futures(table):
    path, values = table
    with weightfs.reader(path) as reader:
        started = []
        for seed in range(20):
            indices = torch.randint(0, len(values), (100,), generator=torch.Generator().manual_seed(seed))
            out = torch.empty(100, 100)
            started.append((reader.rows_async(indices, out), out, values[indices]))
        for future, out, expected in started:
            assert isinstance(future, weightfs.Future)
            assert future.result() == future.nbytes == future.bytes_done == out.nbytes
            assert torch.equal(bits(out), bits(expected))
        called = threading.Event()
        future = reader.read_async([0], bytearray(10))
        future.add_done_callback(lambda _: called.set())
        assert called.wait(60)


def test_holes_read_as_zeros(folder):
    with open(folder / "sparse", "wb") as stream:
        stream.truncate(3 * MIB)
        os.pwrite(stream.fileno(), b"x" * 5_000, MIB + 100)
    with weightfs.reader(folder / "sparse") as reader:
        out = bytearray(b"y" * 12_000)
        reader.read([0, MIB - 50, 3 * MIB - 4_000], out)
        assert out == bytes(4_000) + bytes(150) + b"x" * 3_850 + bytes(4_000)


def test_the_end_of_the_file(table):
    path, values = table
    with weightfs.reader(path) as reader:
        for read in (reader.read, lambda *arguments: reader.read_async(*arguments).result()):
            error = failure(read, [0, values.nbytes - 10], bytearray(40))
            assert (error.errno, error.offset, error.filename) == (errno.ENODATA, values.nbytes - 10, os.fspath(path))
        with pytest.raises(IndexError):
            reader.rows([len(values)], torch.empty(1, 100))
        assert reader.read([], bytearray()) == 0
        assert reader.read_async([], bytearray()).result() == 0


def test_wrong_arguments_are_refused(table):
    path, _ = table
    with weightfs.reader(path) as reader:
        for wrong in (-1, 1 << 63, 1 << 70):
            assert failure(reader.read, [wrong], bytearray(4)).errno == errno.EINVAL
        with pytest.raises(ValueError, match="do not fill"):
            reader.read([0, 1, 2], bytearray(10))
        with pytest.raises(ValueError, match="3 rows for 2 offsets"):
            reader.read([0, 1], torch.empty(3, 10))
        with pytest.raises(ValueError, match="row_bytes"):
            reader.rows([0], bytearray(10), row_bytes=9)
        with pytest.raises(ValueError, match="read-only"):
            reader.read(0, b"bytes")
        for wrong in ([0.5], torch.zeros(1), "x", [None], True, [True], torch.ones(1, dtype=torch.bool)):
            with pytest.raises(TypeError):
                reader.read(wrong, bytearray(1))
        assert "not contiguous" in str(failure(reader.read, [0, 1], torch.empty(2, 4, 2)[:, :, 0]))
    with pytest.raises(ValueError, match="the reader is closed"):
        reader.read(0, bytearray(1))
    with pytest.raises(ValueError, match="queue_depth"):
        weightfs.reader(path, queue_depth=0)
    assert failure(weightfs.reader, path.parent / "none").errno == errno.ENOENT
    assert failure(weightfs.reader, path.parent).errno == errno.EISDIR


def test_reads_make_no_requests_to_the_mount(leased):
    path, data = leased
    with weightfs.reader(path, direct="require") as reader:
        assert (reader.direct, reader.direct_reason) == (True, "")
        out = bytearray(4096)

        def requests():
            return json.loads(command("info", "--json", path.parent).out)["statistics"]["requests"]

        def cost():
            first = requests()
            second = requests()
            for at in range(0, len(data), 64 << 10):
                reader.read(at, out)
                assert out == data[at:at + 4096]
            return requests() - second - (second - first)

        # Other programs of the machine may look at the mount meanwhile, so the measurement is repeated.
        assert any(cost() == 0 for _ in range(10))


def test_another_filesystem_has_no_leases(local):
    (local / "file").write_bytes(b"abc")
    with weightfs.reader(local / "file") as reader:
        assert not reader.direct
        assert "weightfs mount" in reader.direct_reason
    assert failure(weightfs.reader, local / "file", direct="require").errno == errno.ENOTTY


def test_changes_of_other_programs_are_seen_after_a_refresh(leased, child):
    path, old = leased
    out = bytearray(100_000)

    def see(reader, data):
        reader.read(1_000_000, out)
        assert reader.size == len(data)
        assert out == data[1_000_000:1_100_000]

    def change(code):
        child(f"import os, torch, weightfs\npath = {os.fspath(path)!r}\n{code}")

    with weightfs.reader(path, direct="require") as reader, open(path, "rb") as stream, \
            weightfs.reader(stream.fileno(), direct="require") as by_descriptor:
        see(reader, old)
        # In place, through the mount and by a lease; then shorter, replaced and deleted.
        change("os.pwrite(os.open(path, os.O_WRONLY), b'1' * 100_000, 1_000_000)")
        see(reader, old)
        reader.refresh()
        see(reader, old[:1_000_000] + b"1" * 100_000 + old[1_100_000:])
        change("weightfs.aio_handle(direct='require').write_from(bytes(5 << 20), path)")
        see(reader, old[:1_000_000] + b"1" * 100_000 + old[1_100_000:])
        reader.refresh()
        see(reader, bytes(5 * MIB))
        change("os.truncate(path, 2_000_000)")
        see(reader, bytes(5 * MIB))
        reader.refresh()
        see(reader, bytes(2_000_000))
        change("open(path + '-', 'wb').write(b'2' * 3_000_000)\nos.rename(path + '-', path)")
        see(reader, bytes(2_000_000))
        reader.refresh()
        see(reader, b"2" * 3_000_000)
        change("os.unlink(path)")
        see(reader, b"2" * 3_000_000)
        assert failure(reader.refresh).errno == errno.ENOENT
        see(reader, b"2" * 3_000_000)
        see(by_descriptor, old)
        by_descriptor.refresh()
        see(by_descriptor, bytes(2_000_000))


def test_a_damaged_block_is_an_error_with_its_location(factory, weightfs_only):
    mount = factory.mount(factory.store("128M"))
    path, data = mount.path / "file", content(random_tensor(4 * MIB))
    path.write_bytes(data)
    flip_on_device(mount.store, path, 3 * MIB + 5)
    with weightfs.reader(path, direct="require") as reader:
        for read in (reader.read, lambda *arguments: reader.read_async(*arguments).result()):
            error = failure(read, [0, 3 * MIB + 1_000], bytearray(200))
            assert (error.errno, error.filename, error.offset) == (errno.EIO, os.fspath(path), 3 * MIB)
            assert "is not what was written" in str(error)
        out = bytearray(4096)
        reader.read(3 * MIB - 4096, out)
        assert out == data[3 * MIB - 4096:3 * MIB]
        # Rewritten, the file is whole again.
        path.write_bytes(data)
        reader.refresh()
        reader.read(3 * MIB, out)
        assert out == data[3 * MIB:3 * MIB + 4096]


def test_a_killed_mount_is_an_error_and_a_refresh_finds_the_next_one(factory, weightfs_only):
    mount = factory.mount(factory.store("128M"))
    path, data = mount.path / "file", content(random_tensor(MIB))
    with open(path, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    with weightfs.reader(path, direct="require") as reader:
        mount.kill9()
        error = failure(reader.read, 0, bytearray(4096))
        assert (error.errno, error.filename) == (errno.EPIPE, os.fspath(path))
        assert "the mount went away" in str(error)
        failure(reader.refresh)
        mount = factory.mount(mount.store)
        if mount.path == path.parent:
            reader.refresh()
            out = bytearray(4096)
            reader.read(8192, out)
            assert out == data[8192:12_288]


def test_a_mount_is_busy_until_its_reader_is_closed(factory, weightfs_only):
    mount = factory.mount(factory.store("128M"))
    (mount.path / "file").write_bytes(bytes(MIB))
    with weightfs.reader(mount.path / "file", direct="require"):
        assert command("umount", mount.path, codes=None).code != 0
    command("umount", mount.path)


def test_the_leases_of_a_large_file_are_bounded(work, weightfs_only, child):
    """A sparse file of 40 GiB with 2 MiB of checksums, of which all would take 40 MiB."""
    with open(work / "large", "wb") as stream:
        stream.truncate(40 * GIB)
        for at in range(0, 40 * GIB, 2 * GIB):
            os.pwrite(stream.fileno(), b"%04096d" % at, at + 12_288)
    out = child(f"""
import mmap, random, weightfs
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
with weightfs.reader({os.fspath(work / 'large')!r}, direct="require", memory=2 << 20) as reader:
    places = [at * (2 << 30) for at in range(20)]
    reader.read(0, bytearray(4096))
    before = peak()
    for _ in range(10):
        random.shuffle(places)
        # On a page, so that no buffers are needed.
        numbers = mmap.mmap(-1, 4096 * len(places))
        reader.read([at + 12_288 for at in places], numbers)
        assert [int(numbers[i * 4096:i * 4096 + 4096]) for i in range(20)] == places
    anywhere = [random.randrange(10 << 20) * 4096 for _ in range(300)]
    reader.read(anywhere, mmap.mmap(-1, 300 * 4096))
    print(peak() - before, len(__import__("os").listdir("/proc/self/fd")))
""")
    grown, descriptors = map(int, out.split())
    assert grown < 6 << 10
    assert descriptors < 100


def rows_of(path, values, indices, expected, **options):
    with weightfs.reader(path) as reader:
        for read in (reader.rows, lambda *given, **named: reader.rows_async(*given, **named).result()):
            out = torch.zeros(values[expected].shape)
            assert read(indices, out, **options) == out.nbytes
            assert torch.equal(bits(out), bits(values[expected]))


@pytest.mark.parametrize("kind", ["i1", "u1", "<i2", ">i2", ">u2", "<i4", ">i4", ">u4", "<i8", ">i8", "<u8", ">u8"])
def test_numbers_of_every_type_and_byte_order(table, kind):
    path, values = table
    wanted = [3, 120, 0, 77]
    indices = numpy.array(wanted, kind)
    rows_of(path, values, indices, wanted)
    rows_of(path, values, numpy.array(indices[2], kind), 0)                            # 0-d
    rows_of(path, values, indices[::-1], wanted[::-1])                                 # a negative stride
    rows_of(path, values, numpy.stack([indices, indices + 1], 1)[:, 0], wanted)        # not contiguous
    rows_of(path, values, memoryview(indices), wanted)
    rows_of(path, values, list(indices), wanted)


def test_numbers_that_no_row_has_are_index_errors(table):
    path, values = table
    with weightfs.reader(path) as reader:
        for wrong in (len(values), -len(values) - 1, 1 << 62, 1 << 63, -(1 << 63), 1 << 70,
                      numpy.array([len(values)], ">i4"), numpy.array([(1 << 64) - 1], "u8"),
                      numpy.array([(1 << 64) - 1], ">u8"), torch.tensor([-len(values) - 1])):
            for rows in (reader.rows, reader.rows_async):
                with pytest.raises(IndexError, match="out of bounds|only .* bytes"):
                    rows(wrong if hasattr(wrong, "dtype") else [wrong], torch.empty(1, 100))
        with pytest.raises(IndexError):
            reader.rows([3], torch.empty(1, 100), count=3)
        for wrong in (numpy.array([[1, 2]]), numpy.array([1.0]), numpy.array(True), numpy.array(["1"]),
                      torch.tensor(True), [1, True], numpy.array([1, None])):
            with pytest.raises((TypeError, ValueError)):
                reader.rows(wrong, torch.empty(2, 100))


def test_negative_numbers_and_masks_follow_numpy(table):
    path, values = table
    rows_of(path, values, -1, -1)
    rows_of(path, values, [-1, 0, -len(values)], [-1, 0, 0])
    rows_of(path, values, numpy.array([-2, 5], ">i8"), [-2, 5])
    rows_of(path, values, [-1, 1], [9, 1], count=10)
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[[4, 17, len(values) - 1]] = True
    for given in (mask, mask.numpy(), mask.tolist()):
        rows_of(path, values, given, [4, 17, -1])
    with weightfs.reader(path) as reader:
        columns = torch.empty(2, 10)
        reader.rows([-1, 0], columns, base=8, row_bytes=400)
        assert torch.equal(bits(columns), bits(values[[-1, 0], 2:12]))
        for given in (mask[:-1], [True], [False] * 10):
            with pytest.raises(IndexError, match="mask"):
                reader.rows(given, torch.empty(int(sum(given)), 100), row_bytes=400)
        assert reader.rows(torch.zeros_like(mask), torch.empty(0, 100)) == 0


def test_a_mask_without_a_true_value_has_the_length_of_the_table(table):
    path, values = table
    none = [False] * 10
    with weightfs.reader(path) as reader:
        view = memoryview(bytearray(400)).cast("B", (1, 400))[:0]
        for out in (torch.empty(0, 100), numpy.empty((0, 400), "u1"), view):
            with pytest.raises(IndexError, match="mask"):
                reader.rows(none, out)
            assert reader.rows([False] * len(values), out) == 0
        with pytest.raises(IndexError, match="mask"):
            reader.rows(none, bytearray(), count=11)
        assert reader.rows(none, bytearray(), count=10) == 0


def test_rows_of_a_file_that_grows_count_from_its_present_end(table):
    path, values = table
    with weightfs.reader(path, direct="never") as reader:
        with open(path, "ab") as stream:
            stream.write(content(values[5]) + content(values[6]))
        out = torch.empty(2, 100)
        reader.rows([-1, -2], out)
        assert torch.equal(bits(out), bits(values[[6, 5]]))
        mask = [False] * (len(values) + 2)
        mask[-1] = mask[0] = True
        reader.rows(mask, out)
        assert torch.equal(bits(out), bits(values[[0, 6]]))
        os.truncate(path, 4_000)
        with pytest.raises(IndexError):
            reader.rows([-11, 0], out)


def test_a_change_whose_time_is_set_back_is_noticed(leased):
    path, data = leased
    out = bytearray(4096)
    with weightfs.reader(path, memory=1, direct="require") as reader:   # windows of one block
        reader.read(0, out)
        before = os.stat(path)
        with open(path, "r+b") as stream:
            os.pwrite(stream.fileno(), b"x" * 4096, MIB)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))   # as rsync --inplace -t does
        assert failure(reader.read, MIB, out).errno == errno.ESTALE
        reader.refresh()
        reader.read(MIB, out)
        assert out == b"x" * 4096


def test_a_read_of_many_windows_starts_at_once(leased):
    path, data = leased
    offsets = [block * 4096 for block in range(0, 1500, 7)]
    outs = [torch.zeros(len(offsets), 4096, dtype=torch.uint8) for _ in range(2)]
    with weightfs.reader(path, memory=1, direct="require") as reader:   # windows of one block, of which 32 are leased
        started, seen, there = threading.Event(), [], threading.Event()

        def stand(_):
            if threading.current_thread() is not threading.main_thread():
                there.set()
                seen.append(started.wait(100))

        while not there.wait(0.1):   # until the callback stands on a thread of the reader
            reader.read_async([0] * 64, bytearray(64 * 4096)).add_done_callback(stand)
        futures = [reader.read_async(offsets, out) for out in outs]
        assert not any(future.done() for future in futures)
        started.set()
        for future, out in zip(futures, outs):
            assert future.result(60) == out.nbytes
            assert all(content(row) == data[at:at + 4096] for at, row in zip(offsets, out))
        assert set(seen) == {True}   # more than one, if the first callback came late


def test_a_read_of_many_windows_can_be_canceled_and_closed(leased):
    path, _ = leased
    offsets = [block * 4096 for block in range(1500)] * 10
    for end in ("cancel", "close", "drop"):
        reader = weightfs.reader(path, memory=1, direct="require")
        future = reader.read_async(offsets, torch.zeros(len(offsets), 4096, dtype=torch.uint8))
        if end == "cancel":
            assert future.cancel()
        elif end == "close":
            reader.close()
        else:
            del reader
        assert future.wait(60) and future.cancelled()


def test_a_forked_child_opens_its_own_reader(leased):
    path, data = leased
    held, over = threading.Event(), threading.Event()

    def hold(reader):
        with reader._pending._lock:   # the child does not have the thread that has the lock
            held.set()
            over.wait()

    with open(path, "rb") as stream, weightfs.reader(path, direct="require") as reader, \
            weightfs.reader(stream.fileno(), direct="require") as by_descriptor:
        stream.close()
        holder = threading.Thread(target=hold, args=(reader,))
        holder.start()
        held.wait()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                outs = [bytearray(4096) for _ in range(8)]
                threads = [threading.Thread(target=reader.read, args=(8192, out)) for out in outs]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                own = bytearray(4096)
                by_descriptor.read_async(4096, own).result()
                reader.refresh()
                assert all(out == data[8192:12_288] for out in outs) and own == data[4096:8192]
                assert reader.direct and reader.size == len(data)
                reader.close()
                by_descriptor.close()
                status = 0
            finally:
                os._exit(status)
        over.set()
        holder.join()
        assert os.waitpid(pid, 0)[1] == 0
        for each in (reader, by_descriptor):
            out = bytearray(4096)
            each.read(0, out)
            assert out == data[:4096]


FORKS = """
import os, sys, weightfs
reader = weightfs.reader(sys.argv[1], direct="require")
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
if sys.argv[2] == "closes":
    reader.close()
print(child, flush=True)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("end", ["closes", "is killed"])
def test_a_forked_child_keeps_a_lease_until_its_parent_ends_it_or_both_have_ended(leased, end):
    path, _ = leased

    def leases():
        return json.loads(command("info", "--json", path.parent).out)["statistics"]["leases"]

    assert wait_until(lambda: leases() == 0)
    with process.Processes() as started:
        parent = started.start([sys.executable, "-c", FORKS, path, end], stdin=subprocess.PIPE)
        process.read_line(parent)
        if end == "closes":
            assert wait_until(lambda: leases() == 0)
        else:
            parent.kill()
            parent.wait(timeout=60)
            assert leases() == 1
        parent.stdin.close()   # ends the child
        assert wait_until(lambda: leases() == 0)


def test_a_closed_reader_stays_closed_in_a_forked_child(leased):
    path, _ = leased
    reader = weightfs.reader(path)
    reader.close()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            reader.read(0, bytearray(1))
        except ValueError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_reader_is_pickled_by_its_path(table, monkeypatch):
    path, values = table
    monkeypatch.chdir(path.parent)
    with weightfs.reader(path.name, queue_depth=3) as reader:
        monkeypatch.chdir("/")
        for other in (pickle.loads(pickle.dumps(reader)), copy.copy(reader), copy.deepcopy(reader)):
            out = torch.empty(1, 100)
            with other:
                other.rows([7], out)
            assert torch.equal(bits(out), bits(values[7:8]))
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(reader)
    with open(path, "rb") as stream, weightfs.reader(stream.fileno()) as by_descriptor:
        with pytest.raises(TypeError, match="descriptor"):
            pickle.dumps(by_descriptor)


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_a_dataset_of_a_data_loader_has_a_reader(leased, child, start):
    path, _ = leased
    assert child(f"""
import torch, weightfs
from rows_dataset import Rows
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Rows({os.fspath(path)!r}), batch_size=50, num_workers=2,
                                         multiprocessing_context={start!r})
    for _ in range(2):
        print(torch.cat(list(loader)).numpy().tobytes() == open({os.fspath(path)!r}, "rb").read(400 * 500))
""") == "True\nTrue\n"


def test_many_threads_share_a_reader(leased):
    path, data = leased
    wrong = []

    def read(reader, seed):
        offsets = torch.randint(0, len(data) - 300, (50,), generator=torch.Generator().manual_seed(seed)).tolist()
        out = torch.empty(50, 300, dtype=torch.uint8)
        for _ in range(20):
            reader.read(offsets, out)
            wrong.extend(at for at, row in zip(offsets, out) if content(row) != data[at:at + 300])

    with weightfs.reader(path, direct="require", queue_depth=4) as reader:
        threads = [threading.Thread(target=read, args=(reader, seed)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            reader.refresh()
        for thread in threads:
            thread.join()
    assert not wrong
