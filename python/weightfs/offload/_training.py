# SPDX-License-Identifier: Apache-2.0
"""The state of an offloaded module: its groups, their files and memory, and the steps of its optimizer."""

import bisect
import contextlib
import os
import threading

import torch

from weightfs._core import process
from weightfs.offload._adam import Training
from weightfs.offload._groups import plan
from weightfs.offload._recomputation import Stage, train_without_cache
from weightfs.offload._store import Cache, Directory, Entry, fill


class Offloaded:
    """The groups of an offloaded module, their files and their memory. Used by one thread at a time."""

    def __init__(self, module, directory, memory, blocks, resume, device, durable):
        self.groups, self._planned = plan(module, blocks, device)
        self.device, self.optimizer, self.failure, self._durable = device, None, None, durable
        self._process, self._released, self._thread = process.pid, False, threading.RLock()
        self._inner = {tuple(groups): [others for other, others in self._planned
                                       if other is not submodule and any(other is one for one in submodule.modules())]
                       for submodule, groups in self._planned}   # of stages that run within another one
        needed = [group.layout.nbytes for group in self.groups]
        for submodule, groups in self._planned:
            used = [*(group.layout.nbytes for group in groups), self._room(groups)]
            self._check_fits(memory, type(submodule).__name__, used, needed[0])
        self._check_fits(memory, "the largest group", [max(needed)], 0 if needed[0] == max(needed) else needed[0])
        self.directory, self.cache, self._stages, self._entries = Directory(directory, resume), None, [], []
        self._resident = contextlib.ExitStack()
        self.recomputed, self._with_gradients = None, {}   # the call whose backward runs; groups with new gradients
        self._records, self._repeated = [], None   # the buffers of stages in running ones; and in the repeated one
        for group in self.groups:
            group.on_gradient = self._note_gradient
        try:
            self.cache = Cache(memory, device, durable)
        except BaseException:
            self.directory.close()
            raise

    def open(self, module, source):
        state = self.directory.state
        if state is not None:
            self.directory.check_groups(self._described())
        for group in self.groups:
            group.entry = self.entry(f"{group.name}.weights", group.layout.nbytes)
            if state is not None and group.entry.committed is None:
                raise ValueError(f"{self.directory.path}: state.json does not name the file of {group.name}: it is "
                                 "damaged; restore it from a backup, or delete the directory")
        resident = self.groups[0]
        # Before all others, so that it does not divide the buffer.
        self._resident.enter_context(self.cache.acquired([resident.entry], learn=False))
        if state is None:
            fill(self.groups, source, self.cache)
            self.commit()
        for group in self.groups[1:]:
            group.unbind()
        resident.bind(self.cache.view(resident.entry))
        for member in (member for group in self.groups for member in group.members):
            member.tensor = None   # frees the memory
        self._hooks = train_without_cache(module)
        self._stages = [Stage(self, submodule, groups) for submodule, groups in self._planned]

    def entry(self, name, nbytes, saved=None, temporary=False):
        """A new entry, with the content that the directory has. saved: the size of this content, if it is another."""
        committed = None if temporary else self.directory.committed(name, saved or nbytes)
        made = Entry(self.directory.file(name), nbytes, committed, temporary)
        self._entries.append(made)
        return made

    @contextlib.contextmanager
    def bound(self, stage, inner=None):
        """The modules have the stage's tensors during the block, a forward, and no other thread can use them. Yields
        the buffers that it begins with. inner: a list that gets those of the stages that run within it. RuntimeError if
        the forward keeps weights."""
        groups = stage.groups
        with self.exclusive(), contextlib.ExitStack() as after:
            new = [group for group in groups if group.uses == 0]
            after.enter_context(self.held(groups))
            if self._repeated is not None:   # within the forward that a backward repeats
                content = next(self._repeated, None) or []
                after.enter_context(self._former([one for one in content if one[0] in new]))
            else:
                self.take_resident_changes()
                content = [(group, group.buffers) for group in [self.groups[0], *groups]]
            for record in self._records:
                record.append(content)
            if inner is not None:
                self._records.append(inner)
                after.callback(self._records.pop)
            yield content
            for group in new:
                if group.is_kept():
                    raise RuntimeError(
                        f"the forward of {stage.name} keeps a view of a weight or buffer of {group.name}, whose memory "
                        "is given to others: use ctx.save_for_backward() in an autograd.Function, no save_on_cpu() in "
                        "the block, and clones of what attributes and lists keep")

    @contextlib.contextmanager
    def held(self, groups):
        """The modules have the groups' tensors during the block."""
        self.check()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.cache.acquired([group.entry for group in groups], room=self._room(groups)))
            for group in groups:
                if group.uses == 0:
                    _refuse_replaced(group)
                stack.callback(self._unbind, group, group.uses)   # also if the bind is interrupted
                group.uses += 1
                if group.uses == 1:
                    group.bind(self.cache.view(group.entry))
                else:
                    self._take_changes(group)
            yield

    def _unbind(self, group, uses):
        """uses: how many there were before."""
        try:
            self._take_changes(group)
        finally:
            group.uses = uses
            if uses == 0:
                group.unbind()

    @contextlib.contextmanager
    def repeating(self, buffers, inner):
        """The block repeats a forward: the buffers, and those of the stages within it, have the content that they began
        with, and their changes are undone."""
        self.take_resident_changes()
        self._repeated = iter(inner)
        try:
            with self._former(buffers):
                yield
        finally:
            self._repeated = None

    @contextlib.contextmanager
    def _former(self, buffers):
        with contextlib.ExitStack() as undone:
            for group, content in buffers:
                undone.callback(group.undo)
                group.set_buffers(content)
            yield

    def _take_changes(self, group):
        if self._repeated is None and group.live is not None and group.changed():
            self.cache.changed(group.entry)

    def place_of(self, tensor):
        """The name of the group that a tensor in the buffer belongs to, its offset there in bytes, and how often the
        program has changed it, if it is a parameter or a part of one; otherwise None."""
        for group in self.groups:
            if group.live is not None:
                at = tensor.data_ptr() - self.cache.view(group.entry).data_ptr()
                if 0 <= at < group.layout.nbytes:
                    index = bisect.bisect(group.layout.offsets, at) - 1
                    found = group.name, at, group.live[index]._version
                    return found if group.members[index].is_parameter else None
        return None

    def take_resident_changes(self):
        self._take_changes(self.groups[0])

    def _note_gradient(self, group):
        if group is not self.groups[0] and group not in self._with_gradients:
            torch.autograd.Variable._execution_engine.queue_callback(self.end_backward)
            self._with_gradients[group] = True

    def end_backward(self):
        """Releases the tensors that the backward of a block uses, and gives the gradients to the store."""
        with self.exclusive():
            self._end_recomputed()
            for group in list(self._with_gradients):
                if group.training is not None:
                    group.training.take(self.cache)
                del self._with_gradients[group]

    def _end_recomputed(self):
        ended, self.recomputed = self.recomputed, None
        if ended is not None:
            ended.end()

    @property
    def steps(self):
        return 0 if self.optimizer is None else self.optimizer.steps

    @contextlib.contextmanager
    def exclusive(self):
        """RuntimeError if another thread uses the module."""
        self.check_use()
        free = self._thread.acquire(blocking=False)
        try:
            if not free or self.recomputed is not None and self.recomputed.runs_elsewhere():
                raise RuntimeError("another thread uses the offloaded module: only one at a time can, so use a lock, "
                                   "or a module for each thread")
            yield
        finally:
            if free:
                self._thread.release()

    def check_use(self):
        process.check_process(self._process, "offloaded module")
        if self._released:
            raise RuntimeError("the module is not offloaded any more: offload it again with resume=True, and create a "
                               "new optimizer")

    def check(self):
        self.check_use()
        self.end_backward()   # of one that failed
        if self.failure is not None:
            raise RuntimeError(f"the last step failed and was not applied ({self.failure}): offload the module again "
                               "with resume=True, which continues from the step before")

    def check_optimizer(self, groups):
        if self.optimizer is None and any(group.trainable for group in groups):
            raise RuntimeError("the gradients of an offloaded module go to weightfs.offload.Adam or AdamW: create one "
                               "before the forward, or use torch.no_grad()")
        for group in [self.groups[0], *groups] if self.optimizer is not None else []:
            new = set(group.trainable) - set(group.training.indices if group.training is not None else ())
            if new:
                raise RuntimeError(f"{group.members[min(new)].name} requires a gradient, and did not when the optimizer "
                                   "was created: freeze it again, or close() the module, offload it with resume=True "
                                   "and create a new optimizer")

    @contextlib.contextmanager
    def failing(self):
        """After an error in the block, the module cannot be used."""
        self.check()
        try:
            yield
        except BaseException as error:
            self.failure = repr(error)
            raise

    def attach(self, optimizer, kind):
        """Registers the optimizer. Returns what state.json keeps of the one before."""
        saved = (self.directory.state or {}).get("optimizer") or {}
        if saved.get("kind", kind) != kind:
            raise ValueError(f"{self.directory.path} was trained with {saved['kind']}, not with {kind}: use the same "
                             "optimizer, or start in a new directory")
        if self.optimizer is not None:
            raise ValueError("the module has an optimizer already: one can be used at a time")
        resident, made = self.groups[0], {group: Training(group) for group in self.groups if group.trainable}
        for group, training in made.items():
            used = [group.layout.nbytes, training.state_layout.nbytes, training.gradient_layout.nbytes]
            self._check_fits(self.cache.memory, f"training {group.name}", used,
                             0 if group is resident else resident.layout.nbytes)
        counts, registered = dict(saved.get("counts", {})), len(self._entries)
        try:
            for group, training in made.items():
                kept = training.open(self, saved)
                for name in {member.name for member in group.members}.difference(kept):
                    counts.pop(name, None)
        except BaseException:
            del self._entries[registered:]
            raise
        for group, training in made.items():
            group.training = training
            for at, index in enumerate(training.indices):
                group.members[index].placeholder.trained = training, at
        self.optimizer = optimizer
        return {**saved, "counts": counts}

    def _room(self, groups):
        """Bytes that are needed while a stage with these groups runs, beside the groups."""
        return max([0, *[sum(group.layout.nbytes for group in others if group not in groups) + self._room(others)
                         for others in self._inner[tuple(groups)]]])

    def placeholder_of(self, given):
        """The placeholders for what the program passes as params: tensors, or dicts with them."""
        if isinstance(given, dict):
            params = given["params"]
            params = [params] if isinstance(params, torch.Tensor) else list(params)
            return {**given, "params": [self.placeholder_of(one) for one in params]}
        for group in self.groups:
            for index, member in enumerate(group.members):
                if given is member.placeholder or group.live is not None and given is group.live[index]:
                    return member.placeholder
        raise ValueError("params has a tensor that is no parameter of the offloaded module: take them from "
                         "module.parameters() after offload()")

    def commit(self):
        """Makes the present content the one that a resumed program finds."""
        self.take_resident_changes()
        kept = [entry for entry in self._entries if not entry.temporary]
        self.cache.flush(kept)
        before = self.directory.state or {"generations": {}, "optimizer": None}
        optimizer = before["optimizer"]
        if self.optimizer is not None and self.steps != (optimizer or {"steps": 0})["steps"]:   # after a step
            optimizer = self.optimizer.saved()
        if optimizer == before["optimizer"] and all(entry.generation == entry.committed for entry in kept):
            return
        generations = {os.path.basename(entry.path): entry.generation for entry in kept
                       if entry.generation is not None}
        state = {"groups": self._described(), "generations": {**before["generations"], **generations},
                 "optimizer": optimizer}
        self.directory.write_state(state, self._durable)
        for entry in kept:
            entry.committed = entry.generation

    def remove(self):
        """Leaves placeholders in the module."""
        with contextlib.ExitStack() as stack:   # an error or an interrupt of one does not prevent the others
            stack.callback(self.release)
            for group in self.groups:
                stack.callback(group.unbind)
            stack.callback(self._end_recomputed)
            for installed in [*self._stages, *self._hooks]:
                stack.callback(installed.remove)

    def release(self):
        self._released = True
        try:
            self.cache.close()
        finally:   # by now nothing writes to the directory
            self.directory.close()
            for group in self.groups:
                group.tensors = []   # they keep the memory of the cache

    def _described(self):
        return {group.name: [[member.name, str(member.dtype), list(member.shape)] for member in group.members]
                for group in self.groups}

    @staticmethod
    def _check_fits(memory, what, used, resident):
        if sum(used) + resident > memory:
            raise MemoryError(f"{what} needs {sum(used)} bytes at once, beside {resident} bytes that stay in memory, but "
                              f"memory= is {memory}: raise it, or make the blocks smaller (blocks=)")


def _refuse_replaced(group):
    """RuntimeError if the program has assigned other tensors to the modules, which would have no effect."""
    for member in group.members:
        if any(getattr(module, kind).get(attribute) is not member.placeholder
               for module, kind, attribute in member.places):
            raise RuntimeError(f"{member.name} is offloaded, and its block has another tensor instead: "
                               "functional_call() does not work; change tensors in the forward of the block, or after "
                               "restore()")
