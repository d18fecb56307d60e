# SPDX-License-Identifier: Apache-2.0
"""Ceph's S3 gateway on a cluster of one monitor and one object store, in memory, without systemd.

    with Radosgw(directory) as gateway:      about 20 s; gateway.url, gateway.environment()

Debian's and Ubuntu's packages: ceph-mon, ceph-osd, radosgw. As a program, which prints the URL and runs until it is
interrupted: python -m harness.radosgw DIRECTORY"""
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from pathlib import Path

from harness.ports import free_port

ACCESS_KEY, SECRET_KEY = "test", "testsecret"
PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
START_LIMIT_S = 120
STOP_LIMIT_S = 20
CONFIGURATION = """\
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{monitor_port},v1:127.0.0.1:{old_monitor_port}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
auth allow insecure global id reclaim = true
ms mon client mode = crc
mon allow pool size one = true
mon warn on pool no redundancy = false
mon data avail warn = 1
mon data avail crit = 1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = {size}
mon max pg per osd = 1000
run dir = {directory}/run
crash dir = {directory}/run
admin socket = {directory}/run/$name.asok
pid file = {directory}/run/$name.pid
log file = {directory}/log/$name.log
keyring = {directory}/keyring
mon data = {directory}/mon
osd data = {directory}/osd
[client.rgw]
rgw data = {directory}/rgw
rgw frontends = beast endpoint=127.0.0.1:{gateway_port}
rgw enable usage log = false
rgw enable ops log = false
rgw dynamic resharding = false
rgw run sync thread = false
rgw gc obj min wait = 5
rgw gc processor period = 5
"""


def missing_programs():
    """Why the tests with radosgw cannot run; empty if they can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"needs {', '.join(missing)}: scripts/setup installs it" if missing else ""


def free_ports(count):
    ports = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


class Radosgw:
    def __init__(self, directory, size=6 << 30):
        """The directory is created, must not be deep (its sockets have paths of at most 107 bytes), and is kept."""
        self.directory = Path(directory)
        self.processes = {}
        self.monitor_port, self.old_monitor_port, self.gateway_port = free_ports(3)
        for name in ("mon", "osd", "rgw", "run", "log"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "keyring").touch()
        self.fsid = str(uuid.uuid4())
        self.configuration = self.directory / "ceph.conf"
        self.configuration.write_text(CONFIGURATION.format(size=size, **vars(self)))
        try:
            self.start_monitor()
            self.start_object_store()
            self.start_gateway()
            self.add_user()
        except BaseException:
            self.close()
            raise

    @property
    def url(self):
        return f"http://127.0.0.1:{self.gateway_port}"

    def environment(self):
        """The variables that a program needs to reach the gateway, and only it."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                "AWS_REGION": "us-east-1", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                "AWS_EC2_METADATA_DISABLED": "true"}

    def command(self, program, *words):
        return [program, "-c", str(self.configuration), *map(str, words)]

    def run(self, program, *words):
        done = subprocess.run(self.command(program, *words), capture_output=True, text=True, timeout=START_LIMIT_S,
                              check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise RuntimeError(f"{program} {' '.join(map(str, words))}: exit {done.returncode}\n{done.stderr[-2000:]}")
        return done.stdout

    def start(self, name, program, *words):
        """Starts a daemon in the foreground, as a child that ends with this object."""
        with open(self.directory / "log" / f"{name}.out", "ab") as out:
            self.processes[name] = subprocess.Popen(self.command(program, "-f", *words), stdout=out,
                                                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def wait(self, what, ready):
        end = time.monotonic() + START_LIMIT_S
        while not ready():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    tail = (self.directory / "log" / f"{name}.out").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{name} ended with {process.returncode}: {tail}")
            if time.monotonic() > end:
                raise RuntimeError(f"no {what} after {START_LIMIT_S} s")
            time.sleep(0.05)

    def start_monitor(self):
        monitors = self.directory / "monmap"
        address = f"[v2:127.0.0.1:{self.monitor_port},v1:127.0.0.1:{self.old_monitor_port}]"
        subprocess.run(["monmaptool", "--create", "--addv", "a", address, "--fsid", self.fsid, monitors], check=True,
                       stdout=subprocess.DEVNULL)
        self.run("ceph-mon", "-i", "a", "--mkfs", "--monmap", monitors)
        self.start("monitor", "ceph-mon", "-i", "a")

    def start_object_store(self):
        identity = str(uuid.uuid4())
        self.run("ceph", "osd", "new", identity, 0)   # waits for the monitor
        self.run("ceph-osd", "-i", 0, "--mkfs", "--osd-uuid", identity)
        self.run("ceph", "osd", "crush", "add-bucket", "here", "host")
        self.run("ceph", "osd", "crush", "move", "here", "root=default")
        self.start("object-store", "ceph-osd", "-i", 0)
        self.wait("object store", lambda: json.loads(self.run("ceph", "osd", "stat", "-f", "json"))["num_up_osds"] == 1)

    def start_gateway(self):
        self.start("gateway", "radosgw", "-n", "client.rgw")
        self.wait("gateway", self.answers)

    def answers(self):
        try:
            urllib.request.urlopen(self.url, timeout=5).close()
        except (http.client.HTTPException, OSError):   # among them URLError
            return False
        return True

    def add_user(self):
        self.run("radosgw-admin", "user", "create", "--uid=tests", "--display-name=tests", f"--access-key={ACCESS_KEY}",
                 f"--secret-key={SECRET_KEY}")

    def kill(self, name):
        """Kills "gateway", "object-store" or "monitor" with SIGKILL. In-memory objects are lost with their store."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def close(self):
        for name in ("gateway", "object-store", "monitor"):
            process = self.processes.pop(name, None)
            if process is None:
                continue
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@contextlib.contextmanager
def temporary_radosgw():
    """In a directory with a short path, which is removed."""
    with tempfile.TemporaryDirectory(prefix="wfs-rgw-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        with Radosgw(os.path.join(directory, "c")) as gateway:
            yield gateway


def main():
    if reason := missing_programs():
        sys.exit(reason)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Radosgw(sys.argv[1]) as gateway:
        print(gateway.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
