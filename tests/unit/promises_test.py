#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each test and mutant that the table of promises in docs/TESTING.md names exists."""
import fnmatch
import pathlib
import re
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from mutants.mutants import MUTANTS  # noqa: E402

DOCUMENT = ROOT / "docs/TESTING.md"
SECTION = re.compile(r"^## Promises\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
GROUP = re.compile(r"^### (?:docs/)?(\w+\.md)\n(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
DOCUMENTS = {"GUARANTEES.md", "SECURITY.md", "DIRECT.md", "HDF5.md", "CHECKPOINTS.md"}
TARGET = re.compile(r"weightfs_test\((\w+)\s+([^)]*)\)")
GOOGLE_TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)


def google_tests():
    """The tests of each executable, as Suite.Test."""
    found = {}
    for file in (ROOT / "tests").rglob("CMakeLists.txt"):
        for name, sources in TARGET.findall(file.read_text(encoding="utf-8")):
            paths = [file.parent / word for word in sources.split() if word.endswith("_test.cc")]
            found[name] = [".".join(test) for path in paths if path.is_file()
                           for test in GOOGLE_TEST.findall(path.read_text(encoding="utf-8"))]
    for file in (ROOT / "tests/fuzz").glob("*_fuzz.cc"):
        found[f"fuzz_{file.name.removesuffix('_fuzz.cc')}"] = []
    return found


def exists(name, mutants, tests):
    if "::" in name:
        path, function = name.split("::")
        file = ROOT / path
        return file.is_file() and re.search(rf"^def {function}\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    target, _, test = name.partition(":")
    if test:
        return bool(fnmatch.filter(tests.get(target, []), test))
    return name in mutants or name in tests


def rows(table):
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith("| promise |"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def wrongs(text):
    section = SECTION.search(text)
    groups = dict(GROUP.findall(section.group(1))) if section else {}
    if set(groups) != DOCUMENTS:
        yield f"{DOCUMENT}: the promises of {', '.join(sorted(DOCUMENTS ^ set(groups)))} are missing or not expected"
    mutants, tests = {mutant.name for mutant in MUTANTS}, google_tests()
    for document, table in groups.items():
        for row in rows(table):
            names = re.findall(r"`([^`]+)`", row[-1])
            if len(row) != 2 or not names:
                yield f"{DOCUMENT}: {document}: the row '{row[0]}' has no promise and test"
            for name in names:
                if not exists(name, mutants, tests):
                    yield f"{DOCUMENT}: {document}: '{row[0]}' names {name}, which does not exist"


def main():
    text = DOCUMENT.read_text(encoding="utf-8")
    found = list(wrongs(text))
    print("\n".join(found) or "all tests of the promises exist")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
