# SPDX-License-Identifier: Apache-2.0
"""The table of scripts/mutants: for each promise, a change of the sources that breaks its guard, and the tests that
must notice. `old` occurs exactly once in its file; tests/unit/mutants_test.py checks that."""

from mutants import buckets, clients, core, devices, hot, log, schedules

MUTANTS = [*core.MUTANTS, *devices.MUTANTS, *log.MUTANTS, *hot.MUTANTS, *clients.MUTANTS, *buckets.MUTANTS,
           *schedules.MUTANTS]
