# SPDX-License-Identifier: Apache-2.0
"""weightfs pull: a pull is whole, verified and equal, or absent."""
import errno
import hashlib
import os
import random
import signal
import socket
import stat
import sys

import pytest

from harness import needs, process, s3_versions
from harness.filesystems import program
from harness.namespaces import MS_BIND, mount, own_mounts
from harness.s3_probe import clean_environment
from harness.tree import differences
from harness.users import NOBODY
from versions import MIB, SERIES, URL, command, comparable, is_untouched, keys, pull, put, refused, weightfs, write


def assert_equal(tree, target):
    assert not differences(comparable(tree), comparable(target))
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(tree.stat().st_mode)
    assert target.stat().st_mtime_ns == tree.stat().st_mtime_ns


def test_a_pulled_version_equals_the_pushed_directory(server, tree, target):
    write(server, tree, 7)
    report = pull(server, target)
    assert_equal(tree, target)
    assert report["version"] == 7 and report["files"] == 6 and report["url"] == f"{URL}/7"
    assert os.listdir(target.parent) == [target.name]


def test_a_push_can_be_read_by_the_second_implementation_and_pulled(server, tree, target):
    weightfs(server, "push", tree, URL, "--version", 3)
    files, _ = s3_versions.read(lambda key: server.objects.get("tests", key).body, SERIES, 3)
    assert files == {path.relative_to(tree).as_posix(): path.read_bytes()
                     for path in tree.rglob("*") if path.is_file() and not path.is_symlink()}
    pull(server, target)
    assert_equal(tree, target)


@pytest.mark.parametrize("connections", [1, 100])
def test_few_and_many_connections_give_the_same(server, tree, target, connections):
    write(server, tree, 1)
    pull(server, target, "--connections", connections)
    assert_equal(tree, target)
    assert server.connections <= connections


def test_the_greatest_complete_version_is_the_default(server, tree, target):
    for version in (2, 10, 9):
        (tree / "one").write_bytes(b"%d" % version)
        write(server, tree, version)
    write(server, tree, 11, finish=False)
    assert pull(server, target)["version"] == 10
    assert (target / "one").read_bytes() == b"10"
    assert pull(server, target.with_name("older"), "--version", 2)["version"] == 2
    assert pull(server, target.with_name("named"), url=f"{URL}/9")["version"] == 9
    error = weightfs(server, "pull", URL, target.with_name("missing"), "--version", 11, codes=(8,)).err
    assert "no such version" in error and "weightfs versions" in error
    assert "name one of them" in refused(server, "pull", f"{URL}/9", target.with_name("x"), "--version", 2)
    assert "no version was pushed" in refused(server, "pull", "s3://tests/other", target.with_name("x"))
    for words in (("s3://no-such-bucket/x", "--version", 1), ("s3://no-such-bucket/x/1",)):   # no missing version
        error = refused(server, "pull", words[0], target.with_name("x"), *words[1:])
        assert "create the bucket, or check its name" in error


def test_a_series_may_have_a_number_as_its_name(server, tree, target):
    write(server, tree, 3, series="runs/2024")
    assert pull(server, target, url="s3://tests/runs/2024")["version"] == 3


@pytest.mark.parametrize("kind", ["file", "link", "full directory"])
def test_a_target_that_exists_is_left_alone(server, tree, target, kind):
    write(server, tree, 1)
    if kind == "file":
        target.write_bytes(b"mine")
    elif kind == "link":
        (target.parent / "elsewhere").mkdir()
        target.symlink_to("elsewhere")
    else:
        target.mkdir()
        (target / "mine").write_bytes(b"mine")
    before = comparable(target.parent)
    assert "it exists" in refused(server, "pull", URL, target)
    assert comparable(target.parent) == before


def test_an_empty_directory_is_replaced(server, tree, target):
    write(server, tree, 1)
    target.mkdir(mode=0o700)
    pull(server, target)
    assert_equal(tree, target)


def test_a_missing_parent_and_a_bad_name_are_errors(server, tree, target):
    write(server, tree, 1)
    assert "No such file or directory" in refused(server, "pull", URL, target / "below")
    assert "name the directory" in refused(server, "pull", URL, target.parent / "..")
    assert "the URL needs a name" in refused(server, "pull", "s3://tests", target)
    assert is_untouched(target)


def test_links_of_another_user_on_the_path_of_the_target(server, tree, target):
    """They lead only to what belongs to that user."""
    assert os.geteuid() == 0, "it gives files to other users"
    write(server, tree, 1)
    link, own = target.with_name("link"), target.with_name("own")
    link.symlink_to(target.parent / "elsewhere")
    os.lchown(link, NOBODY, NOBODY)
    (target.parent / "elsewhere").mkdir()
    error = refused(server, "pull", URL, link / "pulled")
    assert f"{link}: a symbolic link on this path belongs to user {NOBODY}" in error
    assert not os.listdir(target.parent / "elsewhere")
    own.symlink_to(target.parent / "elsewhere")
    pull(server, own / "pulled")
    os.chown(target.parent / "elsewhere", NOBODY, NOBODY)
    pull(server, link / "again")
    assert_equal(tree, target.parent / "elsewhere/pulled")
    assert_equal(tree, target.parent / "elsewhere/again")
    (target.parent / "fifo").mkdir()
    os.mkfifo(target.parent / "fifo/pipe")
    assert "Not a directory" in refused(server, "pull", URL, target.parent / "fifo/pipe/pulled")


def test_links_that_may_lead_out_are_named(server, tree, target):
    write(server, tree, 1)
    finished = weightfs(server, "pull", URL, target)
    assert finished.err == f"weightfs: warning: {target}: 1 symbolic link may lead out of the directory, " \
                           "e.g. nowhere to '/does/not/exist'\n"
    (tree / "deep/chain").symlink_to("link/../../x")
    write(server, tree, 2)
    finished = weightfs(server, "pull", URL, target.with_name("two"))
    assert "2 symbolic links may lead out of the directory, e.g. deep/chain to 'link/../../x'" in finished.err
    finished = weightfs(server, "pull", URL, target.with_name("inside"), "--files", "deep/link", "--files", "one")
    assert finished.err == "" and (target.with_name("inside") / "deep/link").read_bytes() == (tree / "one").read_bytes()


@pytest.mark.parametrize("line", [{"file": "", "size": 0, "mode": 0o644, "modified": 0}, {"link": "", "target": "x"}])
def test_a_file_without_a_name_is_no_version(server, tree, target, line):
    kind = next(iter(line))

    def change(entries):
        at = next(index for index, entry in enumerate(entries) if kind in entry)
        entries.insert(at, line)

    write(server, tree, 1, change=change)
    assert "the manifest is damaged" in refused(server, "pull", URL, target)
    assert is_untouched(target)


# A small program of its own, because a child begins with the peak of its parent.
PEAK_MEMORY = """
import resource, subprocess, sys

status = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""


def test_brackets_are_no_manifest(server, tree, target):
    write(server, tree, 1, change=lambda entries: [entries[0]])
    key = f"{SERIES}/1/.weightfs/manifest"
    head = server.objects.get("tests", key).body.splitlines(keepends=True)[0]
    text = head + b"[" * (64 << 20) + b"\n"
    put(server)(key, text + s3_versions.line({"sha256": hashlib.sha256(text).hexdigest()}))
    command = [sys.executable, "-c", PEAK_MEMORY, program(), "pull", URL, target]
    pulled = process.run(command, codes=(1,), env=clean_environment(server.environment()))
    assert "its JSON has more than" in pulled.err
    assert int(pulled.out) < 1 << 20, "KiB"
    assert is_untouched(target)


def test_selected_files_are_pulled_with_their_directories(server, tree, target):
    write(server, tree, 1)
    report = pull(server, target, "--files", "deep/*", "--files", "o?e")
    found = sorted(path.relative_to(target).as_posix() for path in target.rglob("*"))
    assert found == ["deep", "deep/er", "deep/er/é", "deep/link", "deep/odd", "one"] and report["files"] == 3
    error = refused(server, "pull", URL, target.with_name("none"), "--files", "one", "--files", "*.bin")
    assert "--files '*.bin' matches no file" in error
    assert is_untouched(target.with_name("none"))


def test_a_full_filesystem_is_noticed_before_the_first_byte(server, tree, factory, weightfs_only):
    mount = factory.mount(factory.store("64M"))
    with open(tree / "huge", "wb") as huge:
        huge.truncate(80 << 20)
    write(server, tree, 1)
    server.requests.clear()
    error = refused(server, "pull", URL, mount.path / "pulled")
    assert "the pull needs 97" in error and "are free" in error
    assert not [request for request in server.requests if request.key.endswith(("/huge", "/one", "/large"))]
    assert is_untouched(mount.path / "pulled")


def fill(path):
    """Writes zeros until no block is left. Returns their number."""
    with open(path, "wb", buffering=0) as filler:
        for size in (MIB, 64 << 10, 4096):
            with pytest.raises(OSError) as full:
                while filler.write(bytes(size)):
                    os.fsync(filler.fileno())
            assert full.value.errno == errno.ENOSPC
        return os.fstat(filler.fileno()).st_size


@pytest.mark.parametrize("held", ["large", "deep/er/é"])
def test_a_pool_that_another_writer_fills_ends_the_pull(server, start, tree, factory, weightfs_only, held):
    """The larger file reserves its space when its first bytes have arrived; the smaller one is just written."""
    mount = factory.mount(factory.store("64M"))
    (mount.path / "mine").write_bytes(b"mine" * MIB)
    write(server, tree, 1)
    server.fail(1, "hold", method="GET", key=f"{held}$")
    pulling = start(server, "pull", URL, mount.path / "pulled")
    server.wait_for_fault()
    filled = fill(mount.path / "filler")
    server.heal()
    finished = process.finish(pulling, codes=(1,))
    assert "No space left" in finished.err and finished.err.count("\n") == 1
    assert sorted(os.listdir(mount.path)) == ["filler", "mine"]
    assert (mount.path / "mine").read_bytes() == b"mine" * MIB and (mount.path / "filler").read_bytes() == bytes(filled)
    (mount.path / "filler").unlink()
    pull(server, mount.path / "pulled")
    assert_equal(tree, mount.path / "pulled")
    mount.fsck()


@pytest.mark.limit(300)
@pytest.mark.parametrize("kind", ["flip", "cut", "reset", "status", "short", "lost"])
def test_a_fault_at_any_request_is_survived_or_leaves_nothing(server, tree, target, kind):
    write(server, tree, 1)
    requests = len(server.requests)
    pull(server, target)
    requests = len(server.requests) - requests
    assert requests > 8
    survived = 0
    for at in range(1, requests + 1):
        server.heal()
        server.fail(at, kind)
        path = target.with_name(f"{kind}-{at}")
        finished = weightfs(server, "pull", URL, path, codes=(0, 1))
        if finished.code == 0:
            assert_equal(tree, path)
            survived += 1
        else:
            assert is_untouched(path), finished
    assert survived >= requests - 1, "only a damaged listing may end a pull"


def test_a_damaged_object_ends_the_pull_with_its_key_and_offset(server, tree, target):
    write(server, tree, 1)
    body = bytearray((tree / "large").read_bytes())
    body[16 << 20 | 5000] ^= 1
    put(server)(f"{SERIES}/1/large", bytes(body))
    error = refused(server, "pull", URL, target)
    assert f"{SERIES}/1/large: " in error and f"offset {(16 << 20) + 4096} " in error
    assert is_untouched(target)
    assert len([r for r in server.requests if r.key.endswith("/large")]) <= 2 + 3


def test_damage_on_the_way_is_fetched_again(server, tree, target):
    write(server, tree, 1)
    server.fail(1, "flip", key="/large$", times=3, every=True)
    assert pull(server, target)["fetched_again"] == 3
    assert_equal(tree, target)


def test_damaged_checksums_and_replaced_objects_are_errors(server, tree, target):
    write(server, tree, 1)
    name = f"{SERIES}/1/.weightfs/sums/0"
    sums = server.objects.get("tests", name).body
    put(server)(name, bytes([sums[0] ^ 1]) + sums[1:])
    assert "SHA-256" in refused(server, "pull", URL, target)
    put(server)(name, sums)
    put(server)(f"{SERIES}/1/one", b"longer")
    assert "instead of 1" in refused(server, "pull", URL, target)
    server.objects.delete("tests", f"{SERIES}/1/one")
    assert "/one" in refused(server, "pull", URL, target)
    assert is_untouched(target)


def test_a_stalled_service_does_not_keep_a_pull_from_ending(server, start, tree, target):
    write(server, tree, 1)
    server.fail(1, "stall", key="/large$", every=True)
    pulling = start(server, "pull", URL, target)
    server.wait_for_fault()
    pulling.send_signal(signal.SIGINT)
    finished = process.finish(pulling, limit=25, codes=(1,))   # a stalled request ends after 30 s
    assert "interrupted" in finished.err and finished.err.count("\n") == 1
    assert is_untouched(target)


def test_a_silent_name_server_does_not_keep_a_pull_from_ending(server, processes, local, target):
    assert os.geteuid() == 0, "it mounts a file"
    (local / "resolv.conf").write_text("nameserver 127.0.0.77\noptions timeout:30\n")
    environment = {**server.environment(), "AWS_ENDPOINT_URL": "http://storage.example"}
    with socket.socket(type=socket.SOCK_DGRAM) as silent:
        silent.settimeout(20)
        silent.bind(("127.0.0.77", 53))
        with own_mounts(own=local):
            mount(local / "resolv.conf", "/etc/resolv.conf", "", MS_BIND)
            pulling = processes.start(command("pull", URL, target), env=clean_environment(environment))
            silent.recv(512)
            pulling.send_signal(signal.SIGINT)
            assert "cancelled" in process.finish(pulling, limit=20, codes=(1,)).err


def test_what_a_killed_pull_left_is_removed_by_the_next(server, start, tree, target):
    write(server, tree, 1)
    server.fail(1, "stall", key="/large$")
    pulling = start(server, "pull", URL, target)
    server.wait_for_fault()
    pulling.kill()
    pulling.communicate()
    left = [name for name in os.listdir(target.parent) if name.startswith(".pulled.weightfs-pull-")]
    assert len(left) == 1 and not target.exists()
    server.heal()
    (target.parent / left[0] / "locked").mkdir(mode=0o000)
    pull(server, target)
    assert_equal(tree, target)
    assert os.listdir(target.parent) == [target.name]


@pytest.mark.limit(300)
def test_a_pull_that_is_killed_at_any_request_leaves_no_target(server, start, tree, target):
    write(server, tree, 1)
    requests = len(server.requests)
    pull(server, target.with_name("other"))
    requests = len(server.requests) - requests
    assert requests > 8
    for at in range(1, requests + 1):
        server.heal()
        server.fail(at, "stall")
        before = len(server.requests)
        pulling = start(server, "pull", URL, target)
        server.wait_for(lambda: any(record.fault for record in server.requests[before:]))
        pulling.kill()
        pulling.communicate()
        assert pulling.returncode == -signal.SIGKILL and not target.exists(), at
    server.heal()
    pull(server, target)
    assert_equal(tree, target)
    assert sorted(os.listdir(target.parent)) == ["other", target.name]


def test_of_three_pulls_to_one_target_one_succeeds(server, start, tree, target):
    write(server, tree, 1)
    for _ in range(5):
        pulls = [start(server, "pull", URL, target) for _ in range(3)]
        codes = sorted(process.finish(each, codes=(0, 1)).code for each in pulls)
        assert codes == [0, 1, 1]
        assert_equal(tree, target)
        assert os.listdir(target.parent) == [target.name]
        target.rename(target.parent.parent / f"done-{random.randrange(1 << 60)}")


def hostile(kind):
    """Changes the entries of a manifest, which is then sealed again."""
    def change(entries):
        files = [entry for entry in entries if "file" in entry]
        if kind == "parent":
            files[-1]["file"] = "../outside"
        elif kind == "absolute":
            files[0]["file"] = "/outside"
        elif kind == "through a link":
            links = [entry for entry in entries if "link" in entry]
            links[0].update(link="linked", target="..")
            files[-1]["file"] = "linked/outside"
        elif kind == "twice":
            files[1]["file"] = files[0]["file"]
        elif kind == "size":
            files[0]["size"] = 1 << 62
        elif kind == "fewer checksums":
            return [entry for entry in entries if "slice" not in entry]
        elif kind == "another version":
            entries[0]["version"] = 2
        elif kind == "newer":
            entries[0]["weightfs-manifest"] = 2
        else:
            files[0]["mode"] = -1
        return entries
    return change


@pytest.mark.parametrize("kind", ["parent", "absolute", "through a link", "twice", "size", "fewer checksums",
                                  "another version", "newer", "mode"])
def test_a_hostile_manifest_is_refused(server, tree, target, kind):
    write(server, tree, 1, change=hostile(kind))
    error = refused(server, "pull", URL, target)
    assert f"{URL}/1: " in error and "manifest" in error
    assert is_untouched(target) and not (target.parent / "outside").exists()


def test_a_pull_to_a_mount_is_written_and_published(server, tree, factory, weightfs_only):
    mount = factory.mount(factory.store("256M"))
    write(server, tree, 5)
    report = pull(server, mount.path / "pulled", "--publish")
    assert report["publication"]["version"] == 5
    assert_equal(tree, mount.path / "pulled")
    with pytest.raises(PermissionError):
        (mount.path / "pulled/one").write_bytes(b"")
    weightfs(server, "publish", "--undo", mount.path / "pulled")
    mount.fsck()


# When the pull renames its directory to the target, another directory takes that name at once.
SWAPS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int renameat2(int from, const char* old, int to, const char* new, unsigned flags) {
  int (*next)(int, const char*, int, const char*, unsigned) = dlsym(RTLD_NEXT, "renameat2");
  int result = next(from, old, to, new, flags);
  if (result == 0) result = renameat(to, new, to, "moved") | renameat(to, "other", to, new);
  return result;
}
"""


@needs.program("cc")
def test_a_pull_publishes_its_own_directory_when_another_takes_the_name(server, tree, local, factory, weightfs_only):
    source, library = local / "swaps.c", local / "swaps.so"
    source.write_text(SWAPS)
    process.run(["cc", "-shared", "-fPIC", "-o", library, source])
    mount = factory.mount(factory.store("256M"))
    (mount.path / "other").mkdir()
    (mount.path / "other/file").write_bytes(b"old")
    write(server, tree, 5)
    process.run([program(), "pull", URL, mount.path / "pulled", "--publish"],
                env={**clean_environment(server.environment()), "LD_PRELOAD": str(library)})
    (mount.path / "pulled/file").write_bytes(b"new")
    with pytest.raises(PermissionError):
        (mount.path / "moved/one").write_bytes(b"")
    weightfs(server, "publish", "--undo", mount.path / "moved")


def test_a_pull_to_a_mount_survives_a_kill_of_the_mount(server, tree, factory, weightfs_only):
    """The rename commits everything below the directory, and the pull ends with an fsync of its parent."""
    mount = factory.mount(factory.store("256M"), "commit=3600")
    write(server, tree, 5)
    pull(server, mount.path / "pulled")
    mount.kill9()
    mount.mount()
    assert_equal(tree, mount.path / "pulled")


def test_a_pull_needs_no_space_twice(server, local, factory, weightfs_only):
    """Reserved blocks are those that are written."""
    source = local / "source"
    source.mkdir()
    (source / "large").write_bytes(random.randbytes(40 << 20))
    write(server, source, 1)
    mount = factory.mount(factory.store("64M"))
    pull(server, mount.path / "pulled")
    assert (mount.path / "pulled/large").read_bytes() == (source / "large").read_bytes()


def test_the_mount_point_itself_is_no_target(server, tree, factory, weightfs_only):
    mount = factory.mount(factory.store("256M"))
    write(server, tree, 1)
    assert "mount point" in refused(server, "pull", URL, mount.path)


def test_publish_needs_a_mount(server, tree, target):
    write(server, tree, 1)
    assert "not on a weightfs mount" in refused(server, "pull", URL, target, "--publish")
    assert is_untouched(target)


def test_the_bucket_has_only_what_was_written(server, tree, target):
    written = write(server, tree, 1)
    pull(server, target)
    assert keys(server) == sorted(written)
    assert {request.method for request in server.requests} == {"GET"}
