# SPDX-License-Identifier: Apache-2.0
"""cp, install, mv, rsync and tar, each into the mount, within it and out of it."""

import os

import pytest

from harness import needs, process
from harness.tree import differences, digests, snapshot


def assert_equal_trees(expected, actual, times=True):
    """Compares content, modes, owners, links and times, including those of directories."""
    assert differences(snapshot(expected, times), snapshot(actual, times)) == []


def assert_equal_content(expected, actual):
    assert digests(expected) == digests(actual)


@pytest.mark.parametrize("options", [["-a"], ["-a", "--sparse=always"], ["-a", "--reflink=auto"],
                                     ["-a", "--sparse=never", "--reflink=never"]], ids=" ".join)
def test_cp_of_a_tree_into_within_and_out_of_the_mount(mount, work, local, source, options):
    process.run(["cp", *options, source, work / "in"])
    process.run(["cp", *options, work / "in", work / "again"])
    mount.remount()
    process.run(["cp", *options, work / "again", local / "out"])
    for copy in (work / "in", work / "again", local / "out"):
        assert_equal_trees(source, copy)


def test_plain_cp_of_files(mount, work, local, source):
    process.run(["cp", source / "a/file-3000001", source / "a/file-4097", work])
    process.run(["cp", work / "file-3000001", work / "second"])
    process.run(["cp", work / "file-4097", work / "second-small"])
    process.run(["cp", "-r", source / "a/b/c", work / "directory"])
    mount.remount()
    process.run(["cp", work / "second", local / "back"])
    expected = (source / "a/file-3000001").read_bytes()
    assert (work / "second").read_bytes() == (local / "back").read_bytes() == expected
    assert (work / "second-small").read_bytes() == (source / "a/file-4097").read_bytes()


def test_cp_over_an_existing_file(mount, work, source):
    (work / "target").write_bytes(b"longer than the source" * 1000)
    process.run(["cp", source / "a/file-4097", work / "target"])
    process.run(["cp", "--remove-destination", source / "a/file-511", work / "other"])
    mount.remount()
    assert (work / "target").read_bytes() == (source / "a/file-4097").read_bytes()
    assert (work / "other").read_bytes() == (source / "a/file-511").read_bytes()


def test_sparse_copy_stays_sparse(mount, work, source):
    process.run(["cp", "--sparse=always", source / "sparse", work / "in"])
    process.run(["cp", "--sparse=auto", work / "in", work / "copy"])
    mount.remount()
    for name in ("in", "copy"):
        status = (work / name).stat()
        assert status.st_size == 8 << 20 and status.st_blocks * 512 < 1 << 20, name
        assert (work / name).read_bytes() == (source / "sparse").read_bytes()


def test_install(mount, work, source):
    process.run(["install", "-D", "-m", "0751", source / "a/file-65537", work / "made/for/it/program"])
    process.run(["install", "-d", "-m", "2750", work / "directory"])
    process.run(["install", "-p", work / "made/for/it/program", work / "directory/kept"])
    mount.remount()
    for path, mode in ((work / "made/for/it/program", 0o751), (work / "directory/kept", 0o755)):
        assert path.read_bytes() == (source / "a/file-65537").read_bytes()
        assert path.stat().st_mode & 0o7777 == mode
    assert (work / "directory").stat().st_mode & 0o7777 == 0o2750


def test_mv_within_the_mount_keeps_the_inode(mount, work, source):
    process.run(["cp", "-a", source, work / "tree"])
    inode = (work / "tree/a/file-4097").stat().st_ino
    process.run(["mv", work / "tree/a", work / "moved"])
    process.run(["mv", work / "tree/sparse", work / "moved/file-0"])
    process.run(["mv", "-n", work / "moved/file-1", work / "moved/file-511"])
    mount.remount()
    assert (work / "moved/file-4097").stat().st_ino == inode
    assert (work / "moved/file-0").read_bytes() == (source / "sparse").read_bytes()
    assert (work / "moved/file-511").read_bytes() == (source / "a/file-511").read_bytes()
    assert (work / "moved/file-1").exists() and not (work / "tree/a").exists()


def test_mv_across_filesystems_and_back(mount, work, local, source):
    process.run(["cp", "-a", source, local / "reference"])
    process.run(["mv", source, work / "tree"])
    assert not source.exists()
    mount.remount()
    assert_equal_trees(local / "reference", work / "tree")
    process.run(["mv", work / "tree", local / "back"])
    assert_equal_trees(local / "reference", local / "back")
    assert not (work / "tree").exists()


# By default rsync treats times within one second as equal.
RSYNC = ["rsync", "-aHXS", "--no-whole-file", "--modify-window=-1"]


@needs.program("rsync")
@pytest.mark.parametrize("options", [[], ["--inplace", "--no-sparse"], ["--whole-file"]],
                         ids=["plain", "inplace", "whole-file"])
def test_rsync_copies_then_updates(mount, work, source, options):
    command = [*RSYNC, *options, "--delete", f"{source}/", f"{work}/tree/"]
    process.run(command)
    assert_equal_trees(source, work / "tree")
    mount.remount()
    with open(source / "a/file-3000001", "r+b") as stream:
        stream.seek(1_000_000)
        stream.write(b"changed in the middle" * 100)
    (source / "a/file-65537").unlink()
    (source / "a/new").write_bytes(b"new" * 10_000)
    process.run(command)
    mount.remount()
    assert_equal_trees(source, work / "tree")
    assert "files transferred: 0" in process.run([*command, "--checksum", "--stats"]).out


@needs.program("rsync")
def test_rsync_append_continues_where_a_transfer_ended(mount, work, source):
    whole = (source / "a/file-3000001").read_bytes()
    (work / "file-3000001").write_bytes(whole[:1_234_567])
    process.run(["rsync", "--append-verify", source / "a/file-3000001", f"{work}/"])
    (work / "second").write_bytes(whole[:2_000_000])
    process.run(["rsync", "--append", source / "a/file-3000001", work / "second"])
    mount.remount()
    assert (work / "file-3000001").read_bytes() == (work / "second").read_bytes() == whole


@needs.program("rsync")
def test_rsync_partial_directory_and_out_of_the_mount(mount, work, local, source):
    process.run(["rsync", "-a", "--partial-dir=.part", "--fsync", f"{source}/", f"{work}/tree/"])
    mount.remount()
    process.run([*RSYNC, f"{work}/tree/", f"{local}/out/"])
    assert_equal_content(source, local / "out")


@needs.program("tar")
@pytest.mark.parametrize("compression", [[], ["-z"], ["--sparse"]], ids=lambda o: "".join(o) or "plain")
def test_tar_made_and_extracted_on_the_mount(mount, work, source, compression):
    process.run(["tar", *compression, "--xattrs", "-C", source, "-cf", work / "tree.tar", "."])
    mount.remount()
    (work / "tree").mkdir()
    process.run(["tar", "--xattrs", "-C", work / "tree", "-xpf", work / "tree.tar"])
    process.run(["tar", "-C", work / "tree", "--compare", "-f", work / "tree.tar"])
    mount.remount()
    assert_equal_trees(source, work / "tree")


@needs.program("tar")
def test_tar_append_and_stream_out(mount, work, local, source):
    process.run(["tar", "-C", source / "a", "-cf", work / "part.tar", "file-4096"])
    process.run(["tar", "-C", source / "a", "-rf", work / "part.tar", "file-1048577"])
    mount.remount()
    process.run(["tar", "-C", local, "-xf", work / "part.tar"])
    for name in ("file-4096", "file-1048577"):
        assert (local / name).read_bytes() == (source / "a" / name).read_bytes()


def test_dd_in_odd_blocks_and_with_direct_output(mount, work, source):
    whole = (source / "a/file-3000001").read_bytes()
    process.run(["dd", f"if={source}/a/file-3000001", f"of={work}/odd", "bs=10007", "status=none"])
    process.run(["dd", f"if={source}/a/file-3000001", f"of={work}/direct", "bs=1M", "oflag=direct", "status=none"])
    process.run(["dd", f"if={work}/odd", f"of={work}/patched", "bs=1M", "iflag=direct", "conv=fsync", "status=none"])
    process.run(["dd", f"if={source}/a/file-4096", f"of={work}/patched", "bs=4096", "seek=100", "conv=notrunc",
                 "status=none"])
    mount.remount()
    patched = bytearray(whole)
    patched[409_600:413_696] = (source / "a/file-4096").read_bytes()
    assert (work / "odd").read_bytes() == (work / "direct").read_bytes() == whole
    assert (work / "patched").read_bytes() == patched


def test_the_mount_answers_like_a_disk_to_du_find_and_df(work, source):
    process.run(["cp", "-a", "--sparse=always", source, work / "tree"])
    assert int(process.run(["du", "-sb", work / "tree"]).out.split()[0]) > 10_000_000
    found = process.run(["find", work / "tree", "-type", "f", "-newermt", "2001-01-01"]).out.splitlines()
    assert sorted(map(os.path.basename, found)) == sorted(
        name for _, _, files in os.walk(source) for name in files if name not in ("relative link", "dangling"))
    assert process.run(["df", "--output=target", work]).out.split()[-1] in str(work)
    process.run(["diff", "-r", "--no-dereference", source, work / "tree"])
