# SPDX-License-Identifier: Apache-2.0
"""save_many and load_many on every kind of filesystem, and checksums stored with files."""

import errno
import os
import signal
import sys

import pytest
import torch

import weightfs
from harness import needs
from harness.users import NOBODY, call_as
from tensors import content, random_tensor


def tensors_of(count):
    tensors = {f"layer.{i}": random_tensor(i * 997 % 50_000, seed=i) for i in range(count)}
    return tensors | {"transposed": torch.randn(300, 200).t(), "ünïcödé": torch.randn(7), "large": torch.randn(600_001)}


def test_tensors_are_saved_and_loaded_by_name(folder, handle):
    tensors = tensors_of(100)
    seen = []
    total = handle.save_many(tensors, folder, progress=lambda done, total: seen.append((done, total)))
    assert total == sum(tensor.nbytes for tensor in tensors.values())
    assert seen[-1][0] == seen[-1][1] >= total
    assert all((folder / name).read_bytes() == content(tensor) for name, tensor in tensors.items())
    assert sorted(os.listdir(folder)) == sorted(tensors)
    buffers = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    assert handle.load_many(buffers, folder) == total
    assert all(torch.equal(buffers[name], tensor) for name, tensor in tensors.items())
    # Replaces the old files; the sizes differ.
    handle.save_many({"layer.3": random_tensor(10), "large": random_tensor(20)}, folder, durable=False)
    assert (folder / "large").stat().st_size == 20
    assert len(os.listdir(folder)) == len(tensors)
    assert handle.save_many({}, folder) == handle.load_many({}, folder) == 0


def test_an_exception_of_the_progress_callback_is_reported_once_per_call(folder, handle, monkeypatch):
    tensors, told = {f"{i}": bytearray(1000) for i in range(30)}, []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: told.append(str(raised.exc_value)))
    for call in (handle.save_many, handle.load_many):
        call(tensors, folder, progress=lambda *_: 1 / 0)
        assert told == ["division by zero"]
        told.clear()
    handle.write_from(bytearray(30 << 20), folder / "large", progress=lambda *_: 1 / 0)
    assert told == ["division by zero"]


def test_files_that_cannot_be_loaded_are_named_and_the_rest_is_loaded(folder, handle):
    handle.save_many({"a": bytearray(b"a" * 5000), "b": bytearray(b"b" * 5000)}, folder)
    buffers = {"a": bytearray(5000), "missing": bytearray(10), "b": bytearray(4999)}
    with pytest.raises(FileNotFoundError) as caught:
        handle.load_many(buffers, folder)
    assert {name: error.errno for name, error in caught.value.errors.items()} == {
        "missing": errno.ENOENT, "b": errno.EINVAL}
    assert caught.value.errors["b"].filename == str(folder / "b")
    assert "the file has 5000 bytes" in str(caught.value.errors["b"])
    assert buffers["a"] == b"a" * 5000


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 256, "nul\0"])
def test_invalid_file_names_are_refused_before_anything_is_changed(folder, handle, name):
    for call in (handle.save_many, handle.load_many):
        with pytest.raises(OSError) as caught:
            call({"good": bytearray(10), name: bytearray(10)}, folder)
        assert caught.value.errno == errno.EINVAL
    assert os.listdir(folder) == []


def test_a_name_given_as_text_and_as_bytes_is_a_duplicate(folder, handle):
    for call in (handle.save_many, handle.load_many):
        with pytest.raises(OSError, match="'a'.*twice") as caught:
            call({"a": bytearray(10), b"a": bytearray(10)}, folder)
        assert caught.value.errno == errno.EINVAL
    assert os.listdir(folder) == []


@pytest.mark.parametrize("wrong", [None, 5, [bytearray(10)], torch.ones(3)], ids=lambda wrong: type(wrong).__name__)
def test_arguments_that_are_not_a_dict_of_tensors_are_refused(local, handle, wrong):
    for call in (handle.save_many, handle.load_many):
        with pytest.raises(TypeError, match="expected a dict of names and tensors, not"):
            call(wrong, local)
    assert os.listdir(local) == []


def test_a_path_that_is_missing_or_not_a_directory_is_an_error(folder, handle):
    (folder / "file").write_bytes(b"")
    for name, number in (("missing", errno.ENOENT), ("file", errno.ENOTDIR)):
        with pytest.raises(OSError) as caught:
            handle.save_many({"a": bytearray(10)}, folder / name)
        assert caught.value.errno == number


def test_a_directory_with_a_null_byte_is_no_other_one(folder, handle):
    handle.save_many({"a": b"old"}, folder, durable=False)
    for call in (handle.save_many, handle.load_many):
        with pytest.raises(OSError, match="null byte") as caught:
            call({"a": bytearray(b"new")}, f"{folder}\0b")
        assert caught.value.errno == errno.EINVAL
    assert os.listdir(folder) == ["a"] and (folder / "a").read_bytes() == b"old"


def test_a_directory_to_publish_with_a_null_byte_is_no_other_one(work, weightfs_only):
    (work / "a").mkdir()
    wrong = f"{work}/a\0b"
    with pytest.raises(OSError, match="null byte"):
        weightfs.publish(wrong)
    assert weightfs.publication(work / "a") is None
    published = weightfs.publish(work / "a")
    for call in (weightfs.unpublish, weightfs.publication):
        with pytest.raises(OSError, match="null byte"):
            call(wrong)
    assert weightfs.publication(work / "a") == published
    weightfs.unpublish(work / "a")


@pytest.mark.parametrize("direct", ["auto", "never"])
def test_a_directory_in_place_of_a_file_leaves_everything_unchanged(folder, direct):
    (folder / "a").write_bytes(b"old")
    (folder / "z").mkdir()
    with weightfs.aio_handle(direct=direct) as handle, pytest.raises(IsADirectoryError) as caught:
        handle.save_many({"a": b"new", "z": b"new", "b": b"new"}, folder)
    assert caught.value.filename == str(folder / "z")
    assert (folder / "a").read_bytes() == b"old" and sorted(os.listdir(folder)) == ["a", "z"]


@needs.root
def test_a_sticky_directory_keeps_the_files_of_others(local):
    for name in ("a", "b"):
        (local / name).write_bytes(b"old")
    os.chown(local / "a", NOBODY, NOBODY)
    os.chmod(local, 0o1777)

    def save():
        with weightfs.aio_handle() as handle:
            handle.save_many({"a": b"new", "b": b"new", "c": b"new"}, local)

    with pytest.raises(PermissionError, match="/b: no file can take this place"):
        call_as(NOBODY, save)
    assert [(local / name).read_bytes() for name in sorted(os.listdir(local))] == [b"old", b"old"]


def test_the_reason_for_a_missing_lease_is_logged_once(local, handle, caplog):
    caplog.set_level("INFO", "weightfs")
    handle.save_many({"a": b"1", "b": b"2"}, local)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "one by one" in caplog.text and "it is on no weightfs mount" in caplog.text


LIMITED = """
import errno, os, resource, signal, weightfs
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
with weightfs.aio_handle(direct={direct!r}) as handle:
    for size in {sizes}:
        for call in (lambda data: handle.write_from(data, {folder!r} + "/one"),
                     lambda data: handle.save_many({{"a": data, "b": b"x"}}, {folder!r})):
            try:
                call(bytearray(b"y" * size))
                print(0)
            except OSError as error:
                print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("direct", ["auto", "never"])
def test_exceeding_the_file_size_limit_is_an_error_and_no_signal(folder, child, direct):
    (folder / "fill").write_bytes(bytes(1 << 20))   # later files are then further back in a pool file
    out = child(LIMITED.format(limit=1 << 20, direct=direct, sizes=[1 << 20, (1 << 20) + 1], folder=str(folder)))
    assert out.split() == ["0", "0", "EFBIG", "EFBIG"]
    assert (folder / "a").read_bytes() == b"y" * (1 << 20)


@pytest.mark.usefixtures("weightfs_only")
def test_a_pool_file_beyond_the_file_size_limit_is_reported(work, child):
    out = child(LIMITED.format(limit=8192, direct="require", sizes=[4096], folder=str(work)))
    assert out.split() == ["EFBIG", "EFBIG"]


def test_links_are_followed_and_unreadable_files_are_named(folder, handle):
    (folder / "blobs").mkdir()
    tensors = {f"layer.{i}": random_tensor(5000 + i, seed=i) for i in range(5)}
    handle.save_many(tensors, folder / "blobs")
    handle.save_many({"plain": tensors["layer.0"]}, folder)
    for name in tensors:
        (folder / name).symlink_to(f"blobs/{name}")
    (folder / "dangling").symlink_to("blobs/none")
    buffers = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()} | {"plain": bytearray(5000)}
    handle.load_many(buffers, folder)
    assert all(torch.equal(buffers[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(FileNotFoundError) as caught:
        handle.load_many(buffers | {"dangling": bytearray(1), "missing": bytearray(1)}, folder)
    assert {name: error.errno for name, error in caught.value.errors.items()} == {"dangling": errno.ENOENT,
                                                                                 "missing": errno.ENOENT}


@pytest.mark.usefixtures("weightfs_only")
def test_a_link_has_no_lease(work):
    (work / "file").write_bytes(b"12345")
    (work / "link").symlink_to("file")
    with weightfs.aio_handle(direct="require") as handle, pytest.raises(OSError, match="no regular file") as caught:
        handle.load_many({"file": bytearray(5), "link": bytearray(5)}, work)
    assert list(caught.value.errors) == ["link"]


def test_verify_finds_what_changed_on_a_disk_that_keeps_no_checksums(local, handle):
    tensor = random_tensor(3_000_001)
    try:
        handle.write_from(tensor, local / "file", checksum=True)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            pytest.skip("no extended attributes of users here")
        raise
    buffer = torch.empty_like(tensor)
    handle.read_into(buffer, local / "file", verify=True)
    assert handle.read_async(buffer, local / "file", verify=True).result() == tensor.nbytes
    status = os.stat(local / "file")
    with open(local / "file", "r+b") as stream:
        stream.seek(2_500_000)
        stream.write(bytes([tensor[2_500_000].item() ^ 1]))
    os.utime(local / "file", ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(OSError) as caught:
        handle.read_into(buffer, local / "file", verify=True)
    assert (caught.value.errno, caught.value.offset) == (errno.EIO, 2 << 20)
    with open(local / "file", "r+b") as stream:
        stream.write(b"x")
    with pytest.raises(OSError, match="changed after its checksums were made") as caught:
        handle.read_into(buffer, local / "file", verify=True)
    assert caught.value.errno == errno.ENODATA

    handle.save_many({"a": tensor}, local, checksum=True)
    handle.load_many({"a": buffer}, local, verify=True)
    handle.save_many({"a": tensor}, local)
    with pytest.raises(OSError, match="has no checksums") as caught:
        handle.load_many({"a": buffer}, local, verify=True)


def test_a_mount_verifies_by_itself(work, handle):
    tensor = random_tensor(3_000_001)
    handle.write_from(tensor, work / "file", checksum=True)
    assert os.listxattr(work / "file") == []
    for size, offset in ((tensor.nbytes, 0), (1000, 17)):
        buffer = torch.empty(size, dtype=torch.uint8)
        handle.read_into(buffer, work / "file", offset, verify=True)
        assert torch.equal(buffer, tensor[offset:offset + size])


def test_temporary_names_contain_the_name_of_the_file(local, child):
    child(f"""
import os, threading, weightfs
handle = weightfs.aio_handle(direct="never")
def look(done, total):
    names = os.listdir({str(local)!r})
    assert len(names) == 1 and names[0].startswith(".{'n' * 200}.weightfs-"), names
handle.write_from(bytearray(3 << 20), {str(local / ("n" * 255))!r}, atomic=True, progress=look)
""")
    assert os.listdir(local) == ["n" * 255]


def test_a_killed_save_without_a_lease_leaves_each_file_old_or_new(folder):
    """And a hidden directory. It is killed at each call of its progress callback."""
    old, new = {name: name * 5000 for name in "abc"}, {name: name.upper() * 7000 for name in "abc"}

    def save(files, kill_at=-1):
        calls = iter(range(100))

        def progress(_done, _total):
            if next(calls) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        with weightfs.aio_handle(direct="never") as handle:
            handle.save_many({name: text.encode() for name, text in files.items()}, folder, progress=progress)

    def is_killed(kill_at):
        child = os.fork()
        if child == 0:
            try:
                save(new, kill_at)
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    save(old)
    kills = 0
    while is_killed(kills):
        kills += 1
        names = sorted(os.listdir(folder))
        assert names[-3:] == ["a", "b", "c"] and all(name.startswith(".weightfs-") for name in names[:-3])
        assert all((folder / name).read_text() in (old[name], new[name]) for name in "abc")
    assert kills >= 2 and len(names) > 3
    assert all((folder / name).read_text() == new[name] for name in "abc")
