# SPDX-License-Identifier: Apache-2.0
"""Makes one kind of system call of a daemon fail (strace), under every operation, and judges what the mount then does.

The counter of strace's `when=` is one for each thread, so the n-th call fails in each thread that comes to it."""

import collections
import dataclasses
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import call_faults_workload as workload
from harness import process
from harness.filesystems import MOUNT_LIMIT_S, is_mounted, program, wait_until, weightfs
from harness.syscalls import unmount_lazily

PROGRAM = Path(workload.__file__)
CRASHES = ("killed by", "terminate called", "Assertion", "runtime error")
TROUBLE = re.compile(r"weightfs: (?!info:)")   # an error or a warning; errors at the start have no level
OUT_OF_MEMORY = "out of memory"
LEASE_STEPS = ("write_leased", "read_leased", "save_many")
PROGRAMS_ERRORS = ("EPERM", "EACCES", "EBADF", "EINVAL", "EEXIST", "ENOTDIR", "EISDIR", "ENOTTY", "ESTALE")
LIMIT_S = 90


@dataclasses.dataclass(frozen=True)
class Fault:
    """What fails. `number`: which call or allocation, or the limit."""

    number: int
    phase: str = "served"  # or "mount": from the start of the daemon
    killed: bool = False   # afterwards the daemon is killed; otherwise it is unmounted
    error: str = ""        # that the calls return

    def before(self, folder):
        """The words before the command of the daemon."""
        return []

    def begin(self, daemon, folder):
        """The mount is there."""

    def count(self, folder):
        """How often something failed."""
        return 1


@dataclasses.dataclass(frozen=True)
class CallFault(Fault):
    call: str = ""
    and_later: bool = False
    files: tuple = ()   # of the store, if only calls on them fail

    def words(self, folder):
        if not self.error:
            return ["-y", "-e", f"trace={self.call}"]
        later = "+" if self.and_later else ""
        only = [word for name in self.files for word in ("-P", folder / "store" / name)]
        return [*only, "-e", f"trace={self.call}",
                "-e", f"inject={self.call}:error={self.error}:when={self.number}{later}"]

    def before(self, folder):
        if self.phase != "mount":
            return []
        return ["strace", "-f", "-qq", "--seccomp-bpf", "-o", folder / "trace", *self.words(folder)]

    def begin(self, daemon, folder):
        if self.phase == "served":
            daemon.attach(self.words(folder), folder / "trace")

    def count(self, folder):
        return (folder / "trace").read_text(errors="replace").count("(INJECTED)")


@dataclasses.dataclass(frozen=True)
class AllocationFault(Fault):
    """See tests/support/failing_new.cc."""

    def before(self, folder):
        self._set(folder, 0, self.number if self.phase == "mount" else 0)
        library = program().parent / "libweightfs_failing_new.so"
        assert library.exists(), f"{library}: build the target weightfs_failing_new"   # ld.so would go on without it
        return ["env", f"LD_PRELOAD={library}", f"FAILING_NEW={folder}/allocations"]

    def begin(self, daemon, folder):
        if self.phase == "served":
            with open(folder / "allocations", "r+b") as file:
                file.seek(8)
                file.write(struct.pack("=Q", self.made(folder) + self.number))

    @staticmethod
    def made(folder):
        return struct.unpack("=Q", (folder / "allocations").read_bytes()[:8])[0]

    @staticmethod
    def _set(folder, made, fails):
        (folder / "allocations").write_bytes(struct.pack("=QQ", made, fails))


@dataclasses.dataclass(frozen=True)
class DescriptorLimit(Fault):
    error: str = "EMFILE"

    def before(self, folder):
        return ["prlimit", f"--nofile={self.number}:{self.number}"] if self.phase == "mount" else []

    def begin(self, daemon, folder):
        if self.phase == "served":
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (self.number, self.number))


class Expected:
    """What the names may be after a crash, and what they are now if nothing has failed."""

    def __init__(self, base):
        self.possible = {name: [state] for name, state in base.items()}   # from the last durable state on
        self.current = dict(base)                                         # a missing name: unknown after a failure
        self.named = collections.defaultdict(int)   # the index in `possible` that the last change of a name has set
        self.failures, self.lies, self.ended = [], [], False
        self._changing, self._naming = {}, False

    def hear(self, line):
        event = json.loads(line)
        if "begins" in event:
            self._changing, self._naming = event["begins"], event["named"]
            for name, state in self._changing.items():
                self.possible.setdefault(name, [None]).append(state)
                self.current.pop(name, None)
        elif "done" in event:
            self.current.update(self._changing)
            if self._naming:
                for name in self._changing:
                    self.named[name] = len(self.possible[name]) - 1
        elif "synced" in event:
            self._synced(event["synced"])
        elif "failed" in event:
            self.failures.append((event["failed"], event["error"]))
        elif "saw" in event:
            self._saw(event["saw"], event["state"])
        else:
            self.ended = True

    def _synced(self, synced):
        for name, states in self.possible.items():
            first = self.named.pop(name, 0)
            if name == synced and name in self.current:
                first = len(states) - 1
                states[-1] = self.current[name]
            del states[:first]

    def _saw(self, name, state):
        allowed = self.possible.get(name, [None])
        if name in self.current and not self.failures:
            allowed = [self.current[name]]
        if state not in allowed:
            self.lies.append(f"{name} is {state}, and not one of {allowed}")
        self.current[name] = state
        if name in self.possible and state in allowed:
            self.possible[name].append(state)

    def check(self, tree, whole):
        """`whole`: everything must have its last state. Returns what is wrong."""
        wrong = []
        for name in self.possible.keys() | tree.keys():
            allowed = [self.current[name]] if whole and name in self.current else self.possible.get(name, [None])
            if tree.get(name) not in allowed:
                wrong.append(f"{name} is {tree.get(name)}, and not one of {allowed}")
        return wrong


class Daemon:
    """A daemon in the foreground, whose messages go to a file."""

    def __init__(self, store, point, log, options=""):
        self.store, self.point, self.log, self.tracer = store, point, log, None
        self.unmounted = None   # the result of umount, if there was a daemon
        self.words = [program(), "mount", "-f", "-o", options or "commit=1", store, point]

    def start(self, before=()):
        with open(self.log, "ab") as log:
            self.started = subprocess.Popen([*map(str, before), *map(str, self.words)], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)
        return wait_until(lambda: is_mounted(self.point) or self.started.poll() is not None, MOUNT_LIMIT_S)

    @property
    def pid(self):
        found = process.processes_with(program().name, os.fspath(self.store))
        return found[0] if found else 0

    def attach(self, words, out):
        """Traces all threads."""
        self.tracer = subprocess.Popen(["strace", "-f", "-qq", "-o", out, "-p", str(self.pid), *words],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        tasks = Path(f"/proc/{self.pid}/task")
        assert wait_until(lambda: all("TracerPid:\t0" not in (task / "status").read_text() for task in tasks.iterdir()))

    def kill(self):
        """Nothing is left, whatever the state was."""
        if self.pid:
            process.kill(self.pid)
            process.wait_gone(self.pid)
        while is_mounted(self.point):
            assert unmount_lazily(self.point) == 0

    def end(self, killed):
        """Returns the exit status of the daemon; None if it has hung."""
        if killed and self.pid:
            process.kill(self.pid)
        elif is_mounted(self.point):
            served = self.started.poll() is None
            unmounted = process.run([program(), "umount", "--timeout", LIMIT_S, self.point], limit=2 * LIMIT_S,
                                    codes=None)
            self.unmounted = unmounted if served else None
        try:
            code = self.started.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
            process.kill(self.pid)
            self.started.wait(LIMIT_S)
        if self.tracer is not None:
            self.tracer.wait(LIMIT_S)
            self.tracer.stderr.close()
        self.kill()
        return code


class Trial:
    """One fault, on a copy of a store."""

    def __init__(self, base, folder):
        """`base`: the unmounted store with workload.BASE."""
        self.base, self.folder = base, folder
        self.store, self.point, self.log = folder / "store", folder / "mount", folder / "log"

    def copy(self):
        """A new copy of the store, and an empty directory to mount it on."""
        self.remove()
        self.point.mkdir(parents=True)
        process.run(["cp", "-a", "--sparse=always", self.base, self.store])

    def remove(self):
        Daemon(self.store, self.point, self.log).kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, fault):
        """Returns what is wrong, and a short description of what happened."""
        self.copy()
        daemon = Daemon(self.store, self.point, self.log)
        if not daemon.start(fault.before(self.folder)):
            daemon.kill()
            return ["the mount hangs"], ""
        wrong = []
        expected = Expected({name: workload.File(workload.data_of(name, size)).state()
                             for name, size in workload.BASE.items()})
        served = is_mounted(self.point)
        if served:
            fault.begin(daemon, self.folder)
            wrong += self.work(expected, daemon)
        code = daemon.end(fault.killed)
        if daemon.unmounted is not None and (daemon.unmounted.code == 0) != (code == 0):
            wrong.append(f"the daemon ended with {code}, and umount says: {daemon.unmounted.err}")
        said = self.log.read_text(errors="replace")
        out_of_memory = code == -signal.SIGKILL and OUT_OF_MEMORY in said
        if code is None:
            wrong.append("the daemon hangs")
        elif code not in (0, 1) and not out_of_memory and not (fault.killed and code == -signal.SIGKILL):
            wrong.append(f"the daemon ended with {code}")
        wrong += [f"the log has '{word}'" for word in CRASHES if word in said]
        # What is wrong with a lease may be in the answer.
        failed = [step for step, error in expected.failures if step not in LEASE_STEPS or error != fault.error]
        if (failed or code == 1 or not served) and not TROUBLE.search(said):
            wrong.append("the log does not say what is wrong")
        wrong += [f"{step} fails as if the program were wrong: {error}" for step, error in expected.failures
                  if error in PROGRAMS_ERRORS and error != fault.error]
        whole = served and not fault.killed and code == 0 and not expected.failures
        wrong += expected.lies + self.check_later(expected, whole)
        errors = sorted({f"{step}: {error}" for step, error in expected.failures})
        happened = f"{fault.count(self.folder)} failed; {'served' if served else 'refused'}, exit {code}"
        return wrong, f"{happened}; {', '.join(errors)}"

    def work(self, expected, daemon):
        command = [sys.executable, str(PROGRAM), str(self.point), str(program())]
        environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])}  # for its harness
        wrong = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as working:
            try:
                out, err = working.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill(daemon.pid)
                working.kill()
                out, err = working.communicate()
                wrong.append("an operation hangs")
        for line in out.splitlines():
            expected.hear(line)
        if not expected.ended and not wrong:
            wrong.append(f"the workload failed: {err.decode()[-2000:]}")
        return wrong

    def check_later(self, expected, whole):
        """Mounts without faults, and compares."""
        daemon = Daemon(self.store, self.point, self.folder / "log-later")
        if not daemon.start() or not is_mounted(self.point):
            daemon.end(killed=True)
            return [f"the store cannot be mounted again: {(self.folder / 'log-later').read_text()}"]
        try:
            wrong = expected.check(workload.tree(self.point), whole)
        except (OSError, AssertionError) as error:
            wrong = [f"the tree cannot be read: {error}"]
        if daemon.end(killed=False) != 0:
            wrong.append("the later mount did not end well")
        checked = weightfs("verify", self.store, codes=None)
        if checked.code != 0:
            wrong.append(f"verify: {checked.out}{checked.err}")
        return wrong


LOADED = re.compile(r"\d+ +fcntl\(0<[^>]*>, F_GETFD")   # the first call of main


def counts_of_calls(trace):
    """From a trace of all calls since the start: for each call, how many the loader made, and the most that one thread
    made."""
    counts, loading = collections.Counter(), {}
    for line in Path(trace).read_text(errors="replace").splitlines():
        if not loading and LOADED.match(line):
            loading = {call: count for (_, call), count in counts.items()}
        if match := re.match(r"(\d+) +(\w+)\(", line):
            counts[match[1], match[2]] += 1
    most = collections.Counter()
    for (_, call), count in counts.items():
        most[call] = max(most[call], count)
    return {call: (loading.get(call, 0), count) for call, count in most.items()}


def files_of_calls(trace, call, store):
    """From such a trace: the files of the store whose descriptors the calls have, and the most of these calls that one
    thread made."""
    used = re.findall(rf"(\d+) +{call}\(\d+<{re.escape(os.fspath(store))}/([^>]*)>",
                      Path(trace).read_text(errors="replace"))
    made = collections.Counter(thread for thread, _ in used)
    return tuple(sorted({name for _, name in used})), max(made.values(), default=0)
