# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training run: saved behind the training loop, published atomically, resumed after a kill.

    from weightfs import checkpoint

    with checkpoint.Manager("/mnt/tensors/run", keep=3) as manager:
        if manager.latest() is not None:
            state = manager.load()
        ...
        manager.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})

A step is the directory `step-00000100` with the file `state.pt`, which torch.load reads anywhere. A run that goes back
to a step sets the higher ones aside by its next save. docs/CHECKPOINTS.md says what stays after a kill, a power loss
and on a full pool."""

from __future__ import annotations

import contextlib
import errno
import functools
import threading
from typing import Any

from weightfs._core.torch import torch  # first, because it explains a missing one

import weightfs.torch
from weightfs import s3
from weightfs._core import process
from weightfs._core.arguments import MOST_BYTES, flag, whole
from weightfs._core.future import Future, log
from weightfs._core.handle import Handle, chosen, the_handle
from weightfs._core.opened import Closing
from weightfs._core.process import check_process
from weightfs._core.types import Direct, Path
from weightfs.checkpoint._pushes import Pushes
from weightfs.checkpoint._state import Snapshot, load_into
from weightfs.checkpoint._steps import Steps

__all__ = ["Manager"]
_MOST_STEP = (1 << 63) - 1


class _Saving(Future[str]):
    """The save of a step."""

    def __init__(self, step: int, after: list[int | None], pushed: Future[s3.Pushed] | None) -> None:
        super().__init__()
        self.step, self.after, self.pushed = step, after, pushed
        self._begun = threading.Lock()

    def begins(self) -> bool:
        """True for the first call: its caller sets the outcome."""
        return self._begun.acquire(blocking=False)


class Manager(Closing):
    """Saves and loads the steps of one training run. Any thread may use it; a forked child must make its own. Works on
    any filesystem, and on a weightfs mount by leases.

    save() returns when the state is copied to memory. A background thread then writes and publishes the copy. One save
    is under way at a time, so the memory is that of one state: it is allocated by the first save and reused. With
    push=, each saved step is then pushed into an S3 bucket, one at a time, while the training and the next saves go on.
    The interpreter waits for the save and the pushes under way before it exits."""

    def __init__(self, directory: Path, keep: int | None = None, *, max_memory: int | None = None,
                 handle: Handle | None = None, push: str | dict[str, Any] | None = None,
                 direct: Direct = "auto") -> None:
        """Opens a directory of steps, which is created if it is missing. Removes what killed programs left there.

        Args:
            directory: the path. Every process needs a directory of its own (weightfs.dcp saves the shards of several
                processes as one checkpoint).
            keep: how many steps stay after a save; those that were saved first are removed. None: all.
            max_memory: the most bytes that the copy of a state may have. None: no limit.
            handle: a weightfs.Handle. None: that of the process.
            push: s3://BUCKET/PREFIX/NAME, or a dict with this as `url` and other arguments of weightfs.s3.push, such as
                {"url": ..., "keep": 10, "endpoint_url": ...}. The version of a step is its number. An unfinished push
                of the step by an earlier run is replaced (take_over). None: nothing is pushed.
            direct: as of weightfs.Handle, in the place of handle. With "require", also that of a handle, the manager and
                each save create nothing unless the directory is on a weightfs mount.

        Raises:
            OSError: the directory cannot be created or read, with direct="require" it is on another filesystem, or with
                push= there is no program weightfs."""
        self._keep = None if keep is None else whole("keep", keep, 1, _MOST_STEP)
        most = None if max_memory is None else whole("max_memory", max_memory, 1, MOST_BYTES)
        self._process, self._lock, self._busy, self._closed = process.pid, threading.RLock(), False, False
        self._snapshot, self._saving = Snapshot(most), None
        self._after = [None]   # the step that the run is at; another list after each load, restore and save
        self._pushes = None if push is None else Pushes(push, self._prune_pushed)
        self._handle = chosen(handle, direct)
        self._files, self._newest = threading.Lock(), None
        with the_handle(self._handle):   # rejects a wrong `direct` before a directory is made
            self._steps = Steps(directory, self._handle)

    def save(self, step: int, state: object, wait: bool = False) -> _Saving:
        """Copies a state and starts to write it. First waits for the save that is under way.

        Args:
            step: a whole number, at least 0, with push= at least 1. A step that exists is replaced by one rename; a
                version that exists is not replaced. Steps above it, and above the last one that this manager loaded,
                restored or saved, are set aside (step-00000300.stale-1), and with them, if there are any, an older step
                of this number, unless the run continues from it: steps(), latest(), load() and restore() ignore them,
                and `keep` removes them first.
            state: everything that torch.save accepts. It may be changed as soon as save() returns.
            wait: return only when the step is durable. It may not be pushed yet.

        Returns:
            the weightfs.Future of the save, which cannot be canceled. result() returns the directory of the step, once
                it is durable. `step` is the number of the step. `pushed` is the future of its push, whose result is the
                weightfs.s3.Pushed, or None for a manager without push=.

        Raises:
            MemoryError: the copy needs more than max_memory.
            ValueError, TypeError: a wrong step, or the manager is closed.
            OSError: direct="require", and the directory is on a weightfs mount no longer.
            Exception: of torch.save, or of the previous save if nobody has asked its future. Then this state was not
                saved."""
        least = 0 if self._pushes is None else 1   # the least version
        step, wait = whole("step", step, least, _MOST_STEP), flag("wait", wait)
        with self._exclusively():
            self._wait_saved()
            self._steps.check_mounted()
            self._snapshot.take(state)
            saving = _Saving(step, self._after, None if self._pushes is None else Future())
            try:
                self._saving = saving
                threading.Thread(target=self._write, args=(saving,), name=f"weightfs step {step}").start()
            except RuntimeError:   # no more threads; since Python 3.12 also while the interpreter exits
                self._write(saving)
            except BaseException as error:   # of a signal handler
                if saving.begins():
                    self._saving = None
                    saving.set_exception(error)
                raise
        if wait:
            saving.result()
        return saving

    def wait(self) -> None:
        """Waits for the save and the pushes under way. Raises the exception of the save, or otherwise of the first
        push, that nobody has asked a future for."""
        check_process(self._process, "manager")
        self._wait_saved()
        if self._pushes is None:
            return
        try:
            self._pushes.wait()
        finally:
            self._prune_pushed()   # if a push ended while a save was removing steps

    def steps(self) -> list[int]:
        """The saved steps, as a list in ascending order."""
        return self._steps.numbers()

    def latest(self) -> int | None:
        """The highest saved step, or None."""
        return max(self.steps(), default=None)

    def load(self, step: int | None = None, map_location: Any = None, weights_only: bool = True,
             fallback: bool = False) -> Any:
        """Loads a state as torch.load does. The run then continues from this step: the next save sets higher ones
        aside. Another manager, or torch.load of the file, only looks at a step.

        Args:
            step: its number. None: the highest.
            map_location, weights_only: as in torch.load.
            fallback: if a step cannot be loaded, log a warning and load the next lower one.

        Returns:
            the state. Only its content says which step it is of, so save the number in it.

        Raises:
            FileNotFoundError: there is no such step.
            Exception: of torch.load and OSError; with `fallback` that of the first step tried, if none can be loaded.
        """
        def read(path, handle):
            return weightfs.torch.load(path, map_location, handle=handle, weights_only=weights_only)
        return self._from_file(step, flag("fallback", fallback), read)[1]

    def restore(self, state: object, step: int | None = None) -> int:
        """Loads a state into the tensors of `state`, without a second copy of them in memory. Loads only plain objects
        (weights_only=True). The run then continues from this step, as after load().

        Tensors are matched by their path in dicts, lists and tuples, and must have the same shape and dtype. Other
        values of dicts and lists are replaced. A value None is replaced by anything, and tensors in it are new ones on
        the CPU: `{"model": model.state_dict(), "optimizer": None, "step": None}`.

        Args:
            state: nested dicts, lists and tuples with dense tensors on any device.
            step: its number. None: the highest.

        Returns:
            the number of the step.

        Raises:
            ValueError: names, shapes or dtypes differ, or a tensor is on the meta device. The text has the first
                differences; nothing is changed.
            FileNotFoundError: there is no such step.
            NotImplementedError: this version of torch cannot do it.
            OSError, EOFError: a read failed. Some of the tensors may be overwritten."""
        return self._from_file(step, False, functools.partial(load_into, state))[0]

    def close(self) -> None:
        """Waits for the save and the pushes under way and frees the memory; the manager cannot be used afterwards.
        Raises exceptions as wait() does."""
        if self._closed or process.pid != self._process:   # in a forked child, everything belongs to the parent
            return
        with self._exclusively():
            try:
                self.wait()
            finally:
                self._closed = True
                self._snapshot.free()

    def __reduce_ex__(self, protocol):
        raise TypeError("a manager cannot be copied or pickled; create one in each process")

    # --- Internals ---

    @contextlib.contextmanager
    def _exclusively(self):
        check_process(self._process, "manager")
        with self._lock:
            if self._busy:
                raise RuntimeError("a signal handler cannot call save() or close() while its thread is in one of them: "
                                   "set a flag in the handler, and save in the training loop")
            self._check_open()
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    def _check_open(self):
        if self._closed:
            raise ValueError("the manager is closed")

    def _wait_saved(self):
        if self._saving is not None:
            self._saving._raise_unasked()

    def _write(self, saving):
        """Writes the snapshot and publishes it as a step. Sets the outcome of `saving`."""
        if not saving.begins():
            return
        with self._files:
            failure = None
            try:
                path = self._publish(saving)
            except BaseException as error:
                failure = error.with_traceback(None)   # its frames refer to the snapshot, which could not grow then
                failure.__context__ = None
            if failure is not None:
                log.error("step %d was not saved: %s", saving.step, failure)
                saving.set_exception(failure)
                if saving.pushed is not None:
                    saving.pushed.set_exception(failure)   # wait() raises that of the save, not this one
                return
            self._newest = saving.step
            if self._after is saving.after:   # otherwise the run has gone back meanwhile
                self._after = [saving.step]
            if saving.pushed is not None:
                self._pushes.add(saving.pushed, saving.step, path)
            self._prune()
            saving.set_result(path)

    def _prune(self):
        """Removes the steps beyond `keep` whose push is not pending. The caller holds _files."""
        try:
            if self._keep is not None and self._newest is not None:
                self._steps.prune(self._keep, self._newest, self._pushes.steps() if self._pushes is not None else ())
        except OSError as error:
            log.warning("step %d is saved, but older steps were not removed: %s", self._newest, error)

    def _prune_pushed(self):
        """Removes the steps that only their push has kept."""
        # A push does not wait for a save. The save that holds the lock, or the next one, removes what this one cannot.
        if self._files.acquire(blocking=False):
            try:
                self._prune()
            finally:
                self._files.release()

    def _publish(self, saving):
        content = self._snapshot.view()
        with the_handle(self._handle) as handle:
            return self._steps.publish(
                saving.step, lambda file: handle.write_from(content, file, durable=True, stable=True), *saving.after)

    def _from_file(self, step, fallback, read):
        """Returns (step, read(path of its file, handle)). With `fallback` tries lower steps after an exception."""
        check_process(self._process, "manager")
        self._check_open()
        steps = [found for found in self.steps() if step is None or found <= step]
        if not steps or step not in (None, steps[-1]):
            what = "no step is saved here" if step is None else f"step {step} is not saved here; steps() has the others"
            raise FileNotFoundError(errno.ENOENT, what, self._steps.path)
        first = None
        for found in reversed(steps):
            try:
                with the_handle(self._handle) as handle:
                    content = read(self._steps.file_of(found), handle)
                self._after = [found]
                return found, content
            except (MemoryError, torch.cuda.OutOfMemoryError):
                raise
            except Exception as error:
                if not fallback:
                    raise
                log.warning("step %d cannot be loaded: %s; trying the next lower step", found, error)
                first = first or error
        raise first
