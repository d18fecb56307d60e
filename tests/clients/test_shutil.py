# SPDX-License-Identifier: Apache-2.0
"""Python's own file tools: shutil, zipfile, mmap, tempfile and pathlib."""

import mmap
import os
import shutil
import tempfile
import zipfile

from harness.tree import differences, snapshot


def test_copyfile_uses_sendfile(mount, work, local, source):
    shutil.copyfile(source / "a/file-3000001", work / "in")
    shutil.copyfile(work / "in", work / "again")
    mount.remount()
    shutil.copyfile(work / "again", local / "out")
    expected = (source / "a/file-3000001").read_bytes()
    assert (work / "in").read_bytes() == (work / "again").read_bytes() == (local / "out").read_bytes() == expected


def test_sendfile_of_more_than_one_piece(mount, work, local):
    expected = os.urandom(20 << 20)
    (local / "large").write_bytes(expected)
    shutil.copyfile(local / "large", work / "large")
    mount.remount()
    shutil.copyfile(work / "large", local / "back")
    assert (local / "back").read_bytes() == expected


def test_copytree_and_copy2_keep_modes_and_times(mount, work, local, source):
    (source / "dangling").unlink()
    shutil.copytree(source, work / "tree", symlinks=True)
    mount.remount()
    shutil.copytree(work / "tree", local / "back", symlinks=True)
    expected = snapshot(source)
    for copy in (work / "tree", local / "back"):
        found = snapshot(copy)
        for path in expected:
            for key in ("mode", "digest", "target"):
                assert expected[path].get(key) == found[path].get(key), (path, key)
        assert (copy / "a/file-1").stat().st_mtime_ns == (source / "a/file-1").stat().st_mtime_ns


def test_move_within_and_across(mount, work, local, source):
    shutil.copytree(source, local / "reference", symlinks=True)
    shutil.move(source, work / "tree")
    shutil.move(work / "tree/a", work / "inside")
    mount.remount()
    shutil.move(work / "inside", work / "tree/a")
    shutil.move(work / "tree", local / "back")
    links = ("links", "same inode")  # copytree copies a hard link as two files
    expected, found = snapshot(local / "reference"), snapshot(local / "back")
    assert not differences(*({path: {key: value for key, value in facts.items() if key not in links}
                              for path, facts in tree.items()} for tree in (expected, found)))


def test_rmtree(mount, work, source):
    shutil.copytree(source, work / "tree", symlinks=True)
    shutil.rmtree(work / "tree")
    mount.remount()
    assert os.listdir(work) == []


def test_zip_file_appended_to_in_place(mount, work):
    parts = {f"part-{index}": os.urandom(index * 9973) for index in range(10)}
    for name, data in parts.items():
        with zipfile.ZipFile(work / "archive.zip", "a") as archive:
            archive.writestr(name, data)
    mount.remount()
    with zipfile.ZipFile(work / "archive.zip") as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == parts


def test_mmap_resizes_and_flushes(mount, work):
    path = work / "map"
    path.write_bytes(b"\0" * 8192)
    with open(path, "r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
        mapped[:4] = b"head"
        mapped.resize(1 << 20)
        mapped[-4:] = b"tail"
        mapped.flush()
        mapped.flush(4096, 4096)
    mount.remount()
    data = path.read_bytes()
    assert len(data) == 1 << 20 and data[:4] == b"head" and data[-4:] == b"tail" and not any(data[4:-4])


def test_temporary_files(work):
    with tempfile.TemporaryFile(dir=work) as stream:
        stream.write(b"nameless" * 100_000)
        stream.seek(0)
        assert stream.read() == b"nameless" * 100_000
        assert os.listdir(work) == []
    with tempfile.NamedTemporaryFile(dir=work) as stream:
        stream.write(b"named")
        stream.flush()
        with open(stream.name, "rb") as other:
            assert other.read() == b"named"
    with tempfile.TemporaryDirectory(dir=work) as directory:
        open(os.path.join(directory, "x"), "w").close()
    assert os.listdir(work) == []
