# SPDX-License-Identifier: Apache-2.0
"""Loads that map the memory which the mount shares between programs: one read of the devices, one copy of the bytes."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import time
import zipfile

import pytest

import weightfs
import weightfs.safetensors
from harness.filesystems import weightfs as command
from harness.machine import meminfo
from harness.syscalls import errno_of
from harness.users import NOBODY, call_as

torch = pytest.importorskip("torch")
import weightfs.torch  # noqa: E402
from weightfs._core.streams import DirectReader  # noqa: E402
from weightfs.torch._archive import outline  # noqa: E402

pytestmark = pytest.mark.usefixtures("weightfs_only")
STORE_SIZE = "512M"
MOUNT_OPTIONS = "allow_other,cache_memory=256M"
COUNT = 4 << 20   # values of 4 bytes in each of two tensors
SIZE = 2 * 4 * COUNT
LOADS = {"safetensors": weightfs.safetensors.load_file, "torch": weightfs.torch.load}


def tensors_of(start):
    kind = {"dtype": torch.int32}
    return {"a": torch.arange(start, start + COUNT, **kind), "b": torch.full((COUNT,), start, **kind)}


def save(path, start=0):
    tensors = tensors_of(start)
    if path.suffix == ".safetensors":
        weightfs.safetensors.save_file(tensors, path)
    else:
        weightfs.torch.save(tensors, path)
    return tensors


def info(path):
    return json.loads(command("info", "--json", path).out)


def hot(path):
    return info(path)["hot"]


def equal(loaded, tensors):
    return loaded.keys() == tensors.keys() and all(torch.equal(loaded[name], tensors[name]) for name in tensors)


@pytest.fixture(params=LOADS)
def load(request):
    return LOADS[request.param]


@pytest.fixture
def path(work, load):
    return work / ("model.safetensors" if load is LOADS["safetensors"] else "model.pt")


def test_the_second_load_reads_no_device(path, load):
    tensors = save(path)
    assert equal(load(path), tensors)
    before = hot(path.parent)
    again = load(path)
    after = hot(path.parent)
    assert equal(again, tensors)
    assert before["loaded"] == after["loaded"] and after["mapped"] >= before["mapped"] + SIZE


@pytest.mark.parametrize("way", ["meta", "fake", "skipped"])
def test_a_load_of_tensors_without_data_reads_none(work, way):
    path = work / "model.pt"
    save(path)
    before = hot(work)["loaded"]
    if way == "meta":
        assert weightfs.torch.load(path, "meta")["a"].device.type == "meta"
    elif way == "fake":
        fake = pytest.importorskip("torch._subclasses.fake_tensor")
        with fake.FakeTensorMode():
            assert weightfs.torch.load(path)["a"].shape == (COUNT,)
    else:
        with torch.serialization.skip_data():
            assert weightfs.torch.load(path)["a"].shape == (COUNT,)
    assert hot(work)["loaded"] == before


def test_a_process_that_cannot_map_loads_into_memory_of_its_own(work, monkeypatch):
    path = work / "model.safetensors"
    tensors = save(path)

    def refuse(*_):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("weightfs.safetensors._files.mapped_memory", refuse)
    assert equal(weightfs.safetensors.load_file(path), tensors)


def test_what_a_program_writes_is_its_own(path, load):
    tensors = save(path)
    first, second = load(path), load(path)
    first["a"].fill_(7)
    first["b"][10] = 8
    assert equal(second, tensors) and equal(load(path), tensors)
    assert first["a"][5] == 7 and first["b"][10] == 8 and first["b"][11] == tensors["b"][11]


def test_tensors_have_storages_of_their_own(work):
    path = work / "model.safetensors"
    tensors = save(path, 3)
    loaded = weightfs.safetensors.load_file(path)
    assert len({tensor.untyped_storage().data_ptr() for tensor in loaded.values()}) == 2
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in loaded.values())
    del loaded["a"]
    assert torch.equal(loaded["b"], tensors["b"])


@pytest.mark.parametrize("change", ["replaced", "written", "removed", "truncated"])
def test_a_program_keeps_the_content_that_it_loaded(path, load, change):
    tensors = save(path)
    loaded = load(path)
    if change == "replaced":
        later = save(path, 5)
    elif change == "written":
        with open(path, "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\xff" * 4)
        later = None
    elif change == "truncated":
        os.truncate(path, 0)
        later = None
    else:
        path.unlink()
        later = None
    assert equal(loaded, tensors)
    if later is not None:
        assert equal(load(path), later)
    assert equal(loaded, tensors)


def test_a_changed_byte_shows_in_the_next_load(work):
    path = work / "model.safetensors"
    tensors = save(path)
    assert equal(weightfs.safetensors.load_file(path), tensors)
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\x01")
    assert weightfs.safetensors.load_file(path)["b"][-2] == 1


PROGRAM = """
import sys, torch, weightfs.safetensors
sys.stdin.readline()
loaded = weightfs.safetensors.load_file(sys.argv[1])
total = sum(int(tensor.sum()) for tensor in loaded.values())
print(total, flush=True)
sys.stdin.readline()
print(sum(int(tensor.sum()) for tensor in loaded.values()), flush=True)
"""


def programs(path, count):
    started = [subprocess.Popen([sys.executable, "-c", PROGRAM, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                text=True) for _ in range(count)]
    for program in started:
        program.stdin.write("\n")
        program.stdin.flush()
    return started, [int(program.stdout.readline()) for program in started]


def end(started):
    said = [program.communicate("\n")[0] for program in started]
    assert all(program.returncode == 0 for program in started)
    return said


def test_programs_at_once_share_one_read_and_one_copy(work):
    path = work / "model.safetensors"
    tensors = save(path)
    total = sum(int(tensor.sum()) for tensor in tensors.values())
    os.sync()
    before = hot(work)["loaded"]
    started, said = programs(path, 8)
    assert hot(work)["loaded"] - before < SIZE + (8 << 20), "the devices were read once"
    assert set(said) == {total}
    end(started)


def test_the_memory_of_a_program_is_that_of_all(work):
    path = work / "model.safetensors"
    save(path)
    count = 8
    started, _ = programs(path, count)
    shared = [sum(int(line.split()[1]) for line in open(f"/proc/{program.pid}/smaps_rollup")
                  if line.startswith("Pss_Shmem:")) for program in started]
    assert sum(shared) <= (SIZE + (4 << 20)) / 1024, "in KiB: the daemon has a part of each page, and nobody a copy"
    assert sum(shared) > 0.9 * count / (count + 1) * SIZE / 1024
    end(started)


def test_a_killed_daemon_takes_no_memory_from_programs(factory):
    mount = factory.mount(factory.store(STORE_SIZE), "cache_memory=256M")
    path = mount.path / "model.safetensors"
    tensors = save(path)
    os.sync()
    total = sum(int(tensor.sum()) for tensor in tensors.values())
    started, said = programs(path, 2)
    mount.kill9()
    assert [int(line) for line in end(started)] == [total, total] and set(said) == {total}
    mount.mount()
    assert equal(weightfs.safetensors.load_file(path), tensors)


def test_after_a_kill_programs_keep_no_memory_but_their_own(factory):
    mount = factory.mount(factory.store(STORE_SIZE), "cache_memory=512M")
    kept, other = mount.path / "kept.safetensors", mount.path / "other.safetensors"
    for path in (kept, other):
        save(path)
    loaded = weightfs.safetensors.load_file(kept)
    weightfs.safetensors.load_file(other)
    assert hot(mount.path)["used"] >= 2 * SIZE
    before = meminfo("Shmem")
    mount.kill9()
    assert meminfo("Shmem") < before - SIZE // 2
    assert sum(int(tensor.sum()) for tensor in loaded.values())


@pytest.mark.parametrize("options", ["cache_memory=0", "cache_memory=16M", "direct=off"])
def test_without_room_or_leases_memory_is_private(factory, options):
    mount = factory.mount(factory.store(STORE_SIZE), options)
    path = mount.path / "model.safetensors"
    tensors = save(path)
    for _ in range(2):
        assert equal(weightfs.safetensors.load_file(path), tensors)
    assert hot(mount.path)["mapped"] == 0


def test_programs_that_keep_all_memory_leave_none_for_others(factory):
    """A load never fails for that."""
    mount = factory.mount(factory.store(STORE_SIZE), "cache_memory=80M")
    paths = [mount.path / f"{number}.safetensors" for number in range(4)]
    saved = [save(path, number) for number, path in enumerate(paths)]
    kept = [weightfs.safetensors.load_file(path) for path in paths]
    assert hot(mount.path)["used"] <= 80 << 20
    assert all(equal(loaded, tensors) for loaded, tensors in zip(kept, saved))
    kept.clear()
    for path, tensors in zip(paths, saved):
        assert equal(weightfs.safetensors.load_file(path), tensors)
    assert hot(mount.path)["evictions"] > 0


def test_another_user_loads_without_shared_memory(work):
    path = work / "model.safetensors"
    tensors = save(path)
    path.chmod(0o644)
    before = hot(work)["mapped"]
    assert call_as(NOBODY, lambda: equal(weightfs.safetensors.load_file(path), tensors))
    assert hot(work)["mapped"] == before


def test_nobody_can_write_to_the_memory(work, handle):
    path = work / "model.safetensors"
    save(path)
    with open(path, "rb") as file:
        shared = handle.map(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    try:
        assert errno_of(lambda: os.write(shared, b"x")) == errno.EBADF
        assert errno_of(lambda: os.ftruncate(shared, 0)) in (errno.EINVAL, errno.EBADF)
        assert errno_of(lambda: os.open(f"/proc/self/fd/{shared}", os.O_RDWR)) in (errno.EROFS, errno.EACCES)
        assert os.pread(shared, 4096, 0) == path.read_bytes()[:4096]
    finally:
        os.close(shared)


def test_a_load_beside_a_writer_is_never_a_mixture(work):
    path = work / "model.safetensors"
    save(path)
    script = ("import sys; sys.path.insert(0, sys.argv[2]); import pathlib, test_hot_files\n"
              "for start in range(1, 1000): test_hot_files.save(pathlib.Path(sys.argv[1]), start)")
    with subprocess.Popen([sys.executable, "-c", script, path, os.path.dirname(__file__)],
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as writer:
        end_at = time.monotonic() + 4
        loads = 0
        while time.monotonic() < end_at or loads < 5:
            loaded = weightfs.safetensors.load_file(path)
            start = int(loaded["a"][0])
            assert int(loaded["a"][-1]) == start + COUNT - 1 and bool((loaded["b"] == start).all())
            loads += 1
        writer.kill()


def test_a_file_that_can_be_changed_is_read_by_the_daemon(work):
    """Also where all of it is in hot memory: the kernel would not notice the change."""
    path = work / "model.safetensors"
    save(path)
    kept = weightfs.safetensors.load_file(path)
    with open(path, "rb", buffering=0) as reader, open(path, "r+b", buffering=0) as writer:
        assert os.pread(reader.fileno(), 4, SIZE // 2) != b"new!"
        os.pwrite(writer.fileno(), b"new!", SIZE // 2)
        assert os.pread(reader.fileno(), 4, SIZE // 2) == b"new!"
    del kept


def save_compressed(saved, path, tmp_path):
    torch.save(saved, tmp_path / "stored.pt")
    with zipfile.ZipFile(tmp_path / "stored.pt") as stored, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in stored.namelist():
            archive.writestr(name, stored.read(name))


def random_tensors():
    random = torch.randint(0, 256, (2, 3 << 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return {"zeros": torch.zeros(1 << 20), "random": random}


@pytest.mark.parametrize("mmap", [None, False])
def test_an_archive_of_compressed_records_is_loaded_as_by_torch(work, tmp_path, mmap):
    path = work / "compressed.pt"
    save_compressed(random_tensors(), path, tmp_path)
    for _ in range(2):
        assert equal(weightfs.torch.load(path, mmap=mmap), torch.load(path))
    with contextlib.closing(DirectReader(path, weightfs.Handle())) as stream, pytest.raises(NotImplementedError):
        outline(stream)


def test_a_process_that_cannot_map_loads_an_archive_into_memory_of_its_own(work, monkeypatch):
    path = work / "model.pt"
    tensors = save(path)

    def refuse(*_, **__):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("mmap.mmap", refuse)
    monkeypatch.setattr("torch.UntypedStorage.from_file", refuse)
    assert equal(weightfs.torch.load(path), tensors)


def test_a_tensor_in_the_middle_is_mapped(work, monkeypatch):
    """Its memory is loaded without the header at first."""
    path = work / "model.safetensors"
    tensors = save(path)
    monkeypatch.setattr("weightfs.safetensors._files.memory_for", None)
    with weightfs.safetensors.open(path) as model:
        assert torch.equal(model.get_tensor("b"), tensors["b"])
