"""What must not be mounted, formatted or served: one clear line, an exit code that is not 0, and nothing changed."""

import json
import os
import shutil
import struct

import pytest

from harness import process
from harness.filesystems import is_mounted, program, weightfs
from harness.tree import digests

pytestmark = pytest.mark.usefixtures("weightfs_only")
BLOCK = 4096
COPIES = (0, 512 << 10, 1 << 20, (1 << 20) + (512 << 10))


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def change_superblocks(path, offset, layout, value):
    """Sets a field in every copy, with a right checksum: what a newer program would have written."""
    with open(path, "r+b") as stream:
        for copy in COPIES:
            stream.seek(copy)
            block = bytearray(stream.read(BLOCK))
            struct.pack_into(layout, block, offset, value)
            struct.pack_into("<I", block, BLOCK - 4, crc32c(block[:-4]))
            stream.seek(copy)
            stream.write(block)


def contents(store):
    """Digests of all that belongs to a store, but for the lock, its log and RocksDB's own."""
    found = digests(store.directory)
    return {path: value for path, value in found.items()
            if path not in ("lock", "weightfs.log") and not path.startswith(("meta/LOG", "meta/LOCK"))}


def refused(*words, about=(), changed=None):
    """Runs a command that must fail; returns its one line."""
    before = contents(changed) if changed else None
    finished = weightfs(*words, codes=None)
    assert finished.code not in (0, None) and finished.code < 128, finished
    lines = finished.err.strip().splitlines()
    assert len(lines) == 1, f"one line was expected: {finished}"
    for word in about:
        assert word.lower() in lines[0].lower(), f"{word} is not named: {lines[0]}"
    if changed:
        assert contents(changed) == before, "a refused command changed the store"
    return lines[0]


def refuse_mount(factory, store, about=()):
    directory = factory.directory("refused")
    line = refused("mount", store.directory, directory, about=about, changed=store)
    assert not is_mounted(directory) and not store.daemons()
    return line


@pytest.fixture
def store(factory):
    """A store with something in it."""
    made = factory.store("64M")
    mount = factory.mount(made)
    (mount.path / "file").write_bytes(b"kept" * 10_000)
    mount.umount()
    yield made
    mount.close()


def still_works(factory, store):
    mount = factory.mount(store)
    assert (mount.path / "file").read_bytes() == b"kept" * 10_000
    mount.fsck()


def test_second_mount_of_a_mounted_store(factory, store):
    mount = factory.mount(store)
    (mount.path / "other").write_bytes(b"x")
    directory = factory.directory("refused")
    line = refused("mount", store.directory, directory)
    assert str(mount.pid) in line and not is_mounted(directory)
    assert (mount.path / "other").read_bytes() == b"x"
    refused("format", store.directory, "--size", "64M")
    refused("format", store.directory, "--size", "64M", "--force")
    assert weightfs("fsck", store.directory, codes=None).code not in (0, 1)
    mount.fsck()
    still_works(factory, store)


def test_device_of_another_store(factory, store):
    other = factory.store("64M")
    kept = store.directory / "pool.kept"
    os.rename(store.directory / "pool", kept)
    shutil.copy(other.directory / "pool", store.directory / "pool")
    refuse_mount(factory, store, about=["pool"])
    os.rename(kept, store.directory / "pool")
    still_works(factory, store)


def test_device_that_is_no_pool(factory, store):
    kept = store.directory / "pool.kept"
    os.rename(store.directory / "pool", kept)
    (store.directory / "pool").write_bytes(bytes(64 << 20))
    refuse_mount(factory, store, about=["pool"])
    (store.directory / "pool").unlink()
    refuse_mount(factory, store, about=["pool"])
    os.rename(kept, store.directory / "pool")
    still_works(factory, store)


def test_catalog_of_another_store(factory, store):
    other = factory.store("64M")
    os.rename(store.directory / "meta", store.directory / "meta.kept")
    shutil.copytree(other.directory / "meta", store.directory / "meta")
    refuse_mount(factory, store)
    shutil.rmtree(store.directory / "meta")
    os.rename(store.directory / "meta.kept", store.directory / "meta")
    still_works(factory, store)


def test_missing_catalog(factory, store):
    os.rename(store.directory / "meta", store.directory / "meta.kept")
    refuse_mount(factory, store)
    assert not (store.directory / "meta/CURRENT").exists()
    shutil.rmtree(store.directory / "meta", ignore_errors=True)
    os.rename(store.directory / "meta.kept", store.directory / "meta")
    still_works(factory, store)


def test_truncated_pool(factory, store):
    kept = store.directory / "pool.kept"
    shutil.copy(store.directory / "pool", kept)
    os.truncate(store.directory / "pool", 40 << 20)
    refuse_mount(factory, store, about=["pool", "truncated"])
    os.truncate(store.directory / "pool", 1000)
    refuse_mount(factory, store, about=["pool"])
    os.rename(kept, store.directory / "pool")
    still_works(factory, store)


def test_newer_version_of_the_pool(factory, store):
    change_superblocks(store.directory / "pool", 8, "<I", 2)
    refuse_mount(factory, store, about=["version"])
    change_superblocks(store.directory / "pool", 8, "<I", 1)
    still_works(factory, store)


def test_unknown_incompatible_feature(factory, store):
    change_superblocks(store.directory / "pool", 32, "<Q", 1 << 40)
    refuse_mount(factory, store, about=["pool"])
    change_superblocks(store.directory / "pool", 32, "<Q", 0)
    still_works(factory, store)


def test_newer_version_of_the_description(factory, store):
    path = store.directory / "store.json"
    text = path.read_text()
    description = json.loads(text)
    description["format"] = 99
    path.write_text(json.dumps(description))
    refuse_mount(factory, store, about=["99"])
    path.write_text("{ broken")
    refuse_mount(factory, store, about=["store.json"])
    path.write_text(text)
    still_works(factory, store)


def test_one_damaged_superblock_is_no_harm(factory, store):
    with open(store.directory / "pool", "r+b") as stream:
        stream.write(bytes(BLOCK))
    still_works(factory, store)
    with open(store.directory / "pool", "r+b") as stream:
        for copy in COPIES:
            stream.seek(copy)
            stream.write(os.urandom(BLOCK))
    refuse_mount(factory, store, about=["pool"])


def test_what_is_no_store_and_no_directory(factory, store, local):
    (local / "empty").mkdir()
    (local / "file").write_bytes(b"x")
    for place in (local / "empty", local / "missing", local / "file"):
        refused("mount", place, factory.directory("refused"))
        refused("fsck", place)
        assert os.listdir(local / "empty") == []
    for place in (local / "missing", local / "file", store.directory):
        refused("mount", store.directory, place, changed=store)


def test_options_that_are_unknown_or_impossible(factory, store):
    for options in ("nonsense", "without=nonsense", "threads=0", "commit=-1", "memory=1"):
        refused("mount", store.directory, factory.directory("refused"), "-o", options,
                about=[options.split("=")[0]], changed=store)


def test_format_refuses_what_holds_something(factory, store, local):
    refused("format", store.directory, "--size", "64M", changed=store)
    (local / "full").mkdir()
    (local / "full/file").write_bytes(b"x")
    refused("format", local / "full", "--size", "64M")
    assert os.listdir(local / "full") == ["file"]
    image = local / "image"
    with open(image, "wb") as stream:
        stream.truncate(64 << 20)
    process.run(["mkfs.ext4", "-q", image])
    before = image.read_bytes()
    refused("format", local / "new", "--device", image, about=["ext4"])
    assert image.read_bytes() == before and not (local / "new").exists()
    weightfs("format", local / "new", "--device", image, "--force")
    other = local / "other"
    refused("format", other, "--device", image)
    assert not other.exists()
    for size in ("0", "1K", "nonsense", "-5G", "8Q"):
        refused("format", other, "--size", size)
        assert not other.exists()


def test_umount_of_what_is_not_mounted(local):
    refused("umount", local)
    refused("umount", local / "missing")
    refused("umount", "/proc")


def test_help_version_and_usage(local):
    for words in (["--help"], ["--version"], *[[name, "--help"] for name in
                                              ("format", "mount", "umount", "fsck", "info", "doctor")]):
        assert weightfs(*words).out.strip(), words
    for words in ([], ["nonsense"], ["format"], ["mount"], ["mount", local, local, local, local]):
        finished = process.run([program(), *words], codes=None)
        assert finished.code not in (0, None) and finished.err.strip(), words


def test_info_tells_where_a_file_lies(factory, store):
    mount = factory.mount(store)
    data = os.urandom(5 << 20)
    with open(mount.path / "model", "wb") as stream:
        stream.write(data)
        os.fsync(stream.fileno())
    facts = json.loads(weightfs("info", mount.path / "model", "--json").out)
    runs = [(extent["logical"], extent["length"], extent["physical"]) for extent in facts["extents"]]
    with open(store.directory / "pool", "rb") as pool:
        for start, length, physical in runs:
            length = min(length, len(data) - start)
            assert os.pread(pool.fileno(), length, physical) == data[start:start + length]
    assert sum(length for _, length, _ in runs) >= len(data)
    assert weightfs("info", mount.path / "model").out and weightfs("info", mount.path).out
    assert json.loads(weightfs("info", store.directory, "--json").out)
    mount.fsck()
