#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The license is stated in LICENSE, in the metadata of the Python package and at the top of every source file, and
NOTICE names every library that the build links."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = "SPDX-License-Identifier: Apache-2.0"
SOURCES = {".cc", ".h", ".py", ".pyi", ".sh", ".html", ".cmake", ".in", ".map", ".toml"}
NAMES = {"CMakeLists.txt"}
# Build tools and test libraries, which no installed binary contains.
NOT_LINKED = {"threads", "pkgconfig", "gtest", "python3", "python"}


def files():
    """The files that git tracks or would add; for a source archive, all files."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-coz", "--exclude-standard"], capture_output=True, text=True,
                            check=False) if (ROOT / ".git").exists() else None
    if listed is not None and listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.split("\0") if name]
    foreign = re.compile(r"build|\.(?!ci$).*")  # created by the build and by pip: build/, .venv/
    return [path for path in ROOT.rglob("*") if not foreign.fullmatch(path.relative_to(ROOT).parts[0])]


def sources():
    for path in sorted(files()):
        if path.suffix in SOURCES or path.name in NAMES or path.parent in (ROOT / "scripts", ROOT / ".ci"):
            if path.is_file():
                yield path


def without_line():
    found = list(sources())
    if len(found) < 400:
        yield f"only {len(found)} source files below {ROOT}: the test looks at the wrong place"
    for path in found:
        # In a script the line follows #!, and in a page it follows <!DOCTYPE>.
        head = path.read_text(encoding="utf-8").split("\n", 2)[:2]
        skip = len(head) > 1 and head[0].startswith(("#!", "<!DOCTYPE"))
        if LINE not in head[1 if skip else 0]:
            yield f"{path.relative_to(ROOT)} does not begin with '{LINE}'"


def text_of(name):
    path = ROOT / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def not_licensed():
    parts = ("Apache License\n", "Version 2.0, January 2004", "9. Accepting")
    if not all(part in text_of("LICENSE") for part in parts):
        yield "LICENSE does not hold the Apache License 2.0"
    if not re.search(r'^license = .*"Apache-2\.0"', text_of("pyproject.toml"), re.MULTILINE):
        yield "pyproject.toml names no license"
    if "(LICENSE)" not in text_of("README.md"):
        yield "README.md does not point to LICENSE"


def letters(text):
    return re.sub(r"[^a-z0-9]", "", text.lower())


def linked():
    """The names under which the build finds its libraries."""
    for name in ("CMakeLists.txt", "python/CMakeLists.txt"):
        text = text_of(name)
        yield from re.findall(r"find_package\(([\w-]+)", text)
        yield from re.findall(r"find_library\(\w+ (\w+)", text)
        for modules in re.findall(r"pkg_check_modules\(\w+ ([^)]*)\)", text):
            yield from (re.split(r"[<>=]", word)[0] for word in modules.split() if not word.isupper() and
                        word != "IMPORTED_TARGET")


def not_noticed():
    notice, names = letters(text_of("NOTICE")), {letters(name) for name in linked()} - NOT_LINKED
    if len(names) < 10:
        yield f"only {sorted(names)} are linked: the test looks at the wrong place"
    yield from (f"NOTICE does not name {name}, which the build links" for name in sorted(names) if name not in notice)


def main():
    found = [*not_licensed(), *not_noticed(), *without_line()]
    print("\n".join(found) or "LICENSE, NOTICE and the line of every source file are there")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
