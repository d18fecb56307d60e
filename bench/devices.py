# SPDX-License-Identifier: Apache-2.0
"""Compares a store on two devices with one on a single device. Uses loop devices, and a cgroup that limits the bytes
per second from each device. Needs root."""

import contextlib
import os
import shutil
import time

from .cases import Case, Step
from .machine import MIB, read_text, write_text
from .program import Failure, Impossible, command, uninterrupted
from .verdict import THROTTLED_DEVICES, THROTTLED_RATE

# After a tenth of a second of idle time a device may transfer as much at once without throttling (20 MB at our rate).
# Two devices get that twice, so for a short file they would seem many times as fast as one. A lead-in uses it up.
LEAD_IN = THROTTLED_DEVICES * 32 * MIB
assert LEAD_IN > THROTTLED_DEVICES * THROTTLED_RATE / 10

V2, V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/blkio"


@contextlib.contextmanager
def throttling_cgroup():
    """Returns the directory of a new cgroup, v2 or v1."""
    if "io" in read_text(f"{V2}/cgroup.controllers").split():
        root = V2
        try:
            write_text(f"{V2}/cgroup.subtree_control", "+io")
        except OSError as error:
            raise Impossible("the cgroup controller io cannot be handed to a child (not in the root cgroup?)") from error
    elif os.access(f"{V1}/blkio.throttle.read_bps_device", os.W_OK):
        root = V1
    else:
        raise Impossible("this machine has no cgroup that limits I/O (controller io or blkio)")
    path = f"{root}/weightfs-bench-{os.getpid()}"
    made = False
    try:
        try:
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


def limit(cgroup, device):
    number = read_text(f"/sys/class/block/{os.path.basename(device)}/dev").strip()
    if os.path.exists(f"{cgroup}/io.max"):
        write_text(f"{cgroup}/io.max", f"{number} rbps={THROTTLED_RATE} wbps={THROTTLED_RATE}")
    else:
        for direction in ("read", "write"):
            write_text(f"{cgroup}/blkio.throttle.{direction}_bps_device", f"{number} {THROTTLED_RATE}")


@contextlib.contextmanager
def loop_device(run, path, size, cgroup):
    """Creates a throttled device on a new file."""
    device = ""
    try:
        try:
            with open(path, "wb") as stream:
                os.posix_fallocate(stream.fileno(), 0, size)
            direct = "off" if run.in_memory else "on"
            with uninterrupted():
                device = command("losetup", f"--direct-io={direct}", "--find", "--show", path).strip()
        except (Failure, OSError) as error:
            raise Impossible(str(error)) from error
        limit(cgroup, device)
        yield device
    finally:
        with uninterrupted():
            if device:
                command("losetup", "--detach", device)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def device_stores(run, size, stack):
    """Creates the two mounts: of the store on several devices, and of the store on one."""
    if not run.has_own_store:
        raise Impossible("needs stores of its own: give a directory outside of a mount")
    if os.geteuid() != 0:
        raise Impossible("needs root, for loop devices and a cgroup")
    if shutil.which("losetup") is None:
        raise Impossible("losetup is not installed (package util-linux)")
    cgroup = stack.enter_context(throttling_cgroup())
    devices = [stack.enter_context(loop_device(run, run.host.file(f"device-{index}"), 2 * (size + LEAD_IN) + 256 * MIB,
                                               cgroup)) for index in range(1 + THROTTLED_DEVICES)]
    run.show("devices: making stores")
    one = run.make_store("one", stack=stack, devices=devices[:1], cgroup=cgroup)
    return run.on(run.make_store("two", stack=stack, devices=devices[1:], cgroup=cgroup)), run.on(one)


def device_cases(run):
    size = (32 if run.options.quick else 512) * MIB
    run.device_stack = stack = run.stack.enter_context(contextlib.ExitStack())
    try:
        two, one = device_stores(run, size, stack)
    except Impossible as error:
        stack.close()
        run.not_measured("devices", str(error))
        return []

    def steps(directory):
        lead_in, read, written = (directory.file(name) for name in ("lead-in", "read", "written"))
        run.worker.ask("write", path=lead_in, size=LEAD_IN)
        run.worker.ask("write", path=read, size=size)

        def before_read(_):
            directory.make_cold(read, lead_in)
            run.worker.ask("read", path=lead_in, size=LEAD_IN)

        def before_write(_):
            directory.remove("written")
            run.worker.ask("write", path=lead_in, size=LEAD_IN)

        yield Step("devices-read", lambda turn: {**run.worker.ask("read", path=read, size=size, check=turn.warm_up),
                                                 "bytes": size}, before_read)
        yield Step("devices-write", lambda _: {**run.worker.ask("write", path=written, size=size), "bytes": size},
                   before_write)

    return [Case(way, directory, [step]) for way, directory in (("weightfs", two), ("one device", one))
            for step in steps(directory)]


def finish_devices(run):
    run.device_stack.close()


GROUP = ("devices", device_cases, finish_devices)
