# SPDX-License-Identifier: Apache-2.0
"""Every failure in turn, in a daemon that serves each operation, and in one that starts: system calls, allocations,
threads, descriptors, memory. The mount works, or fails with an error and a line in its log. Then everything that was
acknowledged is there, and `verify` finds no damage."""

import errno
import fcntl
import os
import resource
from pathlib import Path

import pytest

import call_faults_workload as workload
import lease_client
from call_faults import (OUT_OF_MEMORY, AllocationFault, CallFault, Daemon, DescriptorLimit, Fault, Trial,
                         counts_of_calls, files_of_calls)
from harness import needs, process
from harness.filesystems import is_mounted, program, wait_until
from harness.syscalls import errno_of
from lease_checks import descriptors_at_rest

pytestmark = [pytest.mark.usefixtures("weightfs_only"), needs.root, needs.program("strace", "prlimit")]

# Errors that the kernel returns for the call, in some state of the machine. What a descriptor limit or a full disk
# causes, lasts: then every later call fails, too.
# Not among them: calls of RocksDB or glibc that assert that the kernel returns no such error (sync_file_range, fstatfs,
# brk, munmap), writev to /dev/fuse, where a reply that fails has ended the request, and read and write of eventfds and
# /proc, which do not fail so.
PASSING = {"read": "EINTR EAGAIN", "poll": "EINTR", "io_getevents": "EINTR", "epoll_wait": "EINTR", "recvmsg": "EINTR",
           "sendmsg": "EINTR", "pwrite64": "EINTR", "pread64": "EINTR", "fdatasync": "EINTR", "fsync": "EINTR",
           "getrandom": "EINTR", "flock": "EINTR", "io_submit": "EAGAIN", "accept4": "ECONNABORTED"}
LASTING = {"io_submit": "ENOMEM EIO", "pwrite64": "EIO ENOSPC", "fdatasync": "EIO", "fsync": "EIO", "pread64": "EIO",
           "openat": "EMFILE", "ftruncate": "ENOSPC", "fallocate": "ENOSPC EOPNOTSUPP",
           "rename": "EIO", "unlink": "EIO", "mkdir": "EACCES", "close": "EIO", "clone3": "EAGAIN",
           "mmap": "ENOMEM", "mprotect": "ENOMEM", "madvise": "EINVAL", "eventfd2": "EMFILE",
           "epoll_create1": "EMFILE", "epoll_ctl": "ENOMEM", "socket": "EMFILE", "accept4": "EMFILE",
           "bind": "EADDRINUSE", "listen": "EADDRINUSE", "recvmsg": "ENOMEM", "sendmsg": "ENOBUFS ETOOMANYREFS",
           "getsockopt": "ENOMEM", "setsockopt": "ENOMEM", "pidfd_open": "EMFILE", "fcntl": "EMFILE", "dup3": "EMFILE",
           "io_setup": "EAGAIN", "ioctl": "ENOTTY", "getdents64": "EIO", "newfstatat": "ENOMEM", "readlink": "EIO",
           "statfs": "EIO", "flock": "ENOLCK", "prlimit64": "EPERM", "mount": "EPERM",
           "access": "EACCES",
           "chmod": "EPERM", "getcwd": "ENOENT", "getrandom": "ENOSYS", "fadvise64": "EINVAL"}
# The same two, on files of the store alone, which are the index's.
OF_FILES = {"read": ("", "EIO"), "write": ("EINTR", "ENOSPC EIO")}
# Errors that were once reported as others, or by umount as none.
FOUND = [CallFault(1, call="poll", error="EINTR"),
         CallFault(1, call="newfstatat", error="ENOMEM", and_later=True),
         CallFault(1, call="pidfd_open", error="ENOSYS"),
         CallFault(3, "mount", call="statfs", error="EIO"),
         CallFault(1, call="pwrite64", error="EIO", and_later=True),
         CallFault(1, call="ftruncate", error="ENOSPC", and_later=True)]
QUICK = 8   # trials of each test in scripts/test; --full runs all


@pytest.fixture(scope="module")
def base(session_factory):
    """An unmounted store with the files of the workload."""
    store = session_factory.store("64M")
    mount = session_factory.mount(store)
    workload.make_base(mount.path)
    mount.umount()
    (store.directory / "weightfs.log").unlink()
    return store.directory


@pytest.fixture
def trial(base, scratch):
    made = Trial(base, scratch / "trial")
    yield made
    made.remove()


def some(faults, config):
    """All of them, or a few with equal distances."""
    if config.getoption("full"):
        return faults
    return faults[::max(1, len(faults) // QUICK)]


def check(trial, faults):
    happened = 0
    for fault in faults:
        wrong, text = trial.run(fault)
        print(fault, text)
        assert not wrong, f"{fault}: {text}\n" + "\n".join(wrong) + f"\n{trial.log.read_text(errors='replace')}"
        happened += fault.count(trial.folder) > 0
    assert happened > len(faults) // 2, "the calls did not fail"


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def call_faults(trial, phase):
    """Each call fails at its first numbers, and at some later ones. Every third daemon is killed afterwards."""
    wrong, text = trial.run(CallFault(1, phase, call="!futex"))
    assert not wrong, text + "\n".join(wrong)
    made = []

    def add(call, error, number, and_later, files):
        made.append(CallFault(number, phase, len(made) % 3 == 2, error, call, and_later, files))

    def add_all(call, before, count, passing, lasting, files=()):
        numbers = sorted({1, 2, 3, max(1, count // 4), max(1, count // 2), max(1, count)} & set(range(1, count + 1)))
        for number in numbers:
            for error in passing.split():
                add(call, error, before + number, False, files)
            for error in lasting.split():
                add(call, error, before + number, False, files)
                if number in (1, count // 2):
                    add(call, error, before + number, True, files)

    trace = trial.folder / "trace"
    for call, (before, most) in counts_of_calls(trace).items():
        add_all(call, before, most - before, PASSING.get(call, ""), LASTING.get(call, ""))
    for call, (passing, lasting) in OF_FILES.items():
        files, most = files_of_calls(trace, call, trial.store)
        add_all(call, 0, most, passing, lasting, files)
    return made


@pytest.mark.limit(3600)
@pytest.mark.parametrize("phase", ["served", "mount"])
def test_a_system_call_fails(trial, pytestconfig, phase):
    check(trial, some(call_faults(trial, phase), pytestconfig))


def test_calls_that_have_failed_wrongly(trial):
    check(trial, FOUND)


def test_an_umount_does_not_take_a_lock_file_that_could_not_be_written_for_success(trial):
    trial.copy()
    daemon = Daemon(trial.store, trial.point, trial.log)
    fault = CallFault(1, "mount", call="pwrite64", error="EIO", and_later=True, files=("lock",))
    assert daemon.start(fault.before(trial.folder)) and is_mounted(trial.point)
    assert daemon.end(killed=False) == 0 and fault.count(trial.folder) > 0
    assert daemon.unmounted.code == 1 and "it is unknown whether" in daemon.unmounted.err


@pytest.mark.parametrize("first", [1, 3])
def test_an_umount_that_cannot_read_the_lock_file_fails(trial, first):
    trial.copy()
    daemon = Daemon(trial.store, trial.point, trial.log)
    assert daemon.start() and is_mounted(trial.point)
    fails = ["-P", trial.store / "lock", "-e", "trace=pread64", "-e", f"inject=pread64:error=EIO:when={first}+"]
    unmounted = process.run(["strace", "-qq", "-o", trial.folder / "trace", *fails, program(), "umount", trial.point],
                            codes=None)
    assert unmounted.code == 1 and "cannot be read" in unmounted.err
    assert daemon.end(killed=False) == 0


@pytest.mark.limit(3600)
@pytest.mark.parametrize("phase", ["served", "mount"])
def test_an_allocation_fails(trial, pytestconfig, phase):
    wrong, text = trial.run(AllocationFault(1 << 60, phase))
    assert not wrong, text + "\n".join(wrong)
    most = AllocationFault.made(trial.folder)
    stride = most // (200 if pytestconfig.getoption("full") else 8)
    check(trial, [AllocationFault(number, phase) for number in range(stride // 2, most // 2, stride)])


@pytest.mark.limit(3600)
def test_threads_cannot_be_created(trial, pytestconfig):
    """The daemon starts all threads at its start."""
    faults = [CallFault(number, "mount", call="clone3", error="EAGAIN") for number in range(1, 40)]
    check(trial, faults if pytestconfig.getoption("full") else faults[1:28:3])


@pytest.mark.limit(1200)
@pytest.mark.parametrize("phase", ["served", "mount"])
def test_few_descriptors(trial, pytestconfig, phase):
    limits = list(range(6, 100, 3 if pytestconfig.getoption("full") else 20))
    check(trial, [DescriptorLimit(limit, phase) for limit in limits])


class MemoryLimit(Fault):
    """A limit of a control group; `number` bytes more than the daemon has."""

    def begin(self, daemon, folder):
        self.group.joinpath("cgroup.procs").write_text(str(daemon.pid))
        used = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * resource.getpagesize()
        self.group.joinpath(self.limit).write_text(str(used + self.number))


@pytest.mark.limit(600)
def test_the_memory_of_a_control_group_is_exhausted(trial, control_group):
    """The kernel's end of the daemon is a kill."""
    MemoryLimit.group, MemoryLimit.limit = control_group
    for extra in (0, 8 << 20):
        wrong, text = trial.run(MemoryLimit(extra, killed=True))
        assert not wrong, f"{extra} bytes: {text}\n" + "\n".join(wrong)


def test_a_daemon_in_the_background_logs_that_memory_is_exhausted(trial):
    trial.copy()
    process.run([*AllocationFault(1).before(trial.folder), program(), "mount", trial.store, trial.point])
    daemon = Daemon(trial.store, trial.point, trial.log)
    pid = daemon.pid
    for number in range(1, 100):
        AllocationFault(number).begin(daemon, trial.folder)
        if errno_of((trial.point / f"file-{number}").write_bytes, b"content") == errno.ENOTCONN:
            break
    assert process.wait_gone(pid)
    assert OUT_OF_MEMORY in (trial.store / "weightfs.log").read_text()


class LargeBody:
    """As large as the protocol permits, and without memory."""

    def __len__(self):
        return 1 << 30

    def file(self):
        file = os.memfd_create("body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(file, len(self))
        fcntl.fcntl(file, lease_client.F_ADD_SEALS, lease_client.SEALS)
        return file


def test_a_request_that_needs_too_much_memory_fails_alone(mount, work, monkeypatch):
    """The daemon goes on."""
    monkeypatch.setattr(lease_client, "memory_file", LargeBody.file)
    path = work / "file"
    path.write_bytes(b"content")
    pid = mount.pid
    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    with open(path, "r+b") as file:
        token, name = lease_client.ticket(file.fileno())
        with lease_client.Lease(name) as lease:
            lease.identify(token)
            resource.prlimit(pid, resource.RLIMIT_AS, (used + (800 << 20), resource.RLIM_INFINITY))
            try:
                assert errno_of(lease.ask, lease_client.COMMIT, LargeBody()) != 0
                assert path.read_bytes() == b"content" and mount.pid == pid
            finally:
                resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert lease_client.read_direct(path) == b"content"


@pytest.mark.parametrize("call, error", [("io_submit", "EIO"), ("openat", "EMFILE"), ("fdatasync", "EIO"),
                                         ("sendmsg", "ENOBUFS")])
def test_failing_operations_leak_nothing(trial, call, error):
    """The last repetitions take no more descriptors, threads and memory than the first ones."""
    trial.copy()
    daemon = Daemon(trial.store, trial.point, trial.log)
    assert daemon.start() and is_mounted(trial.point)
    CallFault(1, call=call, error=error, and_later=True).begin(daemon, trial.folder)
    file = trial.point / "file"
    operations = [lambda: file.write_bytes(bytes(70_000)), lambda: sync(file), lambda: os.rename(file, f"{file}-2"),
                  lambda: (trial.point / "base-large").read_bytes(),
                  lambda: lease_client.read_direct(trial.point / "base-small"),
                  lambda: lease_client.write_direct(trial.point / "base-kept", bytes(70_000), durable=True)]

    def repeat(times):
        return sum(errno_of(operation) != 0 for _ in range(times) for operation in operations)

    def memory():
        return int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    repeat(30)
    before = descriptors_at_rest(daemon), len(os.listdir(f"/proc/{daemon.pid}/task")), memory()
    print(repeat(100), "operations failed")
    descriptors_at_rest(daemon, before[0])
    assert len(os.listdir(f"/proc/{daemon.pid}/task")) <= before[1] + 4   # the pools may have started some
    assert memory() < before[2] + (4 << 20)
    assert daemon.end(killed=False) in (0, 1)
