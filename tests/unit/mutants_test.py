#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each mutant of scripts/mutants applies to the sources, and the tests that it names exist."""
import importlib.machinery
import importlib.util
import pathlib
import re
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]


def script():
    """scripts/mutants as a module."""
    loader = importlib.machinery.SourceFileLoader("mutants_script", str(ROOT / "scripts/mutants"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants_script", loader))
    sys.modules["mutants_script"] = module   # its dataclasses look it up
    loader.exec_module(module)
    return module


def wrongs(mutants):
    targets = set()
    for file in (ROOT / "tests").rglob("CMakeLists.txt"):
        text = file.read_text(encoding="utf-8")
        targets.update(re.findall(r"weightfs_test\((\w+)", text))
    targets.update(f"fuzz_{file.name.removesuffix('_fuzz.cc')}" for file in (ROOT / "tests/fuzz").glob("*_fuzz.cc"))
    names = [mutant.name for mutant in mutants.MUTANTS]
    for name in {name for name in names if names.count(name) > 1}:
        yield f"{name}: is there twice"
    for mutant in mutants.MUTANTS:
        try:
            mutants.mutated(mutant)
        except mutants.Unusable as error:
            yield str(error)
        for test in mutant.tests:
            name = re.split("[: ]", test, maxsplit=1)[0]
            if not (ROOT / name).is_file() and name not in targets:
                yield f"{mutant.name}: there is no test {name}"


def main():
    mutants = script()
    found = list(wrongs(mutants))
    print("\n".join(found) or f"all {len(mutants.MUTANTS)} mutants apply")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
