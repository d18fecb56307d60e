# SPDX-License-Identifier: Apache-2.0
"""Runs a stage of an offloaded module: brings its tensors into memory for its forward, and once more for its backward,
which computes the forward again."""

import contextlib

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten


class Stage:
    """A submodule and the groups that its forward needs. While it is installed, it replaces `submodule.forward`."""

    def __init__(self, store, submodule, groups):
        self._store, self._submodule, self.groups = store, submodule, groups
        self.name = f"{type(submodule).__name__} ({groups[0].name})"
        self._forward, self._own_forward = submodule.forward, vars(submodule).get("forward")
        submodule.forward = self

    def remove(self):
        del self._submodule.forward   # the class's own one comes back
        if self._own_forward is not None:
            self._submodule.forward = self._own_forward

    def __call__(self, *args, **kwargs):
        leaves, structure = tree_flatten((args, kwargs))
        if torch.is_grad_enabled() and (self._trains() or any(_needs_gradient(leaf) for leaf in leaves)):
            return self._run_and_recompute(leaves, structure)
        with self._store.bound(self.groups):
            return self._own(self._called(leaves, structure))

    def _trains(self):
        return any(group.trainable for group in self.groups)

    def _called(self, leaves, structure):
        args, kwargs = tree_unflatten(leaves, structure)
        # torch's cache of cast weights would keep all of them in memory.
        with contextlib.ExitStack() as around:
            for device in {"cpu", self._store.device.type}:
                if torch.is_autocast_enabled(device):
                    around.enter_context(torch.autocast(device, torch.get_autocast_dtype(device), cache_enabled=False))
            return self._forward(*args, **kwargs)

    def _own(self, outputs):
        """Copies outputs that are in the buffer, where they would be overwritten."""
        leaves, structure = tree_flatten(outputs)
        return tree_unflatten([leaf.clone() if isinstance(leaf, torch.Tensor) and self._store.cache.owns(leaf) else leaf
                               for leaf in leaves], structure)

    def _run_and_recompute(self, leaves, structure):
        self._store.check_optimizer(self.groups)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        call = _Call(self, leaves, structure)
        # The graph needs an input with a gradient, also if the first block has only token numbers.
        outputs = _Recomputed.apply(call, torch.empty(0, requires_grad=True), *tensors)
        filled = iter(outputs)
        return tree_unflatten([next(filled) if is_tensor else leaf for is_tensor, leaf in call.outputs],
                              call.output_structure)


def _needs_gradient(leaf):
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


class _Call:
    """One forward of a stage, which can be repeated with the same random numbers and autocast settings."""

    def __init__(self, stage, leaves, structure):
        self.stage, self._structure = stage, structure
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._tensors_at = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._cuda = [stage._store.device] if stage._store.device.type == "cuda" else []
        self._random = torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in self._cuda]
        self._autocast = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
                          for device in sorted({"cpu", stage._store.device.type})]

    def run(self, tensors):
        """Returns the tensors of the result; `outputs` and `output_structure` have the rest."""
        leaves = list(self._leaves)
        for at, tensor in zip(self._tensors_at, tensors):
            leaves[at] = tensor
        versions = [tensor._version for tensor in tensors]
        found, self.output_structure = tree_flatten(self.stage._called(leaves, self._structure))
        if versions != [tensor._version for tensor in tensors]:
            raise RuntimeError(f"the forward of {self.stage.name} changes an input in place, and its backward would "
                               "compute it again from the changed one: let it change a copy (x = x.clone())")
        self.outputs = [(isinstance(leaf, torch.Tensor), None if isinstance(leaf, torch.Tensor) else leaf)
                        for leaf in found]
        return tuple(leaf for leaf in found if isinstance(leaf, torch.Tensor))

    @contextlib.contextmanager
    def as_before(self):
        with contextlib.ExitStack() as around:
            around.enter_context(torch.random.fork_rng(self._cuda))
            torch.set_rng_state(self._random[0])
            for device, state in zip(self._cuda, self._random[1]):
                torch.cuda.set_rng_state(state, device)
            for device, enabled, dtype in self._autocast:
                around.enter_context(torch.autocast(device, dtype, enabled, cache_enabled=False))
            around.enter_context(torch.enable_grad())
            yield


class _Recomputed(torch.autograd.Function):
    """A forward that keeps its inputs alone. Its backward computes the forward again and gives the gradients of the
    groups to the store."""

    @staticmethod
    def forward(ctx, call, _, *tensors):
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        with call.stage._store.bound(call.stage.groups):
            return call.stage._own(call.run(tensors))

    @staticmethod
    def backward(ctx, *gradients):
        call, stage = ctx.call, ctx.call.stage
        inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]
        with stage._store.bound(stage.groups, recomputing=True):
            with call.as_before():
                outputs = call.run(inputs)
            pairs = [(output, gradient) for output, gradient in zip(outputs, gradients)
                     if output.requires_grad and gradient is not None]
            if pairs:
                torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
            for group in stage.groups:
                stage._store.take_gradients(group)
        return None, None, *[tensor.grad for tensor in inputs]
