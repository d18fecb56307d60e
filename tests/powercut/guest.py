# SPDX-License-Identifier: Apache-2.0
"""The first process of the virtual machine: sets up the devices, mounts the store, works, and cuts the power.

Its argument is a JSON file (powercut.py, `guest_settings`). It prints one line "guest: …" for each step.
"""

import ctypes
import json
import os
import subprocess
import sys

import workload

LIBC = ctypes.CDLL(None, use_errno=True)
FINIT_MODULE = 313   # on x86-64


def say(text):
    print(f"guest: {text}", flush=True)


def run(*words, **options):
    subprocess.run([str(word) for word in words], check=True, **options)


def mount(source, target, kind):
    os.makedirs(target, exist_ok=True)
    if LIBC.mount(source.encode(), target.encode(), kind.encode(), 0, None) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {target}")


def load_module(path):
    descriptor = os.open(path, os.O_RDONLY)
    if LIBC.syscall(FINIT_MODULE, descriptor, b"", 0) != 0:
        raise OSError(ctypes.get_errno(), f"cannot load {path}")
    os.close(descriptor)


def device(name, *table):
    run("dmsetup", "create", name, "--noudevsync", "--noudevrules", "--table", " ".join(str(word) for word in table))
    run("dmsetup", "mknodes", name)


def mark(text):
    run("dmsetup", "message", "logged", "0", "mark", text)


def assemble(settings):
    """Creates the logged device, and the devices of the store as parts of it, which therefore share one order."""
    sectors = settings["size"] // 512
    device("logged", 0, sectors, "log-writes", "/dev/ubda", "/dev/ubdb")
    os.makedirs(settings["devices"], exist_ok=True)
    for name, (start, length) in settings["parts"].items():
        device(name, 0, length // 512, "linear", "/dev/mapper/logged", start // 512)
        os.symlink(f"/dev/mapper/{name}", f"{settings['devices']}/{name}")


def serve(settings):
    """Mounts the store, which is created first if `pools` are given."""
    catalog, store, point = settings["catalog"], settings["store"], settings["mount"]
    mount("/dev/mapper/catalog", catalog, "ext4")
    if settings["format"]:
        run(settings["program"], "format", store, *settings["format"])
    os.makedirs(point, exist_ok=True)
    environment = dict(os.environ)
    if settings["preload"]:
        environment["LD_PRELOAD"] = settings["preload"]
    run(settings["program"], "mount", store, point, "-o", "memory=112M", env=environment)
    return point


def main():
    with open(sys.argv[1], encoding="utf-8") as stream:
        settings = json.load(stream)
    for kind, target in (("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/run")):
        mount(kind, target, kind)
    os.environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
    for module in ("drivers/md/dm-mod", "drivers/md/dm-log-writes", "fs/fuse/fuse"):
        load_module(f"/usr/lib/uml/modules/{os.uname().release}/kernel/{module}.ko")
    assemble(settings)
    point = serve(settings)
    say("mounted")
    for number in range(settings["first"], settings["first"] + settings["operations"]):
        mark(f"begin-{number}")
        workload.perform(point, settings["seed"], number)
        mark(f"end-{number}")
    say("done")


try:
    main()
except BaseException as error:   # the first process must not end before it has said why
    say(f"failed: {error!r}")
finally:
    with open("/proc/sysrq-trigger", "w", encoding="ascii") as trigger:
        trigger.write("o")
    while True:
        os.sched_yield()
