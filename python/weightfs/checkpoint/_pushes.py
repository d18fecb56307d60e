# SPDX-License-Identifier: Apache-2.0
"""Pushes of the steps of a checkpoint manager, one after the other, in the background."""

import collections
import threading

from weightfs import s3
from weightfs._core.future import log


class Pushes:
    """The queue of one manager. Thread-safe. A thread exists while there is something to push, and the interpreter
    waits for it before it exits."""

    def __init__(self, target, pushed):
        """Checks the options and that there is a program.

        Args:
            target: a URL, or a dict of `url` and other arguments of weightfs.s3.push.
            pushed: called after each push, when its step is no longer in steps()."""
        options = {"take_over": True, **(target if isinstance(target, dict) else {"url": target})}
        if not isinstance(options.get("url"), str):
            raise TypeError(f"push is {target!r}: it must be a URL, or a dict with a URL as `url`")
        self._url, self._options, self._pushed = options.pop("url"), options, pushed
        if "version" in options:
            raise TypeError("push cannot have a version: it is the number of the step")
        s3.push_run("", self._url, **options)
        self._guard, self._thread, self._pending, self._unasked = threading.Lock(), None, collections.deque(), []

    def add(self, pushing, step, path):
        """Queues the push of a step, whose directory is `path`. `pushing` is its future."""
        with self._guard:
            self._unasked = [one for one in self._unasked if not one.done() or one._failed_unasked()] + [pushing]
            self._pending.append((pushing, step, path))
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="weightfs push")
        try:
            self._thread.start()
        except RuntimeError:   # no more threads; since Python 3.12 also while the interpreter exits
            self._run()

    def steps(self):
        """The steps that are queued or under way."""
        with self._guard:
            return {step for _, step, _ in self._pending}

    def wait(self):
        """Waits for all pushes. Raises the first exception that nobody has asked for; all are logged."""
        with self._guard:
            waited, self._unasked = self._unasked, []
        failed = None
        for number, pushing in enumerate(waited):
            try:
                pushing._raise_unasked()
            except s3.S3Error as error:
                failed = failed or error
            except BaseException:   # KeyboardInterrupt: the next wait() begins where this one ended
                with self._guard:
                    self._unasked = waited[number:] + self._unasked
                raise
        if failed is not None:
            raise failed

    def _run(self):
        while True:
            with self._guard:
                if not self._pending:
                    self._thread = None
                    return
                pushing, step, path = self._pending[0]   # it stays there until the push has ended
            result = failure = None
            try:
                result = s3.push(path, self._url, version=step, **self._options)
            except BaseException as error:
                failure = s3.S3Error(f"step {step} is saved, but its push failed: {error}")
                failure.__cause__ = error
                log.error("%s", failure)
            with self._guard:
                self._pending.popleft()
            try:
                self._pushed()
            except Exception:   # the push has its outcome all the same, and the next one must begin
                log.exception("after the push of step %s", step)
            if failure is None:
                pushing.set_result(result)
            else:
                pushing.set_exception(failure)
