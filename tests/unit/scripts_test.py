#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The scripts only print a message when they are asked for help or get unknown arguments, quickstart builds everything
that `cmake --install` needs, the purge of the package removes the indexes that are not in use, and scripts/outside can
use known.json."""
import fcntl
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def wrongs():
    for name in ("setup", "build", "quickstart", "test", "report", "check-distributions", "powercut", "mutants",
                 "soak", "package", "gpu-check", "outside", "coverage"):
        for argument, code in (("--help", 0), ("-h", 0), ("--no-such-argument", 1), ("relase", 1)):
            finished = subprocess.run([SCRIPTS / name, argument], capture_output=True, text=True, timeout=60,
                                      check=False)
            answer = finished.stderr if code else finished.stdout
            if finished.returncode != code or (argument if code else f"Usage: scripts/{name}") not in answer:
                yield f"scripts/{name} {argument}: {finished.returncode}: {finished.stdout}{finished.stderr}"


def untested():
    """A check must not succeed if it could run no distribution."""
    with tempfile.TemporaryDirectory() as scratch:
        programs = pathlib.Path(scratch, "bin")
        programs.mkdir()
        for name, answer in (("id", "echo 0"), ("debootstrap", "exit 1"), ("apt-get", "exit 1")):
            (programs / name).write_text(f"#!/bin/sh\n{answer}\n", encoding="utf-8")
            (programs / name).chmod(0o755)
        nowhere = {f"WEIGHTFS_{name}_MIRROR": "http://127.0.0.1:9" for name in ("DEBIAN", "UBUNTU")}
        finished = subprocess.run([SCRIPTS / "check-distributions", "--cache", f"{scratch}/cache"], capture_output=True,
                                  text=True, timeout=60, check=False,
                                  env={**os.environ, **nowhere, "PATH": f"{programs}:{os.environ['PATH']}"})
        if "NOT RUN" in finished.stdout and finished.returncode != 1:
            yield f"scripts/check-distributions tested nothing and exits with {finished.returncode}"


def not_purged():
    script = (SCRIPTS.parent / "packaging/debian/weightfs/postrm").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        cache = pathlib.Path(scratch, "cache with a space")

        def run(action):
            moved = script.replace("/var/cache/weightfs", f"'{cache}'").replace("/etc/weightfs", f"{scratch}/etc")
            finished = subprocess.run(["sh", "-c", moved, "postrm", action], capture_output=True, text=True, timeout=60,
                                      check=False)
            if finished.returncode or finished.stderr:
                return f"postrm {action}: {finished.returncode}: {finished.stderr}"
            return " ".join(sorted(index.name for index in cache.glob("*")))

        for name in ("unused", "used"):
            (cache / name / "meta").mkdir(parents=True)
            (cache / name / "meta/CURRENT").touch()
            (cache / name / "lock").touch()
        with open(cache / "used/lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as a mount does
            results = [(action, wanted, run(action)) for action, wanted in
                       (("upgrade", "unused used"), ("purge", "used"))]
            if not (cache / "used/meta/CURRENT").exists():
                yield "the purge of the package removes a part of an index that is in use"
        results += [("last purge", "", run("purge")), ("second purge", "", run("purge"))]
        if cache.exists():
            yield "the purge of the package leaves the directory of the indexes"
        for action, wanted, found in results:
            if found != wanted:
                yield f"the {action} of the package leaves '{found}' and not '{wanted}'"


def not_built():
    if 'scripts/build" release installed\n' not in (SCRIPTS / "quickstart").read_text(encoding="utf-8"):
        yield "scripts/quickstart does not build the target `installed`"
    for file in SCRIPTS.parent.glob("*/CMakeLists.txt"):
        text = file.read_text(encoding="utf-8")
        for target in re.findall(r"install\(TARGETS (\w+)(?!.*COMPONENT python)", text):
            if f"add_dependencies(installed {target})" not in text:
                yield f"{file}: `installed` does not depend on {target}, which is installed"


def not_known():
    loader = importlib.machinery.SourceFileLoader("outside", str(SCRIPTS / "outside"))
    outside = importlib.util.module_from_spec(importlib.util.spec_from_loader("outside", loader))
    sys.modules["outside"] = outside  # for its dataclass
    loader.exec_module(outside)
    known = json.loads((SCRIPTS.parent / "tests/outside/known.json").read_text(encoding="utf-8"))
    if not known:
        yield "tests/outside/known.json knows nothing"
    for entry in known:
        if entry.keys() != {"suite", "tests", "weightfs", "reason"} or not entry["tests"] or not entry["reason"]:
            yield f"tests/outside/known.json: not an entry: {entry}"
        elif entry["suite"] not in ("cpython", "h5py", *outside.FOLDERS) or entry["weightfs"] not in (
                outside.PASSED, outside.FAILED, outside.INAPPLICABLE, outside.MISSING):
            yield f"tests/outside/known.json: no such suite or result: {entry}"
        else:
            for test in entry["tests"]:
                if outside.reason_of(known, {**entry, "test": test}) != entry["reason"]:
                    yield f"tests/outside/known.json: another entry has the test {test}, too"


def main():
    found = [*wrongs(), *untested(), *not_built(), *not_purged(), *not_known()]
    print("\n".join(found) or "every script answers, and quickstart builds what is installed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
