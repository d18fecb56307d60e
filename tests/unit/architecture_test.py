#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The paths that docs/ARCHITECTURE.md lists exist, and each function is in a file named next to it."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATH = re.compile(r"<!-- path -->\n(.*?)<!-- end -->", re.DOTALL)
STEP = re.compile(r"^\d+\. ", re.MULTILINE)
FILE = re.compile(r"`([a-z_/]+/[a-z_]+\.(?:cc|h))`")
FUNCTION = re.compile(r"`([A-Z]\w+::[A-Z]\w+)`")


def wrongs(text):
    paths = PATH.findall(text)
    if len(paths) < 2:
        yield "docs/ARCHITECTURE.md lists fewer than two paths: the test looks for the wrong marks"
    for path in paths:
        for step in STEP.split(path)[1:]:
            files = [ROOT / name for name in FILE.findall(step)]
            for file in files:
                if not file.is_file():
                    yield f"docs/ARCHITECTURE.md names {file.relative_to(ROOT)}, which does not exist"
            sources = "".join(file.read_text() for file in files if file.is_file())
            functions = FUNCTION.findall(step)
            if not functions:
                yield f"a step of a path names no function: {step.strip()[:60]}"
            for function in functions:
                if not re.search(rf"\b{function}\(", sources):
                    yield f"docs/ARCHITECTURE.md names {function}, which is in no file that its step names"


def main():
    found = list(wrongs((ROOT / "docs/ARCHITECTURE.md").read_text()))
    print("\n".join(found) or "every function of the paths exists")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
