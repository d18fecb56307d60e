# SPDX-License-Identifier: Apache-2.0
"""gds_handle and the programs with a real GPU."""

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import weightfs
import weightfs.safetensors
from tensors import content, random_tensor
from weightfs.tools import io, tune

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(),
                                reason="needs an NVIDIA GPU that torch can use: torch.cuda.is_available() is false")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIZE = 20_000_003


@pytest.fixture(params=["aio", "bounce", "cufile"])
def handle(request):
    if request.param == "aio":
        made = weightfs.aio_handle(overlap_events=True)
    else:
        try:
            made = weightfs.gds_handle(overlap_events=True, mode=request.param)
        except OSError as error:
            pytest.skip(f"needs cuFile: {error.strerror}")
    with made:
        yield made


def test_tensors_come_back_as_they_were(folder, handle):
    values = random_tensor(SIZE)
    tensor = values.cuda()
    path = str(folder / "file")
    try:
        handle.write_from(tensor, path)
    except OSError as error:
        # A requested mode may fail only because of the filesystem.
        assert getattr(handle, "mode", None) == "cufile" and "cufile" in error.strerror.lower()
        pytest.skip(error.strerror)
    assert (folder / "file").read_bytes() == content(values)
    target = torch.zeros_like(tensor)
    assert handle.sync_pread(target, path) == 1
    assert torch.equal(target, tensor)
    parts = target[:3_000_000].split(1_000_000)
    futures = [handle.read_async(part, path, i * 1000) for i, part in enumerate(parts)]
    assert [future.result() for future in futures] == [1_000_000] * 3
    assert torch.equal(target[1_000_000:2_000_000], tensor[1000:1_001_000])


def test_work_of_the_stream_before_a_write_is_waited_for(local, handle):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        values = torch.zeros(4_000_000, device="cuda")
        torch.cuda._sleep(1_000_000_000)   # cycles: the values change half a second later
        values.fill_(7)
        assert handle.sync_pwrite(values, str(local / "file")) == 1
    assert (local / "file").read_bytes() == content(torch.full((4_000_000,), 7.0))


def test_work_of_the_stream_before_a_read_is_waited_for(local, handle):
    (local / "file").write_bytes(content(torch.full((4_000_000,), 7.0)))
    with torch.cuda.stream(torch.cuda.Stream()):
        values = torch.zeros(4_000_000, device="cuda")
        torch.cuda._sleep(1_000_000_000)
        values.fill_(3)
        assert handle.sync_pread(values, str(local / "file")) == 1
    torch.cuda.synchronize()
    assert torch.equal(values.cpu(), torch.full((4_000_000,), 7.0))


def test_other_files_are_transferred_while_a_graph_is_captured(local, handle):
    host = random_tensor(SIZE)
    values, target = host.cuda(), torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    static, graph = torch.zeros(1000, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(1000):
            static += 1
        assert handle.sync_pwrite(host, str(local / "cpu")) == 1
        writer = threading.Thread(target=handle.sync_pwrite, args=(values, str(local / "file")))
        writer.start()
        writer.join()
    graph.replay()
    torch.cuda.synchronize()
    assert static[0] == 1000
    assert handle.sync_pread(target, str(local / "file")) == 1 and torch.equal(target, values)


def test_strided_tensors(local, handle):
    values = random_tensor(600 * 700, torch.float32).view(600, 700)
    assert handle.sync_pwrite(values.cuda().t(), str(local / "file")) == 1
    assert (local / "file").read_bytes() == content(values.t())
    target = torch.zeros(600, 700, device="cuda")
    assert handle.async_pread(target.t(), str(local / "file")) == 0
    assert handle.wait() == 1
    assert torch.equal(target.view(torch.uint8).cpu(), values.view(torch.uint8))


def test_pinned_device_tensors(local):
    with weightfs.gds_handle() as handle:
        tensor = handle.new_pinned_device_tensor(1 << 20, torch.empty(0, dtype=torch.float16))
        assert tensor.is_cuda and tensor.dtype == torch.float16 and handle.is_pinned(tensor)
        tensor.normal_()
        assert handle.sync_pwrite(tensor, str(local / "file")) == 1
        assert (local / "file").read_bytes() == content(tensor.cpu())
        assert handle.free_pinned_device_tensor(tensor) and not handle.is_pinned(tensor)


@pytest.mark.limit(300)
@pytest.mark.parametrize("gibibytes", [1, 4, 16])
def test_large_pins(local, gibibytes):
    if torch.cuda.mem_get_info()[0] < (gibibytes + 1) << 30:
        pytest.skip(f"needs {gibibytes + 1} GiB of free GPU memory")
    values = random_tensor(SIZE).cuda()
    try:
        handle = weightfs.gds_handle(mode="cufile")
    except OSError as error:
        pytest.skip(f"needs cuFile: {error.strerror}")
    with handle:
        tensor = torch.zeros(gibibytes << 30, dtype=torch.uint8, device="cuda")
        pinned = handle.pin_device_tensor(tensor)
        (local / "file").write_bytes(content(values.cpu()))
        try:
            assert handle.read_into(tensor[-SIZE:], str(local / "file")) == SIZE
        except OSError as error:
            assert "cufile" in error.strerror.lower()
            pytest.skip(error.strerror)
        assert torch.equal(tensor[-SIZE:], values)
        if not pinned:
            pytest.skip(f"cuFile does not pin {gibibytes} GiB: {handle.last_error.strerror}")
        assert handle.unpin_device_tensor(tensor)


def test_safetensors_between_files_and_the_gpu(local):
    tensors = {"large": torch.randn(3000, 1000, device="cuda"), "small": torch.arange(7, device="cuda"),
               "half": torch.randn(1001, device="cuda").bfloat16(), "strided": torch.randn(400, 500, device="cuda").t(),
               "empty": torch.empty(0, 3, device="cuda"), "cpu": torch.randn(100)}
    weightfs.safetensors.save_file(tensors, local / "file")
    for device in ("cuda", "cpu"):
        loaded = weightfs.safetensors.load_file(local / "file", device=device)
        assert loaded.keys() == tensors.keys()
        assert all(loaded[name].device.type == device for name in tensors)
        assert all(torch.equal(loaded[name].cpu(), tensor.cpu()) for name, tensor in tensors.items())


@pytest.mark.limit(300)
@pytest.mark.parametrize("options", [["--gpu"], ["--use_gds"], ["--gpu", "--engine", "torch_io"]], ids=" ".join)
def test_io_measures_gpu_tensors(local, capfd, options):
    for direction in ([], ["--read"]):
        assert io.main(["--folder", str(local), "--io_size", "8M", "--validate", *options, *direction]) == 0
        assert "Speed" in capfd.readouterr().out


@pytest.mark.limit(300)
def test_tune_measures_gpu_tensors(local, capfd, monkeypatch):
    for name, values in (("PARALLELISMS", (2,)), ("QUEUE_DEPTHS", (32,)), ("BLOCK_SIZES", (1 << 20,))):
        monkeypatch.setattr(tune, name, values)
    assert tune.main(["--nvme_dir", str(local), "--io_size", "8M", "--gds"]) == 0
    assert json.loads(capfd.readouterr().out.partition("\n")[2])["aio"]["intra_op_parallelism"] == 2


@pytest.mark.limit(300)
def test_the_examples_have_all_rows(local):
    done = subprocess.run([sys.executable, EXAMPLES / "run_file_access.py", "--nvme_folder", local, "--mb_size", "16",
                           "--loop", "1", "--validate"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    row = re.compile(r"^\| (CPU|GPU) \| (Python|AIO|GDS) \| [0-9.]+ \| [0-9.]+x \|$", re.MULTILINE)
    assert len(row.findall(done.stdout)) == 10
