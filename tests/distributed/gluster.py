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
    """A client of the volume with its own network, mounts and processes. Commands run there with `run`, and use the paths
    `inner_volume` and `inner_mounted`. The others are those of the same directories from outside."""

    def __init__(self, number, root):
        self.link, self.inner_volume, self.inner_mounted = f"machine{number}", root / "volume", root / "mount"
        self._unshare = subprocess.Popen(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                                          "sh", "-c", "echo ready; exec sleep infinity"], stdout=subprocess.PIPE, text=True)
        assert self._unshare.stdout.readline() == "ready\n"
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        self._keeper = int(children.read_text().split()[0])
        outside = Path(f"/proc/{self._keeper}/root")
        self.volume, self.mounted = (outside / str(path)[1:] for path in (self.inner_volume, self.inner_mounted))
        inner = f"inside{number}"
        process.run(["ip", "link", "add", self.link, "type", "veth", "peer", "name", inner])
        process.run(["ip", "link", "set", inner, "netns", str(self._keeper)])
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "link", "set", inner, "up")
        self.run("ip", "addr", "add", f"10.77.0.{number + 1}/24", "dev", inner)
        self.connect()
        self.inner_volume.mkdir(exist_ok=True)
        self.inner_mounted.mkdir(exist_ok=True)
        others = process.processes_with("glusterfs", str(self.inner_volume))
        self.run("glusterfs", f"--volfile-server={SERVER}", "--volfile-id=tensors", self.inner_volume)
        self.client = next(pid for pid in process.processes_with("glusterfs", str(self.inner_volume))
                           if pid not in others)

    def run(self, *words, **options):
        return process.run(["nsenter", "-t", str(self._keeper), "-n", "-m", "-p", *words], **options)

    def connect(self):
        process.run(["ip", "link", "set", self.link, "master", "bridge", "up"])

    def cut(self):
        process.run(["ip", "link", "set", self.link, "nomaster"])

    @property
    def store(self):
        return self.inner_volume / "store"

    def weightfs(self, *words, **options):
        return self.run(program(), *words, **options)

    def mount(self, **options):
        return self.weightfs("mount", self.store, self.inner_mounted, **options)

    def umount(self):
        self.weightfs("umount", self.inner_mounted)

    def mount_when_free(self, limit):
        """Mounts as soon as the locks are free. Returns the seconds that it took."""
        begin = time.monotonic()
        assert wait_until(lambda: self.mount(codes=None).code == 0, limit), self.mount(codes=None)
        return time.monotonic() - begin

    @property
    def daemon(self):
        """The process that serves the store on this machine."""
        ours = os.stat(f"/proc/{self._keeper}/ns/net").st_ino
        return next(pid for pid in process.processes_with(program().name, str(self.store))
                    if os.stat(f"/proc/{pid}/ns/net").st_ino == ours)

    def log(self):
        return (self.volume / "store/weightfs.log").read_text(errors="replace")

    def fsck(self):
        self.weightfs("verify", self.store)


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
