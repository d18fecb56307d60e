# SPDX-License-Identifier: Apache-2.0
"""Storage for torch.distributed.checkpoint, in its own format: each side reads the checkpoints of the other.

    import torch.distributed.checkpoint as dcp
    from weightfs.dcp import StorageReader, StorageWriter

    dcp.save(state, storage_writer=StorageWriter("/mnt/tensors/step-100"))
    dcp.load(state, storage_reader=StorageReader("/mnt/tensors/step-100"))

dcp.async_save accepts the writer too, with threads and with processes. docs/CHECKPOINTS.md has the guarantees."""

import contextlib
import dataclasses
import itertools
import logging
import os
import re

from weightfs._torch import torch  # first, because it explains a missing one
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.planner import LoadItemType

from weightfs._archive import fill, outline
from weightfs._flock import lock
from weightfs._replace import make_folder, new_file, sync_folder, writing
from weightfs._stream import DirectReader, errors_of, the_handle
from weightfs.torch import without_crc32

log = logging.getLogger("weightfs")
_DIRECT = 1 << 20    # smaller tensors are loaded as torch does
_LOCKED = 64         # files that are examined together
# In the names of FileSystemWriter, there is no ID of the save.
_NAMED = re.compile(rb"__[0-9]+_(?:[0-9a-f]{8}_)?[0-9]+\.distcp")
# The files of an unfinished save, with the number of the rank, and their temporary files.
_UNFINISHED = re.compile(r"__([0-9]+)_[0-9a-f]{8}_[0-9]+\.distcp|"
                         r"\.(?:__([0-9]+)_[0-9a-f]{8}_[0-9]+\.distcp|(?:__([0-9]+))?\.metadata)\.weightfs-[0-9a-f]{8}")


class StorageWriter(FileSystemWriter):
    """A FileSystemWriter. Each rank writes one file, which appears complete and durable by a rename. `.metadata` follows
    when all ranks are done, by a rename, too.

    The names of the files are new in each save, so a save over an older checkpoint leaves that one whole until the new
    `.metadata` replaces the old one; then the files that the old one named are removed. Both need space until then.
    Several saves to one directory may overlap: the checkpoint is that of the last one to finish.

    Each rank holds the locks of its files until the next save of this writer, or until the writer is deleted, so that
    other saves do not take them for those of a killed program."""

    def __init__(self, path, *, overwrite=True, cache_staged_state_dict=False):
        """Args:
            path: the directory of the checkpoint, the same for all ranks.
            overwrite: False: RuntimeError if there is a checkpoint already.
            cache_staged_state_dict: reuse the memory of the copy that async_save makes, if the writer is used again."""
        # No sync_files, because the streams are durable when they are closed.
        super().__init__(path, single_file_per_rank=True, sync_files=False, thread_count=1, overwrite=overwrite,
                         cache_staged_state_dict=cache_staged_state_dict)
        self.fs = _Files()
        self._searched = {}   # the names in each `.metadata` that was read, by its identity

    def prepare_global_plan(self, plans):
        plans = super().prepare_global_plan(plans)
        return [dataclasses.replace(plan, storage_data=self._unique(plan.storage_data)) for plan in plans]

    def write_data(self, plan, planner):
        # Computing the CRC-32 takes longer than the transfer, and no torch.load compares it.
        with without_crc32():
            return super().write_data(plan, planner)

    def reset(self, checkpoint_id=None):
        super().reset(checkpoint_id)
        self.fs.unlock()

    def finish(self, metadata, results):
        replaced = self._named_in(self._get_metadata_path(None if self.use_collectives else self.rank))
        used = {written.storage_data.relative_path for one in results for written in one}
        for name in used:
            os.stat(os.path.join(self.path, name))   # a checkpoint without its files must not replace a whole one
        super().finish(metadata, results)
        try:
            self._remove_others(replaced, used)
        except OSError as error:
            log.warning("the checkpoint %s is saved, but older files were not removed: %s", self.path, error)
        self.fs.unlock()

    def _remove_others(self, replaced, used):
        """Removes the files that the replaced `.metadata` named, and those that killed saves left."""
        names = set(os.listdir(self.path)) - used
        self._remove_unnamed(replaced & names)
        left = iter(sorted(filter(self._may_be_left, names - replaced)))
        while batch := list(itertools.islice(left, _LOCKED)):
            with contextlib.ExitStack() as locks:
                # A living save holds the locks of its files until its `.metadata` names them. Therefore `.metadata` is
                # read while their locks are held.
                abandoned = []
                for name in batch:
                    with contextlib.suppress(OSError):
                        locks.callback(os.close, lock(os.path.join(self.path, name)))
                        abandoned.append(name)
                self._remove_unnamed(abandoned)

    def _may_be_left(self, name):
        found = _UNFINISHED.fullmatch(name)
        return found and (self.use_collectives or str(self.rank) in found.groups())

    def _remove_unnamed(self, names):
        for name in set(names) - self._named() if names else ():
            with contextlib.suppress(FileNotFoundError):   # another save has removed it
                os.unlink(os.path.join(self.path, name))

    def _named(self):
        """The files of the checkpoint that is there now, and of those of single ranks."""
        others = (name for name in os.listdir(self.path) if re.fullmatch(r"__[0-9]+\.metadata", name))
        ranks = others if self.use_collectives else [f"__{self.rank}.metadata"]
        return set().union(*(self._named_in(os.path.join(self.path, name)) for name in (".metadata", *ranks)))

    def _named_in(self, path):
        # The pickle is searched, because loading it would run code, and its text has the names literally. It is never
        # changed, but replaced by a rename.
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            status = os.fstat(file.fileno())
            version = status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns
            if version not in self._searched:
                self._searched[version] = {name.decode() for name in _NAMED.findall(file.read())}
            return self._searched[version]
        return set()

    def _unique(self, prefix):
        """Adds this save's ID to the prefix of a rank's file names. A plan that torch has cached has one already."""
        rank = re.match("__[0-9]+_", prefix.prefix)[0]
        return dataclasses.replace(prefix, prefix=f"{rank}{self.save_id[:8]}_")


class StorageReader(FileSystemReader):
    """A FileSystemReader that reads large tensors into place. Of a tensor that is sharded differently now, it reads the
    needed rows; parts of rows that are shorter than 64 KiB are read with the bytes between them."""

    def __init__(self, path):
        """Args:
            path: the directory of the checkpoint, as it was given to a StorageWriter or FileSystemWriter."""
        super().__init__(path)
        self.fs = _Files()

    def read_data(self, plan, planner):
        files, others = {}, []
        for item in plan.items:
            info = self.storage_data[item.storage_index]
            if item.type == LoadItemType.BYTE_IO or info.length < _DIRECT or info.transform_descriptors:
                others.append(item)
            else:
                files.setdefault(info.relative_path, []).append((info, item))
        for name, items in files.items():
            with self.fs.create_stream(self.path / name, "rb") as stream:
                for info, item in sorted(items, key=lambda pair: pair[0].offset):
                    try:
                        self._read_tensor(stream, info, item, planner)
                    except NotImplementedError:   # see outline()
                        others.append(item)
        return super().read_data(dataclasses.replace(plan, items=others), planner)

    def _read_tensor(self, stream, info, item, planner):
        stream.seek(info.offset)
        source = outline(self._slice_file(stream, info))
        for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths)):
            source = source.narrow(dimension, offset, length)
        target = planner.resolve_tensor(item).detach()
        if target.shape != source.shape:
            raise ValueError(f"{stream.shown}: {item.storage_index.fqn} has a part of shape {tuple(source.shape)} "
                             f"there, and {tuple(target.shape)} is needed")
        fill(target, source, stream, info.offset)
        planner.commit_tensor(item, target)


class _Files(FileSystem):
    """Opens files through a handle. Keeps the locks of the files that it has written until unlock(). Without them, so
    without a state, a writer can be sent to another process."""

    def __init__(self):
        super().__init__()
        self._locks = []

    def __reduce__(self):
        return type(self), ()

    def __del__(self):
        self.unlock()

    def unlock(self):
        while self._locks:
            os.close(self._locks.pop())

    @contextlib.contextmanager
    def create_stream(self, path, mode):
        if mode == "wb":
            # FileSystemWriter renames `.metadata.tmp`, a name that two saves at once would share.
            with self._replacing(str(path).removesuffix(".tmp")) as stream:
                yield _Gathering(stream)
        else:
            with the_handle(None) as handle, contextlib.closing(DirectReader(path, handle)) as stream:
                yield stream

    @contextlib.contextmanager
    def _replacing(self, path):
        name, locks = self._new_file(path)
        try:
            with errors_of(path, name), writing(name, None, durable=True, atomic=False) as stream:
                yield stream
            os.replace(name, path)
            sync_folder(os.path.dirname(path))
        except BaseException:
            for held in locks:
                os.close(held)
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        self._locks += locks

    @staticmethod
    def _new_file(path):
        """Returns (name, [lock]) of a new temporary file, or (name, []) on a filesystem without locks."""
        while True:
            name = new_file(path)
            try:
                return name, [lock(name)]
            except (BlockingIOError, FileNotFoundError):   # another save has taken it for that of a killed program
                continue
            except OSError:
                return name, []

    def mkdir(self, path):
        make_folder(os.path.abspath(path))

    def rename(self, path, new_path):
        """Does nothing: the stream has replaced the file when it ended."""

    def rm_file(self, path):
        """Does nothing: FileSystemWriter calls it for the old `.metadata`, which the rename replaces. Without it, a kill
        in between would leave no checkpoint."""


class _Gathering:
    """A stream that FileSystemWriter flushes and closes after each tensor. Small tensors stay gathered all the same."""

    def __init__(self, stream):
        self.write, self.tell = stream.write, stream.tell

    def flush(self):
        pass

    def close(self):
        pass
