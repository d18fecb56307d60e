# SPDX-License-Identifier: Apache-2.0
"""Operations that are for certain under way."""

import os
import threading

# For programs that use what is here.
HERE_ON_PATH = f"import sys\nsys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"


class StandingWrite:
    """A write of a handle that has begun, and goes on when `go` is called. Everything the handle's thread would do
    meanwhile waits with it."""

    def __init__(self, handle, tensor, path, **options):
        self._stands, self._goes = threading.Event(), threading.Event()
        self.future = handle.write_async(tensor, path, progress=self._stand, **options)
        self._stands.wait()

    def _stand(self, *_):
        self._stands.set()
        self._goes.wait(100)

    def go(self):
        self._goes.set()
