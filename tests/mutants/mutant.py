# SPDX-License-Identifier: Apache-2.0
"""A row of the table of scripts/mutants."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    promise: str
    path: str
    old: str
    new: str
    # Each is `TARGET` or `TARGET:FILTER` for a GoogleTest executable, or `PATH [-k EXPRESSION]` for pytest.
    tests: tuple


CRASH = "crash_simulation"
ROOT = "tests/mount/"
