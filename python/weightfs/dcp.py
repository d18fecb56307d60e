# SPDX-License-Identifier: Apache-2.0
"""Storage for torch.distributed.checkpoint, in its own format: each side reads the checkpoints of the other.

    import torch.distributed.checkpoint as dcp
    from weightfs.dcp import StorageReader, StorageWriter

    dcp.save(state, storage_writer=StorageWriter("/mnt/tensors/step-100"))
    dcp.load(state, storage_reader=StorageReader("/mnt/tensors/step-100"))

dcp.async_save accepts the writer too, with threads and with processes. docs/CHECKPOINTS.md has the guarantees."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pickle
import re
import threading
import types
import uuid
from pathlib import Path

from weightfs._core.torch import torch  # first, because it explains a missing one
from torch.distributed import checkpoint
from torch.distributed.checkpoint.filesystem import _StorageInfo, _StoragePrefix   # parts of the format
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.storage import WriteResult

from weightfs._core.files import lock, make_folder, new_file, sync_folder, writing
from weightfs._core.future import log
from weightfs._core.handle import the_handle
from weightfs._core.streams import DirectReader, errors_of
from weightfs.torch import without_crc32
from weightfs.torch._archive import fill, outline

__all__ = ["StorageReader", "StorageWriter"]
_VERSION = "1.0.0"   # of torch's format
_DIRECT = 1 << 20    # smaller tensors are loaded as torch does
_LOCKED = 64         # files that are examined together
# In the names of torch's FileSystemWriter there is no ID of the save.
_NAMED = re.compile(rb"__[0-9]+_(?:[0-9a-f]{8}_)?[0-9]+\.distcp")
# The files of an unfinished save, with the number of the rank, and their temporary files.
_UNFINISHED = re.compile(r"__([0-9]+)_[0-9a-f]{8}_[0-9]+\.distcp|"
                         r"\.(?:__([0-9]+)_[0-9a-f]{8}_[0-9]+\.distcp|(?:__([0-9]+))?\.metadata)\.weightfs-[0-9a-f]{8}")


class StorageWriter(checkpoint.StorageWriter, BlockingAsyncStager):
    """Each rank writes one file, which appears complete and durable by a rename. `.metadata` follows when all ranks are
    done, by a rename, too.

    The names of the files are new in each save, so a save over an older checkpoint leaves that one whole until the new
    `.metadata` replaces the old one; then the files that the old one named are removed. Both need space until then.
    Several saves to one directory may overlap: the checkpoint is that of the last one to finish.

    Each rank holds the locks of its files until the save has ended, and at most until the writer is deleted, so that
    other saves do not take them for those of a killed program."""

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = True,
                 cache_staged_state_dict: bool = False) -> None:
        """Args:
            path: the directory of the checkpoint, the same for all ranks.
            overwrite: False: RuntimeError if there is a checkpoint already.
            cache_staged_state_dict: reuse the memory of the copy that async_save makes, if the writer is used again."""
        super().__init__(cache_staged_state_dict=cache_staged_state_dict)
        self.overwrite, self._path, self.save_id = overwrite, Path(path), str(uuid.uuid4())
        self._save = _Save()
        self._searched = {}   # the names in each `.metadata` that was read, by its identity

    def __getstate__(self):
        """For a process of async_save, which takes locks of its own."""
        return {name: value for name, value in vars(self).items() if name != "_save"}

    def __setstate__(self, state):
        vars(self).update(state, _save=_Save())

    @property
    def path(self) -> Path:
        """The directory of the checkpoint."""
        return self._save.path or self._path

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """The directory of the checkpoint."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return checkpoint.FileSystemWriter.validate_checkpoint_id(checkpoint_id)

    def storage_meta(self):
        return StorageMeta(checkpoint_id=self.path, save_id=self.save_id)

    def reset(self, checkpoint_id=None):
        self.save_id = str(uuid.uuid4())
        if checkpoint_id:
            self._path = self._save.path = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        # A new ID, because torch calls reset() only for a new path.
        self._save.id, self._save.locks = uuid.uuid4().hex[:8], _Locks()
        self._save.rank, self._save.use_collectives = kwargs.get("rank"), kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan):
        make_folder(os.path.abspath(self.path))
        if not self.overwrite and os.path.exists(self._metadata_path(0)):
            raise RuntimeError(f"{self.path}: a checkpoint already exists, and overwrite is False")
        return plan

    def prepare_global_plan(self, plans):
        # The prefix is that of torch's writer, which may get the plan from torch's cache.
        ranks = range(len(plans)) if self._save.use_collectives else [self._save.rank]
        return [dataclasses.replace(plan, storage_data=_StoragePrefix(f"__{rank}_"))
                for rank, plan in zip(ranks, plans)]

    def write_data(self, plan, planner):
        # The ID is no part of the plan, because torch may use a cached one.
        name, results = f"{plan.storage_data.prefix}{self._save.id}_0.distcp", []
        # Computing the CRC-32 takes longer than the transfer, and no torch.load compares it.
        with without_crc32(), self._replacing(os.path.join(self.path, name)) as stream:
            # torch.save flushes after each tensor. Small tensors stay gathered all the same.
            gathering = types.SimpleNamespace(write=stream.write, tell=stream.tell, flush=lambda: None)
            for item in sorted(plan.items, key=lambda item: item.type != WriteItemType.BYTE_IO):   # as torch sorts them
                begin, data = stream.tell(), planner.resolve_data(item)
                if item.type == WriteItemType.BYTE_IO:
                    stream.write(data.getbuffer())
                else:
                    torch.save(_alone(data), gathering)
                length = stream.tell() - begin
                results.append(WriteResult(item.index, length, _StorageInfo(name, begin, length)))
        done = torch.futures.Future()
        done.set_result(results)
        return done

    def finish(self, metadata, results):
        path = self._metadata_path(self._save.rank)
        replaced, used = self._named_in(path), {one.storage_data.relative_path for part in results for one in part}
        for name in used:
            os.stat(os.path.join(self.path, name))   # a checkpoint without its files must not replace a whole one
        metadata.version, metadata.storage_meta = _VERSION, self.storage_meta()
        metadata.storage_data = {one.index: one.storage_data for part in results for one in part}
        with self._replacing(path) as stream:
            pickle.dump(metadata, stream)
        try:
            self._remove_others(replaced, used)
        except OSError as error:
            log.warning("the checkpoint %s is saved, but older files were not removed: %s", self.path, error)
        self._save.locks = _Locks()

    # --- Internals ---

    def _metadata_path(self, rank):
        alone = not self._save.use_collectives and rank is not None
        return os.path.join(self.path, f"__{rank}.metadata" if alone else ".metadata")

    @contextlib.contextmanager
    def _replacing(self, path):
        """A stream for a new file, which is durable and gets its name when the block ends. Its lock stays held."""
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
        self._save.locks.extend(locks)

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
        return found and (self._save.use_collectives or str(self._save.rank) in found.groups())

    def _remove_unnamed(self, names):
        for name in set(names) - self._named() if names else ():
            with contextlib.suppress(FileNotFoundError):   # another save has removed it
                os.unlink(os.path.join(self.path, name))

    def _named(self):
        """The files of the checkpoint that is there now, and of those of single ranks."""
        others = (name for name in os.listdir(self.path) if re.fullmatch(r"__[0-9]+\.metadata", name))
        ranks = others if self._save.use_collectives else [f"__{self._save.rank}.metadata"]
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


class _Locks(list):
    """The locks of the files that a save has written, until it is deleted."""

    def __del__(self):
        while self:
            os.close(self.pop())


class _Save(threading.local):
    """The state of the save that this thread makes. Saves with one writer may overlap, and each runs on one thread."""

    path, id, rank, use_collectives = None, None, None, True

    def __init__(self):
        self.locks = _Locks()


class StorageReader(checkpoint.StorageReader):
    """Reads large tensors into place, and all others as FileSystemReader does. Of a tensor that is sharded differently
    now, it reads the needed rows; parts of rows that are shorter than 64 KiB are read with the bytes between them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Args:
            path: the directory of the checkpoint, as it was given to a StorageWriter or FileSystemWriter."""
        self._others, self._storage_data = checkpoint.FileSystemReader(path), {}

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """The directory of the checkpoint."""
        return self._others.checkpoint_id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return checkpoint.FileSystemReader.validate_checkpoint_id(checkpoint_id)

    def reset(self, checkpoint_id=None):
        self._others.reset(checkpoint_id)

    def read_metadata(self, *args, **kwargs):
        return self._others.read_metadata(*args, **kwargs)

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        self._storage_data = metadata.storage_data
        self._others.set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def read_data(self, plan, planner):
        files, others = {}, []
        for item in plan.items:
            info = self._storage_data[item.storage_index]
            if item.type == LoadItemType.BYTE_IO or info.length < _DIRECT or info.transform_descriptors:
                others.append(item)
            else:
                files.setdefault(info.relative_path, []).append((info, item))
        for name, items in files.items():
            path = os.path.join(self.checkpoint_id, name)
            with the_handle(None) as handle, contextlib.closing(DirectReader(path, handle)) as stream:
                for info, item in sorted(items, key=lambda pair: pair[0].offset):
                    try:
                        _read_tensor(stream, info, item, planner)
                    except NotImplementedError:   # see outline()
                        others.append(item)
        return self._others.read_data(dataclasses.replace(plan, items=others), planner)


def _read_tensor(stream, info, item, planner):
    stream.limit(info.offset, info.length)
    source = outline(stream)
    for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths)):
        source = source.narrow(dimension, offset, length)
    target = planner.resolve_tensor(item).detach()
    if target.shape != source.shape:
        raise ValueError(f"{stream.shown}: {item.storage_index.fqn} has a part of shape {tuple(source.shape)} there, "
                         f"and {tuple(target.shape)} is needed")
    fill(target, source, stream)
    planner.commit_tensor(item, target)


def _alone(tensor):
    """The tensor on the CPU, without the rest of its storage."""
    tensor = tensor.detach().cpu()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
