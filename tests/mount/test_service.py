# SPDX-License-Identifier: Apache-2.0
"""A mount as a service of systemd: what it reports by the protocol of sd_notify(3), and its unit file."""

import os
import re
import shutil
import signal
import socket
import subprocess

import pytest

from harness import needs, process
from harness.filesystems import REPOSITORY, is_mounted, program, weightfs

pytestmark = pytest.mark.usefixtures("weightfs_only")
MIB = 1 << 20
LIMIT_S = 60
UNIT = REPOSITORY / "cli/systemd/weightfs@.service"


class Manager:
    """The socket of a service manager, at a path or an abstract name."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(LIMIT_S)
        self.address = address

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def next(self):
        return self.socket.recv(4096).decode().splitlines()

    def rest(self):
        self.socket.setblocking(False)
        try:
            while True:
                yield self.socket.recv(4096).decode()
        except BlockingIOError:
            return


def start(store, path, manager, *words):
    return subprocess.Popen([program(), "mount", store.directory, path, *words], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "NOTIFY_SOCKET": manager.address})


@pytest.mark.parametrize("kind", ["path", "abstract name"])
def test_a_service_reports_when_it_works_and_when_it_ends(factory, tmp_path, kind):
    store, path = factory.store("128M"), factory.directory("service")
    address = f"{tmp_path}/notify" if kind == "path" else f"@weightfs-test-{os.getpid()}"
    with Manager(address) as manager:
        daemon = start(store, path, manager, "-f")
        try:
            assert manager.next() == ["READY=1", f"STATUS=Serves {store.directory} on {path}"]
            assert is_mounted(path)
            (path / "file").write_bytes(os.urandom(20 * MIB))
            daemon.send_signal(signal.SIGTERM)
            assert manager.next()[0] == "STOPPING=1"
            extended = manager.next()[0]
            assert re.fullmatch(r"EXTEND_TIMEOUT_USEC=\d+", extended) and int(extended.partition("=")[2]) >= 10_000_000
            process.finish(daemon)
        finally:
            process.kill(daemon.pid)
            daemon.wait(timeout=60)
            weightfs("umount", path, codes=None)
        assert not any("READY" in text or "STOPPING" in text for text in manager.rest()), "each is reported once"
    store.fsck()


def test_a_service_that_rebuilds_its_index_asks_for_more_time(factory, tmp_path):
    store, path = factory.store("64M"), factory.directory("service")
    weightfs("mount", store.directory, path)
    weightfs("umount", path)
    shutil.rmtree(store.directory / "meta")
    with Manager(f"{tmp_path}/notify") as manager:
        daemon = start(store, path, manager, "-f")
        try:
            assert manager.next()[0].startswith("EXTEND_TIMEOUT_USEC=")
            assert manager.next()[0] == "READY=1"
            weightfs("umount", path)
            assert manager.next()[0] == "STOPPING=1"
            process.finish(daemon)
        finally:
            process.kill(daemon.pid)
            daemon.wait(timeout=60)
            weightfs("umount", path, codes=None)


def test_an_unmount_by_hand_is_reported_too(factory, tmp_path):
    store, path = factory.store("64M"), factory.directory("service")
    with Manager(f"{tmp_path}/notify") as manager:
        daemon = start(store, path, manager, "-f")
        try:
            assert manager.next()[0] == "READY=1"
            weightfs("umount", path)
            assert manager.next()[0] == "STOPPING=1"
            process.finish(daemon)
        finally:
            process.kill(daemon.pid)
            daemon.wait(timeout=60)


def test_a_mount_that_fails_is_never_ready(factory, tmp_path):
    path = factory.directory("service")
    with Manager(f"{tmp_path}/notify") as manager:
        store = factory.store("64M")
        (store.directory / "store.json").write_text("{}")
        process.finish(start(store, path, manager, "-f"), codes=(1,))
        assert not list(manager.rest())


def test_a_mount_in_the_background_reports_nothing(factory, tmp_path):
    """Its parent belongs to the service, and is told by its exit."""
    store, path = factory.store("64M"), factory.directory("service")
    with Manager(f"{tmp_path}/notify") as manager:
        process.finish(start(store, path, manager))
        weightfs("umount", path)
        assert not list(manager.rest())


def test_an_address_of_another_kind_is_an_error(factory):
    store, path = factory.store("64M"), factory.directory("service")
    done = process.run([program(), "mount", store.directory, path, "-f"], codes=(1,),
                       env={**os.environ, "NOTIFY_SOCKET": "notify"})
    assert "NOTIFY_SOCKET=notify: neither a path nor an abstract name" in done.err
    assert not is_mounted(path)


# The unit file.
def settings(text):
    return re.findall(r"^(\w+)=(.*)$", text.replace("\\\n", " "), re.MULTILINE)


@needs.program("systemd-analyze", hint="package systemd")
def test_systemd_accepts_the_unit(tmp_path):
    unit = tmp_path / "weightfs@tensors.service"
    # The program need not be installed.
    unit.write_text(UNIT.read_text().replace("ExecStart=weightfs", f"ExecStart={program()}"))
    done = process.run(["systemd-analyze", "verify", "--man=no", unit], codes=None)
    if "Failed to initialize manager" in done.err:
        pytest.skip(f"systemd-analyze cannot run here: {done.err}")
    assert done.code == 0 and done.out + done.err == "", done


@needs.root
@needs.program("setpriv", "sh", hint="package util-linux")
def test_the_privileges_of_the_unit_are_enough(factory, tmp_path):
    """Mounts, writes, lists the users of the busy mount and unmounts, with the capabilities of the unit."""
    found = dict(settings(UNIT.read_text()))
    names = [name.removeprefix("CAP_").lower() for name in found["CapabilityBoundingSet"].split()]
    bounded = ["setpriv", "--no-new-privs", "--bounding-set", ",".join(["-all", *(f"+{name}" for name in names)])]
    store, path = factory.store("128M"), factory.directory("service")
    os.chown(store.directory, 12345, 12345)
    with Manager(f"{tmp_path}/notify") as manager:
        command = [*bounded, program(), "mount", "-f", "-o", "allow_other", "--", store.directory, path]
        daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, "NOTIFY_SOCKET": manager.address})
        try:
            assert manager.next()[0] == "READY=1"
            (path / "file").write_bytes(os.urandom(20 * MIB))
            shutil.copy(path / "file", path / "copy")
            with open(path / "file", "rb"):
                busy = process.run([*bounded, program(), "umount", path], codes=(1,))
                assert str(os.getpid()) in busy.err
            process.run([*bounded, program(), "umount", path])
            process.finish(daemon)
        finally:
            process.kill(daemon.pid)
            daemon.wait(timeout=60)
    store.fsck()


def test_a_wrong_option_ends_the_service_and_a_missing_store_does_not(factory):
    found = dict(settings(UNIT.read_text()))
    codes = {int(code) for code in found["RestartPreventExitStatus"].split()}
    store, path = factory.store("64M"), factory.directory("service")
    wrong = process.run([program(), "mount", "-f", "-o", "no_such_option", "--", store.directory, path], codes=None)
    assert wrong.code in codes, wrong
    late = process.run([program(), "mount", "-f", "-o", "rw", "--", store.directory / "late", path], codes=None)
    assert late.code not in codes | {0}, late
    assert found["StartLimitIntervalSec"] == "0", "systemd would give up before a disk appears"
    assert found["ExecStartPre"] == "-mkdir -p -- ${MOUNTPOINT}" and int(found["OOMScoreAdjust"]) < 0


def test_the_unit_has_no_setting_that_hides_the_mount():
    """These settings give a service its own mount namespace, so that nobody else would see the mount."""
    hiding = re.compile(
        "Private(Tmp|Devices|Mounts|Users)|Protect(System|Home|Kernel(Tunables|Modules|Logs)|ControlGroups|Proc|Clock"
        "|Hostname)|ProcSubset|DynamicUser|RootDirectory|RootImage|TemporaryFileSystem|MountAPIVFS|MountFlags"
        "|(ReadWrite|ReadOnly|Inaccessible|Exec|NoExec|Bind|BindReadOnly)Paths"
        "|(Runtime|State|Cache|Logs|Configuration)Directory")
    names = [name for name, value in settings(UNIT.read_text()) if value not in ("no", "false")]
    assert "ExecStart" in names and not [name for name in names if hiding.fullmatch(name)]
