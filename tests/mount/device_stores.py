# SPDX-License-Identifier: Apache-2.0
"""Stores that are named by their devices, for tests."""

import contextlib
import os
from pathlib import Path

from harness import namespaces
from harness.filesystems import WeightfsStore, weightfs


class DeviceStore(WeightfsStore):
    """A store on devices. `directory` is how commands name it. `index` is the directory of the index of commands that
    name it so; None: the usual one."""

    def __init__(self, devices, index=None, size=None, force=False):
        self.devices, self.index = [Path(path) for path in devices], index
        command = ["format", "--sparse"] + ["--force"] * force
        for device in self.devices:
            command += ["--device", device]
        weightfs(*command, *(["--index", index] if index else []), *(["--size", size] if size else []))

    @property
    def directory(self):
        names = [os.fspath(path) for path in self.devices] + ([f"index={self.index}"] if self.index else [])
        return Path(",".join(names))

    def log(self):
        path = Path(self.index or "/none") / "weightfs.log"
        return path.read_text(errors="replace")[-8000:] if path.exists() else ""

    def remove(self):
        for device in self.devices:
            with contextlib.suppress(FileNotFoundError):
                if device.is_file():
                    device.unlink()


@contextlib.contextmanager
def own_cache(scratch, monkeypatch, folder):
    """The usual directory of indexes, for the block alone."""
    if os.geteuid() != 0:
        monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(folder))
        yield folder / "weightfs"
        return
    with namespaces.own_mounts(own=scratch):
        namespaces.mount("weightfs-tests", "/var/cache", "tmpfs", options="mode=755")
        yield Path("/var/cache/weightfs")
