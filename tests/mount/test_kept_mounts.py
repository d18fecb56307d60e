# SPDX-License-Identifier: Apache-2.0
"""A filesystem that stays in use after its directory was unmounted: other mount namespaces, bind mounts, open files.

The commands name the users of the filesystem, wait no longer than requested, and report nothing false."""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from harness import needs, process
from harness.filesystems import errors_of, is_mounted, program, wait_until, weightfs
from store_files import refused

pytestmark = [pytest.mark.usefixtures("weightfs_only", "apart"), needs.root, needs.program("unshare", "mount")]

STILL_SERVED = 3

DIRTY_MAPPING = """
import mmap
file = open(sys.argv[1], "w+b")
file.truncate(1 << 20)
mapping = mmap.mmap(file.fileno(), 0)
mapping[:5] = b"dirty"
"""


class Holder:
    """A Python program that holds a resource until it is told to end, optionally in its own mount namespace."""

    def __init__(self, code, *arguments, namespace=False):
        code = f"import os, sys\n{code}\nprint('ready', flush=True)\nsys.stdin.read()\n"
        within = ["unshare", "-m", "--propagation", "private"] if namespace else []
        self.process = subprocess.Popen([*within, sys.executable, "-c", code, *map(str, arguments)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid
        assert self.process.stdout.readline() == "ready\n"

    def end(self):
        if self.process.poll() is None:
            process.finish(self.process, codes=None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


@pytest.fixture
def mount(mount_apart):
    return mount_apart


@pytest.fixture
def bind(apart, factory):
    """Bind-mounts a path elsewhere; unmounted at the end."""
    made = []

    def bind_to(source, target):
        process.run(["mount", "--bind", source, target])
        made.append(target)
        return target

    yield bind_to
    for target in made:
        process.run(["umount", "-l", target], codes=None)


def is_free(store):
    """True if no process serves the store, and it was closed cleanly."""
    return (store.directory / "lock").read_bytes() == b""


@contextlib.contextmanager
def lock_note(store, note):
    """Holds the lock of a store in this process, with a text in the lock file. Restores the file at the end."""
    with open(store.directory / "lock", "r+b") as lock:
        before = lock.read()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (store.directory / "lock").write_text(note)
        yield
        (store.directory / "lock").write_bytes(before)


@contextlib.contextmanager
def stopped(pid):
    process.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        process.kill(pid, signal.SIGCONT)


def holder_of(store):
    return int((store.directory / "lock").read_text().splitlines()[0])


def test_umount_names_the_namespace_that_keeps_the_mount(mount):
    daemon = mount.pid
    with Holder("", namespace=True) as holder:
        finished = weightfs("umount", mount.path, "--timeout", "0.2", codes=(STILL_SERVED,))
        assert not is_mounted(mount.path)
        assert f"process {daemon} (weightfs) still serves" in finished.err
        assert f"{holder.pid} (" in finished.err and "mount namespace" in finished.err
        assert f"kill {daemon}" in finished.err
    assert process.wait_gone(daemon), "the daemon ends after the last who keeps it"
    assert is_free(mount.store)
    mount.mount()
    assert (mount.path / "file").read_bytes() == b"content"


def test_umount_waits_for_a_namespace_that_ends(mount):
    with Holder("", namespace=True) as holder:
        umount = subprocess.Popen([program(), "umount", mount.path, "--timeout", "100"], text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            # It reports once what it waits for, even without a terminal.
            line = umount.stderr.readline()
            assert "waiting at most 100 s" in line and f"{holder.pid} (" in line
            holder.end()
            finished = process.finish(umount)
        finally:
            umount.kill()
            umount.wait()
        assert "waiting 100 s" not in finished.err
    assert is_free(mount.store)


def test_other_commands_say_that_the_store_is_still_served(mount, factory):
    daemon, store = mount.pid, mount.store.directory
    with Holder("", namespace=True) as holder:
        weightfs("umount", mount.path, "--timeout", "0", codes=(STILL_SERVED,))
        commands = [(["verify", "--catalog", store], 8), (["mount", store, mount.path], 1),
                    (["format", store, "--size", "64M", "--force"], 1)]
        for words, code in commands:
            finished = weightfs(*words, codes=(code,))
            assert f"still served by process {daemon} (weightfs)" in finished.err, finished
            assert f"{holder.pid} (" in finished.err and "unmount it first" not in finished.err, finished
            assert "cleanly" not in finished.out + finished.err
        told = weightfs("info", store).out
        assert f"still served by process {daemon}" in told and "cleanly" not in told
        told = json.loads(weightfs("info", "--json", store).out)
        assert told["mounted_on"] is None and told["served_by"] == daemon and told["clean_unmount"] is None
        assert told["total_bytes"] > 0, "asked through the other namespace"
    assert process.wait_gone(daemon)


def test_ending_the_daemon_keeps_what_another_namespace_wrote(mount):
    """Follows the advice of umount and sends SIGTERM. A mapping in the other namespace has unsent dirty data."""
    with Holder(DIRTY_MAPPING, mount.path / "mapped", namespace=True) as holder:
        finished = weightfs("umount", mount.path, "--timeout", "0", codes=(STILL_SERVED,))
        assert str(holder.pid) in finished.err
        process.kill(holder_of(mount.store), signal.SIGTERM)
        # Possible at once, because mount waits until the daemon has ended.
        mount.mount()
        assert (mount.path / "mapped").read_bytes()[:5] == b"dirty"
    assert "failed to unmount" not in mount.store.log()
    mount.fsck()


def test_umount_of_a_bind_mount_leaves_the_mount(mount, factory, bind):
    target = bind(mount.path, factory.directory("bind"))
    finished = weightfs("umount", target)
    assert not errors_of(finished) and not is_mounted(target)
    assert mount.alive() and (mount.path / "file").read_bytes() == b"content"


def test_umount_of_a_bound_file(mount, factory, bind):
    target = factory.directory("bind") / "file"
    target.touch()
    bind(mount.path / "file", target)
    # Also by a relative path.
    finished = process.run([program().resolve(), "umount", "file"], cwd=target.parent)
    assert not errors_of(finished) and not is_mounted(target) and mount.alive()


def test_umount_with_a_bind_mount_left_says_so_at_once(mount, factory, bind):
    target = factory.directory("bind") / "file"
    target.touch()
    bind(mount.path / "file", target)
    finished = weightfs("umount", mount.path, "--timeout", "3600", codes=(STILL_SERVED,))
    assert f"also mounted on {target}" in finished.err
    assert target.read_bytes() == b"content"
    refused("mount", mount.store.directory, mount.path, saying=f"weightfs umount {target}")
    # This was the last mount, so everything is on the device now.
    weightfs("umount", target)
    assert is_free(mount.store)


# The options -l and -f.
@pytest.fixture
def umount_helper(factory):
    link = factory.directory("helpers") / "umount.weightfs"
    link.symlink_to(program().resolve())
    return link


def test_lazy_umount_frees_the_directory_at_once(mount, umount_helper):
    daemon = mount.pid
    with Holder(DIRTY_MAPPING, mount.path / "mapped") as holder:
        weightfs("umount", mount.path, codes=(1,))
        finished = process.run([umount_helper, mount.path, "-l"])
        assert not is_mounted(mount.path)
        assert str(holder.pid) in finished.err, "whoever keeps the filesystem is named"
        refused("mount", mount.store.directory, mount.path, saying=f"in use by process {holder.pid} (python")
    assert process.wait_gone(daemon)
    mount.mount()
    assert (mount.path / "mapped").read_bytes()[:5] == b"dirty"
    mount.fsck()


def test_a_signal_after_a_lazy_umount_keeps_mapped_data(mount):
    with Holder(DIRTY_MAPPING, mount.path / "mapped"):
        weightfs("umount", "-l", mount.path)
        process.kill(holder_of(mount.store), signal.SIGTERM)
        mount.mount()
        assert (mount.path / "mapped").read_bytes()[:5] == b"dirty"
    mount.fsck()


def test_lazy_umount_of_an_idle_mount_returns_when_everything_is_on_the_device(mount):
    finished = weightfs("umount", "-l", mount.path)
    assert not errors_of(finished) and is_free(mount.store)


def test_forced_umount_of_a_busy_mount(mount, umount_helper):
    with Holder(DIRTY_MAPPING, mount.path / "mapped"):
        process.run([umount_helper, "-f", mount.path])
        assert not is_mounted(mount.path) and is_free(mount.store)
    mount.mount()
    assert (mount.path / "mapped").read_bytes()[:5] == b"dirty"
    mount.fsck()


def test_forced_umount_of_a_daemon_that_hangs(mount):
    daemon = mount.pid
    process.kill(daemon, signal.SIGSTOP)
    try:
        umount = subprocess.Popen([program(), "umount", "-f", "--timeout", "0.1", mount.path], text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert wait_until(lambda: not is_mounted(mount.path)), "the directory is free though the daemon sleeps"
    finally:
        process.kill(daemon, signal.SIGCONT)
    process.finish(umount)
    assert is_free(mount.store)


def test_forced_umount_waits_for_a_daemon_that_is_closing(mount):
    """The daemon collects changes made through mappings, which may take longer than the timeout for a reaction."""
    daemon, lock = mount.pid, mount.store.directory / "lock"
    with Holder(DIRTY_MAPPING, mount.path / "mapped"):
        with stopped(daemon):
            lock.write_text(f"{daemon}\nclosing\n")
            umount = subprocess.Popen([program(), "umount", "-f", "--timeout", "0.1", mount.path], text=True,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert f"waiting until process {daemon} (weightfs) has written everything" in umount.stderr.readline()
            assert is_mounted(mount.path)
            process.kill(daemon, signal.SIGTERM)
        assert "does not respond" not in process.finish(umount).err
        assert is_free(mount.store)
    mount.mount()
    assert (mount.path / "mapped").read_bytes()[:5] == b"dirty"


def test_umount_of_a_daemon_that_has_not_noticed_gives_no_other_reason(mount):
    daemon = mount.pid
    with stopped(daemon):
        finished = weightfs("umount", mount.path, "--timeout", "0.1", codes=(STILL_SERVED,))
        assert "it has not ended yet" in finished.err and "namespace" not in finished.err
    assert process.wait_gone(daemon) and is_free(mount.store)


def test_forced_umount_of_a_bind_mount_ends_with_the_daemon(mount, factory, bind):
    target = bind(mount.path, factory.directory("bind"))
    # The timeout is longer than any test may take.
    finished = weightfs("umount", "-f", "--timeout", "3600", target)
    assert not errors_of(finished) and not is_mounted(target) and not is_mounted(mount.path)
    assert is_free(mount.store)


@pytest.mark.parametrize("options", [[], ["-l"], ["-f"]], ids=" ".join)
def test_umount_of_a_dead_mount_leaves_another_mount_of_the_store(mount, factory, options):
    with open(mount.path / "file", "rb") as stream:
        os.fsync(stream.fileno())
    pid = mount.pid
    process.kill(pid)
    assert process.wait_gone(pid)
    second = factory.mount(mount.store)
    daemon = second.pid
    finished = weightfs("umount", *options, mount.path)
    assert "had already ended" in finished.err and f"in use by process {daemon} (weightfs)" in finished.err
    assert not is_mounted(mount.path)
    assert second.alive() and second.pid == daemon and (second.path / "file").read_bytes() == b"content"
    second.fsck()


@pytest.mark.parametrize("options", [["-l"], ["-f"], ["-l", "-f"], ["-lf"]], ids=" ".join)
def test_umount_after_the_daemon_was_killed(mount, umount_helper, options):
    with Holder("file = open(sys.argv[1])", mount.path / "file"):
        pid = mount.pid
        process.kill(pid)
        # Does not wait: the process may still be ending.
        finished = process.run([umount_helper, *options, mount.path])
        assert not is_mounted(mount.path) and "had already ended" in finished.err
        assert process.wait_gone(pid)
    mount.mount()
    mount.fsck()


def test_umount_in_the_namespace_of_another_process(mount):
    with Holder("", namespace=True) as holder:
        weightfs("umount", "--timeout", "0", "--namespace", holder.pid, mount.path, codes=(STILL_SERVED,))
        assert is_mounted(mount.path) and mount.alive()
        # No other process holds the store any more.
        weightfs("umount", mount.path)
        assert is_free(mount.store)


# Different holders of the store, in different states.
@pytest.mark.parametrize("note, saying", [("4194304\nclosing\n", r"no; process {} \(.*\) is closing it"),
                                          ("4194304\n", r"no; in use by process {} \(")], ids=["closing", "working"])
def test_info_of_a_store_that_somebody_closes_or_checks(factory, note, saying):
    store = factory.store("64M")
    with lock_note(store, note):
        told = weightfs("info", store.directory).out
        assert re.search(saying.format(os.getpid()), told) and "cleanly" not in told
        told = json.loads(weightfs("info", "--json", store.directory).out)
        assert told["mounted_on"] is None and told["clean_unmount"] is None
    assert json.loads(weightfs("info", "--json", store.directory).out)["clean_unmount"] is True


@pytest.mark.parametrize("command", [["verify", "--catalog"], ["format", "--size", "64M", "--force"], ["mount"]],
                         ids=" ".join)
def test_a_store_that_a_command_works_on_is_not_to_be_unmounted(factory, point, command):
    store = factory.store("64M")
    words = [point] if command == ["mount"] else []
    with lock_note(store, "4194304\n"):
        line = refused(command[0], store.directory, *words, *command[1:], saying=f"in use by process {os.getpid()} (",
                       codes=(1, 8))
        assert "unmount" not in line and "4194304" not in line


def test_the_device_number_in_a_free_lock_file_is_not_believed(mount, factory):
    device = os.stat(mount.path).st_dev
    other = factory.store("64M")
    note = f"4194304\nserving {os.major(device)}:{os.minor(device)} {mount.path}\n"
    (other.directory / "lock").write_text(note)
    assert json.loads(weightfs("info", "--json", other.directory).out)["mounted_on"] is None
    assert weightfs("info", other.directory).out.count(str(mount.path)) == 0


# PID namespaces.
IN_NEW_PID_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def test_a_daemon_of_another_pid_namespace_is_found_from_outside(factory):
    store, path = factory.store("64M"), factory.directory("point")
    # The namespace lives as long as its first process, which mounts in our mount namespace.
    outer = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", program(), "mount", "-f", store.directory, path],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: is_mounted(path) and b"serving" in (store.directory / "lock").read_bytes())
        assert holder_of(store) == 1, "as its own namespace numbers it"
        line = refused("verify", "--catalog", store.directory, saying="(weightfs); unmount it first", codes=(8,))
        assert "process 1 " not in line
        with Holder(DIRTY_MAPPING, path / "mapped"):
            assert not errors_of(weightfs("umount", "-f", path))
        assert is_free(store)
    finally:
        process.finish(outer, codes=None)
        process.run(["umount", "-l", path], codes=None)
    mount = factory.mount(store)
    assert (mount.path / "mapped").read_bytes()[:5] == b"dirty"


@pytest.mark.parametrize("command", [["verify", "--catalog"], ["info"]], ids=" ".join)
def test_a_daemon_of_an_unknown_number_is_not_ending(mount, command):
    finished = process.run([*IN_NEW_PID_NAMESPACE, program(), *command, mount.store.directory], codes=(0, 8))
    assert str(mount.pid) not in finished.out + finished.err and "kill" not in finished.err
    assert (str(mount.path) in finished.out) if command == ["info"] else "in use by another process" in finished.err


def test_forced_umount_in_another_pid_namespace_ends_no_daemon(mount):
    finished = process.run([*IN_NEW_PID_NAMESPACE, program(), "umount", "-f", mount.path], codes=(1,))
    assert "another PID namespace" in finished.err and "-l" in finished.err
    assert mount.alive() and (mount.path / "file").read_bytes() == b"content"


def test_umount_in_the_namespaces_of_a_container(mount):
    """The container's /proc does not show our processes."""
    code = "import os, sys; print(os.readlink('/proc/self'), flush=True); sys.stdin.read()"
    container = subprocess.Popen([*IN_NEW_PID_NAMESPACE, sys.executable, "-c", code], text=True, stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE)
    try:
        assert container.stdout.readline() == "1\n"
        (inside,) = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent_of(pid) == container.pid]
        refused("mount", mount.store.directory, mount.path, "--namespace", inside, saying="another PID namespace")
        weightfs("umount", "--timeout", "0", "--namespace", inside, mount.path, codes=(STILL_SERVED,))
        assert str(mount.path) not in process.run(["cat", f"/proc/{inside}/mounts"]).out
        assert mount.alive()
    finally:
        process.finish(container, codes=None)


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return int(stream.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.mark.parametrize("words", [["--timeout", "-1"], ["--timeout", "soon"]])
def test_impossible_timeouts(mount, words):
    weightfs("umount", mount.path, *words, codes=(2,))
    assert mount.alive()
