# SPDX-License-Identifier: Apache-2.0
"""The log of a mount: its levels, its rotation, and its form in the journal of systemd."""

import os
import pty
import re
import signal
import subprocess

import pytest

from harness import needs, process
from harness.filesystems import REPOSITORY, is_mounted, program, wait_until

pytestmark = pytest.mark.usefixtures("weightfs_only")


@pytest.fixture
def mount(factory):
    return factory.mount(factory.store("64M"))


def test_sighup_continues_the_log_in_a_new_file(mount):
    log, moved = mount.store.directory / "weightfs.log", mount.store.directory / "weightfs.log.1"
    (mount.path / "file").write_bytes(b"content")
    before, pid = log.read_text(), mount.pid
    assert "serves" in before
    log.rename(moved)
    process.kill(pid, signal.SIGHUP)
    assert wait_until(lambda: log.exists() and "the log file was opened again" in log.read_text())
    assert moved.read_text() == before, "nothing is written to the old file any more"
    assert mount.pid == pid and (mount.path / "file").read_bytes() == b"content"
    assert os.readlink(f"/proc/{pid}/fd/2") == str(log), "reports of crashes go to the new file too"
    assert str(moved) not in process.open_files(pid)
    mount.umount()
    assert "everything is on the device" in log.read_text()
    mount.store.fsck()


@needs.program("flock", "sed", hint="package util-linux")
def test_the_command_of_the_documentation_finds_the_mount(mount):
    text = (REPOSITORY / "docs/OPERATIONS.md").read_text(encoding="utf-8")
    command = re.search(r"postrotate\n\s*(.*)\n", text).group(1).replace("/srv/tensors", str(mount.store.directory))
    log = mount.store.directory / "weightfs.log"
    process.run(["sh", "-c", command])
    assert wait_until(lambda: "the log file was opened again" in log.read_text())
    mount.umount()
    process.run(["sh", "-c", command])


def test_sighup_without_a_rotation_appends(mount):
    log = mount.store.directory / "weightfs.log"
    before = log.read_text()
    for count in (1, 2):
        process.kill(mount.pid, signal.SIGHUP)
        assert wait_until(lambda: log.read_text().count("opened again") == count)
    assert log.read_text().startswith(before)
    mount.fsck()


def test_a_log_that_cannot_be_opened_again_continues_in_the_old_file(mount):
    """A symbolic link is refused, as at the start: the store's directory may belong to another user."""
    log, moved = mount.store.directory / "weightfs.log", mount.store.directory / "weightfs.log.1"
    log.rename(moved)
    log.symlink_to("/dev/null")
    process.kill(mount.pid, signal.SIGHUP)
    assert wait_until(lambda: "the log continues in the old file" in moved.read_text())
    log.unlink()
    process.kill(mount.pid, signal.SIGHUP)
    assert wait_until(log.exists)
    mount.fsck()


@pytest.mark.parametrize("options, there, gone", [
    ("log=error", [], ["info", "debug"]), ("log=warn", [], ["info"]), ("log=info", ["info"], ["debug"]),
    ("log=debug", ["info", "debug"], [])])
def test_the_level_of_the_log(factory, options, there, gone):
    mount = factory.mount(factory.store("64M"), options)
    mount.umount()
    text = mount.store.log()
    levels = set(re.findall(r"^\S+ (\w+) ", text, re.MULTILINE))
    assert levels >= set(there) and not levels & set(gone), text


def in_foreground(factory, environment, **streams):
    store, path = factory.store("64M"), factory.directory("foreground")
    daemon = subprocess.Popen([program(), "mount", store.directory, path, "-f"], stdin=subprocess.DEVNULL,
                              env={**os.environ, **environment}, start_new_session=True, **streams)
    try:
        assert wait_until(lambda: is_mounted(path) or daemon.poll() is not None)
        process.kill(daemon.pid, signal.SIGHUP)   # there is no file to open again, and no terminal has ended
        (path / "file").write_bytes(b"content")
        daemon.send_signal(signal.SIGTERM)
        process.finish(daemon)
    finally:
        process.kill(daemon.pid)
        daemon.wait(timeout=20)
    return store


def test_lines_for_the_journal_have_a_priority_and_no_time(factory, tmp_path):
    with open(tmp_path / "journal", "w+", encoding="utf-8") as journal:
        status = os.fstat(journal.fileno())
        in_foreground(factory, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}, stderr=journal)
        journal.seek(0)
        lines = journal.read().splitlines()
    assert lines and all(re.match(r"<[2-7]>\D", line) for line in lines), lines
    assert "<6>unmounted; everything is on the device" in lines and "<6>Terminated: unmounting" in lines
    assert not any("Hangup" in line for line in lines)


def test_an_error_of_a_command_has_a_priority_too(tmp_path, factory):
    with open(tmp_path / "journal", "w+", encoding="utf-8") as journal:
        status = os.fstat(journal.fileno())
        command = [program(), "mount", tmp_path / "none", factory.directory("point"), "-f"]
        done = subprocess.run(command, stderr=journal, check=False,
                              env={**os.environ, "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        journal.seek(0)
        assert done.returncode == 1 and re.fullmatch(r"<3>.*none.*\n", journal.read())


def test_sighup_ends_a_mount_in_the_foreground_of_a_terminal(factory):
    store, path = factory.store("64M"), factory.directory("foreground")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(program(), [program(), "mount", store.directory, path, "-f"])
    try:
        assert wait_until(lambda: is_mounted(path))
        (path / "file").write_bytes(b"content")
        process.kill(pid, signal.SIGHUP)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)
        process.kill(pid)
    assert not is_mounted(path)
    store.fsck()


def test_lines_elsewhere_have_no_priority(factory, tmp_path):
    """The variable is inherited by every program of the session, also by those whose output goes elsewhere."""
    with open(tmp_path / "output", "w+", encoding="utf-8") as output:
        in_foreground(factory, {"JOURNAL_STREAM": "1:2"}, stderr=output)
        output.seek(0)
        lines = output.read().splitlines()
    assert lines and all(line.startswith("weightfs: ") for line in lines), lines
