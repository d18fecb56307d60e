# SPDX-License-Identifier: Apache-2.0
"""Storage for torch.distributed.checkpoint, in its own format: each side reads the checkpoints of the other.

    import torch.distributed.checkpoint as dcp
    from weightfs.dcp import StorageReader, StorageWriter

    dcp.save(state, storage_writer=StorageWriter("/mnt/tensors/step-100"))
    dcp.load(state, storage_reader=StorageReader("/mnt/tensors/step-100"))

dcp.async_save accepts the writer too, with threads and with processes. docs/CHECKPOINTS.md has the guarantees."""

import contextlib
import dataclasses
import os
import re

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.planner import LoadItemType

from weightfs._archive import fill, outline
from weightfs._replace import make_folder, sync_folder, writing
from weightfs._stream import DirectReader, the_handle
from weightfs.torch import without_crc32

_DIRECT = 1 << 20    # smaller tensors are loaded as torch does
_DATA = re.compile(r"\.?__([0-9]+)_.*\.distcp(\.weightfs-[0-9a-f]{8})?")   # also the temporary file of a killed program


class StorageWriter(FileSystemWriter):
    """A FileSystemWriter. Each rank writes one file, which appears complete and durable by a rename. `.metadata` follows
    when all ranks are done, by a rename, too.

    The names of the files are new in each save, so a save over an older checkpoint leaves that one whole until the new
    `.metadata` replaces the old one; then the old files are removed. Both need space until then."""

    def __init__(self, path, *, overwrite=True, cache_staged_state_dict=False):
        """Args:
            path: the directory of the checkpoint, the same for all ranks.
            overwrite: False: RuntimeError if there is a checkpoint already.
            cache_staged_state_dict: reuse the memory of the copy that async_save makes, if the writer is used again."""
        # No sync_files, because the streams are durable when they are closed.
        super().__init__(path, single_file_per_rank=True, sync_files=False, thread_count=1, overwrite=overwrite,
                         cache_staged_state_dict=cache_staged_state_dict)
        self.fs = _Files()

    def prepare_global_plan(self, plans):
        plans = super().prepare_global_plan(plans)
        return [dataclasses.replace(plan, storage_data=self._unique(plan.storage_data)) for plan in plans]

    def write_data(self, plan, planner):
        # Computing the CRC-32 takes longer than the transfer, and no torch.load compares it.
        with without_crc32():
            return super().write_data(plan, planner)

    def finish(self, metadata, results):
        super().finish(metadata, results)
        used = {info.relative_path for info in metadata.storage_data.values()}
        for name in set(os.listdir(self.path)) - used:
            found = _DATA.fullmatch(name)
            if found and (self.use_collectives or int(found[1]) == self.rank):
                os.unlink(os.path.join(self.path, name))

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
    """Opens files through a handle. It has no state, so a writer can be sent to another process."""

    @contextlib.contextmanager
    def create_stream(self, path, mode):
        if mode == "wb":
            renamed_later = str(path).endswith(".metadata.tmp")
            with writing(path, None, durable=True, atomic=not renamed_later) as stream:
                yield _Gathering(stream)
        else:
            with the_handle(None) as handle, contextlib.closing(DirectReader(path, handle)) as stream:
                yield stream

    def mkdir(self, path):
        make_folder(os.path.abspath(path))

    def rename(self, path, new_path):
        os.replace(path, new_path)
        sync_folder(os.path.dirname(new_path))

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
