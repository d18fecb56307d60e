# SPDX-License-Identifier: Apache-2.0
"""The machine, processes, and the directories in which files are measured."""

import contextlib
import json
import os
import platform
import re
import resource
import shlex
import shutil
import signal
import subprocess
import time

MIB = 1 << 20
GIB = 1 << 30


class Failure(Exception):
    """An error that ends the run. Its text is one complete line."""


class Impossible(Failure):
    """A step that this machine or this user cannot perform. Only some rows need it."""


class Interrupted(BaseException):
    """SIGTERM: the user wants to stop, or the parent command is gone."""


def on_sigterm(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)   # the cleanup follows
    raise Interrupted


@contextlib.contextmanager
def uninterrupted():
    """Blocks SIGTERM while something that needs cleanup is created or cleaned up."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def write_text(path, text):
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)


def command(*words, cgroup=None):
    """Runs a program to completion and returns its output. It receives no signals from the terminal."""
    enter = (lambda: write_text(f"{cgroup}/cgroup.procs", "0")) if cgroup else None
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, errors="replace", start_new_session=True, preexec_fn=enter)
    except OSError as error:
        raise Failure(f"{words[0]}: {error.strerror}") from error
    try:
        out, err = process.communicate()
    except BaseException:
        process.terminate()   # and wait, because weightfs mount cleans up
        process.communicate()
        raise
    if process.returncode:
        line = ((err or out).strip() or "it printed nothing").splitlines()[-1]
        raise Failure(f"'{' '.join(words)}' failed: {line}")
    return out


class Client:
    """A process that answers each line of JSON with one line. It has already imported or prepared what it needs."""

    def __init__(self, *words):
        self.name = words[0]
        try:
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                            start_new_session=True)
        except OSError as error:
            raise Failure(f"{self.name}: {error.strerror}") from error

    def ask(self, do, **job):
        try:
            self.process.stdin.write(json.dumps({"do": do, **job}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failure(f"{self.name} ended; what it printed above says why")
        answer = json.loads(line)
        if "error" in answer:
            raise Failure(answer["error"])
        return answer

    def end(self):
        self.process.kill()
        self.process.wait()


# The machine

def kernel_figure(name, pid=None):
    """The bytes of one line "Name:   123 kB" of /proc/meminfo or of a process."""
    for line in read_text(f"/proc/{pid}/status" if pid else "/proc/meminfo").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0


def cpu_seconds(pid):
    """User and system time of a process; 0 if it is gone."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0


def children_cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class ProcessorTimes:
    """The CPU time of all processors together when the object is created."""

    def __init__(self):
        # user nice system idle iowait irq softirq steal; the later fields are already included in user
        ticks = [int(field) for field in read_text("/proc/stat").split(None, 9)[1:9]]
        self.total, self.idle, self.steal = sum(ticks), ticks[3] + ticks[4], ticks[7]

    def part_since(self, of):
        now = ProcessorTimes()
        total = now.total - self.total
        return of(now) / total if total else 0

    def steal_since(self):
        return self.part_since(lambda now: now.steal - self.steal)

    def busy_since(self):
        return self.part_since(lambda now: now.total - self.total - (now.idle - self.idle))


def free_space(path):
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


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
    balloon, reporting = "0x0005", 5
    devices = [f"/sys/bus/virtio/devices/{name}" for name in
               (os.listdir("/sys/bus/virtio/devices") if os.path.isdir("/sys/bus/virtio/devices") else [])]
    return any(read_text(f"{device}/device").strip() == balloon and
               read_text(f"{device}/features")[reporting:reporting + 1] == "1" for device in devices)


def size_text(size):
    """"8.0 GiB", "512 B": at most three digits."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    step = 0
    while size >= 1024 and step < len(units) - 1:
        size, step = size / 1024, step + 1
    return f"{size:.1f} {units[step]}" if step and size < 100 else f"{size:.0f} {units[step]}"


def command_of(run):
    """The command line that repeats the run."""
    options = run.options
    words = ["weightfs", "bench", options.directory, "--size", f"{run.size // MIB}M", "--rounds", str(options.rounds),
             "--seed", str(options.seed)]
    words += ["--quick"] * options.quick + ["--drop-caches"] * options.drop_caches + ["--scaling"] * options.scaling
    words += ["--files", str(options.many_files)] if options.many_files else []
    words += ["--large-size", f"{options.large_size // MIB}M"] if options.large_size else []
    for row in options.only:
        words += ["--only", row]
    for name, value in (("-o", options.mount_options), ("--host", options.host), ("--python", options.python)):
        words += [name, value] if value else []
    return shlex.join(words)


def facts(run):
    options = run.options
    models = [line.split(": ", 1)[1] for line in read_text("/proc/cpuinfo").splitlines()
              if line.startswith("model name")]
    pages = read_text("/sys/kernel/mm/transparent_hugepage/enabled").partition("[")[2].partition("]")[0]
    return {"weightfs": options.version,
            "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "kernel": f"{platform.system()} {platform.release()}",
            "processors": f"{os.cpu_count()} × {models[0] if models else 'unknown'}",
            "memory": size_text(kernel_figure("MemTotal")),
            "free memory": ("goes back to the host machine: slow when touched again" if gives_memory_back()
                            else "is kept"),
            "huge pages": pages or "unknown",
            "host's filesystem": "{} on {}".format(*mount_of(run.host.path)),
            "store": options.store or "made for this run",
            "mount options": options.mount_options or "defaults",
            "size of the file": size_text(run.size),
            "run": command_of(run)}


# Directories

def files_of(path):
    """The path of a file, or those of the files in a directory."""
    return [entry.path for entry in os.scandir(path)] if os.path.isdir(path) else [path]


class Directory:
    """A directory in which files are measured: in a weightfs mount (`daemon` is its process), or on the host's
    filesystem."""

    def __init__(self, run, path, daemon=None):
        self.run, self.path, self.daemon = run, path, daemon

    def file(self, name):
        return f"{self.path}/{name}"

    @property
    def large_file(self):
        return self.file("big")

    def cpu_seconds(self):
        return cpu_seconds(self.daemon) if self.daemon else 0

    def counters(self):
        return self.run.worker.ask("counters", path=self.path) if self.daemon else {}

    def make_cold(self, *paths):
        """Writes the dirty data of files, or of the files in directories, and drops their pages from the kernel's and
        the daemon's caches."""
        files = [file for path in paths for file in files_of(path)]
        self.run.worker.ask("cold", paths=files, on_mount=self.daemon is not None)
        self.run.drop_caches()

    def make_large_file_cold(self):
        if not os.path.exists(self.large_file) or os.path.getsize(self.large_file) != self.run.size:
            self.run.show("writing the big file")
            self.run.worker.ask("write", path=self.large_file)
        self.make_cold(self.large_file)

    def remove(self, name):
        """Deletes a file or a directory, if it exists, and waits until the filesystem has processed the deletion."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.file(name)) if os.path.isdir(self.file(name)) else os.unlink(self.file(name))
        self.sync()

    def sync(self, name="."):
        descriptor = os.open(self.file(name), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def scratch_directory(parent, name="weightfs-bench"):
    """A new directory of this process. It is removed at the end with all its content."""
    path, made = f"{parent}/{name}-{os.getpid()}", False
    try:
        with uninterrupted():
            os.mkdir(path, 0o755)
            made = True
        yield path
    finally:
        # Never deletes through a mount that could not be unmounted.
        if made and not any(point.startswith(f"{os.path.realpath(path)}/") for _, point, _ in mounts()):
            with uninterrupted():
                shutil.rmtree(path)


def daemon_of(store):
    """The process that serves a store, as recorded in its lock file."""
    descriptor = os.open(f"{store}/lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, encoding="ascii", errors="replace") as stream:
        pid = (stream.read(32).split() or ["0"])[0]
    if not pid.isdigit() or not os.path.exists(f"/proc/{pid}/stat"):
        raise Failure(f"{store}: no process serves this store here")
    return int(pid)


class Store:
    """A store that is created and mounted below the scratch directory, and unmounted and deleted at the end."""

    def __init__(self, run, name, size=0, devices=(), fill="auto", extra_options="", cgroup=None):
        self.run, self.path, self.cgroup = run, f"{run.base}/{name}", cgroup
        self.mount = f"{self.path}/mount"
        self.format_words = [word for device in devices for word in ("--device", device)] or ["--size", str(size)]
        self.format_words += ["--fill", fill]
        self.options = ",".join(filter(None, (run.options.mount_options, extra_options)))

    def __enter__(self):
        os.mkdir(self.path)
        os.mkdir(self.mount)
        try:
            command(self.run.options.program, "format", f"{self.path}/store", *self.format_words)
            return self.mount_it()
        except BaseException as error:
            self.__exit__(error)
            raise

    def mount_it(self):
        words = [self.run.options.program, "mount", f"{self.path}/store", self.mount]
        command(*words, *(("-o", self.options) if self.options else ()), cgroup=self.cgroup)
        return Directory(self.run, self.mount, daemon_of(f"{self.path}/store"))

    def unmount(self):
        command(self.run.options.program, "umount", self.mount)

    def __exit__(self, error, *_):
        # A mount that was never made is not an error. A mount that cannot be removed keeps its store.
        with uninterrupted():
            if error is not None:
                self.run.end_processes()   # they may be using the mount
            with contextlib.suppress(Failure):
                self.unmount()
            try:
                os.rmdir(self.mount)
            except OSError:
                self.unmount()   # raises the reason
                raise
            shutil.rmtree(self.path)
