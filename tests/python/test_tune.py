# SPDX-License-Identifier: Apache-2.0
"""weightfs-tune: its sweep, its output, and what remains when it is stopped."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

import weightfs
from weightfs.tools import io, tune

BEST = r"Best performance \(GB/sec\): read = +[0-9.]+, write = +[0-9.]+\n"
SMALL = {"block_size": ["64K", 131072], "queue_depth": [4], "io_parallel": [1, 2]}


@pytest.fixture
def measured(monkeypatch):
    """Records the settings of each measurement; the measurements are real."""
    settings, really = [], tune.measure
    monkeypatch.setattr(tune, "measure", lambda one: settings.append(one) or really(one))
    return settings


@pytest.fixture
def config(local):
    (local / "sweep.json").write_text(json.dumps(SMALL))
    return str(local / "sweep.json")


@pytest.mark.limit(300)
def test_it_prints_the_best_options_and_they_configure_a_handle(local, capfd, monkeypatch, measured):
    small = {"block_size": [1 << 20], "queue_depth": [32], "io_parallel": [1, 2]}
    monkeypatch.setattr(tune, "SWEEP", tune.SWEEP | small)
    assert tune.main(["--nvme_dir", str(local), "--io_size", "1M", "--log_dir", str(local / "log")]) == 0
    best, printed = capfd.readouterr().out.split("\n", 1)
    assert re.fullmatch(BEST, best + "\n")
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


def test_with_json_it_prints_only_json(local, capsys, monkeypatch):
    monkeypatch.setattr(tune, "run_sweep",
                        lambda args, results: results.append(({"queue_depth": 1}, {"read": 2.0, "write": 3.0})))
    assert tune.main(["--nvme_dir", str(local), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"aio": {"queue_depth": 1}}
    assert printed.err == "Best performance (GB/sec): read =  2.00, write =  3.00\n"


def test_it_sweeps_what_deepspeeds_does():
    assert len(list(tune.candidates(tune.SWEEP))) == 2 * 2 * 2 * 2 * 4


def test_it_chooses_for_reads_and_writes_together():
    slow, reads, both = (({}, {"read": read, "write": write}) for read, write in ((1.0, 1.0), (10.0, 1.0), (9.0, 4.0)))
    assert tune.choose([slow, reads, both]) is both
    reads, writes = ({}, {"read": 2.0}), ({}, {"read": 1.0})
    assert tune.choose([writes, reads]) is reads


@pytest.mark.limit(300)
def test_a_configuration_selects_the_sweep(local, capfd, config, measured):
    assert tune.main(["--nvme_dir", str(local), "--io_size", "1M", "--sweep_config", config]) == 0
    assert re.match(BEST, capfd.readouterr().out)
    assert [(one.block_size, one.queue_depth, one.io_parallel, one.sequential_requests, one.single_submit)
            for one in measured[::2]] == [(1 << 16, 4, 1, False, False), (1 << 16, 4, 2, False, False),
                                          (1 << 17, 4, 1, False, False), (1 << 17, 4, 2, False, False)]


@pytest.mark.parametrize("content,reason", [
    ("{", "no JSON"), ("[]", "no dict"), ("{}", "no dict"), ('{"depth": [1]}', "'depth' is none of block_size"),
    ('{"queue_depth": 4}', "no list"), ('{"queue_depth": []}', "empty"), ('{"queue_depth": [0]}', "at least 1"),
    ('{"queue_depth": [true]}', "at least 1"), ('{"queue_depth": [1.5]}', "1.5"),
    ('{"io_parallel": ["two"]}', "io_parallel: 'two' is not a whole number"),
    ('{"single_submit": [1]}', "true or false"), ('{"block_size": ["1X"]}', "size"), (None, "No such file")])
def test_an_invalid_configuration_is_reported_before_anything_is_measured(local, capfd, measured, content, reason):
    if content is not None:
        (local / "sweep.json").write_text(content)
    with pytest.raises(SystemExit) as ended:
        tune.main(["--nvme_dir", str(local), "--sweep_config", str(local / "sweep.json")])
    assert ended.value.code == 2
    error = capfd.readouterr().err
    assert str(local / "sweep.json") in error and reason in error
    assert measured == []


@pytest.mark.limit(300)
@pytest.mark.parametrize("kind", ["read", "write"])
def test_reads_or_writes_alone_may_be_measured(local, capfd, config, measured, kind):
    left_out = {"read": "--no_write", "write": "--no_read"}[kind]
    assert tune.main(["--nvme_dir", str(local), "--io_size", "1M", "--sweep_config", config, left_out, "--log_dir",
                      str(local / "log")]) == 0
    assert re.match(rf"Best performance \(GB/sec\): {kind} = +[0-9.]+\n{{\n", capfd.readouterr().out)
    assert [one.read for one in measured] == [kind == "read"] * 4
    rows = json.loads((local / "log/sweep.json").read_text())
    assert all(kind in row and len(row) == 6 for row in rows) and len(rows) == 4
    with pytest.raises(SystemExit) as ended:
        tune.main(["--nvme_dir", str(local), "--no_read", "--no_write"])
    assert ended.value.code == 2 and "nothing to measure" in capfd.readouterr().err


@pytest.mark.limit(300)
def test_verbose_prints_the_settings_and_the_seconds_of_each_measurement(local, capfd, config):
    words = ["--nvme_dir", str(local), "--io_size", "1M", "--sweep_config", config, "--no_write"]
    assert tune.main(words) == 0
    assert "latency" not in capfd.readouterr().err
    assert tune.main([*words, "--verbose"]) == 0
    error = capfd.readouterr().err
    assert "4 combinations" in error and "nvme_dir=" in error
    assert error.count("read: Settings(folders=") == error.count("read: Result(task_latency_s=") == 4


# The signal arrives after one combination was measured, while the next is blocked, so the test does not depend on time.
STOPPED = """
import sys
from weightfs.tools import tune
really, calls = tune.measure, []
def measure(settings):
    calls.append(settings)
    if len(calls) > {whole}:
        print("held", flush=True)
        import threading
        threading.Event().wait()
    return really(settings)
tune.measure = measure
sys.exit(tune.main(sys.argv[1:]))
"""


@pytest.mark.limit(300)
@pytest.mark.parametrize("number,status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("whole", [0, 3], ids=["before the first result", "after it"])
def test_a_stop_prints_the_best_so_far(local, config, number, status, whole):
    program = subprocess.Popen([sys.executable, "-c", STOPPED.format(whole=whole), "--nvme_dir", local, "--io_size",
                                "1M", "--sweep_config", config, "--log_dir", local / "log"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "held\n"
    program.send_signal(number)
    out, error = program.communicate(timeout=100)
    assert program.returncode == status, error
    rows = json.loads((local / "log/sweep.json").read_text())
    assert f"stopped early: {whole // 2} of 4 combinations were measured" in error
    assert len(rows) == whole // 2
    if whole:
        assert re.match(BEST, out)
        assert json.loads(out.split("\n", 1)[1])["aio"]["queue_depth"] == 4
    else:
        assert out == ""
    assert "Traceback" not in error
    assert sorted(path.name for path in local.iterdir()) == ["log", "sweep.json"]


@pytest.mark.limit(300)
def test_a_measurement_that_fails_leaves_the_best_so_far(local, capfd, config, monkeypatch):
    really, calls = tune.measure, []

    def measure(settings):
        calls.append(settings)
        if len(calls) > 4:
            raise RuntimeError("the disk is full")
        return really(settings)

    monkeypatch.setattr(tune, "measure", measure)
    assert tune.main(["--nvme_dir", str(local), "--io_size", "1M", "--sweep_config", config]) == 1
    printed = capfd.readouterr()
    assert "the disk is full" in printed.err and re.match(BEST, printed.out)


@pytest.mark.limit(300)
@pytest.mark.parametrize("stop,status", [(None, 1), (KeyboardInterrupt, 130), (SystemExit(143), 143)],
                         ids=["to its end", "by Ctrl-C", "by SIGTERM"])
def test_a_file_that_cannot_be_written_costs_no_result_and_no_status(local, capfd, config, monkeypatch, stop, status):
    really, calls = tune.measure, []

    def measure(settings):
        calls.append(settings)
        if len(calls) == 8:
            (local / "log/sweep.json").unlink()
            (local / "log").rmdir()
            if stop is not None:
                raise stop
        return really(settings)

    monkeypatch.setattr(tune, "measure", measure)
    try:
        ended = tune.main(["--nvme_dir", str(local), "--io_size", "1M", "--sweep_config", config, "--log_dir",
                           str(local / "log")])
    except SystemExit as end:
        ended = end.code
    printed = capfd.readouterr()
    assert ended == status and re.match(BEST, printed.out)
    assert f"{local}/log/sweep.json cannot be written: No such file or directory" in printed.err
    assert "Traceback" not in printed.err


# The process blocks in the third repetition until it is ended.
HELD = """
import os, sys, threading
from weightfs.tools import _measure, io
if __name__ == "__main__":
    sys.exit(io.main(sys.argv[1:]))
really = _measure._Task.prepare
def prepare(task, loop):
    if loop == {loop}:
        print("held", flush=True)
        threading.Event().wait()
    return really(task, loop)
_measure._Task.prepare = prepare
"""


@pytest.mark.limit(300)
@pytest.mark.parametrize("number,status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("loop", [1, 3], ids=["before the first result", "after it"])
def test_io_prints_the_result_of_the_repetitions_so_far(local, number, status, loop):
    (local / "held.py").write_text(HELD.format(loop=loop))
    (local / "files").mkdir()
    program = subprocess.Popen([sys.executable, local / "held.py", "--folder", local / "files", "--io_size", "1M",
                                "--loops", "9"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "held\n"
    program.send_signal(number)
    out, error = program.communicate(timeout=100)
    assert program.returncode == status, error
    assert "weightfs-io: stopped early" in error and "Traceback" not in error
    match = re.fullmatch(r"Task Write Latency = (\S+) sec\nTask Write Speed = (\S+) GB/sec\n"
                         r"E2E Write Latency = \S+ sec\nE2E Write Speed = \S+ GB/sec\n", out)
    if loop == 1:
        assert out == ""
    else:
        # The result of the second repetition may be on its way.
        assert float(match[2]) * float(match[1]) * 1024 in (pytest.approx(1, rel=1e-3), pytest.approx(2, rel=1e-3))
    assert os.listdir(local / "files") == []


def test_io_prints_no_result_while_a_process_has_none(local):
    progress = io.Progress(io.Settings(folders=[str(local)] * 2, io_size=100, read=False))
    assert progress.result() is None
    progress.seconds[0].append((1.0, 2.0))
    assert progress.result() is None
    progress.seconds[1] += [(1.5, 2.0), (1.5, 2.0)]
    result = progress.result()
    assert (result.task_latency_s, result.e2e_latency_s, result.total_bytes) == (1.5, 2.0, 200)
