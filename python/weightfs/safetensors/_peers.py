# SPDX-License-Identifier: Apache-2.0
"""The interfaces of two other loaders of safetensors, so that their users change one name: SafetensorsStreamer has that
of runai_model_streamer, fastsafe_open and SafeTensorsFileLoader those of fastsafetensors. Arguments that concern object
stores or the others' buffers are accepted and have no effect, or are an error where the result would differ."""

import os

from weightfs.safetensors._open import SafeOpen
from weightfs.safetensors._streaming import TensorStream


class SafetensorsStreamer:
    """`with SafetensorsStreamer() as streamer: streamer.stream_files(paths); for name, tensor in
    streamer.get_tensors(): ...`. The memory is bounded as by weightfs.safetensors.stream."""

    def __init__(self, memory="1G", concurrency=4):
        self._options, self._stream = (memory, concurrency), None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._stream is not None:
            self._stream.close()

    def stream_file(self, path, s3_credentials=None, device="cpu", is_distributed=False, tensor_names=None, owned=True):
        """stream_files for one file."""
        self.stream_files([path], s3_credentials, device, is_distributed, tensor_names, owned)

    def stream_files(self, paths, s3_credentials=None, device="cpu", is_distributed=False, tensor_names=None,
                     owned=True):
        """Opens the files; get_tensors() reads them. An earlier stream is closed. Yielded tensors own their memory
        with any `owned`.

        Raises:
            ValueError: a path in an object store, or a name in tensor_names that no file has.
            NotImplementedError: is_distributed."""
        if is_distributed:
            raise NotImplementedError("is_distributed is not supported: let each rank read its own tensors "
                                      "(tensor_names=), or its slices (weightfs.safetensors.open)")
        remote = [path for path in map(os.fsdecode, paths) if "://" in path]
        if s3_credentials is not None or remote:
            raise ValueError(f"object stores are not supported: give paths of files{': ' if remote else ''}"
                             f"{', '.join(remote)}")
        self.__exit__()
        try:
            self._stream = TensorStream(paths, *self._options, device, tensor_names)
        except KeyError as error:
            raise ValueError(error.args[0]) from None

    def get_tensors(self):
        """Iterates over (name, tensor)."""
        return iter(self._stream or ())


class fastsafe_open(SafeOpen):  # noqa: N801  (fastsafetensors' name)
    """weightfs.safetensors.open with fastsafetensors' arguments. Tensors are read when they are asked for. metadata()
    has the metadata of each file by its path."""

    def __init__(self, filenames, framework="pt", pg=None, device="cpu", nogds=False, debug_log=False,
                 max_copy_block_size=None, use_fgds=False):
        super().__init__(_paths_of(filenames), framework, device)

    def metadata(self):
        return {shard.path: shard.metadata for shard in self._shards}


class SafeTensorsFileLoader:
    """`loader.add_filenames({0: paths}); buffer = loader.copy_files_to_device(); buffer.get_tensor(name)`. With a
    process group of several ranks, each rank reads its own parts from the files: nothing is sent between them."""

    def __init__(self, pg, device="cpu", bbuf_size_kb=None, max_threads=None, nogds=False, set_numa=True,
                 disable_cache=True, debug_log=False, framework="pytorch"):
        self._rank, self._ranks = (0, 1) if pg is None else (pg.rank(), pg.size())
        self._options, self._paths, self._model = (framework, str(device)), [], None

    def add_filenames(self, filenames):
        """Adds files: a dict of ranks and lists of paths. All ranks use all files."""
        self._close_model()
        self._paths += _paths_of(filenames)

    def get_keys(self):
        return self._opened().offset_keys() if self._paths else []

    def get_shape(self, tensor_name):
        return self._opened().get_slice(tensor_name).get_shape()

    def copy_files_to_device(self, *_, **_ignored):
        """A FilesBuffer, which reads the tensors when they are asked for."""
        return FilesBuffer(SafeOpen(self._paths, *self._options), self._rank, self._ranks)

    def reset(self):
        self._close_model()
        self._paths = []

    close = reset

    def _opened(self):
        if self._model is None:
            self._model = SafeOpen(self._paths, *self._options)
        return self._model

    def _close_model(self):
        if self._model is not None:
            self._model.close()
            self._model = None


class FilesBuffer:
    """The tensors of a SafeTensorsFileLoader. Returned tensors own their memory."""

    def __init__(self, model, rank, ranks):
        self._model, self._rank, self._ranks = model, rank, ranks

    def get_tensor(self, tensor_name):
        return self._model.get_tensor(tensor_name)

    def get_sharded(self, tensor_name, dim):
        """This rank's part along a dimension: equal parts, of which the last ones may be shorter; -1: all of it.
        ValueError for another negative dimension."""
        if dim < -1:
            raise ValueError(f"dim is {dim}: it must be a dimension, or -1 for the whole tensor")
        if dim == -1 or self._ranks == 1:
            return self.get_tensor(tensor_name)
        part = self._model.get_slice(tensor_name)
        each = -(-part.shape[dim] // self._ranks)
        return part[(slice(None),) * dim + (slice(self._rank * each, (self._rank + 1) * each),)]

    def get_shape(self, tensor_name):
        return self._model.get_slice(tensor_name).get_shape()

    def close(self):
        self._model.close()


def _paths_of(filenames):
    if isinstance(filenames, dict):
        return [path for paths in filenames.values() for path in paths]
    return [filenames] if isinstance(filenames, (str, os.PathLike)) else list(filenames)
