# SPDX-License-Identifier: Apache-2.0
"""torch.save and torch.load through a handle: the same files, transferred directly between tensors and the device.

    import weightfs.torch

    weightfs.torch.save(model.state_dict(), "/mnt/tensors/model.pt")
    state = weightfs.torch.load("/mnt/tensors/model.pt")

The files are byte for byte those of torch.save(obj, stream), so torch.load reads them anywhere. If torch.save is given
a path instead, it puts the file's name into the archive; the files differ only in that name."""

import contextlib
import os
import threading

import torch

from weightfs._numbers import whole
from weightfs._replace import writing
from weightfs._stream import DirectReader, the_handle


def save(obj, f, *arguments, handle=None, durable=False, atomic=True, storage_alignment=None, crc32=True, **options):
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
    2.7. crc32: torch computes a checksum of each storage, at a few GB/s. Without it, unzip complains but torch.load
    does not."""
    with contextlib.ExitStack() as around:
        around.enter_context(_settings(storage_alignment, crc32))
        stream = f if hasattr(f, "write") else around.enter_context(writing(f, handle, durable, atomic))
        torch.save(obj, stream, *arguments, **options)


def load(f, map_location=None, *arguments, handle=None, **options):
    """Loads as torch.load(f, map_location, *arguments, **options) does. It calls torch.load for a stream, and with
    mmap=True or the equivalent setting of torch.

    If neither weights_only nor pickle_module is given, only weights are loaded, as in torch 2.6 and later: unpickling
    anything else can run arbitrary code. For older versions of torch this function passes weights_only=True, unless
    TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 is set in the environment; newer versions check that variable themselves."""
    _default_to_weights_only(arguments, options)
    if hasattr(f, "read") or _maps(options.get("mmap")):
        return torch.load(f if hasattr(f, "read") else os.fsdecode(f), map_location, *arguments, **options)
    with the_handle(handle) as used, contextlib.closing(DirectReader(f, used)) as stream:
        with stream.raising_its_error():
            return torch.load(stream, map_location, *arguments, **options)


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


@contextlib.contextmanager
def _settings(storage_alignment, crc32):
    """Sets torch's process-wide settings and restores them afterwards."""
    with contextlib.ExitStack() as before:
        if storage_alignment is not None:
            alignment = whole("storage_alignment", storage_alignment, 1, 1 << 30)
            if alignment & (alignment - 1):
                raise ValueError(f"storage_alignment is {storage_alignment}: it must be a power of two")
            try:
                from torch.utils.serialization import config
                before.enter_context(config.patch({"save.storage_alignment": storage_alignment}))
            except (ImportError, AttributeError) as error:
                raise NotImplementedError("storage_alignment needs torch 2.7 or newer") from error
        if not crc32:
            before.enter_context(without_crc32)
        yield


class _WithoutCrc32:
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


without_crc32 = _WithoutCrc32()
