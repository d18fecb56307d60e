# SPDX-License-Identifier: Apache-2.0
"""Servers that read one model: many concurrent processes that map, prefetch, advise and populate."""

import mmap
import os
import random
import subprocess
import sys

import pytest

from harness import needs, process
from harness.tree import digest

SIZE = (24 << 20) + 12_345
MAP_POPULATE = 0x8000
READER = """
import hashlib, mmap, os, sys
path, how = sys.argv[1], sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
descriptor = os.open(path, os.O_RDONLY)
size, state = os.fstat(descriptor).st_size, hashlib.blake2b(digest_size=16)
if how == "prefetch":                                   # 16 MiB reads of a pool of threads, then a mapping
    offset = 0
    while piece := os.pread(descriptor, 16 << 20, offset):
        offset += len(piece)
if how == "read":
    while piece := os.read(descriptor, 1 << 20):
        state.update(piece)
else:
    mapped = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    for start in range(0, size, 1 << 20):
        state.update(mapped[start:start + (1 << 20)])
print(state.hexdigest())
"""


@pytest.fixture
def model(mount, work):
    path = work / "model.gguf"
    path.write_bytes(random.Random(4).randbytes(SIZE))
    expected = digest(path)
    mount.remount()
    return path, expected


@pytest.mark.parametrize("how", ["read", "map", "prefetch"])
def test_eight_processes_read_one_file(model, how):
    path, expected = model
    readers = [subprocess.Popen([sys.executable, "-c", READER, path, how], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    for reader in readers:
        assert reader.stdout.readline() == "ready\n"
    for reader in readers:
        reader.stdin.write("go\n")
        reader.stdin.flush()
    assert [process.finish(reader).out.strip() for reader in readers] == [expected] * 8


def test_advised_and_populated_mapping(model):
    path, _ = model
    descriptor = os.open(path, os.O_RDONLY)
    assert 4096 <= os.fstat(descriptor).st_blksize <= 65536
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
    with mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | MAP_POPULATE, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_WILLNEED)
        mapped.madvise(mmap.MADV_RANDOM)
        generator = random.Random(8)
        for _ in range(500):
            start = generator.randrange(SIZE - 5000)
            assert mapped[start:start + 5000] == os.pread(descriptor, 5000, start)
        mapped.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        assert mapped[SIZE - 100:] == os.pread(descriptor, 100, SIZE - 100)
    os.close(descriptor)


def test_reads_aligned_to_the_block_size_that_stat_shows(model):
    path, _ = model
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    block = os.fstat(descriptor).st_blksize
    buffer, total = mmap.mmap(-1, 64 * block), b""
    while got := os.preadv(descriptor, [buffer], len(total)):
        total += buffer[:got]
    os.close(descriptor)
    assert total == path.read_bytes()


def test_readahead_system_call(model):
    path, expected = model
    with open(path, "rb") as stream:
        os.posix_fadvise(stream.fileno(), 1 << 20, 8 << 20, os.POSIX_FADV_WILLNEED)
    assert digest(path) == expected


def test_programs_run_from_the_mount(mount, work):
    process.run(["cp", "/bin/true", "/bin/echo", work])
    (work / "script").write_text("#!/bin/sh\necho from a script: $1\n")
    (work / "script").chmod(0o755)
    mount.remount()
    process.run([work / "true"])
    assert process.run([work / "echo", "from a program"]).out == "from a program\n"
    assert process.run([work / "script", "argument"]).out == "from a script: argument\n"
    (work / "module.py").write_text("value = 'imported'")
    assert process.run([sys.executable, "-c", "import module; print(module.value)"], cwd=work).out == "imported\n"


@needs.program("gcc")
def test_compiler_and_shared_library_on_the_mount(mount, work):
    (work / "library.c").write_text("int answer(void) { return 42; }\n")
    (work / "main.c").write_text("int answer(void); int main(void) { return answer() != 42; }\n")
    process.run(["gcc", "-shared", "-fPIC", "-o", "libanswer.so", "library.c"], cwd=work)
    process.run(["gcc", "-o", "program", "main.c", "-L.", "-lanswer", "-Wl,-rpath,$ORIGIN"], cwd=work)
    mount.remount()
    process.run([work / "program"])
