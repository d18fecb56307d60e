# SPDX-License-Identifier: Apache-2.0
"""Runs a stage of an offloaded module: brings its tensors into memory for its forward. What autograd saves there is
dropped, and computed again when the backward asks for it."""

import contextlib
import inspect

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Stage:
    """A submodule and the groups that its forward needs. While it is installed, it replaces `submodule.forward`."""

    def __init__(self, store, submodule, groups):
        self.store, self._submodule, self.groups = store, submodule, groups
        self.name = f"{type(submodule).__name__} ({groups[0].name})"
        self._forward, self._own_forward = submodule.forward, vars(submodule).get("forward")
        submodule.forward = self

    def remove(self):
        del self._submodule.forward   # the class's own one comes back
        if self._own_forward is not None:
            self._submodule.forward = self._own_forward

    def __call__(self, *args, **kwargs):
        if not torch.is_grad_enabled():
            with self.store.bound(self.groups):
                return self._own(self.run(args, kwargs))
        self.store.check_optimizer(self.groups)
        call = _Call(self, args, kwargs)
        with self.store.bound(self.groups), torch.autograd.graph.saved_tensors_hooks(call.pack, call.unpack):
            outputs = self._own(self.run(args, kwargs))
            self._refuse_kept_weights(outputs, args, kwargs)
        call.ended = True
        return outputs

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

    def _refuse_kept_weights(self, outputs, args, kwargs):
        """autograd.Functions must pass tensors to save_for_backward: others are overwritten before the backward."""
        seen = {leaf.grad_fn for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)}
        nodes = [leaf.grad_fn for leaf in tree_flatten(outputs)[0] if isinstance(leaf, torch.Tensor)]
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if isinstance(node, torch.autograd.function.BackwardCFunction) and any(
                    self._is_in_buffer(value) and not isinstance(value, torch.nn.Parameter)
                    for value in vars(node).values()):
                raise RuntimeError(f"{type(node).__name__} in the forward of {self.name} keeps a weight in its context "
                                   "that is overwritten before the backward: pass it to ctx.save_for_backward()")
            nodes += [following for following, _ in node.next_functions]


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
        self._saved = []       # (shape, type, checksum) of the tensors that autograd saved
        self._tensors = None   # the same tensors, computed again
        self._bound = contextlib.ExitStack()

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

    def _recompute(self):
        if not self.ended or self._steps != self._store.steps:
            raise RuntimeError(f"the backward of {self._stage.name} must come after the end of its forward, and before "
                               "the next step() of the optimizer")
        torch.autograd.Variable._execution_engine.queue_callback(self._store.end_backward)
        tensors = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: tensors.append(tensor.detach()), self._no_graph)
        with self._store.exclusive(), contextlib.ExitStack() as bound:
            bound.enter_context(self._store.held(self._stage.groups))
            with self._store.unchanged(self._stage.groups), self._as_before(), hooks, self._explained():
                args, kwargs = tree_unflatten(self._leaves, self._structure)
                self._stage.run(args, kwargs)
            self._compare(tensors)
            self._bound = bound.pop_all()
        self._tensors, self._store.recomputed = tensors, self

    def _no_graph(self, _):
        raise RuntimeError(f"a tensor that {self._stage.name} kept in its backward, which runs the forward again, has "
                           "no gradient: use the tensor that it kept in its forward")

    def _described(self, tensor):
        """The weights are those of the step."""
        bits = None if self._stage._is_in_buffer(tensor) else _checksum(tensor.detach())
        return tensor.shape, tensor.dtype, bits

    def _compare(self, tensors):
        again = [self._described(tensor) for tensor in tensors]
        if len(again) != len(self._saved) or any(map(_differ, again, self._saved)):
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
            "wrong: the forward changes its arguments, a cache (pass use_cache=False to models of transformers) or "
            "buffers that it uses, or draws random numbers that are not torch's")

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
            yield


def _differ(one, other):
    return one[:2] != other[:2] or one[2] is not None and other[2] is not None and not torch.equal(one[2], other[2])


def _checksum(tensor):
    """A checksum of the bits in their order, None if the type has none. Bytes are not compared: they are the workspaces
    of operators, which have undefined parts.

    The elements are laid out as a matrix, of which the sums of the rows, of the columns and what is left over are added
    up with different factors: two reductions at the speed of memory, which a change of the order changes, too."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dtype == torch.uint8 or not tensor.numel():
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    bits = tensor.resolve_neg().contiguous().view(_BITS[tensor.element_size()]).flatten()
    columns = 1 << bits.numel().bit_length() // 2
    whole = bits.numel() // columns * columns
    matrix = bits[:whole].view(-1, columns)
    return torch.stack([_weighted(matrix.sum(1)), _weighted(matrix.sum(0)), _weighted(bits[whole:])])


def _weighted(sums):
    factors = torch.arange(1, sums.numel() + 1, device=sums.device)
    return (sums * factors).sum()
