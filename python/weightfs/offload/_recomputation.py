# SPDX-License-Identifier: Apache-2.0
"""The forward of a stage: what autograd saves there is dropped, and computed again when the backward asks for it."""

import contextlib
import inspect
import sys
import threading

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from weightfs import _native

_PIECE = 1 << 20   # elements
_PLAIN = int, float, str, type(None)
_PARTS = {torch.sparse_coo: ("_indices", "_values"), torch.jagged: ("values", "offsets"),
          **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), ("crow_indices", "col_indices", "values")),
          **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), ("ccol_indices", "row_indices", "values"))}
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
            if [self._described(tensor) for tensor in tensors] + outputs != self._saved:
                raise self._not_repeated("computed other numbers")
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
