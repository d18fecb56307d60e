# SPDX-License-Identifier: Apache-2.0
"""A mount that belongs to an ordinary user. Name the fixture `open_fuse` in the tests that use it."""

import contextlib
import os
import shutil

from harness import process
from harness.filesystems import program
from harness.users import NOBODY


@contextlib.contextmanager
def mount_of_user(factory, watchdog, home, size, *options):
    """Makes a store in the new directory `home` and mounts it. Yields (point, run): `run` runs weightfs as the user.
    What the block unmounts by itself is not mounted afterwards either."""
    point, users_program = factory.directory("point"), factory.directory("bin") / "weightfs"
    shutil.copy(program(), users_program)
    home.mkdir()
    pool = factory.directory("pool") / "pool"
    pool.touch()
    os.truncate(pool, size)
    for path in (home, point, pool):
        os.chown(path, NOBODY, NOBODY)

    def run(*words):
        return process.run(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                            "env", "-i", "PATH=/usr/bin:/bin:/usr/sbin:/sbin", users_program, *words])

    run("format", home / "store", "--device", pool)
    watchdog.watch(point, "weightfs", home / "store")
    run("mount", home / "store", point, *options)
    try:
        yield point, run
    finally:
        for pid in process.processes_with("weightfs", str(home / "store")):
            process.kill(pid)
        process.run(["umount", "-l", point], codes=None)
        watchdog.forget(point)
