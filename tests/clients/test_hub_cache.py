# SPDX-License-Identifier: Apache-2.0
"""The system calls of a model hub's cache, without a hub's library: blobs are downloaded to `.incomplete` under a lock,
resumed, replaced, and linked by relative links."""

import fcntl
import hashlib
import os
import subprocess
import sys

from harness import process

PIECE = 1 << 16
DOWNLOAD = """
import fcntl, hashlib, os, sys
cache, blob, pieces, stop = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with open(f"{cache}/locks/{blob}.lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    target, part = f"{cache}/blobs/{blob}", f"{cache}/blobs/{blob}.incomplete"
    if os.path.exists(target):
        print("there already")
        sys.exit()
    with open(part, "ab") as stream:
        begun = stream.tell() // 65536
        for index in range(begun, stop or pieces):
            stream.write(hashlib.sha256(f"{blob}{index}".encode()).digest() * 2048)
    if stop:
        print("interrupted")
        sys.exit()
    os.replace(part, target)
    print(f"from {begun}")
"""


def content(blob, pieces):
    return b"".join(hashlib.sha256(f"{blob}{index}".encode()).digest() * 2048 for index in range(pieces))


def make_cache(work):
    for folder in ("blobs", "locks", "snapshots/abc/sub", "refs"):
        (work / "cache" / folder).mkdir(parents=True)
    return work / "cache"


def download(cache, blob, pieces, stop=0):
    return process.run([sys.executable, "-c", DOWNLOAD, cache, blob, str(pieces), str(stop)]).out.strip()


def test_download_interrupted_and_resumed(mount, work):
    cache = make_cache(work)
    assert download(cache, "blob", 30, stop=11) == "interrupted"
    mount.remount()
    assert (cache / "blobs/blob.incomplete").stat().st_size == 11 * PIECE
    assert download(cache, "blob", 30) == "from 11"
    mount.remount()
    assert (cache / "blobs/blob").read_bytes() == content("blob", 30)
    assert os.listdir(cache / "blobs") == ["blob"]


def test_snapshot_of_relative_links(mount, work):
    cache = make_cache(work)
    download(cache, "blob", 5)
    os.symlink("../../blobs/blob", cache / "snapshots/abc/model.safetensors")
    os.symlink("../../../blobs/blob", cache / "snapshots/abc/sub/other")
    (cache / "refs/main").write_text("abc")
    mount.remount()
    assert os.readlink(cache / "snapshots/abc/model.safetensors") == "../../blobs/blob"
    for name in ("model.safetensors", "sub/other"):
        assert (cache / "snapshots/abc" / name).read_bytes() == content("blob", 5)
        assert (cache / "snapshots/abc" / name).resolve() == (cache / "blobs/blob").resolve()


def test_several_processes_download_one_blob_once(mount, work):
    cache = make_cache(work)
    workers = [subprocess.Popen([sys.executable, "-c", DOWNLOAD, cache, "blob", "40", "0"], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = sorted(process.finish(worker).out.strip() for worker in workers)
    assert said == ["from 0", "there already", "there already", "there already"]
    mount.remount()
    assert (cache / "blobs/blob").read_bytes() == content("blob", 40)


def test_lock_of_another_process_is_seen_and_ends_with_it(work):
    holder = subprocess.Popen([sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1], 'w');"
                               "fcntl.flock(f, fcntl.LOCK_EX); print('locked', flush=True); sys.stdin.read()",
                               work / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline().strip() == "locked"
        with open(work / "lock", "w") as stream:
            for mode in (fcntl.LOCK_EX, fcntl.LOCK_SH):
                try:
                    fcntl.flock(stream, mode | fcntl.LOCK_NB)
                    raise AssertionError("two holders of an exclusive lock")
                except BlockingIOError:
                    pass
            holder.kill()
            holder.wait(timeout=60)
            fcntl.flock(stream, fcntl.LOCK_EX)
    finally:
        holder.kill()
        holder.communicate(timeout=60)
