# SPDX-License-Identifier: Apache-2.0
"""weightfs push sends what it has listed: no swap of a name meanwhile makes it send another file."""
import ctypes
import json
import os
import random
import signal
import subprocess
import threading

import pytest

from harness import process
from harness.filesystems import weightfs as plain
from harness.namespaces import mount, own_mounts
from harness.tree import differences
from harness.users import NOBODY
from versions import MIB, SERIES, URL, comparable, keys, pull, refused, weightfs

FILES = {"plain": 100_000, "inside/leased": 3 * MIB, "inside/deeper/parts": 20 * MIB}   # by the manner of reading
libc = ctypes.CDLL(None, use_errno=True)


def exchange(one, other):
    """Swaps two names in one step."""
    at_cwd, rename_exchange = -100, 2
    if libc.renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), rename_exchange) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


class Place:
    """A directory run/step to push, and a secret one with the same names and sizes. `link` leads from run to secret."""

    def __init__(self, root):
        self.run, self.secret, self.link = root / "run", root / "secret", root / "link"
        self.step = self.run / "step"
        for base in (self.run, self.secret):
            (base / "step/inside/deeper").mkdir(parents=True)
            for name, size in FILES.items():
                (base / "step" / name).write_bytes(random.randbytes(size))
        self.link.symlink_to(self.secret)
        self.secrets = [(self.secret / "step" / name).read_bytes()[:4096] for name in FILES]

    def has_leaked(self, server):
        """True if the service has got a secret, also in an upload that was not completed."""
        with server.objects.mutex:
            objects = list(server.objects.buckets["tests"].values())
            parts = [part for upload in server.objects.uploads.values() for part in upload.parts.values()]
        return any(secret in bytes(item.body) for secret in self.secrets for item in [*objects, *parts])


@pytest.fixture(params=["local", "mount", "published"])
def place(request, local, factory):
    if request.param == "local":
        return Place(local)
    if factory.kind != "weightfs":
        pytest.skip("about weightfs itself: not for --target")
    made = Place(factory.mount(factory.store("512M")).path)
    if request.param == "published":
        plain("publish", made.step, "--version", 5)
    return made


def swapped(server, start, words, swap, undo=lambda: None):
    """Runs a push of version 5. `swap` is called after it has listed the directory, before it reads any file; `undo`
    after its last read, before it compares the directory with the listing."""
    def met(key):
        server.wait_for(lambda: running.poll() is not None or
                        any(record.fault and record.key.endswith(key) for record in server.requests))

    listed = server.fail(1, "hold", method="PUT", key="/claim$")
    running = start(server, "push", *words, URL, "--version", "5")
    met("/claim")
    swap()
    server.fail(1, "hold", method="PUT", key="/sums/0$")
    server.heal(listed)
    met("/sums/0")
    undo()
    server.heal()
    return running


@pytest.mark.parametrize("stays", [False, True])
def test_an_ancestor_that_becomes_a_link(server, start, place, target, stays):
    """The directory that was opened is pushed, whatever its path names meanwhile."""
    def swap():
        exchange(place.run, place.link)

    running = swapped(server, start, [place.step], swap, (lambda: None) if stays else swap)
    finished = process.finish(running, codes=None)
    assert not place.has_leaked(server)
    assert finished.code == 0, finished
    pull(server, target)
    assert not differences(comparable(place.link / "step" if stays else place.step), comparable(target))


def test_the_directory_of_a_single_file_that_becomes_a_link(server, start, place, target):
    name = "inside/leased"
    expected = (place.step / name).read_bytes()
    running = swapped(server, start, [place.step / name], lambda: exchange(place.run, place.link))
    finished = process.finish(running, codes=None)
    assert not place.has_leaked(server)
    assert finished.code == 0, finished
    pull(server, target)
    assert (target / "leased").read_bytes() == expected


def become_link(place, name):
    (place.step / name).rename(place.run / "aside")
    (place.step / name).symlink_to(place.secret / "step" / name)


def become_fifo(place, name):
    (place.step / name).rename(place.run / "aside")
    os.mkfifo(place.step / name)


def become_secret(place, name):
    exchange(place.step / name, place.secret / "step" / name)


SWAPS = [(function, name) for name in [*FILES, "inside", "inside/deeper"]
         for function in (become_link, become_fifo, become_secret)]


@pytest.mark.parametrize("swap, name", SWAPS)
@pytest.mark.parametrize("place", ["local", "mount"], indirect=True)
def test_a_swap_inside_the_directory_is_a_change(server, start, place, swap, name):
    """Nothing of another file is sent, not even without a version."""
    running = swapped(server, start, [place.step], lambda: swap(place, name))
    finished = process.finish(running, codes=None)
    assert not place.has_leaked(server)
    assert finished.code == 1 and "changed during the push" in finished.err and finished.err.count("\n") == 1, finished
    assert f"{SERIES}/5/.weightfs/manifest" not in keys(server)


class Swapping:
    """Exchanges two names again and again on another thread."""

    def __init__(self, one, other):
        self.names, self.ends, self.count = (one, other), threading.Event(), 0

    def _run(self):
        while not self.ends.is_set():
            exchange(*self.names)
            self.count += 1

    def __enter__(self):
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


@pytest.mark.parametrize("place", ["local", "mount"], indirect=True)
@pytest.mark.parametrize("name", ["inside", "plain"])
def test_swaps_all_the_time(server, place, name, request):
    """A version either has the link or what was there before."""
    link = place.run / "link"
    link.symlink_to(place.secret / "step" / name)
    with Swapping(place.step / name, link) as swapping:
        for version in range(1, 100 if request.config.getoption("full") else 10):
            weightfs(server, "push", place.step, URL, "--version", version, codes=(0, 1))
            assert not place.has_leaked(server)
    assert swapping.count > 100


def link_of(owner, link, target):
    link.symlink_to(target)
    os.lchown(link, owner, owner)
    return link


@pytest.mark.parametrize("place", ["local", "mount"], indirect=True)
def test_links_on_the_path_of_another_user(server, place, local, target):
    """They lead only to what belongs to that user."""
    assert os.geteuid() == 0, "it gives files to other users"
    other = link_of(NOBODY, place.run.parent / "other", place.secret)
    for path in (other / "step", link_of(NOBODY, place.run / "direct", place.secret / "step"),
                 link_of(NOBODY, place.run / "relative", "../secret/../other/step/inside"),
                 link_of(0, place.run / "own", other) / "step", other / "step/plain"):
        error = refused(server, "push", path, URL)
        assert f"{path}: a symbolic link on this path belongs to user {NOBODY}" in error
        assert str(place.secret) in str(path.resolve())
    assert "belongs to user" in refused(server, "push", "--watch", other, URL)
    assert not keys(server)
    os.chown(place.secret / "step", NOBODY, NOBODY)
    weightfs(server, "push", other / "step", URL, "--version", 1)
    weightfs(server, "push", link_of(0, place.run / "roots", place.step) / "../roots/", URL, "--version", 2)
    pull(server, target)
    assert not differences(comparable(place.step), comparable(target))


def test_links_on_the_path_that_lead_nowhere(server, local):
    (local / "loop").symlink_to("loop")
    (local / "nowhere").symlink_to("missing")
    (local / "file").write_bytes(b"1")
    for name, why in (("loop", "Too many levels"), ("nowhere", "No such file"), ("file/..", "Not a directory"),
                      ("", "No such file")):
        assert why in refused(server, "push", f"{local}/{name}" if name else "", URL)


def test_links_of_proc_lead_where_the_kernel_leads(server, processes, local):
    """Their text may name something else: here, another directory at the same path, and another file."""
    assert os.geteuid() == 0, "it mounts a filesystem"
    step = local / "step"
    step.mkdir()
    (step / "file").write_bytes(b"of this namespace")
    with own_mounts(own=local):
        mount("weightfs-tests", step, "tmpfs")
        (step / "file").write_bytes(b"of the other namespace")
        other = processes.start(["cat"], stdin=subprocess.PIPE, cwd=step)
    for version, path in enumerate((f"root{step}", "cwd", "cwd/file"), 1):
        weightfs(server, "push", f"/proc/{other.pid}/{path}", URL, "--version", version)
        assert server.objects.get("tests", f"{SERIES}/{version}/file").body == b"of the other namespace"
    with open(step / "file", "rb") as opened:
        os.remove(step / "file")
        (step / "file (deleted)").write_bytes(b"a decoy")
        weightfs(server, "push", f"/proc/{os.getpid()}/fd/{opened.fileno()}", URL, "--version", 4)
    assert server.objects.get("tests", f"{SERIES}/4/file (deleted)").body == b"of this namespace"
    weightfs(server, "push", "/proc/self/cwd", URL, "--version", 5, cwd=step)


def test_links_of_proc_that_may_not_be_followed(server, processes, local):
    """The process of another user leads only to what belongs to that user; another one's is not followed at all."""
    assert os.geteuid() == 0, "it runs programs as other users"
    (local / "secret").mkdir()
    nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
    other = processes.start(["cat"], stdin=subprocess.PIPE, cwd=local / "secret", **nobody)
    assert f"belongs to user {NOBODY}" in refused(server, "push", f"/proc/{other.pid}/cwd", URL)
    assert "Permission denied" in refused(server, "push", f"/proc/{os.getpid()}/cwd", URL, **nobody)
    assert not keys(server)


@pytest.mark.parametrize("place", ["local", "mount"], indirect=True)
def test_an_ancestor_is_swapped_all_the_time(server, place, request):
    os.lchown(place.link, NOBODY, NOBODY)
    codes = []
    with Swapping(place.run, place.link) as swapping:
        for version in range(1, 100 if request.config.getoption("full") else 20):
            pushed = weightfs(server, "push", place.step, URL, "--version", version, codes=(0, 1))
            codes.append(pushed.code)
            assert not place.has_leaked(server)
    assert swapping.count > 100 and 0 in codes


@pytest.fixture
def watched(server, start, factory, weightfs_only):
    """A place with two published directories, and a `push --watch` of the first. The push has found it, and waits."""
    place = Place(factory.mount(factory.store("512M")).path)
    for step in (place.step, place.secret / "step"):
        plain("publish", step, "--version", 5)
    (place.run / "a link").symlink_to(place.secret / "step")   # is no published directory in the watched one
    server.fail(1, "hold", method="GET")   # --keep asks first which versions there are
    place.watching = start(server, "push", "--watch", place.run, URL, "--keep", "9", "--json")
    server.wait_for_fault()
    yield place
    assert not place.has_leaked(server)
    place.watching.send_signal(signal.SIGTERM)
    process.finish(place.watching)


def test_watch_of_a_directory_that_becomes_a_link(server, watched):
    """It is an error, and what is published there later is pushed."""
    plain("publish", "--undo", watched.step)
    watched.step.rename(watched.run / "aside")
    watched.step.symlink_to(watched.secret / "step")
    server.heal()
    assert f"{watched.step}: " in watched.watching.stderr.readline() and not watched.has_leaked(server)
    watched.step.unlink()
    (watched.run / "aside").rename(watched.step)
    plain("publish", watched.step, "--version", 6)
    assert json.loads(process.read_line(watched.watching))["version"] == 6


def test_watch_below_an_ancestor_that_becomes_a_link(server, watched, target):
    exchange(watched.run, watched.link)
    server.heal()
    assert json.loads(process.read_line(watched.watching))["version"] == 5
    exchange(watched.run, watched.link)
    pull(server, target)
    assert not differences(comparable(watched.step), comparable(target))
