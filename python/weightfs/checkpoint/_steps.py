# SPDX-License-Identifier: Apache-2.0
"""The steps of a training run as directories: `step-00000100/state.pt`.

A step is written in a hidden directory beside its final name, then renamed. A living program holds the lock of its
hidden directories, so a starting program can tell them from those that a killed one left.

Steps above the one that a run continues from, or above the one that it saves, are not of its past. A save sets them
aside under other names, `step-00000300.stale-1`, with the older step of its own number; the last number counts how
often the run went back."""

import contextlib
import errno
import os
import re
import secrets
import shutil

from weightfs._core.files import check_mounted, explaining_publication, lock, make_folder, sync_folder
from weightfs._core.future import log
from weightfs._core.streams import MODE_OF_NEW_FILES, errors_of

STATE = "state.pt"
_STEP = re.compile(r"step-([0-9]{8,})")
_STALE = re.compile(r"step-([0-9]{8,})\.stale-([0-9]+)")
_HIDDEN = re.compile(r"\.step-[0-9]{8,}\.weightfs-[0-9a-f]{8}")


def _name(step):
    return f"step-{step:08d}"


class Steps:
    """The steps in one directory. Thread-safe: it keeps no state. Several programs may use one directory."""

    def __init__(self, directory, handle=None):
        """Creates the directory, durably, if it is missing, and removes what killed programs left there."""
        self.path, self._handle = os.path.abspath(os.fsdecode(directory)), handle
        self.check_mounted()
        with explaining_publication(self.path):
            make_folder(self.path)
        self._remove_abandoned()

    def check_mounted(self):
        """OSError if the handle has direct="require" and the directory is not, or no longer, on a weightfs mount."""
        check_mounted(self.path, self._handle)

    def numbers(self):
        """The steps that are there, in ascending order."""
        names = filter(_STEP.fullmatch, os.listdir(self.path))
        steps = sorted(step for name in names if _name(step := int(name[5:])) == name)
        return [step for step in steps if os.path.exists(self.file_of(step))]

    def directory_of(self, step):
        return os.path.join(self.path, _name(step))

    def file_of(self, step):
        return os.path.join(self.directory_of(step), STATE)

    def publish(self, step, write, after=None):
        """Makes a new file the state of a step by one rename. If the run went back, the steps above this one or above
        `after` are set aside, and with them an older step of this number. Otherwise the new step replaces it.

        Args:
            after: the step that the run continued from, if known.
            write: write(path) writes the file, which exists and is empty, and makes it durable.

        Returns:
            the directory of the step, when it is durable.

        Raises:
            OSError: nothing has changed, or the last sync failed."""
        with explaining_publication(self.directory_of(step)):
            return self._publish(step, write, after)

    def _publish(self, step, write, after):
        self.check_mounted()
        final, (hidden, held) = self.directory_of(step), self._make_hidden(step)
        try:
            file = os.path.join(hidden, STATE)
            with errors_of(self.file_of(step), file):
                os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE_OF_NEW_FILES))
                write(file)
                sync_folder(hidden)
                with self._setting_aside(step, after):
                    self._rename(hidden, final)
            sync_folder(self.path)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)   # what stays is removed at the next start
            raise
        finally:
            os.close(held)
        return final

    def prune(self, keep, newest, used=()):
        """Removes the steps that were saved first, so that `keep` stay: those that were set aside before the others.
        `newest` is one of those that stay; steps in `used` stay beside them. Each disappears by a rename before its
        files are deleted, so no part of a step is visible. A step whose lock a forked child has inherited is deleted by
        the first call after the end of the child."""
        others = [(step, os.path.join(self.path, name)) for _, step, name in self._stale()]
        others += [(step, self.directory_of(step)) for step in self.numbers() if step != newest]
        for step, path in others[:-(keep - 1) or None]:
            if step in used and path == self.directory_of(step):
                continue
            with contextlib.suppress(FileNotFoundError):   # another program has removed it
                os.rename(path, self._hidden_name(step))
        self._remove_abandoned()

    def _remove_abandoned(self):
        """Removes the hidden directories that no living program holds."""
        hidden = list(filter(_HIDDEN.fullmatch, os.listdir(self.path)))
        if hidden:
            sync_folder(self.path)   # or a crash could undo a rename after the deletions
        for name in hidden:
            _remove_if_abandoned(os.path.join(self.path, name))

    def _stale(self):
        """The steps that were set aside, as sorted tuples (how often the run had gone back, step, name)."""
        found = filter(None, map(_STALE.fullmatch, os.listdir(self.path)))
        return sorted((int(one[2]), int(one[1]), one[0]) for one in found)

    @contextlib.contextmanager
    def _setting_aside(self, step, after):
        """Sets all other steps above `step`, or above `after`, aside before the block, which publishes `step`; with them
        an older step of this number, unless the run continues from it. A kill before the last rename leaves the
        latest step as it was; one between that and the block leaves one below `step` as the latest. If the block
        fails, they are put back."""
        past = step if after is None else min(step, after)
        higher = [one for one in self.numbers() if one > past or (one == step and after != step)]
        if higher == [step]:
            higher = []   # the block replaces it by one rename
        number, moved = 1 + max((time for time, _, _ in self._stale()), default=0), []
        try:
            for one in higher:   # the highest last: until then, it is the latest
                with contextlib.suppress(FileNotFoundError):   # another program has removed it
                    os.rename(self.directory_of(one), name := f"{self.directory_of(one)}.stale-{number}")
                    moved.append((self.directory_of(one), name))
            yield
        except BaseException:
            for path, name in reversed(moved):
                with contextlib.suppress(OSError):
                    os.rename(name, path)
            raise
        if moved:
            log.warning("step %d is saved in %s and continues from one before %d: the steps from there to %d are set "
                        "aside as step-*.stale-%d", step, self.path, higher[0], higher[-1], number)

    def _rename(self, hidden, final):
        try:
            os.rename(hidden, final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # The step exists. Its file is replaced; other files that a program has added to its directory stay.
            os.replace(os.path.join(hidden, STATE), os.path.join(final, STATE))
            sync_folder(final)
            os.rmdir(hidden)

    def _hidden_name(self, step):
        return os.path.join(self.path, f".{_name(step)}.weightfs-{secrets.token_hex(4)}")

    def _make_hidden(self, step):
        """Returns (path, descriptor that holds the lock)."""
        while True:
            path = self._hidden_name(step)
            os.mkdir(path)
            # A program that starts right now may have locked or removed it.
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                return path, lock(path)


def _remove_if_abandoned(path):
    """Removes a hidden directory, unless a living program holds it."""
    if os.path.islink(path):   # only a program can have made it, of a step elsewhere
        os.unlink(path)
        return
    try:
        held = lock(path)
    except (BlockingIOError, FileNotFoundError):
        return
    try:
        shutil.rmtree(path)
    except OSError as error:
        log.warning("%s was not removed: %s", path, error.strerror)
    finally:
        os.close(held)
