# SPDX-License-Identifier: Apache-2.0
"""-o metrics=: what it serves, to whom, and the dashboard and the alarms that show it."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from harness import needs
from harness.filesystems import program, wait_until, weightfs
from harness.ports import free_port

pytestmark = pytest.mark.usefixtures("weightfs_only")

SOURCES = Path(__file__).parents[2]
MIB = 1 << 20


def samples(text):
    return {name: float(value) for name, value in re.findall(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", text, re.M)}


def scrape(port, accept="text/plain"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers={"Accept": accept})
    answer = connection.getresponse()
    assert answer.status == 200
    return answer.read().decode(), answer.getheader("Content-Type")


def test_metrics_are_served_and_linted(factory):
    port = free_port()
    mount = factory.mount(factory.store("128M"), f"metrics=127.0.0.1:{port}")
    before = samples(scrape(port)[0])
    (mount.path / "file").write_bytes(bytes(5 * MIB))
    (mount.path / "file").read_bytes()
    # A request is counted after its answer, perhaps after those that follow it.
    assert wait_until(lambda: samples(scrape(port)[0])['weightfs_request_duration_seconds_count{kind="create"}'] > 0)
    text, kind = scrape(port)
    after = samples(text)
    assert kind.startswith("text/plain; version=0.0.4")
    assert after["weightfs_written_bytes_total"] - before["weightfs_written_bytes_total"] == 5 * MIB
    assert after['weightfs_request_duration_seconds_count{kind="create"}'] == 1
    assert after['weightfs_request_duration_seconds_bucket{kind="create",le="+Inf"}'] == 1
    assert 0 <= after["weightfs_log_age_seconds"] < 3600 and after["weightfs_catalog_free_bytes"] > 0
    assert "weightfs_hot_mapped_bytes_total" in after and not [name for name in after if "_total_total" in name]
    assert after["process_start_time_seconds"] == before["process_start_time_seconds"]
    started = os.stat(f"/proc/{mount.pid}").st_ctime
    assert abs(after["process_start_time_seconds"] - started) < 3600
    assert f'store="{mount.store.directory}"' in text
    opened, kind = scrape(port, "application/openmetrics-text")
    assert opened.endswith("# EOF\n") and kind.startswith("application/openmetrics-text; version=1.0.0")
    if shutil.which("promtool"):
        lint = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
        assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")


@pytest.mark.parametrize("name", [b"with space", b'quote"and\\', b"line\nbreak", b"\xff\xfe", "größe".encode()])
def test_metrics_of_a_store_with_any_name_are_linted(factory, local, point, name):
    if not shutil.which("promtool"):
        pytest.skip("needs promtool (Debian's prometheus)")
    port = free_port()
    store = os.fsencode(factory.store("128M").directory)
    renamed = os.fsencode(local) + b"/" + name
    os.rename(store, renamed)
    subprocess.run([program(), "mount", renamed, point, "-o", f"metrics=127.0.0.1:{port}"], check=True)
    try:
        text = scrape(port)[0]                       # which is UTF-8
        assert scrape(port, "application/openmetrics-text")[0].endswith("# EOF\n")
        for watch in (["stats"], ["stats", "--by", "file"]):
            subprocess.run([program(), *watch, point, "--count", "1", "--interval", "0.1"], check=True)
    finally:
        subprocess.run([program(), "umount", point], check=True)
        os.rename(renamed, store)
    lint = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
    assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")


def test_metrics_of_scrubs(factory):
    port = free_port()
    mount = factory.mount(factory.store("128M"), f"metrics=127.0.0.1:{port}")
    with open(mount.path / "file", "wb") as file:
        file.write(os.urandom(5 * MIB))
        file.flush()
        os.fsync(file.fileno())
    found = samples(scrape(port)[0])
    assert found["weightfs_scrub_period_seconds"] == found["weightfs_scrub_last_completion_timestamp_seconds"] == 0
    assert found["weightfs_device_read_bytes_total"] < 5 * MIB
    mount.umount()
    mount.mount(options=f"metrics=127.0.0.1:{port},scrub=0.5")
    while not (found := samples(scrape(port)[0]))["weightfs_scrub_last_completion_timestamp_seconds"]:
        time.sleep(0.1)
    assert found["weightfs_scrub_period_seconds"] == 43200 and found["weightfs_scrub_running"] == 0
    assert found["weightfs_device_read_bytes_total"] >= 5 * MIB, "nobody else has read"
    assert found['weightfs_scrub_damaged_blocks{scrub="last"}'] == 0


@needs.root
def test_metrics_show_the_requests_in_the_kernel_where_fusectl_is_mounted(factory, point):
    port = free_port()
    script = "mount -t fusectl none /sys/fs/fuse/connections && exec \"$@\""
    mount = subprocess.Popen(["unshare", "-m", "sh", "-c", script, "sh", program(), "mount", "-f",
                              factory.store("128M").directory, point, "-o", f"metrics=127.0.0.1:{port}"],
                             stderr=subprocess.PIPE, text=True)
    try:
        while True:
            try:
                scrape(port)
                break
            except OSError:
                assert mount.poll() is None, mount.stderr.read()
                time.sleep(0.1)
        assert wait_until(lambda: samples(scrape(port)[0])["weightfs_kernel_requests"] == 0)
    finally:
        mount.terminate()
        mount.communicate(timeout=60)


def exchange(port, request, half_closed=False):
    """The whole answer, until the server closes its side."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        for at in range(0, len(request), 4096):
            client.sendall(request[at:at + 4096])
        if half_closed:
            client.shutdown(socket.SHUT_WR)
        parts = []
        while part := client.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_metrics_answer_any_client(factory):
    port = free_port()
    factory.mount(factory.store("128M"), f"metrics=127.0.0.1:{port}")
    assert exchange(port, b"GET /metrics HTTP/1.0\n\n").startswith(b"HTTP/1.1 200 OK")
    assert exchange(port, b"GET /metrics HTTP/1.1\r\n\r\n", half_closed=True).endswith(b"\n")
    head = exchange(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK") and head.endswith(b"\r\n\r\n")
    assert exchange(port, b"POST /metrics HTTP/1.1\r\n\r\n" + bytes(20000)).startswith(b"HTTP/1.1 405 ")
    assert exchange(port, b"GET /other HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404 ")
    assert exchange(port, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20000).startswith(b"HTTP/1.1 431 ")
    assert exchange(port, b"GET /metrics HT", half_closed=True).startswith(b"HTTP/1.1 400 ")
    assert exchange(port, b"", half_closed=True) == b""


def test_silent_clients_hold_up_nobody(factory):
    port = free_port()
    factory.mount(factory.store("128M"), f"metrics=127.0.0.1:{port}")
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    found = []
    scrapes = [threading.Thread(target=lambda: found.append(scrape(port)[0])) for _ in range(8)]
    for thread in scrapes:
        thread.start()
    for thread in scrapes:
        thread.join()
    assert len(found) == 8 and all("weightfs_mount_info" in text for text in found)
    silent[-1].settimeout(60)
    assert silent[-1].recv(1) == b""                  # the mount closes it after a while
    for client in silent:
        client.close()


def test_a_path_for_metrics_that_cannot_be_used(factory, local, point):
    store = factory.store("128M")
    file = local / "file"
    file.write_text("kept")
    too_long = local / ("x" * 120)
    missing = local / "none/socket"
    for path, why in ((file, "exists and is no socket"), (too_long, "too long"), (missing, "No such file")):
        failed = weightfs("mount", store.directory, point, "-o", f"metrics={path}", codes=(1, 2))
        assert failed.err.count("\n") == 1 and why in failed.err
    assert file.read_text() == "kept"
    used = local / "used.socket"
    factory.mount(store, f"metrics={used}")
    failed = weightfs("mount", factory.store("128M").directory, point, "-o", f"metrics={used}", codes=(1, 2))
    assert "in use" in failed.err and used.exists()


def test_metrics_at_a_path(factory, local):
    path = local / "metrics.socket"
    store = factory.store("128M")
    mask = os.umask(0)
    try:
        mount = factory.mount(store, f"metrics={path}")
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o077 == 0, "it is for this user"

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


@pytest.mark.parametrize("value", ["9464", "relative/path", "", "127.0.0.1:port", "127.0.0.1:0", "127.0.0.1:99464"])
def test_a_wrong_address_is_named(factory, point, value):
    store = factory.store("128M")
    failed = weightfs("mount", store.directory, point, "-o", f"metrics={value}", codes=(1, 2))
    assert failed.err.count("\n") == 1 and "metrics" in failed.err


def names_in(expression):
    return set(re.findall(r"\b(?:weightfs|process)_[a-z_]+", expression))


@pytest.fixture(name="served")
def served_fixture(factory):
    """The names of all metrics of a mount."""
    port = free_port()
    factory.mount(factory.store("128M"), f"metrics=127.0.0.1:{port}")
    return set(re.findall(r"^([a-z_]+)[ {]", scrape(port)[0], re.M)) | {"weightfs_kernel_requests"}


def unit_of(expression):
    if "histogram_quantile" in expression or "_age_seconds" in expression:
        return "s"
    if "timestamp_seconds" in expression or "start_time_seconds" in expression:
        return "dateTimeFromNow"
    names = names_in(expression.partition(" and ")[0])
    kinds = {"bytes" if "_bytes" in name else "requests" if "_request_" in name else "count" for name in names}
    assert len(kinds) == 1, expression
    rates = {"bytes": "Bps", "requests": "reqps", "count": "ops"}
    kind = kinds.pop()
    if "cpu_seconds" in expression or "increase" in expression:
        return "short"
    return rates[kind] if "rate(" in expression else "bytes" if kind == "bytes" else "short"


def test_the_dashboard_shows_metrics_that_exist_and_one_unit_an_axis(served):
    dashboard = json.loads((SOURCES / "examples/grafana_dashboard.json").read_text())
    shown = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            shown |= names_in(target["expr"])
            assert unit_of(target["expr"]) == panel["fieldConfig"]["defaults"]["unit"], (panel["title"], target)
        assert "atency" not in panel["title"] or "daemon" in panel["title"]
    assert len(shown) > 25 and shown <= served
    assert {"weightfs_read_only", "weightfs_log_age_seconds"} <= shown


def test_the_alarms_have_metrics_that_exist_and_are_documented(served):
    path = SOURCES / "examples/alerts.yml"
    rules = path.read_text()
    assert names_in(rules) <= served
    alarms = re.findall(r"- alert: (\w+)", rules)
    documented = re.findall(r"^\| `(Weightfs\w+)` \|", (SOURCES / "docs/MONITORING.md").read_text(), re.M)
    assert alarms == documented and len(alarms) > 5
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "rules", path], check=True, capture_output=True)


def test_every_metric_is_documented(served):
    """Names with an ellipsis stand for all that begin or end so."""
    page = (SOURCES / "docs/MONITORING.md").read_text()
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in served}
    patterns = [re.escape(name).replace("…", "[a-z_]+") for name in re.findall(r"`([a-z_…]+)`", page)]
    missing = {name for name in families if not any(re.fullmatch(pattern, name) for pattern in patterns)}
    assert missing == set()
