# SPDX-License-Identifier: Apache-2.0
"""Versions of directories in S3 buckets: push, pull, versions, prune.

    from weightfs import s3

    s3.push("/mnt/tensors/run/step-1000", "s3://bucket/team/run", version=1000)
    s3.pull("s3://bucket/team/run", "/mnt/tensors/model", progress=lambda done, total: print(done, total))

    pushing = s3.push_async("/mnt/tensors/run/step-2000", "s3://bucket/team/run")   # result(), await, cancel()

Each call runs the program `weightfs` as a process of its own, so a transfer does not use the memory or the GIL of the
caller. The program is named by the argument `program` or by the variable WEIGHTFS_PROGRAM, or is found in PATH.

Every function accepts these options of the connection: endpoint_url, region, profile, ca_bundle, no_sign_request,
path_style, requester_pays, connections. `weightfs push --help` explains them. Credentials are found as by AWS's
programs.

When the interpreter exits, it ends the transfers that are under way; the same push later continues. If the interpreter
is killed, the kernel ends them, on systems whose `setpriv` has the option --pdeathsig (util-linux 2.33)."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import datetime
import errno
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import threading
import typing
from collections.abc import Iterable

from weightfs._core.arguments import flag, whole
from weightfs._core.future import Future, log
from weightfs._core.publish import Publication, made_publication
from weightfs._core.types import Path, Progress

__all__ = ["Pruned", "PrunedVersion", "Pulled", "Pushed", "S3Error", "Version", "prune", "pull",
           "pull_async", "push", "push_async", "versions"]

if typing.TYPE_CHECKING:
    from typing_extensions import Unpack

_MOST_VERSION = (1 << 63) - 1
_MOST = {"version": _MOST_VERSION, "keep": _MOST_VERSION, "connections": 256}
_SWITCHES = {"verify", "take_over", "all_versions", "dry_run", "publish", "no_sign_request", "path_style",
             "requester_pays"}
_END_LIMIT_S = 10   # after SIGTERM, before SIGKILL
_ENDED_POLL_MS = 200   # between two checks whether a program that prints nothing has ended
_PIPE_BYTES = 1 << 20   # at least the capacity of a pipe


class _Connection(typing.TypedDict, total=False):
    endpoint_url: str | None
    region: str | None
    profile: str | None
    ca_bundle: Path | None
    no_sign_request: bool
    path_style: bool
    requester_pays: bool
    connections: int | None


class S3Error(OSError):
    """A command failed. Its text is the line that the program printed: what failed, where, and the next step."""


class Pushed(typing.NamedTuple):
    """What push() did.

    Attributes:
        path: the directory or file.
        url: the URL of the version.
        version: its number.
        files, bytes: number of files and their sizes together.
        sent_bytes: the bytes of files that this push sent; fewer if it continued another one.
        existed: the version was there already, from the same source."""

    path: str
    url: str
    version: int
    files: int
    bytes: int
    sent_bytes: int
    existed: bool


class Pulled(typing.NamedTuple):
    """What pull() did.

    Attributes:
        url: the URL of the version.
        version: its number.
        directory: the new directory.
        files, bytes: number of files and their sizes together.
        downloaded: the bytes that were received.
        fetched_again: parts that were fetched again because of a wrong checksum.
        publication: with publish=True the Publication of the directory, otherwise None."""

    url: str
    version: int
    directory: str
    files: int
    bytes: int
    downloaded: int
    fetched_again: int
    publication: Publication | None


class Version(typing.NamedTuple):
    """A version in a bucket.

    Attributes:
        version: its number.
        complete: False for one whose push has not ended, and for one that is damaged.
        created: when it was completed, otherwise when its push began (UTC).
        files, bytes: number of files and their sizes together; None if it is not complete.
        source: what was pushed.
        push: the id of the push.
        damaged: True if it was pushed completely, but its manifest cannot be read."""

    version: int
    complete: bool
    created: datetime.datetime
    files: int | None
    bytes: int | None
    source: str
    push: str
    damaged: bool = False


class PrunedVersion(typing.NamedTuple):
    """A version that prune() removed: its number, whether it was an unfinished push, the number and the bytes of its
    objects, and the number of its multipart uploads."""

    version: int
    unfinished: bool
    objects: int
    bytes: int
    uploads: int


class Pruned(typing.NamedTuple):
    """What prune() did.

    Attributes:
        removed: a PrunedVersion for each version that it removed, or with dry_run=True would remove.
        kept: the numbers of the complete versions that stay.
        unfinished: the numbers of the unfinished pushes that stay.
        foreign: the numbers below the URL that weightfs did not make, which stay.
        damaged: the numbers of the versions whose manifests cannot be read, which stay."""

    removed: list[PrunedVersion]
    kept: list[int]
    unfinished: list[int]
    foreign: list[int]
    damaged: list[int]


def push(path: Path, url: str, *, version: int | None = None, verify: bool = False, take_over: bool = False,
         keep: int | None = None, all_versions: bool = False, storage_class: str | None = None, sse: str | None = None,
         sse_kms_key_id: str | None = None, progress: Progress = None, program: Path | None = None,
         **connection: Unpack[_Connection]) -> Pushed:
    """Copies a directory or a file into a bucket, as a version that exists completely or not at all. After an
    interruption, the same call continues.

    Args:
        path: the directory or file.
        url: s3://BUCKET/PREFIX/NAME, below which the versions are.
        version: its number. None: that of the publication, otherwise the time of the latest change, unless the series
            has other numbers.
        verify: read everything back and compare it before the version exists. If it exists and is damaged, send all of
            it again.
        take_over: replace an unfinished push of somebody else, or of another state of the files, and a version whose
            manifest is damaged.
        keep: afterwards remove lower versions, so that so many stay, up to this one. Greater ones stay, too. None:
            remove none.
        all_versions: with keep, as in prune().
        storage_class: that of the files, such as "STANDARD_IA". None: the bucket's.
        sse: encryption of all new objects by the service, "AES256" or "aws:kms". None: the bucket's.
        sse_kms_key_id: the key of the encryption; implies "aws:kms".
        progress: progress(done, total) is called with numbers of bytes, at most ten times a second. An exception that
            it raises ends the transfer, and push() raises it.
        program: the program to run.
        connection: see above.

    Returns:
        a Pushed.

    Raises:
        S3Error: the program failed. No version exists that did not exist before, unless the message says that old
            versions could not be removed.
        FileNotFoundError: there is no program."""
    return push_run(**_flat(locals())).run()


def push_async(path: Path, url: str, *, version: int | None = None, verify: bool = False, take_over: bool = False,
               keep: int | None = None, all_versions: bool = False, storage_class: str | None = None,
               sse: str | None = None, sse_kms_key_id: str | None = None, progress: Progress = None,
               program: Path | None = None, **connection: Unpack[_Connection]) -> Future[Pushed]:
    """Starts push(), and returns its weightfs.Future. `progress` is called on another thread."""
    return push_run(**_flat(locals())).start()


def pull(url: str, directory: Path, *, version: int | None = None, files: Iterable[str] | None = None,
         slices: Iterable[tuple[str, str]] | None = None, publish: bool = False, progress: Progress = None,
         program: Path | None = None, **connection: Unpack[_Connection]) -> Pulled:
    """Copies a version into a new directory, which appears complete, verified and durable, or not at all.

    Args:
        url: s3://BUCKET/PREFIX/NAME, or one version of it, s3://BUCKET/PREFIX/NAME/N.
        directory: the directory to create. It must not exist, or be empty.
        version: its number. None: the greatest.
        files: patterns, such as "*.json". Only files whose paths match one of them are pulled.
        slices: pairs of a pattern of paths, without a colon, and a pattern of names. Of safetensors files whose paths
            match, only the tensors whose names match are pulled.
        publish: publish the directory afterwards (weightfs.publish).
        progress, program, connection: as in push().

    Returns:
        a Pulled.

    Raises:
        S3Error: the program failed. There is no new directory, unless the message says that the pull is complete, but
            was not published.
        FileNotFoundError: there is no program."""
    return _pull_run(**_flat(locals())).run()


def pull_async(url: str, directory: Path, *, version: int | None = None, files: Iterable[str] | None = None,
               slices: Iterable[tuple[str, str]] | None = None, publish: bool = False, progress: Progress = None,
               program: Path | None = None, **connection: Unpack[_Connection]) -> Future[Pulled]:
    """Starts pull(), and returns its weightfs.Future. `progress` is called on another thread."""
    return _pull_run(**_flat(locals())).start()


def versions(url: str, *, unfinished: bool = False, program: Path | None = None,
             **connection: Unpack[_Connection]) -> list[Version]:
    """Lists the versions in a bucket, the greatest first.

    Args:
        url: s3://BUCKET/PREFIX/NAME.
        unfinished: also list versions whose push has not ended.

    Returns:
        a list of Version."""
    words = ["versions", *(["--all"] if flag("unfinished", unfinished) else []), *_words(versions, connection)]
    return _Run(program, words, [url], _versions).run()


def prune(url: str, keep: int, *, unfinished_after_days: float = 7.0, all_versions: bool = False, dry_run: bool = False,
          program: Path | None = None, **connection: Unpack[_Connection]) -> Pruned:
    """Removes all but the greatest versions, and abandoned pushes.

    Args:
        url: s3://BUCKET/PREFIX/NAME.
        keep: how many complete versions stay.
        unfinished_after_days: also remove unfinished pushes in which nothing has changed for so many days.
        all_versions: in a bucket with versioning, also delete the old versions of objects that this call and earlier
            ones removed. Without it, such a bucket frees no space, and a warning says so.
        dry_run: remove nothing.

    Returns:
        a Pruned."""
    words = ["prune", f"--keep={whole('keep', keep, 1, _MOST_VERSION)}",
             f"--unfinished-after={float(unfinished_after_days)}",
             *_words(prune, {"all_versions": all_versions, "dry_run": dry_run, **connection})]
    return _Run(program, words, [url], _pruned).run()


class _Run:
    """One run of the program. Thread-safe."""

    def __init__(self, program, words, names, made, progress=None):
        """made(json) makes the result."""
        self._command = [os.fsencode(word) for word in (_find(program), *words, "--json", "--", *names)]
        self._made, self._progress = made, progress
        self._guard, self._child, self._stopped = threading.Lock(), None, False

    def start(self):
        """Runs the program on another thread. Returns the future."""
        future = Future(stop=self.stop)
        # At exit it must not be waited for, but ended.
        thread = threading.Thread(target=self._settle, args=(future,), name=self._title(), daemon=True)
        _running.add(self)
        try:
            thread.start()
        except BaseException:
            _running.discard(self)
            raise
        return future

    def run(self):
        """Runs the program on this thread. Returns the result."""
        _running.add(self)
        try:
            return self._made(self._output())
        finally:
            _running.discard(self)

    def stop(self):
        """Asks the program to end. Its last step may be under way, so it may succeed nevertheless. Returns True."""
        with self._guard:
            self._stopped = True
            if self._child is not None:
                # Not SIGINT, which programs that a script starts in the background ignore.
                self._child.send_signal(signal.SIGTERM)
        return True

    # --- Internals ---

    def _title(self):
        return f"weightfs {os.fsdecode(self._command[1])}"

    def _settle(self, future):
        """Runs the program and sets the outcome."""
        try:
            result = self.run()
        except BaseException as error:
            if self._stopped and isinstance(error, (S3Error, concurrent.futures.CancelledError)):
                future._set_cancelled()
            else:
                future.set_exception(error)
        else:
            future.set_result(result)

    def _output(self):
        """Runs the program. Returns the JSON that it printed."""
        # Its standard output cannot be a pipe that nobody reads while this thread reads the other one.
        with open(os.memfd_create("weightfs", os.MFD_CLOEXEC), "w+b") as output:
            child = self._spawn(output)
            try:
                with child.stderr:
                    lines = self._follow(child)
                code = child.wait()
            except BaseException:   # KeyboardInterrupt, or an exception of `progress`
                _end(child)
                raise
            if code != 0:
                ended = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"status {code}"
                raise S3Error("\n".join(lines) or f"{self._title()} ended with {ended}")
            output.seek(0)
            return json.loads(output.read())

    def _spawn(self, output):
        before = _ends_with_parent()
        with self._guard:
            if self._stopped:
                raise concurrent.futures.CancelledError
            # In a session of its own it gets no Ctrl-C of the terminal: the caller decides what that ends.
            self._child = subprocess.Popen([*before, *self._command], stdin=subprocess.DEVNULL, stdout=output,
                                           stderr=subprocess.PIPE, start_new_session=True)
            return self._child

    def _follow(self, child):
        """Reads standard error until the program ends. Returns the lines of the error."""
        errors, last = [], None
        for line in _lines(child):
            text = line.decode(errors="replace")
            if text.startswith('{"done"'):
                numbers = _numbers(text)
                last = numbers or last
                if self._progress is not None and numbers is not None:
                    self._progress(*numbers)
            elif text.startswith("weightfs: warning: "):
                log.warning("%s", text.removeprefix("weightfs: warning: "))
            elif text:
                errors.append(text.removeprefix("weightfs: "))
        if self._progress is not None and last is not None and last[0] < last[1] and child.wait() == 0:
            self._progress(last[1], last[1])
        return errors


# --- Commands ---


def _find(program):
    """The path of the program. FileNotFoundError if there is none."""
    wanted = os.fsdecode(program or os.environ.get("WEIGHTFS_PROGRAM") or "weightfs")
    found = shutil.which(wanted)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such program: install weightfs, or name its program in the "
                                "argument program=, in WEIGHTFS_PROGRAM or in PATH", wanted)
    return os.path.abspath(found)


def push_run(path, url, progress=None, program=None, **options):
    """A _Run of push(). TypeError and ValueError for wrong options, FileNotFoundError without a program."""
    words = ["push", "--progress", *_words(push, options)]
    path = os.path.abspath(os.fsencode(path))   # a name may hold any byte, JSON does not
    return _Run(program, words, [path, url], lambda made: Pushed(**{**made, "path": os.fsdecode(path)}), progress)


def _pull_run(url, directory, files, slices, progress, program, **options):
    words = ["pull", "--progress", *_words(pull, options)]
    if isinstance(files, str):
        raise TypeError(f"files is {files!r}: it must be a list of patterns")
    words += [f"--files={pattern}" for pattern in files or ()]
    for pattern, names in slices or ():
        if ":" in pattern:
            raise ValueError(f"slices has the path {pattern!r}: a path in slices cannot have a colon; use '?' for it")
        words.append(f"--slice={pattern}:{names}")
    directory = os.path.abspath(os.fsencode(directory))
    return _Run(program, words, [url, directory], lambda made: _pulled({**made, "directory": os.fsdecode(directory)}),
                progress)


def _flat(given):
    """The arguments of a function, from its locals()."""
    connection = given.pop("connection")
    return {**given, **connection}


def _words(function, options):
    """Options of a function as words of the command line. TypeError and ValueError for wrong ones."""
    words = []
    for name, value in options.items():
        if name not in function.__kwdefaults__ and name not in _Connection.__annotations__:
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
        word = f"--{name.replace('_', '-')}"
        if name in _SWITCHES:
            words += [word] if flag(name, value) else []
        elif value is not None:
            words.append(f"{word}={whole(name, value, 1, _MOST[name]) if name in _MOST else os.fsdecode(value)}")
    return words


def _pulled(made):
    published = made.pop("publication", None)
    if published is not None:
        published = made_publication(published["version"], bytes.fromhex(published["id"]), published["time_ns"],
                                     published["files"], published["bytes"])
    return Pulled(**made, publication=published)


def _versions(made):
    # A newer program may say more. The time is like "2026-11-24T10:00:00Z".
    return [Version(one["version"], one["complete"], datetime.datetime.strptime(
        one["created"] + "+0000", "%Y-%m-%dT%H:%M:%SZ%z"), one.get("files"), one.get("bytes"), one["source"],
                    one["push"], one.get("damaged", False)) for one in made["versions"]]


def _pruned(made):
    return Pruned([PrunedVersion(**one) for one in made["removed"]], *(made[name] for name in Pruned._fields[1:]))


def _lines(child):
    """Yields the lines of the standard error of a program until the program ends. The pipe may stay open longer:
    another process may have inherited it, such as an agent that a credential_process leaves running."""
    pipe, rest, poll = child.stderr.fileno(), b"", select.poll()
    os.set_blocking(pipe, False)
    poll.register(pipe, select.POLLIN)
    while True:
        ended = child.poll() is not None   # checked before the read, which then gets everything that it printed
        if not ended:
            poll.poll(_ENDED_POLL_MS)
        try:
            data = os.read(pipe, _PIPE_BYTES)
        except BlockingIOError:   # the pipe is empty
            data = None
        *lines, rest = (rest + (data or b"")).split(b"\n")
        yield from lines
        if ended or data == b"":
            break
    if rest:
        yield rest


def _numbers(text):
    """The numbers of a line of --progress. A killed program may leave a part of a line."""
    try:
        values = json.loads(text)
        return values["done"], values["total"]
    except (ValueError, KeyError):
        return None


# --- Ends ---

_running = set()   # runs whose program may run
os.register_at_fork(after_in_child=_running.clear)


@functools.lru_cache(maxsize=None)
def _ends_with_parent():
    """The words before a command that let the kernel end it with the thread that started it, if there is a program for
    that. A function that runs between fork and exec could do it, too, but is not safe with threads."""
    words = ["setpriv", "--pdeathsig", "TERM", "--"]
    with contextlib.suppress(OSError):
        if subprocess.run([*words, "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return words
    return []


def _end(child):
    """Ends the program, if it still runs."""
    child.terminate()
    try:
        child.wait(_END_LIMIT_S)
    except BaseException as error:
        child.kill()
        child.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


@atexit.register
def _end_all():
    runs = list(_running)
    for run in runs:
        run.stop()
    for run in runs:
        if run._child is not None:
            _end(run._child)
