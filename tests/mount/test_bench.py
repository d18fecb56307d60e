# SPDX-License-Identifier: Apache-2.0
"""`weightfs bench`: a tiny run measures every row and leaves nothing behind; so does an interrupted run."""

import contextlib
import html
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from harness import needs, process
from harness.filesystems import REPOSITORY, is_mounted, program, wait_until

sys.path.append(str(REPOSITORY))

from bench.program import Client, Failure  # noqa: E402

pytestmark = [pytest.mark.usefixtures("weightfs_only"), pytest.mark.limit(300)]

PYTHON = REPOSITORY / ".venv/bin/python"
LIBRARIES = {"torch", "safetensors", "numpy", "handles"}
MEMORY = "/dev/shm"
OF_OTHERS = set(os.listdir(MEMORY))   # also of benchmarks that were killed before these tests


def bench(*words, codes=(0,)):
    return process.run([program(), "bench", *words], codes=codes, limit=200)


def mounts_below(directory):
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as table:   # other tests mount any names
        points = [line.split()[1].replace("\\040", " ") for line in table]
        return [point for point in points if point.startswith(f"{directory}/")]


def left_in(directory):
    """What a run should have removed: files, mounts, and its files in memory."""
    # The names end with a process ID; those of a benchmark that is still running are not ours.
    in_memory = [name for name in set(os.listdir(MEMORY)) - OF_OTHERS if name.startswith("weightfs-bench")
                 and not os.path.exists(f"/proc/{name.rsplit('-', 1)[1]}")]
    return os.listdir(directory) + mounts_below(directory) + in_memory


FEW = ("read-1m", "write-1m", "save-many", "numpy-load", "create", "stat", "replace-4k", "unlink",
       "fsync-4k-8")   # without --full


@pytest.fixture(scope="module")
def run(session_factory, request):
    """One run, as small as possible: with --full of everything, otherwise of a few rows."""
    full = request.config.getoption("full")
    directory, results = session_factory.directory("bench"), session_factory.directory("results")
    python = ["--python", PYTHON] if PYTHON.exists() else []
    finished = bench(directory, "--quick", "--size", "32M", "--seed", "7", "--json", results / "result.json",
                     "--report", results / "report.html", *python, *([] if full else ["--only", ",".join(FEW)]))
    return {"rows": [row for row, _ in listed_rows() if full or row in FEW], "out": finished.out,
            "left": left_in(directory), "html": (results / "report.html").read_text(),
            "json": json.loads((results / "result.json").read_text())}


def listed_rows():
    return [line.split()[:2] for line in bench("--list").out.splitlines()[1:]]


def test_the_list_as_json_says_what_the_table_says(tmp_path):
    rows = json.loads(bench("--list", "--json").out)["rows"]
    assert [[row["id"], row["group"]] for row in rows] == listed_rows()
    assert all(target > 0 for row in rows for target in row["at_least"].values())
    assert any(row["at_least"] for row in rows)
    bench("--list", "--json", tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text())["rows"] == rows


def test_every_listed_row_is_measured_or_says_why_not(run):
    rows = {row["id"]: row for row in run["json"]["rows"]}
    assert run["rows"] == list(rows)
    for name, row in rows.items():
        if "weightfs" not in row["ways"]:
            excused = row["group"] in LIBRARIES or name == "git-add"
            assert excused and row["not_measured"]["weightfs"], f"{name}: neither measured nor explained"
            assert f"{name}, weightfs: not measured" in run["out"]


def test_figures_are_plausible(run):
    for row in run["json"]["rows"]:
        for way, figures in row["ways"].items():
            what = f"{row['id']}, {way}: {figures}"
            assert 0 < figures["min"] <= figures["median"] <= figures["max"], what
            assert figures["max"] < (1e12 if row["unit"] == "GB/s" else 1e8), what
            assert len(figures["samples"]) == 1 and figures["samples"][0]["seconds"] > 0, what


def test_sequential_rows_are_compared_with_reference_and_host(run):
    rows = {row["id"]: row for row in run["json"]["rows"]}
    sequential = {"read-1m", "read-whole", "mmap", "write-1m", "write-whole", "write-unaligned"}
    for name in sequential & rows.keys():
        ratios = {check["against"]: check for check in rows[name]["checks"]}
        ways = rows[name]["ways"]
        for against in ("reference", "host"):
            expected = ways["weightfs"]["median"] / ways[against]["median"]
            assert ratios[against]["value"] == pytest.approx(expected), name
            wanted = ratios[against].get("at_least")   # in memory there is no target relative to the host
            state = "shown" if wanted is None else "ok" if expected >= wanted else "short"
            assert ratios[against]["state"] == state, name


def test_the_run_is_described(run):
    result = run["json"]
    assert result["seed"] == 7 and result["rounds"] == 1 and result["size_bytes"] == 32 << 20
    assert {"kernel", "processors", "memory", "host's filesystem", "mount options"} <= result["facts"].keys()
    daemon = result["daemon"]
    assert 0 < daemon["memory_now_bytes"] <= daemon["memory_peak_bytes"] and 0 <= daemon["idle_cpu"] < 2
    assert "--size 32M --rounds 1 --quick" in result["facts"]["run"] and "--seed 7" in result["facts"]["run"]


def test_one_round_claims_no_noise_and_no_medians(run):
    assert "noise: unknown after one round; load average" in run["out"]
    assert "one round, which only shows that the benchmark works" in run["out"]
    assert not re.search(r"medians of|varied by|[0-9]–[0-9]", run["out"])


def test_the_report_is_one_file_with_everything_in_it(run):
    page = run["html"]
    assert not re.search(r"https?://(?!www.w3.org/2000/svg)|<script|<link|<img|@import|\bsrc=|url\(", page)
    measured = [row for row in run["json"]["rows"] if row["ways"]]
    assert all(f">{html.escape(row['title'])}<" in page for row in measured) and page.count("--bar:") >= 3


def test_the_worker_finds_wrong_bytes_where_it_is_asked(tmp_path):
    """Comparing takes time, and it would be measured on one of two ways only."""
    worker = Client(str(program()), "bench-worker")
    files = {"path": str(tmp_path / "files"), "count": 4, "size": 4096}
    try:
        worker.ask("prepare", bytes=1 << 20, warm=False)
        worker.ask("write", path=str(tmp_path / "large"))
        worker.ask("create", **files)
        with pytest.raises(Failure, match="nonsense: no job of bench-worker"):
            worker.ask("nonsense", direct=False, path=str(tmp_path / "large"))
        for path, jobs in ((tmp_path / "large", ("read", "map")), (tmp_path / "files/file-000002", ("read-all",))):
            with open(path, "r+b") as stream:
                stream.write(b"wrong")
            for do in jobs:
                job = files if do == "read-all" else {"path": str(path)}
                worker.ask(do, **job)
                with pytest.raises(Failure, match=f"{path.name}: wrong bytes at 0"):
                    worker.ask(do, check=True, **job)
    finally:
        worker.end()


@pytest.mark.skipif(not PYTHON.exists(), reason="needs .venv with torch and safetensors")
def test_a_library_that_only_loads_loads_what_safetensors_saved(tmp_path, monkeypatch):
    """Its ImportError is a missing library only while the client is prepared."""
    (tmp_path / "fastsafetensors.py").write_text(
        "import os, safetensors\n"
        "def fastsafe_open(paths, nogds, device):\n"
        "    if os.path.exists(paths[0] + '.broken'):\n"
        "        import nonsense\n"
        "    return safetensors.safe_open(paths[0], 'pt', device)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = tmp_path / "file"
    client = Client(str(PYTHON), str(REPOSITORY / "bench/libraries.py"))
    try:
        assert "version" in client.ask("prepare", library="fastsafetensors", bytes=1 << 20)
        for do in ("save", "load"):
            client.ask(do, path=str(path), check=do == "load")
        (tmp_path / "file.broken").touch()
        with pytest.raises(Failure, match="ModuleNotFoundError: No module named 'nonsense'"):
            client.ask("load", path=str(path), check=False)
    finally:
        client.end()


def test_nothing_is_left(run):
    assert run["left"] == []


def files_written_below(directory):
    """The file that the write rows write through the mount. It exists while the worker uses the mount."""
    found = []
    for mount in mounts_below(directory):
        with contextlib.suppress(OSError):   # unmounted meanwhile
            found += [name for name in os.listdir(mount) if name == "written"]
    return found


MOMENTS = pytest.mark.parametrize("moment", [mounts_below, files_written_below], ids=["mounted", "writing"])


def start_and_wait(directory, moment, **options):
    running = subprocess.Popen([program(), "bench", directory, "--quick", "--size", "32M", "--rounds", "1000", "--only",
                                "write"], **options)
    assert wait_until(lambda: moment(directory) or running.poll() is not None), "it never came so far"
    return running


@MOMENTS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_run_leaves_nothing(factory, number, moment):
    directory = factory.directory("bench")
    running = start_and_wait(directory, moment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.kill(running.pid, number)
    finished = process.finish(running, limit=60, codes=(1,))
    assert finished.err == "weightfs: interrupted; what the benchmark made is removed\n" and finished.out == ""
    assert left_in(directory) == []


@MOMENTS
def test_a_killed_run_leaves_nothing_either(factory, moment):
    directory = factory.directory("bench")
    running = start_and_wait(directory, moment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running.kill()
    process.finish(running, codes=(-signal.SIGKILL,))
    assert wait_until(lambda: left_in(directory) == []), left_in(directory)


def test_an_existing_mount_is_measured_and_left_as_it_was(factory):
    mount = factory.mount(factory.store("512M"))
    (mount.path / "mine").write_bytes(b"mine")
    inside, host = mount.path / "inside", factory.directory("host")
    inside.mkdir()
    finished = bench(inside, "--quick", "--size", "32M", "--only", "write-1m,stat", "--host", host, "--json")
    rows = {row["id"]: row for row in json.loads(finished.out)["rows"]}
    assert rows.keys() == {"write-1m", "stat"} and all(row["ways"]["weightfs"]["median"] > 0 for row in rows.values())
    assert os.listdir(inside) == [] and os.listdir(host) == []
    assert (mount.path / "mine").read_bytes() == b"mine" and is_mounted(mount.path)
    mount.fsck()


@needs.loop_devices()
def test_on_a_block_device_the_reference_reads_the_blocks_of_the_file(factory):
    directory = factory.directory("device")
    with open(directory / "image", "wb") as stream:
        stream.truncate(640 << 20)
    device = process.run(["losetup", "--find", "--show", directory / "image"]).out.strip()
    try:
        mount = factory.mount(factory.store(devices=[device]))
        words = ["--quick", "--size", "32M", "--only", "read-1m,write-1m", "--host", directory, "--json"]
        out = bench(mount.path, *words).out
        rows = {row["id"]: row for row in json.loads(out)["rows"]}
        assert rows["read-1m"]["ways"]["reference"]["median"] > 0
        assert "block device" in rows["write-1m"]["not_measured"]["reference"]
        mount.fsck()
        process.run([program(), "verify", mount.store.directory])
    finally:
        mount.close()
        process.run(["losetup", "--detach", device])


def test_without_a_python_the_rows_say_so(factory):
    directory = factory.directory("bench")
    out = bench(directory, "--quick", "--size", "32M", "--only", "numpy", "--python", "/nonexistent/python").out
    for row in ("numpy-save", "numpy-load"):
        assert f"{row}, weightfs: not measured" in out
    assert left_in(directory) == []


def test_modules_of_the_current_directory_are_not_executed(factory, tmp_path, monkeypatch):
    for name in ("json", "types", "shutil", "numpy", "resource", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()")
    fake = tmp_path / ".venv/bin/python"
    fake.parent.mkdir(parents=True)
    fake.write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
    fake.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    bench(factory.directory("bench"), "--quick", "--size", "32M", "--only", "numpy,stat")
    assert not (tmp_path / "executed").exists()


def test_the_printed_command_repeats_the_run_on_an_existing_mount(factory):
    mount, host = factory.mount(factory.store("512M")), factory.directory("host")
    words = [mount.path, "--quick", "--size", "32M", "--host", host, "--only", "stat*", "--json"]
    outcome = json.loads(bench(*words).out)
    assert [row["id"] for row in outcome["rows"]] == ["stat", "stat-again"]
    again = shlex.split(outcome["facts"]["run"])
    assert again[:2] == ["weightfs", "bench"]
    assert json.loads(bench(*again[2:], "--json").out)["facts"]["run"] == outcome["facts"]["run"]


@needs.root
def test_nothing_is_removed_through_a_mount_below_a_name_with_a_blank(factory):
    """A filesystem that a user mounts into the scratch directory is kept with its content."""
    directory = factory.directory("be nch")
    running = start_and_wait(directory, mounts_below, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    theirs = directory / os.listdir(directory)[0] / "theirs"
    theirs.mkdir()
    process.run(["mount", "-t", "tmpfs", "theirs", theirs])
    try:
        (theirs / "file").write_bytes(b"theirs")
        process.kill(running.pid, signal.SIGINT)
        process.finish(running, limit=60, codes=(1,))
        assert (theirs / "file").read_bytes() == b"theirs"
    finally:
        process.run(["umount", theirs])
        shutil.rmtree(directory)


def test_without_python3_the_command_says_what_it_needs(factory, tmp_path):
    directory = factory.directory("bench")
    finished = process.run([program(), "bench", directory, "--quick", "--size", "32M"], codes=(1,),
                           env={**os.environ, "PATH": str(tmp_path)})
    assert "needs python3" in finished.err and finished.err.count("\n") == 1 and finished.out == ""
    (tmp_path / "python3").touch()   # it is not executable
    finished = process.run([program(), "bench", directory], codes=(1,), env={**os.environ, "PATH": str(tmp_path)})
    assert "python3: cannot be run: Permission denied" in finished.err and finished.err.count("\n") == 1
    assert left_in(directory) == []


def test_an_unwritable_report_is_refused_before_the_run(factory, tmp_path):
    directory = factory.directory("bench")
    for option in ("--json", "--report"):
        for path in (tmp_path / "missing" / "file", tmp_path):
            finished = bench(directory, "--quick", "--size", "32M", option, path, codes=(1,))
            assert finished.err.startswith(f"weightfs: {path}: cannot be written: ") and finished.err.count("\n") == 1
            assert finished.out == "" and left_in(directory) == []
    one = tmp_path / "x"
    both = bench(directory, "--quick", "--size", "32M", "--json", one, "--report", one, codes=(1,))
    assert "name one file" in both.err and not one.exists()


def test_an_old_report_outlives_a_run_that_fails(factory, tmp_path):
    directory, report, new = factory.directory("bench"), tmp_path / "report.html", tmp_path / "new.json"
    report.write_text("the last report")
    bench(directory, "--size", "1000T", "--report", report, "--json", new, codes=(1, 2))
    assert report.read_text() == "the last report" and not new.exists()


@pytest.mark.parametrize("words, names", [
    ([], "DIR is missing"),
    (["{}", "--only", "nonsense"], "nonsense"),
    (["{}", "-o", "nonsense"], "nonsense"),
    (["{}", "--size", "1000T"], "--size"),
    (["{}", "--nonsense"], "--nonsense"),
], ids=lambda words: " ".join(words) if isinstance(words, list) else "")
def test_a_wrong_call_says_so_in_one_line(factory, words, names):
    directory = factory.directory("bench")
    finished = bench(*(word.format(directory) for word in words), codes=(1, 2))
    assert finished.err.startswith("weightfs: ") and finished.err.count("\n") == 1 and names in finished.err, finished
    assert finished.out == "" and left_in(directory) == []
