# SPDX-License-Identifier: Apache-2.0
"""Runs an offloaded module: brings the tensors of a stage into memory for its forward. What autograd saves there is
dropped, and computed again when the backward asks for it."""

import bisect
import contextlib
import inspect
import os
import sys
import threading

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from weightfs import _native
from weightfs._core import process
from weightfs.offload._adam import Training
from weightfs.offload._groups import plan
from weightfs.offload._store import Cache, Directory, Entry, fill

_PIECE = 1 << 20   # elements
_PLAIN = int, float, str, type(None)
_PARTS = {torch.sparse_coo: ("_indices", "_values"), torch.jagged: ("values", "offsets"),
          **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), ("crow_indices", "col_indices", "values")),
          **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), ("ccol_indices", "row_indices", "values"))}
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
            self._check_fits(memory, type(submodule).__name__, self._needs(groups), needed[0])
        self._check_fits(memory, "the largest group", [max(needed)], 0 if needed[0] == max(needed) else needed[0])
        self.directory, self.cache, self._stages, self._entries = Directory(directory, resume), None, [], []
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
        self.cache.acquire([resident.entry], learn=False)   # before all others, so that it does not divide the buffer
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
            for index in training.indices:
                group.members[index].placeholder.gradients = training
        self.optimizer = optimizer
        return {**saved, "counts": counts}

    def _needs(self, groups):
        """Bytes that a stage with these groups needs at once, as a list."""
        return [group.layout.nbytes for group in groups] + [self._room(groups)]

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
        self.directory.state = state
        for entry in kept:
            entry.committed = entry.generation

    def remove(self):
        """Leaves placeholders in the module."""
        for installed in [*self._stages, *self._hooks]:
            installed.remove()
        self._end_recomputed()
        for group in self.groups:
            group.unbind()
        self.release()

    def release(self):
        self._released = True
        self.cache.close()
        for group in self.groups:
            group.forget()
        self.directory.close()

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


class Stage:
    """A submodule and the groups that its forward needs. While it is installed, it replaces `submodule.forward`."""

    def __init__(self, store, submodule, groups):
        self.store, self._submodule, self.groups = store, submodule, groups
        self.name = f"{type(submodule).__name__} ({groups[0].name})"
        # Operators of recurrent modules, and of GPUs, save workspaces, which have undefined parts.
        self.has_workspaces = store.device.type != "cpu" or any(
            isinstance(part, torch.nn.RNNBase) for part in submodule.modules())
        self._modules = list(submodule.modules())
        self._forward, self._own_forward = submodule.forward, vars(submodule).get("forward")
        submodule.forward = self

    def remove(self):
        del self._submodule.forward   # the class's own one comes back
        if self._own_forward is not None:
            self._submodule.forward = self._own_forward

    def __call__(self, *args, **kwargs):
        if not torch.is_grad_enabled():
            with self.store.bound(self):
                return self._own(self.run(args, kwargs))
        self.store.check_optimizer(self.groups)
        call = _Call(self, args, kwargs)
        with self.store.bound(self, call.inner) as call.buffers, \
                torch.autograd.graph.saved_tensors_hooks(call.pack, call.unpack):
            outputs = self.run(args, kwargs)
            call.end_forward(outputs)
            outputs = self._own(outputs)
        return outputs

    def attributes(self):
        """The attributes of the modules that are numbers or the like, such as counters."""
        return [(module, {name: value for name, value in vars(module).items() if isinstance(value, _PLAIN)})
                for module in self._modules]

    def run(self, args, kwargs):
        # torch's cache of cast weights would keep all of them in memory.
        with contextlib.ExitStack() as around:
            for device in {"cpu", self.store.device.type}:
                if torch.is_autocast_enabled(device):
                    around.enter_context(torch.autocast(device, torch.get_autocast_dtype(device), cache_enabled=False))
            return self._forward(*args, **kwargs)

    def _own(self, outputs):
        """Copies outputs that are in the buffer, where they would be overwritten."""
        return tree_map(lambda leaf: leaf.clone() if self._is_in_buffer(leaf) else leaf, outputs)

    def _is_in_buffer(self, value):
        return (isinstance(value, torch.Tensor) and value.layout is torch.strided and
                self.store.cache.owns(value))


def train_without_cache(module):
    """Models of transformers fill a cache of keys and values by default, also in training, where nothing uses it.
    Returns the handles of hooks that set use_cache=False, unless the program passes a value."""
    handles = []
    for submodule in module.modules():
        names = list(inspect.signature(submodule.forward).parameters)
        if "use_cache" in names and hasattr(getattr(submodule, "config", None), "use_cache"):
            def unset(_, args, kwargs, position=names.index("use_cache")):
                if torch.is_grad_enabled() and len(args) <= position and kwargs.get("use_cache") is None:
                    return args, {**kwargs, "use_cache": False}
                return None
            handles.append(submodule.register_forward_pre_hook(unset, with_kwargs=True))
    return handles


class _Call:
    """One forward of a stage. It stands for the tensors that autograd saved in it, and computes them again with the
    same arguments, random numbers and autocast settings."""

    def __init__(self, stage, args, kwargs):
        self._stage, self._store, self.ended = stage, stage.store, False
        # Lists and dicts are copied: the forward may change them.
        self._leaves, self._structure = tree_flatten((args, kwargs))
        self._steps = self._store.steps
        self._cuda = [stage.store.device] if stage.store.device.type == "cuda" else []
        self._random = torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in self._cuda]
        self._autocast = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
                          for device in sorted({"cpu", stage.store.device.type})]
        self.buffers, self.inner = [], []   # those that the forward began with, and those of stages within it
        self._nodes = [getattr(leaf, "grad_fn", None) for leaf in self._leaves]
        self._changed = set()  # indices of arguments that the forward changed in place
        self._attributes = stage.attributes()
        self._saved = []       # (shape, type, place of a weight or checksum) of what autograd saved, and of the outputs
        self._tensors = None   # the same tensors, computed again
        self._bound = contextlib.ExitStack()

    def end_forward(self, outputs):
        """An argument that the forward changed in place is a part of its graph, which would keep this call for ever."""
        self._saved += self._described_outputs(outputs)
        self._changed = {index for index, (leaf, node) in enumerate(zip(self._leaves, self._nodes))
                         if node is not None and leaf.grad_fn is not node}
        alone = {id(leaf): leaf.detach() for leaf in (self._leaves[index] for index in self._changed)}
        self._leaves = [alone.get(id(leaf), leaf) for leaf in self._leaves]
        self._nodes, self.ended = None, True

    def _arguments(self):
        """Those that were changed in place are results of a graph again, so that they can be changed in place."""
        changed = {id(leaf): _AsResult.apply(leaf.data, _TRAINED)
                   for leaf in (self._leaves[index] for index in self._changed)}
        return tree_unflatten([changed.get(id(leaf), leaf) for leaf in self._leaves], self._structure)

    def pack(self, tensor):
        self._saved.append(self._described(tensor))
        return len(self._saved) - 1

    def unpack(self, index):
        if torch.is_grad_enabled():
            raise RuntimeError(f"{self._stage.name} has no gradients of gradients (create_graph=True), because its "
                               "weights are offloaded: leave it out of the penalty, or train it in memory")
        if self._store.recomputed is not self:
            self._store.end_backward()
            self._recompute()
        return self._tensors[index]

    def end(self):
        """Releases the memory."""
        self._tensors = None
        self._bound.close()

    def runs_elsewhere(self):
        """True if a backward in another thread uses the tensors."""
        frame = None if self._thread == threading.get_ident() else sys._current_frames().get(self._thread)
        while frame is not None and frame.f_code.co_name != "_engine_run_backward":
            frame = frame.f_back
        return frame is not None

    def _recompute(self):
        if not self.ended or self._steps != self._store.steps:
            raise RuntimeError(f"the backward of {self._stage.name} must come after the end of its forward, and before "
                               "the next step() of the optimizer")
        torch.autograd.Variable._execution_engine.queue_callback(self._store.end_backward)
        tensors = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: tensors.append(self._kept(tensor.detach())), self._no_graph)
        with self._store.exclusive(), contextlib.ExitStack() as bound:
            bound.enter_context(self._store.held(self._stage.groups))
            with self._store.repeating(self.buffers, self.inner), self._as_before(), hooks, self._explained():
                args, kwargs = self._arguments()
                outputs = self._described_outputs(self._stage.run(args, kwargs))
            self._compare(tensors, outputs)
            self._bound = bound.pop_all()
        self._tensors, self._thread, self._store.recomputed = tensors, threading.get_ident(), self

    def _kept(self, tensor):
        """Buffers have their present content again after the forward."""
        is_buffer = self._stage._is_in_buffer(tensor) and self._store.place_of(tensor) is None
        return tensor.clone() if is_buffer else tensor

    def _no_graph(self, _):
        raise RuntimeError(f"a tensor that {self._stage.name} kept in its backward, which runs the forward again, has "
                           "no gradient: use the tensor that it kept in its forward")

    def _described(self, tensor):
        """The weights are those of the step: only which one it is has to be compared."""
        place = self._store.place_of(tensor) if self._stage._is_in_buffer(tensor) else None
        if place is not None:
            content = *place, tensor.stride()
        elif self._stage.has_workspaces and tensor.dtype == torch.uint8 and tensor.dim() == 1:
            content = None
        else:
            content = _checksum(tensor.detach())
        return tensor.shape, tensor.dtype, content

    def _described_outputs(self, outputs):
        return [self._described(leaf) for leaf in tree_leaves(outputs) if type(leaf) is torch.Tensor]

    def _compare(self, tensors, outputs):
        again = [self._described(tensor) for tensor in tensors] + outputs
        if again != self._saved:
            raise self._not_repeated("computed other numbers")

    @contextlib.contextmanager
    def _explained(self):
        try:
            yield
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise self._not_repeated(f"raised {type(error).__name__} ({error})") from error

    def _not_repeated(self, what):
        return RuntimeError(
            f"the backward of {self._stage.name} runs its forward again, which {what}, so its gradients would be "
            "wrong: the forward changes its arguments or a cache (pass use_cache=False to models of transformers), uses "
            "other weights each time, draws random numbers that are not torch's, or a weight was changed after it")

    @contextlib.contextmanager
    def _as_before(self):
        with contextlib.ExitStack() as around:
            around.enter_context(torch.random.fork_rng(self._cuda))
            torch.set_rng_state(self._random[0])
            for device, state in zip(self._cuda, self._random[1]):
                torch.cuda.set_rng_state(state, device)
            for device, enabled, dtype in self._autocast:
                around.enter_context(torch.autocast(device, dtype, enabled, cache_enabled=False))
            around.enter_context(torch.enable_grad())
            around.callback(_set_attributes, _set_attributes(self._attributes))
            yield


def _set_attributes(attributes):
    """Gives modules the result of Stage.attributes(). Returns what they had."""
    before = []
    for module, values in attributes:
        own = vars(module)
        before.append((module, {name: value for name, value in own.items()
                                if name in values or isinstance(value, _PLAIN)}))
        for name in before[-1][1].keys() - values.keys():
            del own[name]
        own.update(values)
    return before


class _AsResult(torch.autograd.Function):
    """Makes a tensor the result of a graph, without a copy."""

    @staticmethod
    def forward(ctx, tensor, trained):
        ctx.mark_dirty(tensor)
        return tensor


_TRAINED = torch.zeros(0, requires_grad=True)


def _checksum(tensor):
    """A checksum of the bits in their order."""
    if tensor.layout in _PARTS:
        return [_checksum(getattr(tensor, name)()) for name in _PARTS[tensor.layout]]
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    if not tensor.numel():
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    bits = tensor.resolve_neg().contiguous()
    if bits.device.type == "cpu":
        return _native.zip_crc32(bits.data_ptr(), bits.nbytes)
    return _mixed(bits.view(_BITS[bits.element_size()]).flatten())


def _mixed(bits):
    """The sum of the elements, each times a factor that depends on its place (the mixing of splitmix64)."""
    factors = torch.arange(1, min(len(bits), _PIECE) + 1, device=bits.device) * -0x61C8864680B583EB
    factors = (factors ^ (factors >> 30)) * -0x40A7B892E31B1A47 | 1
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for piece in bits.split(_PIECE):
        total = total * 31 + (piece * factors[:len(piece)]).sum()
    return int(total)
