"""weightfs-io, weightfs-tune and the examples."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import weightfs
from weightfs.tools import _measure, io, tune

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
def test_io_saves_in_the_format_that_is_asked_for(local, engine, legacy):
    settings = _measure.Settings(folders=[str(local)], io_size=4096, read=False, engine=engine, torch_legacy_save=legacy)
    task = _measure._Task(settings, 0)
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


def test_io_says_what_is_wrong(local, capfd):
    for wrong, reason in ((["--folder", "/nowhere"], "no such directory"),
                          (["--io_size", "x", "--folder", str(local)], "size"),
                          ([], "required"), (["--folder", str(local), "--gpu"], "no GPU"),
                          (["--folder", str(local), "--use_gds"], "no GPU"),
                          (["--folder", str(local), "--use_accelerator_pin_memory"], "no GPU"),
                          (["--folder", str(local), "--slow_bounce_buffer"], "for --gpu"),
                          (["--folder", str(local), "--fast_io_size", "many"], "size"),
                          (["--folder", str(local), "--loops", "0"], "begin at 1")):
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


@pytest.mark.limit(300)
def test_tune_prints_the_best_options_and_they_configure_a_handle(local, capfd, monkeypatch):
    monkeypatch.setattr(tune, "PARALLELISMS", (1, 2))
    monkeypatch.setattr(tune, "QUEUE_DEPTHS", (32,))
    monkeypatch.setattr(tune, "BLOCK_SIZES", (1 << 20,))
    measured = []
    really = tune.measure
    monkeypatch.setattr(tune, "measure", lambda settings: measured.append(settings) or really(settings))
    assert tune.main(["--nvme_dir", str(local), "--io_size", "1M", "--log_dir", str(local / "log")]) == 0
    best, printed = capfd.readouterr().out.split("\n", 1)
    assert re.fullmatch(r"Best performance \(GB/sec\): read = +[0-9.]+, write = +[0-9.]+", best)
    options = json.loads(printed)["aio"]
    handle = weightfs.aio_handle(**options)
    assert handle.get_block_size() == options["block_size"]
    assert handle.get_queue_depth() == options["queue_depth"]
    assert handle.get_intra_op_parallelism() == options["intra_op_parallelism"]
    assert handle.get_single_submit() is options["single_submit"]
    assert handle.get_overlap_events() is options["overlap_events"]
    sweep = json.loads((local / "log/sweep.json").read_text())
    assert len(sweep) == 8 and len(measured) == 16
    assert len({json.dumps({**row, "read": 0, "write": 0}) for row in sweep}) == 8


def test_tune_prints_nothing_but_json_where_that_is_asked_for(local, capsys, monkeypatch):
    monkeypatch.setattr(tune, "sweep", lambda args, io_size: [({"queue_depth": 1}, 2.0, 3.0)])
    assert tune.main(["--nvme_dir", str(local), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"aio": {"queue_depth": 1}}
    assert printed.err == "Best performance (GB/sec): read =  2.00, write =  3.00\n"


def test_tune_sweeps_what_deepspeeds_does():
    assert len(list(tune.candidates())) == 2 * 2 * 2 * 2 * 4


def test_tune_chooses_for_reads_and_writes_together():
    slow, reads, both = ({"n": n} for n in range(3))
    assert tune.choose([(slow, 1.0, 1.0), (reads, 10.0, 1.0), (both, 9.0, 4.0)])[0] is both


def test_examples_print_their_speed_and_the_runner_a_table(local):
    def run(*words, status=0):
        done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    (local / "source").write_bytes(bytes(range(256)) * 8192)
    for way in ("py", "aio"):
        assert re.search(r"load.*GB/sec, validated", run(EXAMPLES / "load_tensor.py", "--with", way, "--input_file",
                                                          local / "source", "--loop", 1, "--validate"))
        assert re.search(r"store.*GB/sec, validated", run(EXAMPLES / "store_tensor.py", "--with", way, "--nvme_folder",
                                                           local, "--mb_size", 2, "--loop", 1, "--validate"))
    for words in (("--device", "gpu"), ("--with", "gds")):
        assert "no GPU" in run(EXAMPLES / "load_tensor.py", "--input_file", local / "source", *words, status=1)
    table = run(EXAMPLES / "run_file_access.py", "--nvme_folder", local, "--mb_size", 2, "--loop", 1, "--validate")
    assert len(re.findall(r"^\| CPU \| AIO \| [0-9.]+ \| [0-9.]+x \|$", table, re.MULTILINE)) == 2
    assert table.count("no GPU") == 6
    assert [path.name for path in local.iterdir()] == ["source"]
