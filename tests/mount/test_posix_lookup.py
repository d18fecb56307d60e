# SPDX-License-Identifier: Apache-2.0
"""Every operation fails with the same errors for a path that cannot be resolved, and works at the limits."""

from posix_script import run_script
from posix_tables_common import lookup_errors, names_at_the_limit, parametrize

MOUNT_OPTIONS = "allow_other,dev,suid"


@parametrize(lookup_errors())
def test_paths_that_cannot_be_followed(work, script):
    run_script(work, script)


@parametrize(names_at_the_limit())
def test_names_at_the_limit(work, script):
    run_script(work, script)
