# SPDX-License-Identifier: Apache-2.0
"""Containers of podman: mounts of the host seen from them, leases of their programs, and mounts of their own."""

import hashlib
import os
import sys

import pytest

from harness import needs, process
from harness.containers import Podman, mounts_for_containers
from harness.filesystems import is_mounted, program, weightfs

pytestmark = [pytest.mark.usefixtures("weightfs_only"), needs.root,
              needs.program("podman")]
SIZE = 3_000_000
MAY_MOUNT = ["--device", "/dev/fuse", "--cap-add", "SYS_ADMIN"]
SAVE = f"""
import sys, weightfs
data = bytes(range(250)) * ({SIZE} // 250)
with weightfs.aio_handle() as handle:
    handle.write_async(data, sys.argv[1]).result()
    loaded = bytearray({SIZE})
    handle.read_async(loaded, sys.argv[1]).result()
    print(handle.direct_operations, loaded == data)
"""
MOUNT_AND_SAVE = """
set -e
"$1" mount "$2" "$3"
head -c 3000000 /dev/zero | tr '\\0' x >"$3/file"
"$1" info "$3/file" >/dev/null
"$1" umount "$3"
"""


@pytest.fixture
def shared(factory):
    """A directory whose mounts reach running containers."""
    path = factory.directory("shared")
    with mounts_for_containers(path):
        yield path


def start_podman(factory, uid=None):
    podman = Podman(factory.new_path("podman"), uid)
    done = podman.run("true", codes=None)
    if done.code != 0:
        podman.close()
        pytest.skip(f"needs a podman that starts containers: {done.err.strip().splitlines()[-1]}")
    return podman


@pytest.fixture
def podman(factory, shared):
    podman = start_podman(factory)
    yield podman
    podman.close()


def with_folder(path, propagation="rslave"):
    return ["-v", f"{path}:{path}:{propagation}"]


def test_a_mount_of_the_host_appears_in_a_running_container_and_leaves_it(factory, shared, podman):
    store, path = factory.store(), shared / "mount"
    path.mkdir()
    with podman.running(with_folder(shared)) as execute:
        mount = factory.mount(store, path=path)
        execute("sh", "-c", f"echo text >{path}/file")
        assert (path / "file").read_text() == "text\n"
        assert execute("findmnt", "-no", "FSTYPE", path).out == "fuse.weightfs\n"
        mount.umount()
        assert execute("findmnt", path, codes=None).code == 1


def test_a_container_with_private_mounts_holds_the_store_until_it_ends(factory, podman):
    mount = factory.mount(factory.store())
    pid = mount.pid
    with podman.running(with_folder(mount.path, "rprivate")) as execute:
        execute("sh", "-c", f"echo text >{mount.path}/file")
        weightfs("umount", mount.path, codes=(3,))
        assert execute("cat", mount.path / "file").out == "text\n"
    assert process.wait_gone(pid, 60)
    mount.store.fsck()


@pytest.mark.parametrize("options, expected", [
    (["--network", "host"], 2), (["--network", "none", "-v", "/run/weightfs:/run/weightfs"], 2),
    (["--network", "none"], 0), (["--network", "host", "--cap-drop", "DAC_OVERRIDE"], 0)],
    ids=["the host's network", "a network of its own with the socket", "a network of its own", "without DAC_OVERRIDE"])
def test_programs_in_a_container_have_leases_or_use_the_files(factory, podman, options, expected):
    mount = factory.mount(factory.store())
    command = [sys.executable, "-c", SAVE, mount.path / "file"]
    done = podman.run(*command, options=[*with_folder(mount.path), *options])
    assert done.out == f"{expected} True\n"
    mount.umount()


def test_a_container_mounts_a_store_of_its_own(factory, shared, podman):
    store, path = factory.store(), factory.directory("in-container")
    options = [*with_folder(store.directory), *with_folder(path), *MAY_MOUNT]
    podman.run("sh", "-c", MOUNT_AND_SAVE, "sh", program(), store.directory, path, options=options)
    assert not is_mounted(path)
    mount = factory.mount(store)
    assert (mount.path / "file").read_bytes() == b"x" * SIZE
    mount.fsck()


def test_a_container_without_the_capability_says_why_it_cannot_mount(factory, podman):
    store, path = factory.store(), factory.directory("in-container")
    options = [*with_folder(store.directory), *with_folder(path), "--device", "/dev/fuse"]
    done = podman.run(program(), "mount", store.directory, path, options=options, codes=None)
    assert done.code == 1 and "Operation not permitted" in done.err
    store.fsck()


@needs.program("setpriv")
def test_a_container_without_root_mounts_a_store_of_its_own(open_fuse, factory, shared):
    user = 12345
    folder = factory.directory("of-the-user")
    os.chown(folder, user, user)
    podman = start_podman(factory, user)
    try:
        store, path = folder / "store", folder / "mount"
        options = [*with_folder(folder), *MAY_MOUNT]
        # In the container, because the owners of files are those of the user namespace that formats and mounts.
        podman.run("sh", "-c", f'"$1" format "$2" --size 128M --sparse && mkdir "$3" {MOUNT_AND_SAVE}', "sh", program(),
                   store, path, options=options)
        read = '"$1" mount "$2" "$3" && sha256sum <"$3/file" && "$1" umount "$3"'
        done = podman.run("sh", "-c", read, "sh", program(), store, path, options=options)
        assert hashlib.sha256(b"x" * SIZE).hexdigest() in done.out
        assert (store / "pool").stat().st_uid == user
    finally:
        podman.close()
