# SPDX-License-Identifier: Apache-2.0
"""A GlusterFS volume with two clients, each in a network namespace like a machine of its own.

Everything is in namespaces of the calling process: it must be the first process of its PID namespace, so that its end
ends all others, and it must have its own mounts and its own network (see test_takeover.py). Nothing of it is visible
outside."""

import os
import subprocess
import time
from pathlib import Path

from harness import process
from harness.filesystems import program, wait_until

SERVER = "10.77.0.1"
# The server drops the locks of a client that is silent for this time, and a client gives up after it.
TIMEOUT_S = 3


class Machine:
    """A client of the volume in its own network namespace. Commands run there with `run`."""

    def __init__(self, number, root):
        self.link, self.volume, self.mounted = f"machine{number}", root / f"volume-{number}", root / f"mount-{number}"
        self._keeper = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo ready; exec sleep infinity"],
                                        stdout=subprocess.PIPE, text=True)
        assert self._keeper.stdout.readline() == "ready\n"
        inner = f"inside{number}"
        process.run(["ip", "link", "add", self.link, "type", "veth", "peer", "name", inner])
        process.run(["ip", "link", "set", inner, "netns", str(self._keeper.pid)])
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "link", "set", inner, "up")
        self.run("ip", "addr", "add", f"10.77.0.{number + 1}/24", "dev", inner)
        self.connect()
        self.volume.mkdir()
        self.mounted.mkdir()
        self.run("glusterfs", f"--volfile-server={SERVER}", "--volfile-id=tensors", self.volume)
        self.client = process.processes_with("glusterfs", str(self.volume))[0]

    def run(self, *words, **options):
        return process.run(["nsenter", "-t", str(self._keeper.pid), "-n", *words], **options)

    def connect(self):
        process.run(["ip", "link", "set", self.link, "master", "bridge", "up"])

    def cut(self):
        process.run(["ip", "link", "set", self.link, "nomaster"])

    @property
    def store(self):
        return self.volume / "store"

    def weightfs(self, *words, **options):
        return self.run(program(), *words, **options)

    def mount(self, **options):
        return self.weightfs("mount", self.store, self.mounted, **options)

    def mount_when_free(self, limit):
        """Mounts as soon as the locks are free. Returns the seconds that it took."""
        begin = time.monotonic()
        assert wait_until(lambda: self.mount(codes=None).code == 0, limit), self.mount(codes=None)
        return time.monotonic() - begin

    @property
    def daemon(self):
        return process.processes_with(program().name, str(self.store))[0]

    def log(self):
        return (self.store / "weightfs.log").read_text(errors="replace")

    def fsck(self):
        self.weightfs("fsck", self.store, "--data")


class Cluster:
    """A server and a volume of one brick below `root`, a directory whose filesystem has trusted attributes."""

    def __init__(self, root):
        self.root = Path(root)
        for folder in ("/var/lib/glusterd", "/var/run/gluster", "/var/log/glusterfs"):
            os.makedirs(folder, exist_ok=True)
            process.run(["mount", "-t", "tmpfs", "gluster", folder])
        for words in (["link", "set", "lo", "up"], ["link", "add", "bridge", "type", "bridge"],
                      ["link", "set", "bridge", "up"], ["addr", "add", f"{SERVER}/24", "dev", "bridge"]):
            process.run(["ip", *words])
        process.run(["glusterd"])
        assert wait_until(lambda: self._gluster("volume", "list", codes=None).code == 0)
        self._gluster("volume", "create", "tensors", f"{SERVER}:{self.root}/brick", "force")
        self.set("network.ping-timeout", TIMEOUT_S)
        self.set("server.tcp-user-timeout", TIMEOUT_S)
        for option, value in (("time", 1), ("interval", 1), ("count", TIMEOUT_S)):
            self.set(f"server.keepalive-{option}", value)

    def _gluster(self, *words, **options):
        return process.run(["gluster", "--mode=script", *words], **options)

    def set(self, option, value):
        self._gluster("volume", "set", "tensors", option, str(value))

    def start(self):
        """Returns the two machines."""
        self._gluster("volume", "start", "tensors")
        return Machine(1, self.root), Machine(2, self.root)
