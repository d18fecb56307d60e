# SPDX-License-Identifier: Apache-2.0
"""weightfs stats, weightfs top and -o metrics= beside a load that the test makes."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.filesystems import program, weightfs

pytestmark = pytest.mark.usefixtures("weightfs_only")

MIB = 1 << 20

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


def samples(text):
    return {name: float(value) for name, value in re.findall(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", text, re.M)}


def scrape(port, accept="text/plain"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/metrics", headers={"Accept": accept})
    answer = connection.getresponse()
    assert answer.status == 200
    return answer.read().decode(), answer.getheader("Content-Type")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Load:
    def __init__(self, path, direction):
        self.process = subprocess.Popen([sys.executable, "-c", LOAD, path, direction], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "begun\n"

    def end(self):
        return int(self.process.communicate("")[0])


def looks(command, path, count, interval):
    out = weightfs(command, path, "--json", "--count", str(count), "--interval", str(interval)).out
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("direction", ["read", "write"])
def test_stats_counts_every_byte_of_a_load(work, direction):
    path = work / "file"
    path.write_bytes(os.urandom(32 * MIB))
    watch = subprocess.Popen([program(), "stats", work, "--json", "--interval", "0.5"], stdout=subprocess.PIPE, text=True)
    first = json.loads(watch.stdout.readline())          # it looks from now on
    load = Load(path, direction)
    lines = [json.loads(watch.stdout.readline()) for _ in range(4)]
    done = load.end()
    lines += [json.loads(watch.stdout.readline()) for _ in range(2)]
    watch.terminate()
    watch.communicate()
    name = {"read": "read_bytes_per_s", "write": "written_bytes_per_s"}[direction]
    counted = sum(line[name] * line["interval_s"] for line in lines)
    assert counted == pytest.approx(done, rel=0.001)
    requests = sum(line["requests"][direction]["per_s"] * line["interval_s"] for line in lines)
    assert requests == pytest.approx(done / MIB, rel=0.001)
    busy = max(lines, key=lambda line: line[name])["requests"][direction]
    assert 0 < busy["p50_s"] <= busy["p99_s"] < 30 and busy["mean_s"] > 0
    assert first["requests"]["lease"]["per_s"] == 0


def test_top_names_the_process_and_the_file_of_a_load(work):
    path = work / "the file"
    path.write_bytes(os.urandom(32 * MIB))
    load = Load(path, "read")
    found = looks("top", work, 2, 0.5)[-1]
    text = weightfs("top", work, "--count", "1").out
    load.end()
    busiest = found["processes"][0]
    assert busiest["pid"] == load.process.pid
    assert busiest["name"].startswith("python")
    assert busiest["read_bytes_per_s"] > 0 and busiest["written_bytes_per_s"] == 0
    assert found["files"][0]["name"] == str(path)
    assert found["files"][0]["inode"] == path.stat().st_ino
    assert "the file" in text and str(load.process.pid) in text


def test_other_users_see_statistics_but_no_processes(factory):
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    mount = factory.mount(factory.store("128M"), "allow_other")
    mount.path.chmod(0o755)

    def as_other(command):
        return subprocess.run([program(), command, mount.path, "--count", "1", "--interval", "0.1"], user=65534,
                              text=True, capture_output=True)

    assert as_other("stats").returncode == 0
    refused = as_other("top")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1 and "not permitted" in refused.stderr


def test_metrics_are_served_and_linted(factory):
    port = free_port()
    mount = factory.mount(factory.store("128M"), f"metrics=127.0.0.1:{port}")
    before = samples(scrape(port)[0])
    (mount.path / "file").write_bytes(bytes(5 * MIB))
    (mount.path / "file").read_bytes()
    text, kind = scrape(port)
    after = samples(text)
    assert kind.startswith("text/plain; version=0.0.4")
    assert after["weightfs_written_bytes_total"] - before["weightfs_written_bytes_total"] == 5 * MIB
    assert after['weightfs_request_duration_seconds_count{kind="create"}'] == 1
    assert after['weightfs_request_duration_seconds_bucket{kind="create",le="+Inf"}'] == 1
    assert f'store="{mount.store.directory}"' in text
    opened, kind = scrape(port, "application/openmetrics-text")
    assert opened.endswith("# EOF\n") and kind.startswith("application/openmetrics-text; version=1.0.0")
    if shutil.which("promtool"):
        lint = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
        assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")


def test_metrics_at_a_path(factory, local):
    path = local / "metrics.socket"
    mount = factory.mount(factory.store("128M"), f"metrics={path}")

    def scrape_path():
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            parts = []
            while part := client.recv(65536):
                parts.append(part)
            return b"".join(parts)

    assert scrape_path().startswith(b"HTTP/1.1 200 OK")
    silent = socket.socket(socket.AF_UNIX)                # a client that says nothing holds up nobody for long
    silent.connect(str(path))
    assert scrape_path().startswith(b"HTTP/1.1 200 OK")
    mount.kill9()
    silent.close()
    assert path.exists()                                  # left over; the next mount replaces it
    mount.mount(options=f"metrics={path}")
    assert scrape_path().startswith(b"HTTP/1.1 200 OK")
    mount.umount()
    assert not path.exists()


def test_an_address_in_use_is_an_error_and_nothing_is_mounted(factory, point):
    store = factory.store("128M")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        failed = weightfs("mount", store.directory, point, "-o", f"metrics=127.0.0.1:{port}", codes=(1, 2))
    assert failed.code == 1
    assert failed.err.count("\n") == 1 and f"metrics=127.0.0.1:{port}" in failed.err and "in use" in failed.err


@pytest.mark.parametrize("value", ["9464", "relative/path", "", "127.0.0.1:port"])
def test_a_wrong_address_is_named(factory, point, value):
    store = factory.store("128M")
    failed = weightfs("mount", store.directory, point, "-o", f"metrics={value}", codes=(1, 2))
    assert failed.code in (1, 2)
    assert failed.err.count("\n") == 1 and "metrics" in failed.err


def test_stats_needs_a_mount(local):
    failed = weightfs("stats", local, codes=(1, 2))
    assert failed.code == 1 and "not in a mount of weightfs" in failed.err


def test_the_dashboard_shows_metrics_that_exist(factory):
    port = free_port()
    factory.mount(factory.store("128M"), f"metrics=127.0.0.1:{port}")
    served = set(re.findall(r"^([a-z_]+)[ {]", scrape(port)[0], re.M))
    dashboard = json.loads((Path(__file__).parents[2] / "examples/grafana_dashboard.json").read_text())
    shown = {name for panel in dashboard["panels"] for target in panel["targets"]
             for name in re.findall(r"\b(?:weightfs|process)_[a-z_]+", target["expr"])}
    assert len(shown) > 15 and shown <= served
