# SPDX-License-Identifier: Apache-2.0
"""weightfs-io, weightfs-tune and the examples."""

import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from weightfs.tools import _measure, io

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LINES = "".join(rf"{part} {{0}} Latency = (\S+) sec\n{part} {{0}} Speed = (\S+) GB/sec\n" for part in ("Task", "E2E"))


@pytest.mark.parametrize("engine", _measure.ENGINES)
@pytest.mark.parametrize("read", [False, True], ids=["write", "read"])
def test_io_measures_every_engine_both_ways(local, capfd, engine, read):
    options = ["--folder", str(local), "--io_size", "4M", "--engine", engine, "--validate", "--loops", "2"]
    assert io.main(options + (["--read"] if read else [])) == 0
    match = re.fullmatch(LINES.format("Read" if read else "Write"), capfd.readouterr().out)
    task_s, task_speed, e2e_s, e2e_speed = map(float, match.groups())
    assert task_speed == pytest.approx(2 * (4 << 20) / task_s / 1024 ** 3)
    assert e2e_speed == pytest.approx(2 * (4 << 20) / e2e_s / 1024 ** 3)
    assert e2e_s >= task_s > 0
    assert list(local.iterdir()) == []


def test_io_counts_the_first_repetitions_when_asked(local, capfd):
    assert io.main(["--folder", str(local), "--io_size", "4M", "--loops", "2", "--warmup_loops", "3", "--engine",
                    "torch_fastio", "--torch_legacy_save", "--fast_io_size", "1M", "--include_warmup_time"]) == 0
    task_s, task_speed, *_ = map(float, re.fullmatch(LINES.format("Write"), capfd.readouterr().out).groups())
    assert task_speed == pytest.approx(5 * (4 << 20) / task_s / 1024 ** 3)


@pytest.mark.parametrize("engine", ["torch_io", "torch_fastio"])
@pytest.mark.parametrize("legacy", [False, True])
def test_io_saves_in_the_requested_format(local, engine, legacy):
    settings = _measure.Settings(folders=[str(local)], io_size=4096, read=False, engine=engine, torch_legacy_save=legacy)
    task = _measure._Task(settings, 0, 0)
    task.run(0)
    assert zipfile.is_zipfile(task.path(0)) is not legacy
    task.close()


def test_io_runs_several_processes_and_folders(local, capfd):
    for name in "ab":
        (local / name).mkdir()
    assert io.main(["--folder_to_device_mapping", f"{local}/a:0", f"{local}/b:1", "--multi_process", "2", "--io_size",
                    "1M", "--io_parallel", "2", "--single_submit", "--sequential_requests", "--queue_depth", "4",
                    "--block_size", "64K", "--different_file_each_iteration", "--warmup_loops", "0", "--validate"]) == 0
    _, task_speed, *_ = map(float, re.fullmatch(LINES.format("Write"), capfd.readouterr().out).groups())
    assert task_speed > 0


def test_io_reports_wrong_arguments(local, capfd):
    for wrong, reason in ((["--folder", "/nowhere"], "no such directory"),
                          (["--io_size", "x", "--folder", str(local)], "size"),
                          ([], "required"), (["--folder", str(local), "--gpu"], "no GPU"),
                          (["--folder", str(local), "--use_gds"], "no GPU"),
                          (["--folder", str(local), "--use_accelerator_pin_memory"], "no GPU"),
                          (["--folder", str(local), "--slow_bounce_buffer"], "for --gpu"),
                          (["--folder", str(local), "--fast_io_size", "many"], "size"),
                          (["--folder", str(local), "--loops", "0"], "at least 1")):
        with pytest.raises(SystemExit) as ended:
            io.main(wrong)
        assert ended.value.code != 0
        assert reason in capfd.readouterr().err


def test_io_gives_each_process_the_gpu_of_its_folder(local, capfd, monkeypatch):
    monkeypatch.setattr(io.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(io.torch.cuda, "device_count", lambda: 2)
    for name in "ab":
        (local / name).mkdir()
    mapping = ["--folder_to_device_mapping", f"{local}/a:1", f"{local}/b:0", "--multi_process", "2"]
    for options, gds in ((["--gpu"], False), (["--use_gds"], True), (["--gpu", "--use_gds"], True)):
        settings = io.settings_of(*io.parse(mapping + options))
        assert settings.gpus == [1, 1, 0, 0] and settings.use_gds is gds
        assert settings.folders == [f"{local}/{name}" for name in "aabb"]
    assert io.settings_of(*io.parse(mapping)).gpus == []
    for wrong, reason in ((["--folder_to_device_mapping", f"{local}/a:2", "--gpu"], "no GPU 2"),
                          (["--folder", str(local), "--use_gds", "--engine", "torch_io"], "engine")):
        with pytest.raises(SystemExit):
            io.settings_of(*io.parse(wrong))
        assert reason in capfd.readouterr().err


def test_io_fails_when_a_process_fails(capfd):
    assert io.main(["--folder", "/proc", "--io_size", "1M"]) == 1
    assert "/proc/_weightfs_io" in capfd.readouterr().err


@pytest.mark.full
def test_examples_print_their_speed_and_the_runner_a_table(local, capsys, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)

    def run(program, *words):
        """Runs it in this process, which has imported torch. The runner below starts each as a process of its own."""
        monkeypatch.setattr(sys, "argv", [str(program), *map(str, words)])
        runpy.run_path(str(program), run_name="__main__")
        return capsys.readouterr().out

    (local / "source").write_bytes(bytes(range(256)) * 8192)
    for way in ("py", "aio"):
        assert re.search(r"load.*GB/sec, validated", run(EXAMPLES / "load_tensor.py", "--with", way, "--input_file",
                                                          local / "source", "--loop", 1, "--validate"))
        assert re.search(r"store.*GB/sec, validated", run(EXAMPLES / "store_tensor.py", "--with", way, "--nvme_folder",
                                                           local, "--mb_size", 2, "--loop", 1, "--validate"))
    for words in (("--device", "gpu"), ("--with", "gds")):
        with pytest.raises(SystemExit) as ended:
            run(EXAMPLES / "load_tensor.py", "--input_file", local / "source", *words)
        assert "no GPU" in str(ended.value.code)
    done = subprocess.run([sys.executable, EXAMPLES / "run_file_access.py", "--nvme_folder", local, "--mb_size", "2",
                           "--loop", "1", "--validate"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = done.stdout
    assert len(re.findall(r"^\| CPU \| AIO \| [0-9.]+ \| [0-9.]+x \|$", table, re.MULTILINE)) == 2
    assert table.count("no GPU") == 6
    assert [path.name for path in local.iterdir()] == ["source"]
