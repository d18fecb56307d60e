# SPDX-License-Identifier: Apache-2.0
"""Handles on a mount that grants leases: bytes are transferred directly between memory and the store's devices."""

import concurrent.futures
import errno
import gc
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import weightfs
import weightfs.safetensors
import weightfs.torch
from harness import needs, process
from harness.filesystems import wait_until
from harness.filesystems import weightfs as command
from tensors import content, flip_on_device, misaligned, random_tensor

STORE_SIZE = "512M"
pytestmark = pytest.mark.usefixtures("weightfs_only")

MIB = 1 << 20


@pytest.fixture
def direct():
    """A handle that fails instead of going through the mount."""
    with weightfs.aio_handle(direct="require", intra_op_parallelism=2) as made:
        yield made


def test_large_operations_bypass_the_mount_automatically(work, handle):
    tensor = random_tensor(5_000_123)
    handle.sync_pwrite(tensor, work / "file")
    handle.sync_pread(torch.empty_like(tensor), work / "file")
    assert handle.direct_operations == 2
    handle.write_async(tensor, work / "file", durable=True, atomic=True).result()
    with open(work / "file", "rb") as stream:
        assert stream.read() == content(tensor)
        read = torch.zeros_like(tensor)
        handle.read_async(read, stream.fileno()).result()
    assert torch.equal(read, tensor)
    assert handle.direct_operations == 4
    handle.sync_pwrite(tensor[:1_000_000], work / "small")
    assert handle.direct_operations == 4
    with weightfs.aio_handle(direct="never") as other:
        assert other.read_into(read, work / "file") == tensor.nbytes
        assert other.direct_operations == 0
    with pytest.raises(ValueError, match="'auto', 'never' or 'require'"):
        weightfs.aio_handle(direct="maybe")


def test_a_cached_directory_listing_shows_the_files_of_save_many(work, direct):
    direct.save_many({"a": bytearray(b"1")}, work)
    for _ in range(3):
        assert os.listdir(work) == ["a"]
    direct.save_many({"b": bytearray(b"2"), "c": bytearray(b"3")}, work)
    assert sorted(os.listdir(work)) == ["a", "b", "c"]


@pytest.mark.parametrize("stable", [False, True], ids=["copied", "stable"])
def test_every_size_offset_and_alignment(work, direct, stable):
    whole = random_tensor(3_000_000)
    for size in (1, 4095, 4096, 100_001, 2 * MIB, 2_500_123):
        for offset in (0, 1, 4096, 123_456):
            for by in sorted({0, 1, 64, offset % 4096}):   # O_DIRECT can use the last one without a copy
                (work / "file").write_bytes(content(whole))
                tensor = misaligned(random_tensor(size, seed=size + offset), by)
                if offset % 4096 == 0 and size >= 4096 or size > 8192:
                    direct.write_from(tensor, work / "file", offset, stable=stable)
                else:   # less than a block
                    with open(work / "file", "r+b") as stream:
                        stream.seek(offset)
                        stream.write(content(tensor))
                expected = whole.clone()
                expected[offset:offset + size] = tensor
                assert (work / "file").read_bytes() == content(expected)
                read = misaligned(torch.zeros_like(tensor), by)
                direct.read_into(read, work / "file", offset)
                assert torch.equal(read, tensor)


def test_holes_and_unsynced_data_of_others_are_read(work, direct):
    with open(work / "file", "wb", buffering=0) as stream:
        stream.write(b"begin" * 1000)
        stream.seek(5 * MIB + 17)
        stream.write(b"end" * 1000)
        read = bytearray(stream.tell())
        direct.read_into(read, work / "file")
        assert read == (work / "file").read_bytes()
    os.truncate(work / "file", 6 * MIB)
    read = bytearray(6 * MIB)
    direct.read_into(read, work / "file")
    assert read == (work / "file").read_bytes()
    with pytest.raises(OSError) as caught:
        direct.read_into(bytearray(6 * MIB + 1), work / "file")
    assert caught.value.errno == errno.ENODATA


def test_checkpoints_use_the_direct_path_automatically(work, handle):
    state = {"large": torch.randn(1500, 1500), "small": [torch.arange(i) for i in range(50)]}
    weightfs.torch.save(state, work / "model.pt", handle=handle)
    saved = handle.direct_operations
    loaded = weightfs.torch.load(work / "model.pt", handle=handle)
    assert torch.equal(loaded["large"], state["large"])
    assert torch.equal(torch.load(work / "model.pt")["large"], state["large"])
    assert 0 < saved < handle.direct_operations
    before = handle.direct_operations
    weightfs.safetensors.save_file({"large": state["large"]}, work / "model.safetensors", handle=handle)
    tensors = weightfs.safetensors.load_file(work / "model.safetensors", handle=handle)
    assert torch.equal(tensors["large"], state["large"])
    assert handle.direct_operations >= before + 2


def test_many_tensors_are_one_lease_and_one_commit(work, direct):
    tensors = {f"layer.{i}.weight": random_tensor(i * 997 % 100_000, seed=i) for i in range(1000)}
    (work / "layer.7.weight").write_bytes(b"old")
    assert direct.save_many(tensors, work, mode=0o644) == sum(tensor.nbytes for tensor in tensors.values())
    assert direct.direct_operations == 1
    assert sorted(os.listdir(work)) == sorted(tensors)
    assert all((work / name).read_bytes() == content(tensor) for name, tensor in tensors.items())
    assert os.stat(work / "layer.7.weight").st_mode & 0o777 == 0o644
    buffers = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    direct.load_many(buffers, work)
    assert all(torch.equal(buffers[name], tensor) for name, tensor in tensors.items())
    assert direct.direct_operations == 2


def test_a_save_that_does_not_fit_leaves_the_old_files(work, direct):
    (work / "a").write_bytes(b"old")
    with pytest.raises(OSError) as caught:
        direct.save_many({"a": random_tensor(10), "b": bytearray(600 * MIB)}, work)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(work))
    assert f"write of 2 files, {600 * MIB + 4096} bytes in whole blocks, to {work}: no space left" in str(caught.value)
    assert os.listdir(work) == ["a"]
    assert (work / "a").read_bytes() == b"old"
    with pytest.raises(OSError) as caught:
        direct.write_from(bytearray(600 * MIB), work / "new")
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(work) == ["a"]


def filled(size, value):
    return torch.full((size,), value, dtype=torch.uint8)


def values_of(handle, path, size):
    """The smallest and the largest byte of a file."""
    read = torch.empty(size, dtype=torch.uint8)
    handle.read_into(read, path)
    return {int(read.min()), int(read.max())}


def leases(path):
    return json.loads(command("info", "--json", path).out)["statistics"]["leases"]


def test_a_write_without_space_beside_the_old_file_takes_its_place(work, handle):
    handle.write_from(filled(300 * MIB, 1), work / "large")
    with pytest.raises(OSError, match="no space left") as caught:
        handle.write_from(filled(600 * MIB, 0), work / "large")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(work / "large"))
    with weightfs.aio_handle(direct="require") as direct, pytest.raises(OSError, match="no space left"):
        direct.write_from(filled(320 * MIB, 0), work / "large")
    assert values_of(handle, work / "large", 300 * MIB) == {1}
    with open(work / "large", "rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as memory:
        assert memory[299 * MIB] == 1
        before = handle.direct_operations
        handle.write_from(filled(320 * MIB, 2), work / "large")
        assert handle.direct_operations == before + 1
        assert memory[299 * MIB] == 2, "a mapping of the old content follows"
    assert values_of(handle, work / "large", 320 * MIB) == {2}


def test_blocks_that_a_reader_holds_are_not_taken_from_the_old_file(work, handle):
    handle.write_from(filled(300 * MIB, 1), work / "large")
    with weightfs.reader(work / "large", direct="require"):
        with pytest.raises(OSError, match="no space left"):
            handle.write_from(filled(300 * MIB, 2), work / "large")
        assert values_of(handle, work / "large", 300 * MIB) == {1}
    assert wait_until(lambda: leases(work) == 0), "a release is sent without waiting for its answer"
    handle.write_from(filled(300 * MIB, 2), work / "large")
    assert values_of(handle, work / "large", 300 * MIB) == {2}


def test_the_writer_that_finds_no_space_keeps_its_old_file(work):
    """Each of two new files fits in place of its old one, but not both."""
    with weightfs.aio_handle() as first, weightfs.aio_handle() as second:
        for name in ("a", "b"):
            first.write_from(filled(150 * MIB, 1), work / name)
        def write(name, writer):
            try:
                writer.write_from(filled(310 * MIB, 2), work / name)
            except OSError as error:
                return error

        with concurrent.futures.ThreadPoolExecutor() as pool:
            errors = dict(zip("ab", pool.map(write, "ab", (first, second))))
        assert sorted(error.errno for error in errors.values() if error is not None) == [errno.ENOSPC]
        for name, error in errors.items():
            expected = {2} if error is None else {1}
            assert values_of(first, work / name, 310 * MIB if error is None else 150 * MIB) == expected


def test_damage_on_the_device_is_an_error_with_its_location(factory, handle):
    mount = factory.mount(factory.store("128M"))
    tensor = random_tensor(4 * MIB)
    handle.write_from(tensor, mount.path / "file", durable=True)
    flip_on_device(mount.store, mount.path / "file", 3 * MIB + 5)
    with pytest.raises(OSError) as caught:
        handle.read_into(torch.empty_like(tensor), mount.path / "file")
    assert caught.value.errno == errno.EIO
    assert caught.value.offset == 3 * MIB
    assert "is not what was written" in str(caught.value)
    assert str(mount.store.directory / "pool") in str(caught.value)
    # The rest of it is readable.
    part = torch.empty(3 * MIB, dtype=torch.uint8)
    handle.read_into(part, mount.path / "file")
    assert torch.equal(part, tensor[:3 * MIB])

    handle.save_many({"a": tensor[:100_000], "b": tensor[:200_000]}, mount.path)
    flip_on_device(mount.store, mount.path / "a", 50_000)
    buffers = {"a": bytearray(100_000), "b": bytearray(200_000), "c": bytearray(1)}
    with pytest.raises(OSError) as caught:
        handle.load_many(buffers, mount.path)
    assert {name: error.errno for name, error in caught.value.errors.items()} == {"a": errno.EIO, "c": errno.ENOENT}
    assert buffers["b"] == content(tensor[:200_000])


@pytest.mark.parametrize("atomic", [False, True])
def test_readers_see_the_old_file_or_the_new_one(work, atomic):
    size, rounds, stop = 4 * MIB, 60, threading.Event()
    mixed = []
    with weightfs.aio_handle(direct="require") as writer:
        writer.write_from(torch.zeros(size, dtype=torch.uint8), work / "file")

        def read():
            buffer = torch.empty(size, dtype=torch.uint8)
            with weightfs.aio_handle(direct="require") as reader:
                while not stop.is_set():
                    reader.read_into(buffer, work / "file")
                    if buffer.min() != buffer.max():
                        mixed.append((buffer.min().item(), buffer.max().item()))

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for i in range(rounds):
                writer.write_from(torch.full((size,), i % 251, dtype=torch.uint8), work / "file", atomic=atomic)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not mixed


def test_parts_are_written_by_several_at_once(work):
    tensor = random_tensor(16 * MIB + 333)
    step = tensor.nbytes // 8 + 1
    failed = []

    def write(i):
        try:
            with weightfs.aio_handle(direct="require") as own:
                own.write_from(tensor[i * step:(i + 1) * step], work / "file", i * step)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert (work / "file").read_bytes() == content(tensor)


def test_refusals_are_silent_unless_a_lease_is_required(factory):
    mount = factory.mount(factory.store("128M"), "direct=off")
    tensor = random_tensor(5 * MIB)
    with weightfs.aio_handle() as handle, weightfs.aio_handle(direct="require") as required:
        handle.write_from(tensor, mount.path / "file")
        handle.save_many({"a": tensor[:1000]}, mount.path)
        buffer = torch.empty_like(tensor)
        handle.read_into(buffer, mount.path / "file")
        assert torch.equal(buffer, tensor)
        assert handle.direct_operations == 0
        for call in (lambda: required.write_from(tensor, mount.path / "new"),
                     lambda: required.read_into(buffer, mount.path / "file"),
                     lambda: required.save_many({"b": tensor}, mount.path)):
            with pytest.raises(OSError, match="direct= is off") as caught:
                call()
            assert caught.value.errno == errno.EOPNOTSUPP
    assert sorted(os.listdir(mount.path)) == ["a", "file"]


def test_another_filesystem_has_no_leases(local, direct):
    with pytest.raises(OSError, match="it is on no weightfs mount"):
        direct.write_from(random_tensor(2 * MIB), local / "file")
    with pytest.raises(OSError, match="it is on no weightfs mount"):
        direct.write_from(random_tensor(4 * MIB), local / "file", 0)
    assert os.listdir(local) == []
    (local / "old").write_bytes(b"old")
    with pytest.raises(OSError, match="it is on no weightfs mount"):
        direct.write_from(random_tensor(4 * MIB), local / "old", 0)
    assert (local / "old").read_bytes() == b"old"


@needs.root
def test_a_user_whom_the_mount_does_not_trust_goes_through_it(factory, child):
    mount = factory.mount(factory.store("128M"), "allow_other")
    mount.path.chmod(0o777)
    out = child(f"""
import os, torch, weightfs
handle, required = weightfs.aio_handle(), weightfs.aio_handle(direct="require")
os.setresuid(65534, 65534, 65534)
tensor = torch.arange(1 << 20)
handle.write_from(tensor, {str(mount.path / "file")!r})
print(handle.direct_operations)
try:
    required.write_from(tensor, {str(mount.path / "other")!r})
except PermissionError as error:
    print("does not trust this user" in str(error))
""")
    assert out == "0\nTrue\n"
    assert os.listdir(mount.path) == ["file"]


def test_a_killed_daemon_is_an_error_and_the_old_file_is_whole(factory, handle):
    mount = factory.mount(factory.store("256M"))
    old = random_tensor(8 * MIB, seed=1)
    handle.write_from(old, mount.path / "file", durable=True)
    handle.save_many({"many": old[:1000]}, mount.path)

    def kill(done, total):
        if done < total:
            mount.kill()

    new = random_tensor(64 * MIB, seed=2)
    with pytest.raises(OSError) as caught:
        handle.write_from(new, mount.path / "file", durable=True, progress=kill)
    assert caught.value.errno in (errno.EPIPE, errno.ENOTCONN)
    with pytest.raises(OSError):
        handle.read_into(torch.empty_like(old), mount.path / "file")
    mount.kill9() if mount.pid else mount.detach()
    mount.mount()
    buffer = torch.empty_like(old)
    handle.read_into(buffer, mount.path / "file")   # uses the same handle
    assert torch.equal(buffer, old)
    assert handle.direct_operations > 2
    mount.fsck()


@pytest.mark.limit(300)
def test_a_killed_program_leaves_all_files_as_they_were(work, direct):
    old = {f"t{i}": random_tensor(50_000, seed=i) for i in range(100)}
    direct.save_many(old, work)
    free = os.statvfs(work).f_bavail
    code = f"""
import os, signal, weightfs
def kill(done, total):
    os.kill(os.getpid(), signal.SIGKILL)
with weightfs.aio_handle(direct="require", block_size=65536, queue_depth=2) as handle:
    handle.save_many({{f"t{{i}}": bytearray(1 << 20) for i in range(150)}}, {os.fspath(work)!r}, progress=kill)
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], check=False, timeout=100)
        assert done.returncode == -signal.SIGKILL
    assert sorted(os.listdir(work)) == sorted(old)
    buffers = {name: torch.empty_like(tensor) for name, tensor in old.items()}
    direct.load_many(buffers, work)
    assert all(torch.equal(buffers[name], tensor) for name, tensor in old.items())
    assert wait_until(lambda: os.statvfs(work).f_bavail >= free - 4096), "its reservations are still held"
    direct.write_from(bytearray(300 * MIB), work / "large")
    (work / "large").unlink()
    assert wait_until(lambda: os.statvfs(work).f_bavail >= free - 4096)


@pytest.mark.limit(300)
def test_a_thousand_leases_leave_nothing_behind(work, direct):
    tensor, buffer = random_tensor(100_000), torch.empty(100_000, dtype=torch.uint8)
    direct.write_from(tensor, work / "file")
    gc.collect()   # garbage of earlier tests
    before, free = len(os.listdir("/proc/self/fd")), os.statvfs(work).f_bavail
    for _ in range(500):
        direct.write_from(tensor, work / "file")
        direct.read_into(buffer, work / "file")
    assert torch.equal(buffer, tensor)
    assert direct.direct_operations == 1001
    assert len(os.listdir("/proc/self/fd")) == before
    descriptor = os.open(work, os.O_RDONLY)
    os.fsync(descriptor)   # a commit frees the old blocks
    os.close(descriptor)
    assert wait_until(lambda: os.statvfs(work).f_bavail >= free - 4096)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_uses_no_lease_of_its_parent(work, direct):
    tensor = random_tensor(2 * MIB)
    direct.write_from(tensor, work / "file")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for call in (lambda: direct.read_into(tensor, work / "file"),
                         lambda: direct.save_many({"a": tensor}, work)):
                try:
                    call()
                except OSError as error:
                    status = 0 if "fork" in str(error) else 2
            with weightfs.aio_handle(direct="require") as own:
                own.write_from(tensor, work / "other")
        except BaseException:
            status = 3
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    direct.read_into(torch.empty_like(tensor), work / "other")


@needs.root
@needs.program("unshare")
@pytest.mark.parametrize("namespaces", [["--net"], ["--net", "--pid", "--fork", "--ipc", "--uts"]])
def test_leases_reach_other_network_namespaces(work, namespaces):
    program = """
import sys, torch, weightfs
with weightfs.aio_handle(direct="require") as handle:
    handle.sync_pwrite(torch.zeros(3_000_000, dtype=torch.uint8), sys.argv[1])
    read = bytearray(b"x" * 3_000_000)
    handle.read_into(read, sys.argv[1])
    print(handle.direct_operations, read == bytes(len(read)))
"""
    done = subprocess.run(["unshare", *namespaces, sys.executable, "-c", program, work / "file"], capture_output=True,
                          text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "2 True\n"), done.stderr


def sockets_of(pid, directory):
    """The paths in the directory at which a process listens. Other mounts have sockets there, too."""
    listened = {fields[6]: Path(fields[7]) for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()
                if len(fields := line.split()) == 8 and fields[7].startswith(f"{directory}/")}
    return {listened[name[8:-1]] for name in process.open_files(pid)
            if name.startswith("socket:[") and name[8:-1] in listened}


def test_the_socket_of_a_killed_mount_is_removed_by_the_next(factory):
    directory = Path("/run/weightfs") if os.geteuid() == 0 else Path(os.environ["XDG_RUNTIME_DIR"]) / "weightfs"
    mount = factory.mount(factory.store("128M"))
    before, = sockets_of(mount.pid, directory)
    mount.kill9()
    assert before.exists()
    mount.mount()
    assert not before.exists()
    after, = sockets_of(mount.pid, directory)
    assert after.exists()
    mount.umount()
    assert not after.exists()


# Each network namespace has its own abstract sockets. Outside the mount's namespace the name of its socket is free, and
# a process of any user may listen there. The squatter does so and prints what it receives.
SQUATTED = """
import os, socket, sys, struct, fcntl, weightfs
path = sys.argv[1]
LEASE = 3 << 30 | 120 << 16 | ord("W") << 8 | 5
with open(path, "rb") as stream:
    ticket = bytearray(struct.pack("I", 1) + bytes(116))
    fcntl.ioctl(stream, LEASE, ticket)
name = b"\\0" + bytes(ticket[24:]).split(b"\\0")[0]
ready, told = os.pipe(), os.pipe()
squatter = os.fork()
if squatter == 0:
    os.setuid(65534)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(name)
        listener.listen()
        os.write(ready[1], b"r")
        connection, _ = listener.accept()
        os.write(told[1], repr(connection.recv(1 << 16)).encode())
    os._exit(0)
os.read(ready[0], 1)
read = bytearray(5_000_000)
try:
    with weightfs.aio_handle(direct="require") as handle:
        handle.read_into(read, path)
except OSError as error:
    print(error.errno, error.strerror)
print("told", os.read(told[0], 1 << 16).decode())
os.waitpid(squatter, 0)
with weightfs.aio_handle() as handle:
    handle.read_into(read, path)
    print(handle.direct_operations, read == b"x" * len(read))
"""


@needs.root
@needs.program("unshare")
def test_nothing_is_sent_to_a_squatter_at_the_mounts_socket(work):
    (work / "file").write_bytes(b"x" * 5_000_000)
    hidden = ["unshare", "--net", "--mount", "sh", "-c", 'mount -t tmpfs none /run/weightfs && exec "$@"', "sh"]
    done = subprocess.run([*hidden, sys.executable, "-c", SQUATTED, work / "file"], capture_output=True, text=True,
                          timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    refusal, told, rest = done.stdout.splitlines()
    assert refusal.startswith(f"{errno.EACCES} read of 5000000 bytes")
    assert "no lease: user 0 serves the mount, and a process of user 65534 (PID " in refusal
    assert told == "told b''"
    assert rest == "0 True"
