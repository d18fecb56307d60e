# SPDX-License-Identifier: Apache-2.0
"""Messages of the programs and examples for wrong usage, and their behavior when they are stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.filesystems import wait_until
from weightfs.tools import io, tune

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# The examples that are parts of others, and one that uses each.
PARTS = {"file_access.py": "load_tensor.py", "offload_model.py": "offload_train.py"}

TWO_WORKERS = [sys.executable, "-m", "weightfs.tools.io", "--io_size", "64M", "--loops", "100000", "--multi_process",
               "2"]


def first_line_of(run, arguments, capfd):
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    assert ended.value.code == 2
    return capfd.readouterr().err.splitlines()[0]


def test_the_first_line_is_the_error(local, capfd):
    assert "at least 1" in first_line_of(io.main, ["--folder", str(local), "--loops", "0"], capfd)
    assert "--folder" in first_line_of(io.main, [], capfd)
    assert "--loops" in first_line_of(tune.main, ["--nvme_dir", str(local), "--loops", "0"], capfd)
    assert "--nvme_dir" in first_line_of(tune.main, [], capfd)


@pytest.mark.parametrize("name", ["torch", "checkpoint", "dcp", "hf", "lightning", "offload", "safetensors",
                                  "safetensors.numpy"])
def test_a_missing_torch_is_named_with_the_command(child, name):
    out = child(f"""
import sys
sys.modules["torch"] = None
try:
    import weightfs.{name}
except ModuleNotFoundError as error:
    print(error, error.name)
""")
    assert "pip install torch" in out and out.endswith(" torch\n") and out.count("\n") == 1


def test_tune_checks_the_log_directory_before_measuring(local, capfd, monkeypatch):
    monkeypatch.setattr(tune, "run_sweep", lambda *_: pytest.fail("it measured"))
    (local / "file").write_bytes(b"")
    for folder in (local / "file", local / "file" / "below", "/proc/none"):
        line = first_line_of(tune.main, ["--nvme_dir", str(local), "--log_dir", str(folder)], capfd)
        assert "--log_dir" in line


def test_an_example_is_a_program_or_names_those_that_use_it():
    for path in EXAMPLES.glob("*.py"):
        begins = path.read_text(encoding="utf-8").startswith("#!")
        assert begins == os.access(path, os.X_OK) == (path.name not in PARTS), path.name
    for part, program in PARTS.items():
        done = subprocess.run([sys.executable, EXAMPLES / part], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and part in done.stderr and program in done.stderr, done


def test_folders_may_be_mapped_one_by_one(local):
    args = ["--folder_to_device_mapping", f"{local}:0", "--folder_to_device_mapping", f"{local}:1", f"{local}:2"]
    assert io.settings_of(*io.parse(args)).folders == [str(local)] * 3


def children_of(pid):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    direct = [int(word) for word in listed.stdout.split()]
    return direct + [below for child in direct for below in children_of(child)]


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition):
    assert wait_until(condition, limit=200)


@pytest.mark.limit(300)
@pytest.mark.parametrize("number,status", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)],
                         ids=["SIGTERM", "Ctrl-C", "SIGKILL"])
def test_io_that_is_stopped_leaves_no_process_and_no_file(local, number, status):
    command = [*TWO_WORKERS, "--folder", str(local)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        until(lambda: len(list(local.iterdir())) == 2)
        children = children_of(process.pid)
        assert len(children) >= 3
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        said = process.stderr.read()
        assert process.wait() == status
    assert "Traceback" not in said
    if number != signal.SIGKILL:   # Python itself reports what was left
        *before, last = said.splitlines()
        assert last == f"weightfs-io: {'interrupted' if number == signal.SIGINT else 'terminated'}"
        assert [line.startswith("weightfs-io: stopped early: ") for line in before] == [True]
    until(lambda: not any(map(runs, children)))
    assert list(local.iterdir()) == []


WAITS = """
import multiprocessing, os, signal
from weightfs.tools import _measure

def work():
    kill, calls = os.kill, []
    os.kill = lambda *call: calls.append(call) if not calls else kill(*call)   # the first finds it awake
    _measure.be_a_worker()
    lock.acquire()

context = multiprocessing.get_context("fork")
lock = context.Semaphore(0)
worker = context.Process(target=work)
worker.start()
print(worker.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_ends_with_its_parent_whatever_it_waits_for():
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as process:
        worker = int(process.stdout.readline())
    until(lambda: not runs(worker))


@pytest.mark.limit(300)
def test_io_says_which_of_its_processes_was_killed(local):
    command = [*TWO_WORKERS, "--folder", str(local)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: len(list(local.iterdir())) == 2)
        children = children_of(process.pid)
        worker = int(next(local.iterdir()).name.split("_")[3])   # _weightfs_io_PID_NUMBER
        os.kill(worker, signal.SIGKILL)
        said = process.stderr.read()
        assert process.wait() == 1
    assert said == f"weightfs-io: process {worker} was killed by SIGKILL and gave no result\n"
    until(lambda: not any(map(runs, children)))
    assert list(local.iterdir()) == []


@pytest.mark.parametrize("arguments,reason", [
    (["run_file_access.py", "--nvme_folder", "/nosuch"], "/nosuch: no such directory"),
    (["load_tensor.py", "--input_file", "/etc/passwd", "--loop", "0"], "'0' is no number"),
    (["store_tensor.py", "--nvme_folder", "/tmp", "--mb_size", "-1"], "--mb_size"),
    (["store_tensor.py", "--nvme_folder", "/nosuch"], "/nosuch: no such directory")])
def test_an_example_reports_an_error_in_one_line(arguments, reason):
    done = subprocess.run([sys.executable, EXAMPLES / arguments[0], *arguments[1:]], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2
    assert reason in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


def test_the_table_reports_an_example_that_dies_silently(local, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import run_file_access
    (local / "silent.py").write_text("import os; os.kill(os.getpid(), 9)")
    assert "silent.py ended with status -9" in run_file_access.run(local / "silent.py")


@pytest.mark.parametrize("way", ["py", "aio"])
def test_an_example_loads_an_empty_file(local, way):
    (local / "empty").write_bytes(b"")
    done = subprocess.run([sys.executable, EXAMPLES / "load_tensor.py", "--with", way, "--input_file", local / "empty",
                           "--validate"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
