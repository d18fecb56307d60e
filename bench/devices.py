# SPDX-License-Identifier: Apache-2.0
"""Compares a store on two devices with one on a single device. Uses loop devices, and a cgroup that limits the bytes
per second from each device. Needs root."""

import contextlib
import os
import shutil
import time

from .cases import read, write
from .machine import MIB, read_text, write_text
from .program import Failure, Impossible, command, uninterrupted
from .verdict import THROTTLED_DEVICES, THROTTLED_RATE

# After a tenth of a second of idle time a device may transfer as much at once without throttling (20 MB at our rate).
# Two devices get that twice, so for a short file they would seem many times as fast as one. A lead-in uses it up.
LEAD_IN = THROTTLED_DEVICES * 32 * MIB
V2, V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/blkio"


@contextlib.contextmanager
def throttling_cgroup():
    """Returns the directory of a new cgroup, v2 or v1."""
    root, made = V2 if "io" in read_text(f"{V2}/cgroup.controllers").split() else V1, False
    if root == V1 and not os.access(f"{V1}/blkio.throttle.read_bps_device", os.W_OK):
        raise Impossible("this machine has no cgroup that limits I/O (controller io or blkio)")
    path = f"{root}/weightfs-bench-{os.getpid()}"
    try:
        try:
            if root == V2:
                write_text(f"{V2}/cgroup.subtree_control", "+io")   # fails in a cgroup that is not the root
            with uninterrupted():
                os.mkdir(path, 0o755)
                made = True
        except OSError as error:
            raise Impossible(f"{path}: cannot be made: {error.strerror}") from error
        yield path
    finally:
        with uninterrupted():
            for _ in range(200 * made):   # a daemon that has released its store may still be exiting
                with contextlib.suppress(OSError):
                    os.rmdir(path)
                    break
                time.sleep(0.02)


@contextlib.contextmanager
def loop_device(run, path, size, cgroup):
    """Creates a throttled device on a new file."""
    device = ""
    try:
        try:
            with open(path, "wb") as stream:
                os.posix_fallocate(stream.fileno(), 0, size)
            with uninterrupted():
                device = command("losetup", f"--direct-io={'off' if run.in_memory else 'on'}", "--find", "--show",
                                 path).strip()
        except (Failure, OSError) as error:
            raise Impossible(str(error)) from error
        number = read_text(f"/sys/class/block/{os.path.basename(device)}/dev").strip()
        if os.path.exists(f"{cgroup}/io.max"):
            write_text(f"{cgroup}/io.max", f"{number} rbps={THROTTLED_RATE} wbps={THROTTLED_RATE}")
        else:
            for direction in ("read", "write"):
                write_text(f"{cgroup}/blkio.throttle.{direction}_bps_device", f"{number} {THROTTLED_RATE}")
        yield device
    finally:
        with uninterrupted():
            if device:
                command("losetup", "--detach", device)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def device_stores(run, size):
    """Creates the two mounts: of the store on several devices, and of the store on one."""
    for possible, why in ((run.has_own_store, "needs stores of its own: give a directory outside of a mount"),
                          (os.geteuid() == 0, "needs root, for loop devices and a cgroup"),
                          (shutil.which("losetup"), "losetup is not installed (package util-linux)")):
        if not possible:
            raise Impossible(why)
    cgroup = run.group.enter_context(throttling_cgroup())
    devices = [run.group.enter_context(loop_device(run, run.host.file(f"device-{index}"), 2 * (size + LEAD_IN)
                                                   + 256 * MIB, cgroup)) for index in range(1 + THROTTLED_DEVICES)]
    run.show("devices: making stores")
    return {way: run.on(run.make_store(name, stack=run.group, devices=some, cgroup=cgroup)) for way, name, some in (
        ("weightfs", "two", devices[1:]), ("one device", "one", devices[:1]))}


def device_cases(run):
    size = (32 if run.options.quick else 512) * MIB
    try:
        stores = device_stores(run, size)
    except Impossible as error:
        run.group.close()
        run.not_measured("devices", str(error))
        return []

    def cases(way, directory):
        lead_in, path = directory.file("lead-in"), directory.file("read")

        def before_read(_):
            directory.make_cold(path, lead_in)
            run.worker.ask("read", path=lead_in, size=LEAD_IN)

        def before_write(_):
            run.worker.ask("write", path=lead_in, size=LEAD_IN)

        for name, bytes_of in ((lead_in, LEAD_IN), (path, size)):
            run.worker.ask("write", path=name, size=bytes_of)
        return [read(run, way, directory, "devices-read", before=before_read, path=path, size=size),
                write(run, way, directory, "devices-write", before=before_write, size=size)]

    return [case for way, directory in stores.items() for case in cases(way, directory)]


GROUPS = [("devices", device_cases)]
