# SPDX-License-Identifier: Apache-2.0
import builtins
import datetime
from collections.abc import Callable, Iterable
from os import PathLike
from typing import NamedTuple, TypedDict

from typing_extensions import Unpack

from weightfs import Future, Publication

__all__ = ["Pruned", "PrunedVersion", "Pulled", "Pushed", "S3Error", "Version", "prune", "pull",
           "pull_async", "push", "push_async", "versions"]

_Path = str | builtins.bytes | PathLike[str] | PathLike[builtins.bytes]
_Progress = Callable[[int, int], object] | None

class _Connection(TypedDict, total=False):
    endpoint_url: str | None
    region: str | None
    profile: str | None
    ca_bundle: _Path | None
    no_sign_request: bool
    path_style: bool
    requester_pays: bool
    connections: int | None

class S3Error(OSError): ...

class Pushed(NamedTuple):
    path: str
    url: str
    version: int
    files: int
    bytes: int
    sent_bytes: int
    existed: bool

class Pulled(NamedTuple):
    url: str
    version: int
    directory: str
    files: int
    bytes: int
    downloaded: int
    fetched_again: int
    publication: Publication | None

class Version(NamedTuple):
    version: int
    complete: bool
    created: datetime.datetime
    files: int | None
    bytes: int | None
    source: str
    push: str
    damaged: bool = ...

class PrunedVersion(NamedTuple):
    version: int
    unfinished: bool
    objects: int
    bytes: int
    uploads: int

class Pruned(NamedTuple):
    removed: list[PrunedVersion]
    kept: list[int]
    unfinished: list[int]
    foreign: list[int]
    damaged: list[int]

def push(path: _Path, url: str, *, version: int | None = None, verify: bool = False, take_over: bool = False,
         keep: int | None = None, all_versions: bool = False, storage_class: str | None = None, sse: str | None = None,
         sse_kms_key_id: str | None = None, progress: _Progress = None, program: _Path | None = None,
         **connection: Unpack[_Connection]) -> Pushed: ...
def push_async(path: _Path, url: str, *, version: int | None = None, verify: bool = False, take_over: bool = False,
               keep: int | None = None, all_versions: bool = False, storage_class: str | None = None,
               sse: str | None = None, sse_kms_key_id: str | None = None, progress: _Progress = None,
               program: _Path | None = None, **connection: Unpack[_Connection]) -> Future[Pushed]: ...
def pull(url: str, directory: _Path, *, version: int | None = None, files: Iterable[str] | None = None,
         slices: Iterable[tuple[str, str]] | None = None, publish: bool = False, progress: _Progress = None,
         program: _Path | None = None, **connection: Unpack[_Connection]) -> Pulled: ...
def pull_async(url: str, directory: _Path, *, version: int | None = None, files: Iterable[str] | None = None,
               slices: Iterable[tuple[str, str]] | None = None, publish: bool = False, progress: _Progress = None,
               program: _Path | None = None, **connection: Unpack[_Connection]) -> Future[Pulled]: ...
def versions(url: str, *, unfinished: bool = False, program: _Path | None = None,
             **connection: Unpack[_Connection]) -> list[Version]: ...
def prune(url: str, keep: int, *, unfinished_after_days: float = 7.0, all_versions: bool = False,
          dry_run: bool = False, program: _Path | None = None, **connection: Unpack[_Connection]) -> Pruned: ...
