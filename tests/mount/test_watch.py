# SPDX-License-Identifier: Apache-2.0
"""weightfs stats and weightfs stats --by beside a load that the test makes."""

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time

import pytest

from harness.filesystems import program, weightfs

pytestmark = pytest.mark.usefixtures("weightfs_only")

MIB = 1 << 20
BY = "stats --by process,file"

# Transfers 1 MiB at a time, until its input ends, and prints the bytes read and written.
LOAD = """
import mmap, os, select, sys
path, direction = sys.argv[1:]
file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
memory = mmap.mmap(-1, 1 << 20)
memory.write(os.urandom(1 << 20))
done = 0
print("begun", flush=True)
while not select.select([0], [], [], 0)[0]:
    offset = (done % 32) << 20
    os.preadv(file, [memory], offset) if direction == "read" else os.pwritev(file, [memory], offset)
    done += 1
print(done << 20)
"""


class Load:
    def __init__(self, path, direction):
        self.process = subprocess.Popen([sys.executable, "-c", LOAD, path, direction], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "begun\n"

    def end(self):
        return int(self.process.communicate("")[0])


class Watch:
    """`weightfs stats` with --json beside a load. end() returns the lines of its whole intervals."""

    def __init__(self, command, path):
        self.process = subprocess.Popen([program(), *command.split(), path, "--json", "--interval", "0.3"],
                                        stdout=subprocess.PIPE, text=True)
        self.first = json.loads(self.process.stdout.readline())      # it looks from now on

    def end(self):
        lines = [json.loads(self.process.stdout.readline())]
        began = time.time()                  # one interval that began after the load had ended
        while lines[-1]["time"] - lines[-1]["interval_s"] < began:
            lines.append(json.loads(self.process.stdout.readline()))
        self.process.terminate()
        self.process.communicate()
        return lines


def total(lines, rate):
    return sum(rate(line) * line["interval_s"] for line in lines)


def totals_of(lines, table, key):
    """The sums of all columns by process or file."""
    sums = {}
    for line in lines:
        for row in line[table]:
            sum_of = sums.setdefault(row[key], {"name": row["name"]})
            for column in row:
                if column.endswith("_per_s"):
                    sum_of[column] = sum_of.get(column, 0) + row[column] * line["interval_s"]
    return sums


def looks(command, path, count, interval):
    out = weightfs(*command.split(), path, "--json", "--count", str(count), "--interval", str(interval)).out
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("direction", ["read", "write"])
def test_stats_counts_every_byte_of_a_load(work, direction):
    path = work / "file"
    path.write_bytes(os.urandom(32 * MIB))
    watch = Watch("stats", work)
    load = Load(path, direction)
    lines = [json.loads(watch.process.stdout.readline()) for _ in range(4)]
    done = load.end()
    lines += watch.end()
    name = {"read": "read_bytes_per_s", "write": "written_bytes_per_s"}[direction]
    counted = sum(line[name] * line["interval_s"] for line in lines)
    assert counted == pytest.approx(done, rel=0.001)
    requests = sum(line["requests"][direction]["per_s"] * line["interval_s"] for line in lines)
    assert requests == pytest.approx(done / MIB, rel=0.001)
    busy = max(lines, key=lambda line: line[name])["requests"][direction]
    assert 0 < busy["p50_s"] <= busy["p99_s"] < 30 and busy["mean_s"] > 0
    assert watch.first["requests"]["lease"]["per_s"] == 0


FIO_LOADS = {
    "read": "--rw=read --bs=1M --rate=200m",
    "write": "--rw=write --bs=1M --rate=50m",
    "random-read": "--rw=randread --bs=4k --rate_iops=2000",
    "mixed": "--rw=randrw --bs=64k --rate_iops=300,100",
    "threads": "--rw=randread --bs=16k --rate_iops=500 --numjobs=3 --thread",
    "buffered-write": "--rw=write --bs=4k --rate_iops=2000 --direct=0",
}


@pytest.mark.parametrize("load", FIO_LOADS)
def test_stats_and_top_tell_the_load_of_fio(work, load):
    if not shutil.which("fio"):
        pytest.skip("needs fio")
    fio = ["fio", "--name=load", f"--directory={work}", "--size=32M", "--ioengine=psync", "--direct=1",
           *FIO_LOADS[load].split(), "--group_reporting", "--output-format=json"]
    subprocess.run([*fio, "--create_only=1"], check=True, capture_output=True)
    stats, top = Watch("stats", work), Watch(BY, work)
    fio += ["--time_based", "--runtime=2"]
    out = subprocess.run(fio, check=True, capture_output=True, text=True).stdout
    done = json.loads(out[out.index("{"):])["jobs"][0]
    counted, activity = stats.end(), top.end()
    processes, files = totals_of(activity, "processes", "pid"), totals_of(activity, "files", "inode")
    for kind, column in (("read", "read_bytes_per_s"), ("write", "written_bytes_per_s")):
        size = done[kind]["io_bytes"]
        assert total(counted, lambda line: line[column]) == pytest.approx(size, rel=0.05)
        requests = total(counted, lambda line: line["requests"][kind]["per_s"])
        assert requests == pytest.approx(done[kind]["total_ios"], rel=0.05)
        by_fio = sum(row[column] for row in processes.values() if row["name"] == "fio")
        assert by_fio == pytest.approx(size, rel=0.05)
        assert sum(row[column] for row in files.values()) == pytest.approx(size, rel=0.05)
    workers = [row for row in processes.values() if row["read_bytes_per_s"] + row["written_bytes_per_s"] > 0]
    assert len(workers) == 1, "threads count for their process"
    used = {row["name"] for row in files.values() if row["read_bytes_per_s"] + row["written_bytes_per_s"] > 0}
    assert used == {str(path) for path in work.glob("load.*")}


def test_leased_bytes_are_counted_once_and_for_their_process(work):
    pytest.importorskip("weightfs")
    script = """
import sys, weightfs
with weightfs.aio_handle(queue_depth=8) as handle:
    for number in range(4):
        handle.write_async(bytearray(8 << 20), f"{sys.argv[1]}/{number}", durable=True).result()
    for number in range(3):
        handle.read_async(bytearray(8 << 20), f"{sys.argv[1]}/{number}").result()
"""
    stats, top = Watch("stats", work), Watch(BY, work)
    load = subprocess.Popen([sys.executable, "-c", script, work])
    assert load.wait() == 0
    counted, activity = stats.end(), top.end()
    for column, size in (("read", 24 * MIB), ("written", 32 * MIB)):
        assert total(counted, lambda line: line[f"{column}_bytes_per_s"]) == pytest.approx(size)
        assert total(counted, lambda line: line[f"leased_{column}_bytes_per_s"]) == pytest.approx(size)
    mine = totals_of(activity, "processes", "pid")[load.pid]
    assert mine["leased_read_bytes_per_s"] == pytest.approx(24 * MIB)
    assert mine["leased_written_bytes_per_s"] == pytest.approx(32 * MIB)
    assert mine["read_bytes_per_s"] == mine["written_bytes_per_s"] == 0
    files = totals_of(activity, "files", "inode")
    for number in range(4):
        row = files[(work / str(number)).stat().st_ino]
        assert row["leased_written_bytes_per_s"] == pytest.approx(8 * MIB)
        assert row["leased_read_bytes_per_s"] == pytest.approx(8 * MIB if number < 3 else 0)


def test_top_keeps_the_name_of_a_process_that_has_ended_and_of_a_deleted_file(work):
    top = Watch(BY, work)
    script = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(file, bytes(1 << 20))
os.unlink(sys.argv[1])
"""
    load = subprocess.Popen([sys.executable, "-c", script, work / "gone"])
    assert load.wait() == 0
    lines = top.end()
    assert totals_of(lines, "processes", "pid")[load.pid]["name"].startswith("python")
    assert sum(row["written_bytes_per_s"] for row in totals_of(lines, "files", "inode").values()) == pytest.approx(MIB)


def test_top_names_a_mapped_file(work):
    path = work / "mapped"
    path.write_bytes(bytes(4 * MIB))
    script = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
memory = mmap.mmap(file, 0, prot=mmap.PROT_READ)
os.close(file)
sum(memory[::4096])
print("done", flush=True)
sys.stdin.read()
"""
    top = Watch(BY, work)
    load = subprocess.Popen([sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True)
    assert load.stdout.readline() == "done\n"
    lines = top.end()
    load.communicate("")
    row = totals_of(lines, "files", "inode")[path.stat().st_ino]
    assert row["name"] == str(path)
    assert row["read_bytes_per_s"] == pytest.approx(4 * MIB)


def test_watching_does_not_keep_a_mount_and_its_end_is_told(factory):
    mount = factory.mount(factory.store("128M"))
    watches = [subprocess.Popen([program(), *command.split(), mount.path, "--json", "--interval", "0.1"], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for command in ("stats", BY)]
    for watch in watches:
        watch.stdout.readline()
    mount.umount()
    for watch in watches:
        _, error = watch.communicate(timeout=60)
        assert (watch.returncode, error) == (1, f"weightfs: {mount.path}: the mount has ended\n")


def test_a_reader_that_ends_is_no_error_and_a_full_disk_is_one(work):
    watch = subprocess.Popen([program(), "stats", work, "--json", "--interval", "0.1"], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    watch.stdout.readline()
    watch.stdout.close()
    assert (watch.wait(timeout=60), watch.stderr.read()) == (0, "")
    watch.stderr.close()
    with open("/dev/full", "w", encoding="utf-8") as full:
        failed = subprocess.run([program(), "stats", work, "--interval", "0.1"], stdout=full, stderr=subprocess.PIPE,
                                text=True)
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1 and "No space left" in failed.stderr


class Terminal:
    """A command on a terminal of the given size."""

    def __init__(self, columns, rows, *words):
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(self.master)
        self.resize(columns, rows)
        self.process = subprocess.Popen([program(), *words], stdin=slave, stdout=slave, stderr=slave,
                                        env={**os.environ, "TERM": "xterm"}, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.unread = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def settings(self):
        return termios.tcgetattr(self.master)

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def screen(self):
        """The lines of the next screen, and whether the program erased everything before it, as it does at its start
        and after a change of the size."""
        while b"\x1b[J" not in self.unread:
            self.unread += os.read(self.master, 65536)
        drawn, self.unread = self.unread.split(b"\x1b[J", 1)
        before, text = drawn.rsplit(b"\x1b[H", 1)
        lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line) for line in text.decode().split("\n")]
        return lines, b"\x1b[2J" in before

    def screen_of_the_new_size(self):
        while not self.screen()[1]:
            pass
        return self.screen()[0]   # the size may have changed while the program drew the first one

    def press(self, key):
        os.write(self.master, key)
        while True:
            try:
                if not os.read(self.master, 65536):
                    break
            except OSError:                  # the terminal has no user any more
                break
        return self.process.wait(timeout=60)


@pytest.mark.parametrize("command", ["stats", BY])
def test_a_screen_fits_the_terminal_and_q_ends_it(work, command):
    with Terminal(60, 24, *command.split(), work, "--interval", "0.2") as terminal:
        (work / ("n" * 200)).write_bytes(bytes(MIB))
        for columns, rows in ((60, 24), (30, 10), (200, 50)):
            terminal.resize(columns, rows)
            lines = terminal.screen_of_the_new_size()
            assert len(lines) <= rows
            assert max(len(line.rstrip("\r")) for line in lines) <= columns
        if command == "stats":
            assert any(line.startswith("lookup") for line in lines), "all kinds, where there is room"
            assert any(line.startswith("free") for line in lines)
        assert terminal.press(b"q") == 0


def test_stats_prints_lines_where_its_output_is_no_terminal(work):
    lines = weightfs("stats", work, "--count", "22", "--interval", "0.1").out.splitlines()
    titles = lines[0].split()
    assert len(lines) == 24 and titles[:3] == ["time", "read_MB/s", "write_MB/s"]
    assert [number for number, line in enumerate(lines) if line == lines[0]] == [0, 21], "again after 20 lines"
    assert len({len(line) for line in lines}) == 1, "aligned"
    for line in lines[1:21]:
        values = line.split()
        assert len(values) == len(titles) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", values[0])
        assert all(float(value) >= 0 for value in values[1:])
    with Terminal(160, 24, "stats", work, "--lines", "--count", "1", "--interval", "0.1") as terminal:
        shown = b""
        while shown.count(b"\n") < 2:
            shown += os.read(terminal.master, 65536)
        assert shown.split()[0] == b"time"


def test_top_shows_names_on_a_small_terminal_and_not_itself(work):
    path = work / ("directory-" * 6) / "shard-00012.safetensors"
    path.parent.mkdir()
    path.write_bytes(os.urandom(32 * MIB))
    load = Load(path, "read")
    with Terminal(80, 24, *BY.split(), work, "--interval", "0.5") as terminal:
        lines = []
        while not any("shard-00012" in line for line in lines):
            lines = terminal.screen()[0]
        terminal.press(b"q")
    load.end()
    lines = [line.rstrip() for line in lines]
    assert all(len(line) <= 80 for line in lines)
    processes, files = (next(line for line in lines if line.startswith(title)) for title in ("process", "file"))
    assert processes.replace("process", "file   ").replace("PID", "   ") == files, "the columns are aligned"
    assert "leased" not in processes and "written" not in processes, "there is nothing in them"
    process = next(line for line in lines if str(load.process.pid) in line)
    file = next(line for line in lines if "shard-00012" in line)
    assert process.startswith("python") and re.match(r"\S*-/shard-00012\.safetensors ", file)
    assert re.search("[kMG]B/s", process).start() == re.search("[kMG]B/s", file).start()


def test_top_finds_nothing_on_an_idle_mount(factory):
    mount = factory.mount(factory.store("128M"))
    for look in looks(BY, mount.path, 4, 0.3)[1:]:
        assert [row["name"] for row in look["processes"]] == [] and look["files"] == []


def test_ctrl_c_ends_a_watch_and_leaves_the_terminal_as_it_was(work):
    with Terminal(80, 24, "stats", work, "--interval", "0.2") as terminal:
        terminal.screen()
        assert terminal.before[3] & termios.ICANON and not terminal.settings()[3] & termios.ICANON
        assert terminal.press(b"\x03") == 0
        assert terminal.settings() == terminal.before


def test_top_names_the_process_and_the_file_of_a_load(work):
    path = work / "the file"
    path.write_bytes(os.urandom(32 * MIB))
    load = Load(path, "read")
    while not (found := looks(BY, work, 2, 0.5)[-1])["processes"]:   # the load was not at work
        pass
    while "the file" not in (text := weightfs(*BY.split(), work, "--count", "1").out):
        pass
    load.end()
    busiest = found["processes"][0]
    assert busiest["pid"] == load.process.pid
    assert busiest["name"].startswith("python")
    assert busiest["read_bytes_per_s"] > 0 and busiest["written_bytes_per_s"] == 0
    assert found["files"][0]["name"] == str(path)
    assert found["files"][0]["inode"] == path.stat().st_ino
    assert str(load.process.pid) in text
    for kind, table in (("process", "processes"), ("file", "files")):
        assert looks(f"stats --by {kind}", work, 1, 0.1)[0].keys() == {"time", "interval_s", table}
        assert weightfs("stats", "--by", kind, work, "--count", "1").out.splitlines()[2].startswith(kind)


def test_other_users_see_statistics_but_no_processes(factory):
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    mount = factory.mount(factory.store("128M"), "allow_other")
    mount.path.chmod(0o755)

    def as_other(command):
        return subprocess.run([program(), *command.split(), mount.path, "--count", "1", "--interval", "0.1"], user=65534,
                              text=True, capture_output=True)

    assert as_other("stats").returncode == 0
    refused = as_other(BY)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1 and "only root and the user of the mount may see it" in refused.stderr


def test_stats_needs_a_mount(local):
    failed = weightfs("stats", local, codes=(1, 2))
    assert failed.code == 1 and "not in a mount of weightfs" in failed.err
