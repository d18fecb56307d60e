# SPDX-License-Identifier: Apache-2.0
"""torch.save and torch.load through a handle: the same files, transferred directly between tensors and the device.

    import weightfs.torch

    weightfs.torch.save(model.state_dict(), "/mnt/tensors/model.pt")
    state = weightfs.torch.load("/mnt/tensors/model.pt")

The files are byte for byte those of torch.save(obj, stream), so torch.load reads them anywhere. If torch.save is given
a path instead, it puts the file's name into the archive; the files differ only in that name."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import io
import mmap as _mmap
import os
import threading
from typing import IO, Any

from weightfs._core.torch import torch  # first, because it explains a missing one

from weightfs._core.arguments import whole
from weightfs._core.files import check_mounted, writing
from weightfs._core.handle import Handle, chosen, the_handle
from weightfs._core.memory import LEAST_MAPPED
from weightfs._core.streams import DirectReader
from weightfs._core.types import Direct, Path
from weightfs.torch._archive import is_stored
from weightfs.torch._checksums import ZipChecksums

__all__ = ["load", "save", "without_crc32"]


def save(obj: object, f: Path | IO[bytes], *arguments: Any, handle: Handle | None = None, direct: Direct = "auto",
         durable: bool = False, atomic: bool = True, storage_alignment: int | None = None, crc32: bool = True,
         **options: Any) -> None:
    """Saves as torch.save(obj, f, *arguments, **options) does. For a stream it calls torch.save; everything below
    applies to paths.

    durable: the file is on the device on return. atomic: writes `.NAME.weightfs-*` beside the file and renames it over
    the file, so that other programs, even after this one was killed, see either the old file or the new one; with
    durable also after a system crash. The new file keeps the mode, and the owner and group if this process may set
    them, but not the access control lists and extended attributes. A symbolic link is followed and kept; other hard
    links keep the old content. Both files need space at the same time. Without atomic, and for a file that is not
    regular, is a mount point or is in a directory where the process may not replace it, the file itself is truncated
    and overwritten: until it is complete it has no head, and torch.load fails. storage_alignment: a power of two;
    storages begin at multiples of it. torch's default is 64; 4096 avoids a copy into aligned memory, and needs torch
    2.7. crc32: the file has a checksum of each storage. It is computed during the write; by torch itself, at 1 to 2 GB/s
    before the write, if f is a stream or this version of torch has its settings for the whole process. Without it,
    unzip complains but torch.load does not. direct: as of Handle, in the place of handle. With "require", also
    that of a handle, nothing is created unless the path is on a weightfs mount; small pieces need no lease.

    Raises OSError if the file cannot be written, also for a path on another filesystem with direct="require"."""
    with contextlib.ExitStack() as around:
        if storage_alignment is not None:
            _align(around, storage_alignment)
        computes = crc32 and _is_path(f) and _computes_checksums(arguments, options)
        stream = around.enter_context(writing(f, chosen(handle, direct), durable, atomic)) if _is_path(f) else f
        if computes:
            stream = around.enter_context(ZipChecksums(stream))
        if computes or not crc32:
            around.enter_context(without_crc32())
        torch.save(obj, stream, *arguments, **options)


def load(f: Path | IO[bytes], map_location: Any = None, *arguments: Any, handle: Handle | None = None,
         direct: Direct = "auto", **options: Any) -> Any:
    """Loads as torch.load(f, map_location, *arguments, **options) does. It calls torch.load for a stream. Without
    mmap=False, it maps memory that programs share where the mount has room; the storages are then parts of one mapping,
    as with mmap=True. With mmap=True, or the equivalent setting of torch, it reads nothing in advance: it maps that
    memory if the file is there, and the file itself if not. direct: as in save.
    A program that changes the tensors in place, such as an optimizer, copies each page of shared memory that it
    changes; mmap=False loads into memory of its own.

    If neither weights_only nor pickle_module is given, only weights are loaded, as in torch 2.6 and later: unpickling
    anything else can run arbitrary code. For older versions of torch this function passes weights_only=True, unless
    TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 is set in the environment; newer versions check that variable themselves."""
    _default_to_weights_only(arguments, options)
    handle = chosen(handle, direct)
    if not _is_path(f):
        return torch.load(f, map_location, *arguments, **options)
    check_mounted(f, handle)
    with the_handle(handle) as used, contextlib.closing(DirectReader(f, used)) as stream:
        with stream.raising_its_error(), _shared_memory(stream, options.get("mmap"), map_location) as memory:
            if memory is not None:
                return torch.load(memory, map_location, *arguments, **{**options, "mmap": True})
            source = os.fsdecode(f) if _maps(options.get("mmap")) else stream
            return torch.load(source, map_location, *arguments, **options)


@contextlib.contextmanager
def _shared_memory(stream, mmap, map_location):
    """A path to memory that programs share, from which torch can map the archive; or None."""
    flags = getattr(torch.serialization, "get_default_mmap_options", lambda: _mmap.MAP_PRIVATE)()
    # Older versions cannot map, and all map archives of the present format alone.
    possible = mmap is not False and flags == _mmap.MAP_PRIVATE and torch.__version__ >= (2, 1)
    load = not _maps(mmap) and _reads_data(map_location)
    memory = stream.map(LEAST_MAPPED, b"PK\x03\x04", load=load) if possible else None
    path = f"/proc/self/fd/{memory}"
    try:
        usable = memory is not None and os.access(path, os.R_OK)   # not without /proc
        yield path if usable and (_maps(mmap) or _is_stored(memory)) else None
    finally:
        if memory is not None:
            os.close(memory)


def _is_stored(memory):
    """is_stored of shared memory itself, because a program may have replaced the file in place before. False too if
    this process, which may have too little address space or too many mappings, cannot map it as torch will."""
    try:
        with _mmap.mmap(memory, 0, _mmap.MAP_PRIVATE, _mmap.PROT_READ | _mmap.PROT_WRITE) as mapped:
            return is_stored(mapped)
    except OSError:
        return False


def _reads_data(map_location):
    """False where torch.load makes tensors without data."""
    skips = getattr(getattr(torch.serialization, "_serialization_tls", None), "skip_data", False)
    fake = getattr(torch._guards, "detect_fake_mode", lambda: None)()
    return not skips and fake is None and str(map_location) != "meta"


def _is_path(f):
    """False for a stream, and for an object that is neither, which torch rejects."""
    return isinstance(f, (str, bytes, os.PathLike))


def _default_to_weights_only(arguments, options):
    """Applies the default of torch 2.6 to older versions; newer ones do all of this themselves."""
    if torch.__version__ >= (2, 6) or options.get("weights_only") is not None:
        return
    pickle_module = arguments[0] if arguments else options.get("pickle_module")
    refused = os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0").lower() in ("1", "y", "yes", "true")
    options["weights_only"] = pickle_module is None and not refused


def _maps(mmap):
    if mmap is not None:
        return mmap
    with contextlib.suppress(ImportError, AttributeError):
        from torch.utils.serialization import config
        return config.load.mmap
    return False   # this version is older than the setting


def _align(around, storage_alignment):
    """Sets torch's setting within a stack of contexts."""
    alignment = whole("storage_alignment", storage_alignment, 1, 1 << 30)
    if alignment & (alignment - 1):
        raise ValueError(f"storage_alignment is {storage_alignment}: it must be a power of two")
    try:
        from torch.utils.serialization import config
        around.enter_context(config.patch({"save.storage_alignment": storage_alignment}))
    except (ImportError, AttributeError) as error:
        raise NotImplementedError("storage_alignment needs torch 2.7 or newer") from error


@functools.cache
def _settings_are_of_the_thread():
    """Newer versions of torch keep their settings for each thread."""
    try:
        from torch.utils.serialization import config
        elsewhere = functools.partial(contextvars.Context().run, lambda: config.save.compute_crc32)
        before = elsewhere()
        with config.patch({"save.compute_crc32": not before}):
            return elsewhere() == before
    except (ImportError, AttributeError):
        return False   # this version is older than the setting


class _WithoutCrc32InProcess:
    """Switches torch's process-wide setting off while at least one thread is in the block."""

    def __init__(self):
        self._lock, self._users, self._before = threading.RLock(), 0, True   # signal handlers save, too

    def __enter__(self):
        with self._lock:
            if self._users == 0:
                self._before = torch.serialization.get_crc32_options()
                torch.serialization.set_crc32_options(False)
            self._users += 1

    def __exit__(self, *_):
        with self._lock:
            self._users -= 1
            if self._users == 0:
                torch.serialization.set_crc32_options(self._before)


_without_crc32_in_process = _WithoutCrc32InProcess()


def without_crc32() -> contextlib.AbstractContextManager:
    """Makes torch.save omit the checksums in the block."""
    if not _settings_are_of_the_thread():
        return _without_crc32_in_process
    from torch.utils.serialization import config
    return config.patch({"save.compute_crc32": False})


class _MemoryStream(io.BytesIO):
    error = None   # as of a DirectWriter


@functools.cache
def _knows_layout():
    """True if ZipChecksums makes what this version of torch makes."""
    saved = {"some": torch.arange(5), "none": torch.empty(0), "large": torch.zeros(1 << 20, dtype=torch.uint8)}
    try:
        from torch.utils.serialization import config
        theirs, ours = io.BytesIO(), _MemoryStream()
        with config.patch({"save.compute_crc32": True}):
            torch.save(saved, theirs)
        with without_crc32():
            torch.save(saved, ZipChecksums(ours))
        return ours.getvalue() == theirs.getvalue()
    except Exception:   # whatever it is, torch's own checksums remain
        return False


def _computes_checksums(arguments, options):
    """True if the checksums of torch.save with these arguments can be computed here instead."""
    zipped = options.get("_use_new_zipfile_serialization", arguments[2] if len(arguments) > 2 else True)
    skips = getattr(getattr(torch.serialization, "_serialization_tls", None), "skip_data", False)
    if not zipped or skips or not _settings_are_of_the_thread() or not torch.serialization.get_crc32_options():
        return False
    return _knows_layout()
