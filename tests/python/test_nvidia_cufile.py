# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own cuFile, its oldest and its newest supported version, over the driver of tests/support/fake_gpu: in its
compatibility mode, which is all that it does without a GPU. And NVIDIA's headers against our declarations."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fake_gpu import FOLDER, LIBRARY, SANITIZERS
from harness.filesystems import program

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(sys.prefix) / "nvidia"   # where scripts/setup installs them

# Each of 8 threads has a handle of its own, and writes, overwrites and reads new and existing files at odd offsets,
# with pinned memory and with descriptors of every kind.
STEPS = """
import os, sys, threading
from fake_gpu import FakeGpu
import weightfs

folder, mode, direct, leased = sys.argv[1:5]
gpu = FakeGpu()
SIZE = 3_000_001
failures = []

def content(seed):
    return (bytes(range(seed, 251)) * (SIZE // 200))[:SIZE]

def steps(number):
    path = f"{folder}/file-{number}"
    # One file is new, the others exist.
    if number:
        with open(path, "wb") as file:
            file.write(bytes(SIZE + 5000))
    with weightfs.gds_handle(65536, 8, False, True, 2, mode=mode, direct=direct) as handle:
        array, target = gpu.array(content(number)), gpu.array(size=SIZE)
        handle.write_from(array, path)
        assert open(path, "rb").read() == content(number), "written"
        assert handle.read_into(target, path) == SIZE and target.content() == content(number), "read"
        array.set(content(number + 10))
        assert handle.write_from(array, path, 4097) == SIZE
        assert open(path, "rb").read()[4097:] == content(number + 10), "written at an odd offset"
        part = gpu.array(size=1_000_000)
        assert handle.pin_device_tensor(part) is True, handle.last_error
        assert handle.read_into(part, path, 9000) == 1_000_000
        assert part.content() == content(number + 10)[9000 - 4097:][:1_000_000], "read into pinned memory"
        assert handle.unpin_device_tensor(part) is True
        for flags in (0, os.O_NONBLOCK, os.O_APPEND | os.O_NONBLOCK, os.O_NOFOLLOW):
            descriptor = os.open(path, os.O_RDWR | os.O_DIRECT | flags)
            assert handle.read_into(part, descriptor, 8192) == 1_000_000
            os.close(descriptor)
            assert part.content() == content(number + 10)[8192 - 4097:][:1_000_000], flags
        assert (handle.gpu_bytes["cufile"] > 0) == (mode == "cufile"), handle.gpu_bytes
        assert (handle.direct_operations > 0) == (leased == "leased")

def guarded(number):
    try:
        steps(number)
    except BaseException as error:
        failures.append(f"thread {number}: {error!r}")

threads = [threading.Thread(target=guarded, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
assert gpu.counts().mistakes == 0
print("done", flush=True)
"""


@pytest.fixture(params=["12", "13"])
def cufile(request):
    """The path of cuFile for a version of CUDA."""
    found = list(PACKAGES.glob(f"{request.param}/nvidia/*/lib/libcufile.so.0"))
    if not found:
        pytest.skip(f"needs NVIDIA's cuFile for CUDA {request.param} in .venv/nvidia: scripts/setup installs it")
    if any(name in LIBRARY.read_bytes() for name in SANITIZERS):
        pytest.skip("needs a build without sanitizers: NVIDIA's library uses the fake GPU")
    return found[0]


@pytest.fixture
def machine(local, cufile):
    """The environment of a program on a machine where cuFile works: with a list of modules, and with udev's facts about
    the device of each folder given."""
    shown, made = local / "machine", {}
    (shown / "proc").mkdir(parents=True)
    (shown / "proc/modules").touch()
    (shown / "run/udev/data").mkdir(parents=True)

    def environment(*folders):
        for folder in folders:
            device = os.stat(folder).st_dev
            facts = shown / f"run/udev/data/b{os.major(device)}:{os.minor(device)}"
            facts.write_text("I:1\nE:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4\nG:systemd\n")
        made.update(os.environ, LD_PRELOAD=str(FOLDER / "libweightfs_fake_machine.so"),
                    WEIGHTFS_FAKE_MACHINE=str(shown), WEIGHTFS_CUDA_LIBRARY=str(LIBRARY),
                    WEIGHTFS_CUFILE_LIBRARY=str(cufile), CUFILE_LOGFILE_PATH=str(local / "cufile.log"),
                    PYTHONPATH=os.pathsep.join(sys.path))
        made.pop("WEIGHTFS_GDS_MODE", None)
        made.pop("WEIGHTFS_PROC_MODULES", None)
        return made
    return environment


def run(arguments, environment, limit=100):
    return subprocess.run(list(map(str, arguments)), env=environment, capture_output=True, text=True, timeout=limit,
                          check=False)


@pytest.mark.limit(300)
def test_the_tests_of_the_client_pass(local, machine, cufile):
    environment = machine(local)
    (local / "files").mkdir()
    environment.update(TMPDIR=str(local / "files"), WEIGHTFS_TEST_CUFILE=str(cufile))
    tests = program().parent / "unit_client_gpu"
    if not tests.exists():
        pytest.skip(f"needs {tests}: build it first")
    done = run([tests, "--gtest_filter=*/Cufile*"], environment, 250)
    assert done.returncode == 0 and "[  PASSED  ]" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("mode", ["cufile", "auto"])
def test_files_on_a_disk(local, machine, mode):
    (local / "files").mkdir()
    done = run([sys.executable, "-X", "faulthandler", "-c", STEPS, local / "files", mode, "auto", ""], machine(local))
    assert done.returncode == 0 and "done" in done.stdout, done.stderr


@pytest.mark.parametrize("mode, direct", [("cufile", "auto"), ("auto", "auto"), ("auto", "require")])
def test_files_on_a_mount(work, local, machine, cufile, mode, direct):
    leased = "leased" if mode == "auto" else ""
    done = run([sys.executable, "-X", "faulthandler", "-c", STEPS, work, mode, direct, leased], machine(local))
    if mode == "cufile" and "12" in cufile.parts:
        # Versions before 1.16 take no FUSE filesystem.
        assert done.returncode != 0 and "which cuFile takes from version 1.16 on" in done.stderr, done.stderr
    else:
        assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr


FACTS = """
import sys, weightfs
from fake_gpu import FakeGpu
gpu = FakeGpu()
try:
    with weightfs.gds_handle(mode=sys.argv[1]) as handle:
        handle.write_from(gpu.array(bytes(100_000)), sys.argv[2])
        print(handle.mode, handle.mode_reason, handle.refusal, sep="; ")
except OSError as error:
    print(error.strerror)
"""


def test_without_a_list_of_modules_nothing_waits_forever(local, machine):
    environment = machine(local)
    Path(environment["WEIGHTFS_FAKE_MACHINE"], "proc/modules").unlink()
    for mode in ("auto", "cufile"):
        done = run([sys.executable, "-c", FACTS, mode, local / "file"], environment)
        assert done.returncode == 0 and "would wait forever for /proc/modules" in done.stdout, done.stdout + done.stderr
    done = run([program(), "doctor"], environment)
    assert "would wait forever for /proc/modules" in done.stdout, done.stdout + done.stderr


def test_nvidia_fs_without_its_devices_is_not_used(local, machine):
    if list(Path("/dev").glob("nvidia-fs*")):
        pytest.skip("needs a machine without /dev/nvidia-fs*")
    environment = machine(local)
    Path(environment["WEIGHTFS_FAKE_MACHINE"], "proc/modules").write_text("nvidia_fs 262144 0 - Live 0x0 (OE)\n")
    done = run([sys.executable, "-c", FACTS, "cufile", local / "file"], environment)
    assert done.returncode == 0 and "/dev/nvidia-fs* is missing" in done.stdout, done.stdout + done.stderr


def test_a_disk_that_udev_does_not_know_is_refused_with_the_cause(local, machine):
    environment = machine()
    shutil.rmtree(Path(environment["WEIGHTFS_FAKE_MACHINE"], "run"))
    done = run([sys.executable, "-c", FACTS, "cufile", local / "file"], environment)
    assert done.returncode == 0 and "/run/udev is missing" in done.stdout, done.stdout + done.stderr
    assert not (local / "file").exists()


@pytest.mark.parametrize("cuda", ["12", "13"])
def test_our_declarations_match_nvidias_headers(cuda):
    headers = list(PACKAGES.glob(f"{cuda}/nvidia/*/include"))
    if not headers:
        pytest.skip(f"needs NVIDIA's headers for CUDA {cuda} in .venv/nvidia: scripts/setup installs them")
    folders = [f"-I{ROOT}", *(f"-isystem{folder}" for folder in headers)]
    done = run(["c++", "-std=c++20", "-fsyntax-only", "-fno-access-control", *folders,
                ROOT / "tests/support/fake_gpu/nvidia_headers.cc"], os.environ)
    assert done.returncode == 0, done.stderr
