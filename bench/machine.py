# SPDX-License-Identifier: Apache-2.0
"""The machine: its description, processor time, memory, filesystems."""

import os
import platform
import re
import time

MIB, GIB = 1 << 20, 1 << 30


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def write_text(path, text):
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)


def kernel_figure(name, pid=None):
    """The bytes of one line "Name:   123 kB" of /proc/meminfo or of a process."""
    for line in read_text(f"/proc/{pid}/status" if pid else "/proc/meminfo").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0


def cpu_seconds(*pids):
    """User and system time of processes; 0 if they are gone."""
    fields = [read_text(f"/proc/{pid}/stat").rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields if each) / os.sysconf("SC_CLK_TCK")


def children_cpu_seconds():
    return sum(os.times()[2:4])


def processor_times():
    """The time of all processors together, and the part of it that was stolen, in ticks."""
    # user nice system idle iowait irq softirq steal; the later fields are already included in user
    ticks = [int(field) for field in read_text("/proc/stat").split(None, 9)[1:9]]
    return sum(ticks), ticks[7]


def sync_file(path, drop=False):
    """Waits until a file, or the changes of a directory, are on the device. drop: then drops its page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if drop:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def mounts():
    """Source, mount point and type of each mount, oldest first. The table escapes blanks and similar as \\NNN."""
    with open("/proc/self/mounts", "rb") as table:
        for line in table:
            yield [os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), word))
                   for word in line.split(b" ")[:3]]


def mount_of(path):
    """Type and source of the filesystem that contains a path: those of the longest matching mount point."""
    best = ("", "unknown", "unknown")
    for source, point, kind in mounts():
        if f"{os.path.realpath(path)}/".startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
            best = (point, kind, source)
    return best[1:]


def gives_memory_back():
    """True for a guest that reports free memory to its host (VIRTIO_BALLOON_F_REPORTING). The host then takes the
    memory back, so touching it again costs a fault in the host."""
    balloon, reporting, folder = "0x0005", 5, "/sys/bus/virtio/devices"
    return any(read_text(f"{folder}/{name}/device").strip() == balloon and
               read_text(f"{folder}/{name}/features")[reporting:reporting + 1] == "1"
               for name in (os.listdir(folder) if os.path.isdir(folder) else []))


def size_text(size):
    """"8.0 GiB", "512 B": at most three digits."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    step = 0
    while size >= 1024 and step < len(units) - 1:
        size, step = size / 1024, step + 1
    return f"{size:.1f} {units[step]}" if step and size < 100 and size % 1 else f"{size:.0f} {units[step]}"


def facts(directory):
    """The description of a machine in a result."""
    models = re.findall(r"^model name\s*: (.*)", read_text("/proc/cpuinfo"), re.MULTILINE)
    pages = re.search(r"\[(.*)]", read_text("/sys/kernel/mm/transparent_hugepage/enabled"))
    return {"time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "kernel": f"{platform.system()} {platform.release()}",
            "processors": f"{os.cpu_count()} × {models[0] if models else 'unknown'}",
            "memory": size_text(kernel_figure("MemTotal")),
            "free memory": ("goes back to the host machine: slow when touched again" if gives_memory_back()
                            else "is kept"),
            "huge pages": pages[1] if pages else "unknown",
            "host's filesystem": "{} on {}".format(*mount_of(directory))}
