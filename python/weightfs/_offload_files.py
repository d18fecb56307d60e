# SPDX-License-Identifier: Apache-2.0
"""The directory of an offloaded module: the files of the groups, and state.json, which names the generation of each."""

import contextlib
import errno
import fcntl
import json
import os

import torch

from weightfs._replace import writing
from weightfs._stream import the_handle
from weightfs.safetensors._files import open_all
from weightfs.safetensors._format import DTYPES

_STATE, _LOCK, _FORMAT = "state.json", "lock", 1


class Directory:
    """Owned by one process at a time."""

    def __init__(self, path, resume):
        """Raises:
            FileExistsError: there is an offloaded module already, and not `resume`.
            BlockingIOError: another process uses it.
            ValueError: state.json is damaged."""
        self.path = os.path.abspath(os.fsdecode(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path)
        self._lock = open(os.path.join(self.path, _LOCK), "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.state = self._read_state()
            if self.state is not None and not resume:
                raise FileExistsError(errno.EEXIST, "the directory has an offloaded module: continue it with "
                                      "resume=True, or delete the directory", self.path)
        except BlockingIOError:
            self.close()
            raise BlockingIOError(errno.EAGAIN, "another program, or another module of this one, uses the directory: "
                                  "end it, or call weightfs.offload.close()", self.path) from None
        except BaseException:
            self.close()
            raise

    def close(self):
        self._lock.close()

    def file(self, name):
        return os.path.join(self.path, name)

    def write_state(self, state, durable):
        """Replaces state.json: it is the old one or the new one, even after a kill."""
        text = json.dumps({"format": _FORMAT, **state}).encode()
        with writing(self.file(_STATE), None, durable, atomic=True) as stream:
            stream.write(text)

    def _read_state(self):
        try:
            with open(self.file(_STATE), "rb") as stream:
                state = json.loads(stream.read())
        except FileNotFoundError:
            return None
        except ValueError:
            state = None
        if not isinstance(state, dict) or not {"groups", "generations", "optimizer"} <= state.keys():
            raise ValueError(f"{self.file(_STATE)} is damaged: restore it from a backup, or delete the directory")
        if state.get("format") != _FORMAT:
            raise ValueError(f"{self.file(_STATE)} has the format {state.get('format')}; this version of weightfs reads "
                             f"the format {_FORMAT}")
        return state

    def _generation(self, name):
        return None if self.state is None else self.state["generations"].get(name)

    def committed_file(self, name):
        """The path of a file in state.json, None if it has none."""
        generation = self._generation(name)
        return None if generation is None else self.file(f"{name}.{generation}")

    def committed(self, name, nbytes):
        """The generation of a file in state.json, None if it has none. Raises FileNotFoundError, or ValueError for a
        file of another size."""
        generation, path = self._generation(name), self.committed_file(name)
        if path is not None:
            size = os.stat(path).st_size
            if size != nbytes:
                raise ValueError(f"{path} has {size} bytes instead of {nbytes}: it is damaged; restore the directory "
                                 "from a backup, or delete it")
        return generation

    def check_groups(self, described):
        """ValueError if the module is not the one that was offloaded here."""
        for name in sorted(described.keys() | self.state["groups"].keys()):
            ours, saved = described.get(name), self.state["groups"].get(name)
            if ours != saved:
                raise ValueError(f"{self.path} belongs to another module or other blocks: {name} has {saved} there and "
                                 f"{ours} here; build the same module, or choose another directory")


class Source:
    """Tensors of safetensors files, by name."""

    def __init__(self, source):
        self._given, self._found = source is not None, {}   # name -> (path, offset, dtype, shape)
        if source is None:
            return
        for shard in open_all(source)[0]:
            for name, facts in shard.tensors.items():
                self._found[name] = (shard.path, shard.begin + facts["data_offsets"][0], DTYPES[facts["dtype"]],
                                     torch.Size(facts["shape"]))

    def check(self, members):
        """ValueError if a tensor has neither memory nor a place in the files, or the files have none at all."""
        if self._given and not any(map(self._name, members)):
            raise ValueError(f"source= has no tensor of the module: it has {sorted(self._found)[:3]} and the module has "
                             f"{[member.name for member in members][:3]}; rename them in the files, or offload the "
                             "submodule that the files belong to")
        missing = [member.name for member in members if member.tensor.is_meta and self._name(member) is None]
        if missing:
            raise ValueError(f"{len(missing)} tensors are on the meta device and not in source=: {missing[:5]}; give "
                             "the safetensors files that have them, or create them on the CPU")
        for member in members:
            name = self._name(member)
            if name is not None and self._found[name][3] != member.shape:
                raise ValueError(f"{name} has the shape {tuple(self._found[name][3])} in {self._found[name][0]} and "
                                 f"{tuple(member.shape)} in the module")

    def fill(self, member, view, handle):
        name = self._name(member)
        if name is None:
            view.copy_(member.tensor.detach())
        elif view.numel():
            path, offset, dtype, shape = self._found[name]
            loaded = view if dtype == view.dtype else torch.empty(shape, dtype=dtype, device=view.device)
            handle.read_into(loaded, path, offset)
            if loaded is not view:
                view.copy_(loaded)

    def _name(self, member):
        return next((name for name in member.names if name in self._found), None)


def fill(groups, source, cache):
    """Writes the tensors of the groups into their files. The new files are deleted if that fails."""
    source = Source(source)
    source.check([member for group in groups for member in group.members])
    try:
        with the_handle(None) as handle:
            for group in groups:
                with cache.acquired([group.entry], learn=False):
                    cache.changed(group.entry)
                    for member, view in zip(group.members, group.layout.views(cache.view(group.entry))):
                        source.fill(member, view, handle)
                cache.start_write(group.entry)
            cache.flush([group.entry for group in groups])
    except BaseException:
        for group in groups:
            with contextlib.suppress(OSError):
                cache.discard(group.entry)
            with contextlib.suppress(OSError):
                os.unlink(group.entry.file(0))
        raise
