# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check from beginning to end, on the fake GPU: its bundle, every step, and what it reports."""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.machinery import SourceFileLoader

import pytest

from fake_gpu import CUFILE, LIBRARY, SANITIZERS
from harness.filesystems import REPOSITORY, program

MAKER = REPOSITORY / "tests/gpu_check/bundle.py"


def run(*command, limit=100, **variables):
    return subprocess.run(list(map(str, command)), env=os.environ | variables, capture_output=True, text=True,
                          timeout=limit, check=False)


@pytest.fixture(scope="module")
def bundle(scratch):
    if not (program().parent / "gpu_probe").exists():
        pytest.skip("needs gpu_probe: build it first")
    if any(name in LIBRARY.read_bytes() for name in SANITIZERS):
        pytest.skip("needs a build without sanitizers: Python cannot load the bundle's objects")
    folder = scratch / "bundle"
    done = run(sys.executable, MAKER, program().parent.parent, folder)
    if "scripts/setup installs it" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def check(bundle, local):
    """The class of the bundle's program, for steps that this machine would not have."""
    loader = SourceFileLoader("gpu_check", str(bundle / "gpu-check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module, module.Check(argparse.Namespace(out=local, folder=local, limit=60))


def test_the_bundle_is_small_and_needs_no_libraries_of_the_machine(bundle):
    assert sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) <= 60 << 20
    for name in ("weightfs", "gpu_probe"):
        listed = run("ldd", bundle / "bin" / name, LD_LIBRARY_PATH="").stdout
        foreign = [line for line in listed.splitlines() if "=> /" in line and str(bundle) not in line]
        assert foreign and all(line.split()[0].startswith(("libc.", "libm.", "libpthread.", "libresolv.", "libdl.",
                                                           "librt.", "libstdc++.", "libgcc_s.")) for line in foreign)


def test_the_wheel_has_its_libraries(bundle, local):
    wheel, = bundle.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(local)
    done = run(sys.executable, "-c", "import weightfs\n"
               "print(weightfs.__file__, *(line.split()[-1] for line in open('/proc/self/maps') if '.so' in line))",
               PYTHONPATH=str(local))
    assert done.returncode == 0 and str(local / "weightfs/__init__.py") in done.stdout, done.stderr
    assert {str(path) for path in (local / "weightfs.libs").iterdir()} <= set(done.stdout.split())


@pytest.mark.limit(600)
def test_every_step_that_needs_no_torch_with_a_gpu_is_ok(bundle, local, request):
    folder, out = local / "files", local / "results"
    folder.mkdir()
    compiles = request.config.getoption("--full")   # the module, and DeepSpeed's handles for the timings: minutes
    compiler = "false" if not compiles else "ccache c++" if shutil.which("ccache") else "c++"
    done = run(bundle / "gpu-check", "--folder", folder, "--out", out, "--python", sys.executable,
               *["--compile"] * compiles, "--sizes", "1M", "3M", "--probe-size", "8M", "--rounds", "2", limit=580,
               CXX=compiler, TORCH_EXTENSIONS_DIR=str(local / "extensions"), PYTHONPATH="",
               WEIGHTFS_CUDA_LIBRARY=str(LIBRARY), WEIGHTFS_CUFILE_LIBRARY=str(CUFILE),
               WEIGHTFS_PROC_MODULES="/dev/null")
    results = json.loads((out / "results.json").read_text())
    steps = {step["name"]: step for step in results["steps"]}
    page = (out / "results.txt").read_text()
    assert done.returncode == 0, done.stdout
    needs_gpu = [name for name in steps if name.startswith("tests of") or name == "timings, cuda"]
    needs_fuse = [name for name in steps if name.startswith("store") and not os.access("/dev/fuse", os.W_OK)]
    assert len(needs_gpu) == 4 and len(steps) == 18
    for name in needs_gpu:
        assert steps[name]["outcome"] == "not possible" and "torch.cuda.is_available() is false" in steps[name]["why"]
    assert [name for name, step in steps.items() if step["outcome"] != "ok" and name not in (
        *needs_gpu, *needs_fuse, "nvidia-smi")] == [], done.stdout
    assert steps["Python package"]["facts"]["compiled"] is compiles
    assert steps["C++, cufile"]["facts"]["cufile_bytes"] > 0
    assert all(name in page for name in steps) and "Fake GPU 0" in page
    rows = steps["timings, cpu"]["facts"]["rows"]
    assert {row["size"] for row in rows} == {1 << 20, 3 << 20} and all(row["read_gb_s"] > 0 for row in rows)
    assert not any(row["error"] for row in rows) and {"torch.load", "weightfs, aio_handle"} <= {
        row["method"] for row in rows}
    assert compiles or "DeepNVMe, aio_handle" not in {row["method"] for row in rows}
    assert not list(folder.iterdir())


def test_a_program_that_does_not_end_is_killed_and_the_next_step_runs(check, local):
    module, made = check
    made.step("waits", lambda: made.run("sh", "-c", "echo started; sleep 1000 & wait", limit=1))
    made.step("lacks", made.needed_package)
    made.step("works", dict)
    assert [step["outcome"] for step in made.results["steps"]] == ["failed", "not possible", "ok"]
    assert "sh did not end in 1 s" in made.results["steps"][0]["why"]
    assert "did not end" in (local / "results.txt").read_text()


def test_a_folder_with_other_files_is_not_replaced(local):
    (local / "mine").write_text("x")
    done = run(sys.executable, MAKER, program().parent.parent, local)
    assert done.returncode == 1 and "has other files" in done.stderr and (local / "mine").read_text() == "x"
