# SPDX-License-Identifier: Apache-2.0
"""weightfs publish and unpublish: directories that are complete, durable and immutable."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys

import pytest

from harness import needs, process
from harness.filesystems import weightfs
from harness.namespaces import unmount
from harness.syscalls import errno_of
from harness.users import NOBODY, OTHER, call_as

pytestmark = pytest.mark.usefixtures("weightfs_only")
MOUNT_OPTIONS = "allow_other"

CHANGES = {
    "write": lambda d: os.close(os.open(d / "f", os.O_WRONLY)),
    "read and write": lambda d: os.close(os.open(d / "sub/g", os.O_RDWR)),
    "append": lambda d: os.close(os.open(d / "f", os.O_WRONLY | os.O_APPEND)),
    "truncate": lambda d: os.truncate(d / "f", 0),
    "open truncated": lambda d: os.close(os.open(d / "f", os.O_RDONLY | os.O_TRUNC)),
    "create": lambda d: os.close(os.open(d / "new", os.O_CREAT | os.O_WRONLY)),
    "mkdir": lambda d: os.mkdir(d / "sub/new"),
    "symlink": lambda d: os.symlink("f", d / "second"),
    "mkfifo": lambda d: os.mkfifo(d / "fifo"),
    "unlink": lambda d: os.unlink(d / "sub/g"),
    "unlink link": lambda d: os.unlink(d / "link"),
    "rmdir": lambda d: os.rmdir(d / "empty"),
    "rename inside": lambda d: os.rename(d / "f", d / "e"),
    "rename out": lambda d: os.rename(d / "f", d.parent / "out"),
    "rename in": lambda d: os.rename(d.parent / "other", d / "in"),
    "rename over": lambda d: os.rename(d.parent / "other", d / "f"),
    "rename the directory": lambda d: os.rename(d, d.parent / "moved"),
    "link out": lambda d: os.link(d / "f", d.parent / "hard"),
    "link in": lambda d: os.link(d.parent / "other", d / "hard"),
    "chmod": lambda d: os.chmod(d / "f", 0o600),
    "chmod the directory": lambda d: os.chmod(d, 0o700),
    "utime": lambda d: os.utime(d / "f"),
    "set attribute": lambda d: os.setxattr(d / "f", "user.new", b"1"),
    "remove attribute": lambda d: os.removexattr(d / "f", "user.old"),
}


def names(work):
    return sorted(str(path.relative_to(work)) for path in work.rglob("*"))


@pytest.fixture
def work(work):
    yield work
    for path in [work, *work.rglob("*/")]:
        if path.is_dir() and not path.is_symlink():
            weightfs("publish", "--undo", path, codes=(0, 1))


@pytest.fixture
def directory(work):
    made = work / "step"
    (made / "sub").mkdir(parents=True)
    (made / "empty").mkdir()
    (made / "f").write_text("content")
    (made / "sub/g").write_bytes(os.urandom(3 << 20))
    (made / "link").symlink_to("f")
    os.setxattr(made / "f", "user.old", b"value")
    (work / "other").write_text("other")
    return made


def publish(*arguments, code=0):
    return weightfs("publish", *arguments, codes=(code,))


def test_every_change_fails(directory, work):
    data, before = (directory / "sub/g").read_bytes(), names(work)
    answer = json.loads(publish(directory, "--json").out)
    assert (answer["files"], answer["bytes"]) == (2, 7 + (3 << 20)) and len(answer["id"]) == 32
    for what, change in CHANGES.items():
        with pytest.raises(OSError) as raised:
            change(directory)
        assert raised.value.errno == errno.EPERM, what
    assert names(work) == before
    assert (directory / "f").read_text() == "content" and (directory / "sub/g").read_bytes() == data
    assert os.listxattr(directory) == []
    shutil.copytree(directory, work / "copy", symlinks=True)
    (work / "copy/f").write_text("changed")
    weightfs("publish", "--undo", directory)
    (directory / "f").write_text("changed")
    shutil.rmtree(directory)


def test_the_program_repeats_and_refuses(directory, work):
    version = json.loads(publish(directory, "--version", "1000", "--json").out)["version"]
    assert version == 1000
    assert "version 1000: 2 files, 3.00 MiB" in publish(directory).out
    assert "published already with another version" in publish(directory, "--version", "7", code=1).err
    assert "part of another publication" in publish(directory / "sub", code=1).err
    assert "not published" in weightfs("publish", "--undo", work, codes=(1,)).err
    assert "--version" in publish(directory, "--version", "0", code=2).err
    assert "not on a weightfs mount" in publish("/proc/self", code=1).err
    assert "No such file" in publish(work / "missing", code=1).err


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_link_leads_to_the_directory_that_is_published_and_named(directory, work, slash):
    (work / "latest").symlink_to("step")
    assert publish(f"{work}/latest{slash}").out.startswith(f"{directory}: version ")
    assert json.loads(publish(f"{work}/latest{slash}", "--json").out)["directory"] == str(directory)
    with pytest.raises(PermissionError):
        (directory / "f").write_text("changed")
    assert weightfs("publish", "--undo", f"{work}/latest{slash}").out.startswith(f"{directory}: not published")
    (directory / "f").write_text("changed")


def test_links_in_a_published_directory_lead_to_nothing_that_is_published(directory, work):
    (work / "elsewhere").mkdir()
    (work / "elsewhere/file").write_text("old")
    (directory / "out").symlink_to(work / "elsewhere")
    publish(directory)
    (work / "elsewhere/file").write_text("new")


PUBLISH, UNPUBLISH = ((3 << 30) | (320 << 16) | (ord("W") << 8) | number for number in (11, 12))
ARGUMENT = (1).to_bytes(4, "little") + bytes(316)


def permit(opened, key=None):
    """Lets the kernel check that the mount of a directory is not read-only, before one change of it. Returns the key."""
    key = key or fcntl.ioctl(opened, (3 << 30) | (24 << 16) | (ord("W") << 8) | 14, ARGUMENT[:24])[8:]
    os.setxattr(opened, "system.weightfs.change", key)
    return key


@pytest.fixture
def bound(directory, local):
    """A bind mount of the directory's parent."""
    place = local / "bound"
    place.mkdir()
    process.run(["mount", "--bind", directory.parent, place])
    yield place
    unmount(place)


@needs.root
def test_a_read_only_bind_mount_publishes_and_unpublishes_nothing(directory, bound):
    process.run(["mount", "-o", "remount,bind,ro", bound])
    assert "Read-only" in publish(bound / "step", code=1).err
    opened = os.open(bound / "step", os.O_RDONLY)
    assert errno_of(fcntl.ioctl, opened, PUBLISH, ARGUMENT) == errno.EROFS, "another program"
    assert errno_of(os.setxattr, opened, "system.weightfs.change", bytes(16)) == errno.EROFS
    (directory / "f").write_text("changed")
    publish(directory)
    assert errno_of(fcntl.ioctl, opened, UNPUBLISH, ARGUMENT) == errno.EROFS
    assert "Read-only" in weightfs("publish", "--undo", bound / "step", codes=(1,)).err
    with pytest.raises(PermissionError):
        (directory / "f").write_text("changed")
    weightfs("publish", "--undo", directory)
    os.close(opened)


@needs.root
def test_a_bind_mount_that_becomes_read_only_ends_the_permission_of_its_descriptors(directory, bound):
    opened = os.open(bound / "step", os.O_RDONLY)
    for number in (PUBLISH, UNPUBLISH):
        assert errno_of(fcntl.ioctl, opened, number, ARGUMENT) == errno.EROFS, "nothing has checked the mount"
        key = permit(opened)
        fcntl.ioctl(opened, number, ARGUMENT)
    process.run(["mount", "-o", "remount,bind,ro", bound])
    assert errno_of(permit, opened, key) == errno.EROFS
    assert errno_of(fcntl.ioctl, opened, PUBLISH, ARGUMENT) == errno.EROFS
    os.close(opened)
    (directory / "f").write_text("changed")


@needs.root
def test_a_read_only_mount_publishes_and_unpublishes_nothing(factory):
    mount = factory.mount(factory.store("64M"))
    for name in ("published", "other"):
        (mount.path / name).mkdir()
    publish(mount.path / "published")
    opened = os.open(mount.path / "other", os.O_RDONLY)
    permit(opened)
    weightfs("mount", mount.store.directory, mount.path, "-o", "remount,ro")
    assert errno_of(fcntl.ioctl, opened, PUBLISH, ARGUMENT) == errno.EROFS, "the daemon refuses it by itself"
    assert "Read-only" in publish(mount.path / "other", code=1).err
    assert "Read-only" in weightfs("publish", "--undo", mount.path / "published", codes=(1,)).err
    assert errno_of(fcntl.ioctl, opened, PUBLISH, ARGUMENT) == errno.EROFS
    os.close(opened)
    weightfs("mount", mount.store.directory, mount.path, "-o", "remount,rw")
    publish(mount.path / "other")
    weightfs("publish", "--undo", mount.path / "published")


@needs.root
def test_an_owner_publishes_a_directory_without_write_permission(directory, work):
    for path in [directory, *directory.rglob("*")]:
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
    directory.chmod(0o555)
    work.chmod(0o755)
    assert "another user" in call_as(NOBODY, lambda: publish(directory, code=1).err)
    call_as(OTHER, lambda: publish(directory))
    assert "another user" in call_as(NOBODY, lambda: weightfs("publish", "--undo", directory, codes=(1,)).err)
    call_as(OTHER, lambda: weightfs("publish", "--undo", directory))


def test_a_save_that_has_just_ended_can_be_published(work):
    """The kernel does not wait for the daemon when the last descriptor is closed."""
    for step in range(30):
        target = work / f"step-{step}"
        target.mkdir()
        for name in "abc":
            (target / name).write_bytes(b"x" * 100_000)
        publish(target)


def test_an_open_writer_is_named(directory):
    with open(directory / "sub/g", "r+b") as stream:
        assert f"{directory}/sub/g: open for writing" in publish(directory, code=1).err
        stream.write(b"still writable")
    with open(directory / "f", "rb"):
        publish(directory)


def test_a_mapping_that_may_write_counts_as_a_writer(directory):
    import mmap
    with open(directory / "sub/g", "r+b") as stream:
        memory = mmap.mmap(stream.fileno(), 0)
    try:
        assert "open for writing" in publish(directory, code=1).err
    finally:
        memory.close()
    publish(directory)


def test_lsattr_shows_it(directory):
    if shutil.which("lsattr") is None:
        pytest.skip("needs lsattr: apt-get install e2fsprogs")
    publish(directory)
    assert process.run(["lsattr", directory / "f"]).out.split()[0].count("i") == 1


def test_python_publishes(directory):
    module = pytest.importorskip("weightfs", reason="the Python package is not installed: pip install . in the root")
    if not hasattr(module, "publish"):
        pytest.skip("another weightfs is imported: pip install . in the root")
    assert module.publication(directory) is None
    made = module.publish(directory, version=5)
    assert (made.version, made.files, made.bytes) == (5, 2, 7 + (3 << 20))
    assert module.publication(directory) == made == module.publish(directory)
    with pytest.raises(FileExistsError):
        module.publish(directory, version=6)
    with pytest.raises(PermissionError):
        (directory / "f").write_text("changed")
    module.unpublish(directory)
    assert module.publication(directory) is None
    with pytest.raises(OSError) as raised:
        module.unpublish(directory)
    assert raised.value.errno == errno.ENODATA
    with pytest.raises(OSError) as raised:
        module.publish("/proc/self")
    assert raised.value.errno == errno.EOPNOTSUPP


# Publishes and unpublishes, and writes and removes files between, until it is killed.
LOOP = """
import os, sys, weightfs
top = sys.argv[1]
for step in range(1, 100_000):
    target = os.path.join(top, f"s{step}")
    os.makedirs(os.path.join(target, "sub"))
    for name in ("a", "sub/b"):
        with open(os.path.join(target, name), "wb") as stream:
            stream.write(str(step).encode() * 20_000)
    weightfs.publish(target, version=step)
    print(step, flush=True)
"""


@pytest.mark.parametrize("steps", [3, 8, 15])
def test_a_killed_mount_has_whole_publications(factory, steps):
    module = pytest.importorskip("weightfs", reason="the Python package is not installed: pip install . in the root")
    if not hasattr(module, "publish"):
        pytest.skip("another weightfs is imported: pip install . in the root")
    mount = factory.mount(factory.store())
    top = mount.path / "top"
    top.mkdir()
    writer = subprocess.Popen([sys.executable, "-c", LOOP, top], stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.DEVNULL)
    for _ in range(steps):
        assert writer.stdout.readline()
    mount.kill9()
    acknowledged = steps + len(writer.communicate()[0].split())
    mount.mount()
    for step in range(1, acknowledged + 2):
        target = top / f"s{step}"
        found = module.publication(target) if target.exists() else None
        if step > acknowledged and found is None:
            continue   # the one that the kill interrupted
        assert found.version == step
        for name in ("a", "sub/b"):
            assert (target / name).read_bytes() == str(step).encode() * 20_000
            with pytest.raises(PermissionError):
                (target / name).write_bytes(b"")
    mount.umount()
    assert "clean" in weightfs("verify", mount.store.directory).out


# Publishes and unpublishes a directory of more files than one batch has, until it is killed.
TURNS = """
import sys, weightfs
while True:
    weightfs.publish(sys.argv[1])
    print(1, flush=True)
    weightfs.unpublish(sys.argv[1])
    print(0, flush=True)
"""


def test_a_kill_leaves_a_large_publication_whole_or_nothing(factory):
    module = pytest.importorskip("weightfs", reason="the Python package is not installed: pip install . in the root")
    if not hasattr(module, "publish"):
        pytest.skip("another weightfs is imported: pip install . in the root")
    mount = factory.mount(factory.store())
    target = mount.path / "large"
    files = [target / str(number // 1000) / str(number) for number in range(3000)]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for turns in range(1, 7):
        writer = subprocess.Popen([sys.executable, "-c", TURNS, target], stdout=subprocess.PIPE, text=True,
                                  stderr=subprocess.DEVNULL)
        for _ in range(turns):
            assert writer.stdout.readline()
        mount.kill9()
        writer.communicate()
        mount.mount()
        refused = [errno_of(open, file, "ab") for file in files]
        published = module.publication(target) is not None
        assert set(refused) == {errno.EPERM if published else 0}
        if published:
            module.unpublish(target)
    mount.umount()
    assert "clean" in weightfs("verify", mount.store.directory).out


def memory_peak(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024


def test_a_deep_tree_takes_memory_for_its_names_and_not_for_its_paths(factory):
    """1,000 directories below each other with names of 255 bytes: their paths together take 128 MB."""
    mount = factory.mount(factory.store("64M"))
    top = mount.path / "top"
    top.mkdir()
    directory = os.open(top, os.O_RDONLY)
    for _ in range(1000):
        os.mkdir("d" * 255, dir_fd=directory)
        below = os.open("d" * 255, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(os.open("open", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=directory))
    before = memory_peak(mount.pid)
    writer = os.open("open", os.O_WRONLY, dir_fd=directory)
    refused = weightfs("publish", top, codes=(1,))
    assert "open" in refused.err and "dddd" in refused.err, "the end of a path of 256,000 bytes"
    os.close(writer)
    weightfs("publish", top)
    weightfs("publish", "--undo", top)
    assert memory_peak(mount.pid) - before < 64 << 20
    os.close(directory)
