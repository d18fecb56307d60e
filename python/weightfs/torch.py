# SPDX-License-Identifier: Apache-2.0
"""torch.save and torch.load through a handle: the same files, straight between tensors and the device.

    import weightfs.torch

    weightfs.torch.save(model.state_dict(), "/mnt/tensors/model.pt")
    state = weightfs.torch.load("/mnt/tensors/model.pt")

The files are those that torch.save(obj, stream) writes, byte for byte, so that torch.load reads them anywhere. Given a
path, torch itself puts the file's name into the archive: such a file differs in that name alone."""

import contextlib
import os

import torch

from weightfs._numbers import whole
from weightfs._replace import writing
from weightfs._stream import DirectReader, the_handle


def save(obj, f, *arguments, handle=None, durable=False, atomic=True, storage_alignment=None, crc32=True, **options):
    """Saves as torch.save(obj, f, *arguments, **options) does; to a stream it is torch.save itself, and all else is
    about paths.

    durable: on the device when it returns. atomic: written into `.NAME.weightfs-*` beside the file and renamed
    over it, so that other programs, and whoever looks after this one was killed, find the old file or the new one; with
    durable also after a crash of the machine. The file keeps its mode, and its owner and group where this process may
    give them, but not its access lists and extended attributes; a symbolic link stays one, other hard links keep the
    old content. It takes the space of both files. Without atomic, and for what is no regular file, is mounted, or lies
    in a directory where the process may not replace it, the file itself is emptied and written: until it is complete it
    has no head, and torch.load fails.
    storage_alignment: a power of two, at whose multiples storages begin (torch's own is 64; 4096 spares the copy
    into aligned memory, and needs torch 2.7). crc32: torch computes a checksum of each storage, at a few GB/s; without,
    unzip complains and torch.load does not."""
    with contextlib.ExitStack() as around:
        around.enter_context(_settings(storage_alignment, crc32))
        stream = f if hasattr(f, "write") else around.enter_context(writing(f, handle, durable, atomic))
        torch.save(obj, stream, *arguments, **options)


def load(f, map_location=None, *arguments, handle=None, **options):
    """Loads as torch.load(f, map_location, *arguments, **options) does; with mmap=True, where torch's settings ask for
    that, and from a stream, it is that itself.

    Where neither weights_only nor a pickle_module is given, weights alone are loaded, as torch does from 2.6 on:
    unpickling anything else can run any code. Older torch gets weights_only=True from here, unless the environment has
    TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1, which newer torch obeys by itself."""
    _default_to_weights_only(arguments, options)
    if hasattr(f, "read") or _maps(options.get("mmap")):
        return torch.load(f if hasattr(f, "read") else os.fsdecode(f), map_location, *arguments, **options)
    with the_handle(handle) as used, contextlib.closing(DirectReader(f, used)) as stream:
        with stream.raising_its_error():
            return torch.load(stream, map_location, *arguments, **options)


def _default_to_weights_only(arguments, options):
    """What torch 2.6 made the default, for older ones; newer torch does all of this itself."""
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
    return False   # older than the setting


@contextlib.contextmanager
def _settings(storage_alignment, crc32):
    """torch has them as settings of the process; they are as before afterwards."""
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
            before.callback(torch.serialization.set_crc32_options, torch.serialization.get_crc32_options())
            torch.serialization.set_crc32_options(False)
        yield
