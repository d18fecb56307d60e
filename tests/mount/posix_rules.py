# SPDX-License-Identifier: Apache-2.0
"""Rules of POSIX and Linux for filesystems, and what differs where, with the reason.

A table is text. A line `== NAME | SOURCE` begins a rule; the script of posix_script that shows it follows, several
operations on a line separated by `; `, with {mount} for the root of the filesystem. A line `!KIND ANSWER: REASON` says
that the script fails on filesystems of that kind with ANSWER in its message; `?KIND` that it may.
As a program, this file checks a directory:

    python tests/mount/posix_rules.py DIRECTORY [KIND]"""

import argparse
import dataclasses
import os
import shutil
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from posix_script import run_script

KINDS = ("weightfs", "ext4", "xfs", "tmpfs")


@dataclasses.dataclass(frozen=True)
class Difference:
    answer: str
    reason: str
    always: bool


@dataclasses.dataclass
class Rule:
    name: str
    source: str
    lines: list
    differences: dict

    @property
    def script(self):
        return "\n".join(self.lines)


def rules_of(text):
    """name -> rule"""
    rules = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("=="):
            name, _, source = line.removeprefix("==").partition(" | ")
            rule = Rule(name.strip(), source.strip(), [], {})
            assert rule.source and rule.name not in rules, f"a rule has a name of its own and a source: {line}"
            rules[rule.name] = rule
        elif line[0] in "!?":
            head, _, reason = line[1:].partition(": ")
            kind, answer = head.split(" ", 1)
            assert kind in KINDS and reason and kind not in rule.differences, f"KIND ANSWER: REASON is needed: {line}"
            rule.differences[kind] = Difference(answer, reason, line[0] == "!")
        else:
            rule.lines += line.split("; ")
    return rules


def check(rule, directory, kind):
    """Returns the difference that the table explains, or None. Raises AssertionError for any other."""
    known = rule.differences.get(kind)
    try:
        run_script(directory, rule.script.replace("{mount}", str(mount_of(directory))))
    except AssertionError as error:
        if known and known.answer in str(error):
            return known
        raise AssertionError(f"{rule.name} ({rule.source}): {error}") from None
    assert not known or not known.always, f"{rule.name}: {kind} no longer differs: {known.reason}"
    return None


def mount_of(path):
    return next(each for each in (path, *path.parents) if each.is_mount())


def fresh(directory):
    """An empty directory for a rule."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o755)
    return directory


def main():
    from posix_rules_table import RULES
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("kind", nargs="?", default="weightfs", choices=KINDS)
    options = parser.parse_args()
    os.umask(0)
    work, explained, wrong = options.directory / "posix-rules", [], []
    for rule in RULES.values():
        try:
            if known := check(rule, fresh(work), options.kind):
                explained.append(f"{rule.name}: {known.reason}")
        except AssertionError as error:
            wrong.append(str(error))
    shutil.rmtree(work)
    print("\n".join([*explained, *(f"NOT EXPLAINED: {text}" for text in wrong)]))
    print(f"{options.kind}: {len(RULES)} rules, {len(explained)} differences with a reason, {len(wrong)} without")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
