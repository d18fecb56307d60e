# SPDX-License-Identifier: Apache-2.0
"""Programs built with the installed libweightfs: the example of docs/CPP.md, and what the headers expose to programs."""

import os
import re
import shutil
import subprocess

import pytest

from harness import needs, process
from harness.filesystems import REPOSITORY, program

pytestmark = [pytest.mark.usefixtures("weightfs_only"), needs.program("c++", "pkg-config", "nm")]
CMAKE = next(filter(None, (shutil.which("cmake", path=f"{REPOSITORY}/.venv/bin"), shutil.which("cmake"))), None)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    build = program().parent.parent
    if CMAKE is None or not (build / "cmake_install.cmake").exists():
        pytest.skip("needs cmake and the build folder of the program")
    place = tmp_path_factory.mktemp("prefix")
    process.run([CMAKE, "--install", build, "--prefix", place])
    return place


def installed(prefix, name):
    return next(prefix.rglob(name))


def example(language):
    return re.search(rf"```{language}\n(.*?)```", (REPOSITORY / "docs/CPP.md").read_text(), re.DOTALL)[1]


def run_example(prefix, binary, work):
    library = installed(prefix, "libweightfs.so").parent
    done = process.run(["env", f"LD_LIBRARY_PATH={library}", binary, work / "tensor"])
    assert done.out == "the same\n" and (work / "tensor").stat().st_size == 12_000_000


@pytest.mark.limit(300)
def test_the_example_is_built_by_cmake(prefix, tmp_path, work):
    (tmp_path / "program.cc").write_text(example("cpp"))
    (tmp_path / "CMakeLists.txt").write_text(example("cmake"))
    process.run([CMAKE, "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"], limit=100)
    process.run([CMAKE, "--build", tmp_path / "build"], limit=200)
    run_example(prefix, tmp_path / "build/program", work)


@pytest.mark.limit(300)
def test_the_example_is_built_with_pkg_config(prefix, tmp_path, work):
    (tmp_path / "program.cc").write_text(example("cpp"))
    package = installed(prefix, "weightfs.pc").parent
    config = ["env", f"PKG_CONFIG_PATH={package}", "pkg-config", "--cflags", "--libs", "weightfs"]
    flags = process.run(config).out.split()
    process.run(["c++", "-std=c++20", tmp_path / "program.cc", "-o", tmp_path / "program", *flags], limit=200)
    run_example(prefix, tmp_path / "program", work)


def test_license_and_notice_are_installed(prefix):
    for name in ("LICENSE", "NOTICE"):
        assert installed(prefix, name).read_bytes() == (REPOSITORY / name).read_bytes()


@pytest.mark.limit(300)
def test_every_installed_header_stands_alone(prefix, tmp_path):
    include = installed(prefix, "handle.h").parents[2]
    headers = sorted(path.relative_to(include) for path in include.rglob("*.h"))
    assert len(headers) >= 7
    hdf5 = subprocess.run(["pkg-config", "--cflags", "hdf5"], capture_output=True, text=True, check=False).stdout.split()
    for header in headers:
        # Internal macros must not leak into programs.
        (tmp_path / "alone.cc").write_text(f"#include <{header}>\n#if defined(GUARDED_BY) || defined(REQUIRES) || "
                                           "defined(EXCLUDES) || defined(RETURN_IF_ERROR)\n#error macros\n#endif\n")
        process.run(["c++", "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{include}",
                     f"-I{include}/weightfs", *hdf5, tmp_path / "alone.cc"], limit=100)


def test_the_library_exports_only_its_interface(prefix):
    library = installed(prefix, "libweightfs.so")
    assert re.fullmatch(r"libweightfs\.so\.\d+", os.readlink(library))
    lines = process.run(["nm", "-DC", "--defined-only", library]).out.splitlines()
    names = [line.split(maxsplit=2)[2] for line in lines]
    shown = {re.match(r"weightfs::client::(\w+)", name)[1] for name in names}
    assert shown == {"FindLocked", "Handle", "IsLocked", "LockedMemory", "MemoryView", "Operation", "PublicationOf",
                     "Publish", "RandomReader", "Unpublish"}
    assert not [name for name in names if "Impl::" in name or "Ring" in name]
