# SPDX-License-Identifier: Apache-2.0
"""GPU tensors on machines without a GPU (tests/support/fake_gpu): accessing them as host memory crashes."""

import asyncio
import contextlib
import errno
import gc
import importlib
import logging
import os
import threading
import types

import pytest
import torch

import weightfs
from fake_gpu import CUFILE, DIRECT, LIBRARY, SANITIZERS, FakeGpu
from tensors import content, random_tensor
from weightfs import deepnvme
from weightfs.safetensors import save_file

SIZE = 1_000_001


@pytest.fixture
def gpu(monkeypatch):
    if not LIBRARY.exists():
        pytest.fail(f"{LIBRARY} is missing: build it first (targets weightfs_fake_cuda and weightfs_fake_cufile), or "
                    "name a weightfs beside one in WEIGHTFS_BIN")
    if any(name in LIBRARY.read_bytes() for name in SANITIZERS):
        pytest.skip("needs a build without sanitizers: the fake GPU is loaded into Python")
    monkeypatch.setenv("WEIGHTFS_CUDA_LIBRARY", str(LIBRARY))
    monkeypatch.setenv("WEIGHTFS_CUFILE_LIBRARY", str(CUFILE))
    monkeypatch.setenv("WEIGHTFS_PROC_MODULES", os.devnull)
    monkeypatch.delenv("WEIGHTFS_GDS_MODE", raising=False)
    stream = types.SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    fake = FakeGpu()
    fake.reset()
    yield fake
    gc.collect()
    counts = fake.counts()
    assert counts.mistakes == 0
    assert counts.contexts + counts.streams + counts.events + counts.page_locks + counts.files + counts.pins == 0
    fake.reset()


WAYS = {"aio": lambda: weightfs.aio_handle(65536, 8, False, True, 2),
        "bounce": lambda: weightfs.gds_handle(65536, 8, False, True, 2, mode="bounce"),
        "cufile": lambda: weightfs.gds_handle(65536, 8, False, True, 2, mode="cufile")}


@pytest.fixture(params=WAYS)
def handle(request, gpu):
    with WAYS[request.param]() as made:
        made.way = request.param
        yield made


def some(size=SIZE, seed=1):
    return content(random_tensor(size, seed=seed))


def test_deepnvmes_methods_take_gpu_memory(local, gpu, handle):
    path, values = str(local / "file"), some()
    array = gpu.array(values)
    assert handle.sync_pwrite(array, path) == 1
    assert (local / "file").read_bytes() == values
    target = gpu.array(size=SIZE)
    assert handle.sync_pread(target, path) == 1
    assert target.content() == values
    for i in range(3):
        assert handle.async_pwrite(array, str(local / f"{i}")) == 0
    assert handle.wait() == 3
    descriptor = os.open(local / "fd", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    assert handle.async_pwrite(array, fd=descriptor) == 0
    os.close(descriptor)
    assert handle.wait() == 1
    assert (local / "fd").read_bytes() == (local / "2").read_bytes() == values
    assert handle.pwrite(array, path, True, True, 4096) == 0
    assert handle.wait() == 1
    target.set(bytes(SIZE))
    assert handle.pread(target, path, True, False, 4096) == 1
    assert target.content() == values
    assert handle.write(array, str(local / "whole"), True) == 0
    assert handle.read(target, str(local / "whole"), True) == 0
    used = gpu.counts()
    assert (used.cufile_reads > 0 and used.cufile_writes > 0) == (handle.way == "cufile")
    assert used.copies_to_host > 0


def test_validation_compares_gpu_memory(local, gpu, handle):
    (local / "file").write_bytes(some())
    array = gpu.array(size=SIZE)
    assert handle.async_pread(array, str(local / "file"), 0) == 0
    assert handle.wait() == 1
    assert handle.pread(array, str(local / "file"), True, True) == 0
    while handle.pending():
        pass
    (local / "file").write_bytes(some(seed=2))
    with pytest.raises(OSError, match="validation"):
        handle.wait()


def test_parts_of_a_file_are_written_and_read_one_by_one(local, gpu, handle):
    values, part = some(), SIZE // 3
    for i in (2, 0, 1):
        piece = values[i * part:(i + 1) * part]
        assert handle.sync_pwrite(gpu.array(piece), str(local / "file"), i * part) == 1
    assert (local / "file").read_bytes() == values[:3 * part]
    target = gpu.array(size=part)
    assert handle.sync_pread(target, str(local / "file"), part) == 1
    assert target.content() == values[part:2 * part]


def test_futures_of_gpu_memory(local, gpu, handle):
    values = some()
    assert handle.write_async(gpu.array(values), local / "file", durable=True, atomic=True).result() == SIZE
    target = gpu.array(size=SIZE)

    async def read():
        return await handle.read_async(target, local / "file")
    assert asyncio.run(read()) == SIZE
    assert target.content() == values
    assert handle.write_from(target, local / "second") == SIZE
    assert (local / "second").read_bytes() == values


def test_cpu_tensors_use_the_usual_path(local, gpu, handle):
    tensor = random_tensor(SIZE)
    assert handle.sync_pwrite(tensor, str(local / "file")) == 1
    assert (local / "file").read_bytes() == content(tensor)
    locked = handle.new_cpu_locked_tensor(100, tensor)
    assert handle.is_pinned(locked) and handle.free_cpu_locked_tensor(locked)
    used = gpu.counts()
    assert used.copies_to_host + used.copies_to_gpu + used.cufile_writes == 0


def test_a_failure_is_reported_as_of_a_cpu_tensor(local, gpu, handle):
    array = gpu.array(some())
    assert handle.sync_pread(array, str(local / "missing")) == -1
    assert handle.last_error.errno == errno.ENOENT
    (local / "short").write_bytes(some(100))
    assert handle.sync_pread(array, str(local / "short")) == -1
    assert handle.last_error.errno == errno.ENODATA and "GPU array" in handle.last_error.strerror
    function = "cuFileWrite" if handle.way == "cufile" else "cuMemcpyDtoHAsync"
    gpu.fail(function, after=3, status=5030)
    assert handle.async_pwrite(array, str(local / "file")) == 0
    with pytest.raises(OSError, match="error 5030") as failed:
        handle.wait()
    assert failed.value.errno == errno.EIO
    assert handle.sync_pwrite(array, str(local / "file")) == 1
    assert not (local / "missing").exists()


def test_an_operation_waits_for_the_stream_and_others_run_meanwhile(local, gpu, handle):
    array, later = gpu.array(some()), some(seed=2)
    gpu.hold(array, later)
    writer = threading.Thread(target=handle.sync_pwrite, args=(array, str(local / "file")))
    writer.start()
    assert handle.write_from(random_tensor(100_000), local / "other") == 100_000   # the interpreter keeps running
    gpu.release()
    writer.join()
    assert (local / "file").read_bytes() == later


def test_a_handle_is_closed_with_operations_under_way(local, gpu, handle):
    array = gpu.array(some())
    for i in range(5):
        assert handle.async_pwrite(array, str(local / f"{i}")) == 0


def test_operations_bypass_a_mount_by_a_lease(work, gpu):
    values = some(6_000_001)
    for make in (weightfs.aio_handle, weightfs.gds_handle):
        with make(65536, 8, False, True, 2, direct="require") as handle:
            assert handle.write_from(gpu.array(values), work / "file", durable=True) == len(values)
            assert (work / "file").read_bytes() == values
            target = gpu.array(size=5_000_000)
            assert handle.read_into(target, work / "file", 1001) == 5_000_000
            assert target.content() == values[1001:5_001_001]
            assert handle.direct_operations == 2
    with weightfs.gds_handle(mode="cufile") as handle:
        assert handle.write_from(gpu.array(values), work / "other") == len(values)
        assert handle.direct_operations == 0
    assert (work / "other").read_bytes() == values


def test_many_gpu_tensors_are_saved_and_loaded(folder, gpu):
    contents = {f"t{i}": some(10_000 * i + 1, seed=i) for i in range(5)}
    with weightfs.gds_handle() as handle:
        assert handle.save_many({name: gpu.array(value) for name, value in contents.items()}, folder) == 100_005
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents
        targets = {name: gpu.array(size=len(value)) for name, value in contents.items()}
        assert handle.load_many(targets, folder) == 100_005
    assert {name: target.content() for name, target in targets.items()} == contents


def test_gpu_memory_that_cannot_be_used_is_refused(local, gpu, handle):
    for facts, reason in (({"strides": (2,)}, "contiguous"), ({"data": (4096, True)}, "read-only")):
        with pytest.raises(ValueError, match=reason):
            handle.read_into(gpu.array(size=10, **facts), local / "file")
    host = random_tensor(10)
    with pytest.raises(OSError, match="no memory of a GPU"):
        handle.write_from(gpu.array(size=10, data=(host.data_ptr(), False)), local / "file")
    with pytest.raises(ValueError, match="memory of a GPU"):
        deepnvme.deepspeed_memcpy(torch.zeros(10, dtype=torch.uint8), gpu.array(size=10))
    assert handle.sync_pwrite(gpu.array(size=10, stream=None), str(local / "file")) == 1


@pytest.mark.parametrize("transposed", [False, True], ids=["contiguous", "strided"])
def test_torch_tensors_of_any_layout(local, gpu, handle, transposed):
    values = random_tensor(300 * 500, torch.float32).view(300, 500)
    wanted = (values.t() if transposed else values).contiguous().view(torch.uint8).numpy().tobytes()
    assert handle.sync_pwrite(gpu.tensor(values.t() if transposed else values, transposed), str(local / "file")) == 1
    assert (local / "file").read_bytes() == wanted

    def target():
        return gpu.tensor(torch.zeros_like(values.t() if transposed else values), transposed)

    def has_all(tensor):
        return tensor.values().contiguous().view(torch.uint8).numpy().tobytes() == wanted
    now, waited, dropped, result, awaited = (target() for _ in range(5))
    assert handle.sync_pread(now, str(local / "file")) == 1
    assert has_all(now)
    assert handle.async_pread(waited, str(local / "file")) == 0
    assert handle.async_pread(dropped, str(local / "file")) == 0
    assert handle.wait() == 2
    assert has_all(waited) and has_all(dropped)
    future = handle.read_async(result, str(local / "file"))
    while not future.done():
        pass
    assert has_all(result)

    async def read():
        await handle.read_async(awaited, str(local / "file"))
    asyncio.run(read())
    assert has_all(awaited)


def test_torch_keeps_memory_while_a_stream_copies_from_it(local, gpu, handle, monkeypatch):
    (local / "file").write_bytes(some(3 * 500 * 4))
    target = gpu.tensor(torch.zeros(500, 3), transposed=True)
    future = handle.read_async(target, str(local / "file"))
    later = types.SimpleNamespace(cuda_stream=7, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: later)
    assert future.result() == 6000
    assert target.source.streams == [later]


# --- gds_handle ---

def test_auto_chooses_the_transfer_path_and_reports_it(local, gpu, caplog):
    caplog.set_level(logging.INFO, "weightfs")
    with weightfs.gds_handle() as handle:
        assert handle.mode == "bounce" and "compatibility mode" in handle.mode_reason
        assert "mode=bounce" in repr(handle)
    gpu.set_kinds(DIRECT)
    with weightfs.gds_handle() as handle:
        assert handle.mode == "cufile" and "nvidia-fs" in handle.mode_reason
        assert repr(handle).startswith("gds_handle(block_size=") and repr(handle).endswith("mode=cufile)")
        assert handle.sync_pwrite(gpu.array(some()), str(local / "file")) == 1
        sent = handle.gpu_bytes
        assert sent["cufile"] + sent["bounce"] == SIZE and sent["bounce"] < 4096
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2 and all("Fake GPU 0" in message for message in messages)
    assert "mode bounce" in messages[0] and "mode cufile" in messages[1]


def test_a_mode_is_forced_by_argument_or_environment(gpu, monkeypatch):
    gpu.set_kinds(DIRECT)
    monkeypatch.setenv("WEIGHTFS_GDS_MODE", "bounce")
    with weightfs.gds_handle() as handle:
        assert handle.mode == "bounce"
    with weightfs.gds_handle(mode="cufile") as handle:
        assert handle.mode == "cufile"
    monkeypatch.setenv("WEIGHTFS_GDS_MODE", "fast")
    with pytest.raises(ValueError, match="auto, cufile, bounce"):
        weightfs.gds_handle()
    monkeypatch.setenv("WEIGHTFS_CUFILE_LIBRARY", "/nowhere/libcufile.so.0")
    with pytest.raises(OSError, match="/nowhere/libcufile.so.0"):
        weightfs.gds_handle(mode="cufile")
    with weightfs.gds_handle(mode="auto") as handle:
        assert handle.mode == "bounce" and "/nowhere/libcufile.so.0" in handle.mode_reason


def test_without_a_gpu_there_is_no_handle(gpu, monkeypatch, capsys):
    gpu.set_devices(0)
    with pytest.raises(RuntimeError, match="no GPU to use"):
        weightfs.gds_handle()
    monkeypatch.setenv("WEIGHTFS_CUDA_LIBRARY", "/nowhere/libcuda.so.1")
    with pytest.raises(RuntimeError, match="/nowhere/libcuda.so.1"):
        weightfs.gds_handle(mode="cufile")
    assert deepnvme.GDSBuilder().is_compatible(verbose=True) is False
    assert "no GPU to use" in capsys.readouterr().err
    with weightfs.aio_handle() as handle:
        assert handle.sync_pwrite(gpu.array(b"x"), "/nowhere/file") == -1
        assert handle.last_error.errno == errno.ENODEV


def test_the_builder_loads_where_there_is_a_gpu(gpu):
    builder = deepnvme.GDSBuilder()
    assert builder.is_compatible() and builder.load().gds_handle is weightfs.gds_handle


def test_it_has_everything_an_aio_handle_has(gpu):
    with weightfs.gds_handle(4096, 3, True, True, 2) as handle:
        assert isinstance(handle, weightfs.aio_handle)
        assert (handle.get_block_size(), handle.get_queue_depth(), handle.get_intra_op_parallelism()) == (4096, 3, 2)
        assert handle.get_single_submit() and handle.get_overlap_events()
        assert handle.get_alignment() == 1024
    with weightfs.gds_handle(num_threads=2) as handle:
        assert handle.get_thread_count() == 2


@pytest.mark.parametrize("mode", ["bounce", "cufile"])
def test_pinned_device_tensors(local, gpu, mode):
    pins = 1 if mode == "cufile" else 0
    with weightfs.gds_handle(mode=mode) as handle:
        tensor = handle.new_pinned_device_tensor(SIZE, gpu.array(b"example"))
        assert handle.is_pinned(tensor) and gpu.counts().pins == pins
        tensor.set(some())
        assert handle.sync_pwrite(tensor, str(local / "file")) == 1
        assert (gpu.counts().pinned_transfers > 0) == (mode == "cufile")
        assert handle.pin_device_tensor(tensor) is False and handle.last_error.errno == errno.EEXIST
        assert handle.free_pinned_device_tensor(tensor) is True
        assert handle.free_pinned_device_tensor(tensor) is False
        assert not handle.is_pinned(tensor) and gpu.counts().pins == 0
        assert handle.pin_device_tensor(tensor) is True
        assert handle.unpin_device_tensor(tensor) is True
        assert handle.pin_device_tensor(tensor) is True
        del tensor   # which unpins it
        gc.collect()
        assert gpu.counts().pins == 0
        last = gpu.array(size=100)
        assert handle.pin_device_tensor(last) is True
        with pytest.raises(ValueError, match="not on a GPU"):
            handle.pin_device_tensor(torch.zeros(5))
        with pytest.raises(ValueError, match="not contiguous"):
            handle.pin_device_tensor(gpu.tensor(torch.zeros(3, 4), transposed=True))
        with pytest.raises(TypeError):
            handle.new_pinned_device_tensor(5, [1, 2])
    assert gpu.counts().pins == 0


def test_a_handle_with_a_mode_needs_no_methods_of_deepnvme(local, gpu):
    gpu.set_kinds(DIRECT)
    with weightfs.Handle(mode="auto") as handle:
        assert handle.mode == "cufile" and repr(handle).startswith("Handle(")
        array = gpu.array(some())
        handle.pin(array)
        with pytest.raises(OSError) as pinned:
            handle.pin(array)
        assert pinned.value.errno == errno.EEXIST and handle.unpin(array) is True
        assert handle.write_async(array, local / "file").result() == SIZE
    with weightfs.Handle() as handle:
        assert handle.mode is None and handle.gpu_bytes == {"cufile": 0, "bounce": 0}
        assert handle.write_from(array, local / "file") == SIZE
        assert handle.gpu_bytes == {"cufile": 0, "bounce": SIZE}
    with pytest.raises(ValueError, match="auto, cufile, bounce"):
        weightfs.Handle(mode="fast")


def test_a_pin_lasts_as_long_as_any_tensor_of_the_memory(local, gpu):
    with weightfs.gds_handle(mode="cufile") as handle:
        tensor = gpu.tensor(random_tensor(SIZE))
        assert handle.pin_device_tensor(tensor) is True
        alias = tensor.alias()
        del tensor
        gc.collect()
        assert handle.is_pinned(alias) and gpu.counts().pins == 1
        assert handle.sync_pwrite(alias, str(local / "file")) == 1 and gpu.counts().pinned_transfers > 0
        del alias
        gc.collect()
        assert gpu.counts().pins == 0


def test_the_first_file_that_cufile_refuses_is_logged(local, gpu, caplog):
    gpu.set_kinds(DIRECT)
    with weightfs.gds_handle() as handle:
        assert handle.sync_pwrite(gpu.array(some()), str(local / "taken")) == 1
        assert handle.refusal == ""
        gpu.fail("cuFileHandleRegister", times=2, status=5018)
        for name in ("first", "second"):
            assert handle.sync_pwrite(gpu.array(some()), str(local / name)) == 1
        assert f"{local}/first: " in handle.refusal and "5018" in handle.refusal
        assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
            f"GPU transfers by bounce buffers: {handle.refusal}"]


def test_the_copier_of_fastsafetensors_fills_its_memory_on_the_gpu(gpu, handle, folder, monkeypatch):
    common = pytest.importorskip("fastsafetensors.common", reason="needs fastsafetensors: scripts/setup installs it")
    copier = importlib.import_module("weightfs.fastsafetensors")
    monkeypatch.setattr(copier, "the_handle", lambda *_: contextlib.nullcontext(handle))
    save_file({"a": random_tensor(SIZE), "b": random_tensor(SIZE, seed=2)}, folder / "file")
    device = importlib.import_module("fastsafetensors.st_types").Device.from_str("cuda:0")
    metadata = common.SafeTensorsMetadata.from_file(
        str(folder / "file"), importlib.import_module("fastsafetensors.frameworks").get_framework_op("pytorch"))
    array = gpu.array(size=2 * SIZE)
    framework = types.SimpleNamespace(alloc_tensor_memory=lambda size, _: types.SimpleNamespace(
        get_base_address=lambda: array.address if size == array.size else 0))
    reading = copier.Copier(metadata, device, framework)
    reading.submit_io(False, 1 << 30)
    reading.finish_io()
    assert array.content() == content(random_tensor(SIZE)) + content(random_tensor(SIZE, seed=2))
