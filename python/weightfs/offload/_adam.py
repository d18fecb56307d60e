# SPDX-License-Identifier: Apache-2.0
"""Adam and AdamW of an offloaded module: each step streams the blocks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from weightfs.offload._groups import Layout, is_metadata

_HALF = (torch.float16, torch.bfloat16)


class Gradient(torch.Tensor):
    """What `grad` of a placeholder returns: a gradient in the store. It has what torch.nn.utils.clip_grad_norm_ uses:
    its norm, and its product with a number. Other operations raise RuntimeError."""

    @staticmethod
    def of(training, at, placeholder):
        data = torch.empty((), dtype=placeholder.dtype, device=placeholder.device).expand(placeholder.shape)
        made = torch.Tensor._make_subclass(Gradient, data)
        made._training, made._at, made._name = training, at, placeholder.offloaded
        return made

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if is_metadata(function):
                return function(*args, **(kwargs or {}))
            if args and isinstance(args[0], cls) and len(args) == 2 and not kwargs:
                gradient, number = args
                if function is torch.linalg.vector_norm:
                    return gradient._training.norm(gradient._at, float(number))
                if function == torch.Tensor.mul_:
                    gradient._training.scale(gradient._at, number)
                    return gradient
        raise RuntimeError("the gradients of an offloaded module are in its directory: torch.nn.utils.clip_grad_norm_() "
                           f"works, {getattr(function, '__name__', function)}() of a gradient does not")

    def __repr__(self):
        return f"<offloaded gradient of {self._name}: {tuple(self.shape)}, {self.dtype}>"


class Training:
    """What the optimizer keeps for a group: gradients until the next step, and the state: m and v of each trainable
    parameter, behind 32-bit weights if it has 16 bits. present: indices of the parameters that have gradients."""

    def __init__(self, group):
        self.group, self.indices, self.present = group, group.trainable, set()
        members = [group.members[index] for index in self.indices]
        self.names = [member.name for member in members]
        self.gradient_layout = Layout([(member.shape, member.dtype) for member in members])
        self.state_layout = _state_layout(members)
        self._factors = {}                # of gradients that are still to be multiplied -> the numbers
        self._norms, self._kind = {}, None   # of gradients, once the program has asked for one

    def open(self, store, saved):
        """Registers the files. saved: what state.json has of the optimizer. Returns the names of the parameters whose
        states continue."""
        self._store, self._before, name = store, None, f"{self.group.name}.adam"
        self.gradients = store.entry(f"{self.group.name}.gradient", self.gradient_layout.nbytes, temporary=True)
        names = self._saved_names(store.directory, name, saved)
        if names is None or names == self.names:
            self.state = store.entry(name, self.state_layout.nbytes)
            return names or []
        self._before = self._members(names)
        self.state = store.entry(name, self.state_layout.nbytes, _state_layout(self._before).nbytes)
        return [one for one in self.names if one in names]

    def _saved_names(self, directory, file, saved):
        """The parameters whose states the file has, None if there is no file."""
        _, path = directory.committed_file(file)
        names = saved.get("states", {}).get(self.group.name)
        if path is None or names is not None:
            return None if path is None else names
        # state.json of an earlier version: those that have been updated, or also others that could have been.
        size, trained = os.stat(path).st_size, [one.name for one in self.group.members if one.name in saved["counts"]]
        fitting = [list(one) for one in {tuple(trained), tuple(self.names)}
                   if set(one) >= set(trained) and _state_layout(self._members(one)).nbytes == size]
        if len(fitting) != 1:
            raise ValueError(f"an earlier version of weightfs wrote {directory.path}, and its state.json does not say "
                             f"which parameters the states of {self.group.name} belong to: make the same ones trainable "
                             "as in that run, or restore() the module and offload it into a new directory, where all "
                             "states start new")
        return fitting[0]

    def _members(self, names):
        return [one for one in self.group.members if one.name in names]

    def convert(self, cache):
        """Brings the states of other parameters into the present form: those of common ones continue, others are new.
        """
        if self._before is None:
            return
        layout, path, at = _state_layout(self._before), self.state.file(self.state.committed), 0
        self.state.generation = None   # nothing is read from the file in the present form
        with cache.acquired([self.group.entry, self.state], learn=False):
            cache.changed(self.state)
            self.fill_new(cache)
            views = dict(zip(self.names, self._states(cache)))
            for member in self._before:
                count = _count(member)
                for view, offset in zip(views.get(member.name, ()), layout.offsets[at:at + count]):
                    if view.numel():
                        cache.read(view, path, offset)
                at += count
        cache.start_write(self.state)
        self._before = None

    def take(self, cache):
        """Adds the gradients of the group's parameters to those in the store."""
        parameters = [self.group.tensors[index] for index in self.indices] if self.group.tensors else []
        found = {at: parameter for at, parameter in enumerate(parameters) if parameter.grad is not None}
        if not found:
            return
        with cache.acquired([self.gradients]), torch.no_grad():
            cache.changed(self.gradients)
            views = self.gradient_layout.views(cache.view(self.gradients))
            for at, parameter in found.items():
                if at in self.present:
                    self._multiply(at, views[at]).add_(parameter.grad)
                else:
                    views[at].copy_(parameter.grad)
                self._norms.pop(at, None)
                if self._kind is not None:   # now, because it is in memory
                    self._norms[at] = torch.linalg.vector_norm(views[at], self._kind)
                parameter.grad = None
        self.present |= found.keys()

    def discard(self, cache):
        for kept in (self.present, self._factors, self._norms):
            kept.clear()
        for tensor in self.group.tensors:
            tensor.grad = None
        cache.discard(self.gradients)

    def gradient(self, at, placeholder):
        """The gradient of a parameter, or None."""
        new = self.group.tensors[self.indices[at]].grad if self.group.tensors else None   # also of a backward that failed
        return new if new is not None or at not in self.present else Gradient.of(self, at, placeholder)

    def forget(self, at):
        """Discards one gradient."""
        self._store.check_use()
        self.present.discard(at)
        self._factors.pop(at, None)
        self._norms.pop(at, None)
        if self.group.tensors:
            self.group.tensors[self.indices[at]].grad = None

    def norm(self, at, kind):
        if self._kind != kind:
            self._kind = kind
            self._norms.clear()
        if at not in self._norms:
            cache = self._store.cache
            with self._store.exclusive(), cache.acquired([self.gradients], learn=False), torch.no_grad():
                view = self.gradient_layout.views(cache.view(self.gradients))[at]
                if at in self._factors:
                    cache.changed(self.gradients)
                self._norms[at] = torch.linalg.vector_norm(self._multiply(at, view), kind)
        return self._norms[at]

    def scale(self, at, factor):
        """Multiplies a gradient when it is in memory the next time."""
        self._factors.setdefault(at, []).append(factor)
        self._norms.pop(at, None)

    def parts(self, cache):
        """Yields (placeholder, name, parameter, gradient, weights, m, v) of each parameter with a gradient. The entries
        must be acquired."""
        parameters = self.group.layout.views(cache.view(self.group.entry))
        gradients = self.gradient_layout.views(cache.view(self.gradients))
        for at, (index, (*weights, m, v)) in enumerate(zip(self.indices, self._states(cache))):
            if at in self.present:
                member, parameter = self.group.members[index], parameters[index]
                if weights:
                    _refresh(weights[0], parameter)
                yield (member.placeholder, member.name, parameter, self._multiply(at, gradients[at]),
                       weights[0] if weights else parameter, m, v)

    def fill_new(self, cache):
        """The state before the first step."""
        cache.view(self.state).zero_()
        parameters = self.group.layout.views(cache.view(self.group.entry))
        for index, (*weights, _, _) in zip(self.indices, self._states(cache)):
            if weights:
                weights[0].copy_(parameters[index])

    def _states(self, cache):
        """([32-bit weights,] m, v) of each trainable parameter."""
        views = iter(self.state_layout.views(cache.view(self.state)))
        return [[next(views) for _ in range(_count(self.group.members[index]))] for index in self.indices]

    def _multiply(self, at, gradient):
        for factor in self._factors.pop(at, ()):
            gradient.mul_(factor)
        return gradient


def _count(member):
    """How many tensors the state of a parameter has."""
    return 3 if member.dtype in _HALF else 2


def _state_layout(members):
    return Layout([(member.shape, torch.float32 if member.dtype in _HALF else member.dtype)
                   for member in members for _ in range(_count(member))])


def _refresh(weights, parameter):
    """Takes over what the program has changed in a parameter of 16 bits."""
    changed = weights.to(parameter.dtype) != parameter
    if changed.any():
        weights[changed] = parameter[changed].to(weights.dtype)


class Adam(torch.optim.Optimizer):
    """torch.optim.Adam for an offloaded module. m, v and, for parameters of 16 bits, 32-bit weights are in the store.
    The results are bit for bit those of torch's implementation for single tensors (foreach=False).

    step() reads each block's parameters, gradients and state, and writes them back, while the next blocks are read and
    the previous ones written. It consumes the gradients; those of several backward passes before it add up. When it
    returns, the step is committed: a program that is killed later continues behind it, one that is killed earlier
    before it. If it raises, the step is not applied, and the module cannot be used until it is offloaded again with
    resume=True.

    Args:
        module: the result of weightfs.offload.offload(). With resume=True its steps and states continue.
        params: parameters of the module, or groups of them as torch.optim takes them. Default: all that require a
            gradient.
        lr, betas, eps, weight_decay, maximize: as in torch.optim. `param_groups` has them, so schedulers work.

    Attributes:
        steps: the number of committed steps.

    Raises:
        MemoryError: memory= does not hold a block with its gradients and state.
        ValueError: the directory was trained with another optimizer, or an argument is out of range or not supported."""

    _function, _weight_decay = staticmethod(adam), 0.0

    def __init__(self, module: torch.nn.Module, params: Any = None, lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float | None = None, *,
                 maximize: bool = False) -> None:
        self._store = module._weightfs_offload
        self._store.check()
        if min(lr, eps, *betas, weight_decay or 0) < 0 or max(betas) >= 1:
            raise ValueError("lr, eps and weight_decay must be at least 0, and betas from 0 to less than 1")
        weight_decay = self._weight_decay if weight_decay is None else weight_decay
        if params is None:
            params = [group.members[index].placeholder for group in self._store.groups for index in group.trainable]
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                                  "maximize": maximize})
        saved = self._store.attach(self, type(self).__name__)
        self.steps, self._counts = saved.get("steps", 0), saved.get("counts", {})
        self._states = saved.get("states", {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Applies the gradients. Returns the result of closure(), if there is one.

        Raises:
            OSError: a file cannot be read or written, also to convert the states if others were trained before.
            RuntimeError: a parameter was frozen when the optimizer was created, and is not now. The step can be
                repeated.
            ValueError: a group has a setting that is not supported. The step can be repeated."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._store.check_optimizer(self._store.groups)
        self._check_settings(self.param_groups)
        with self._store.exclusive(), self._store.failing():
            settings = {id(parameter): group for group in self.param_groups for parameter in group["params"]}
            trained = [group for group in self._store.groups if group.training is not None]
            for group in trained:
                group.training.convert(self._store.cache)
            for group in trained:
                self._step_group(group, settings)
            self.steps += 1
            try:
                self._store.commit()
            except BaseException:
                self.steps -= 1
                raise
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discards the gradients. ValueError for set_to_none=False: a gradient of zeros would be applied."""
        if not set_to_none:
            raise ValueError("weightfs.offload discards gradients: zero_grad(set_to_none=False) is not supported")
        with self._store.exclusive():
            for group in self._store.groups:
                if group.training is not None:
                    group.training.discard(self._store.cache)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch.optim. The parameters must have required a gradient when the optimizer was created."""
        self._check_settings([param_group])
        super().add_param_group(self._store.placeholder_of(param_group))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the settings of state_dict() of such an optimizer. ValueError for one with states, such as torch's."""
        if state_dict["state"]:
            raise ValueError(f"the state_dict has states of {len(state_dict['state'])} parameters: an offloaded module "
                             "has them in its directory and cannot load others; continue the directory (resume=True), "
                             "or load {**state_dict, 'state': {}}, which starts with new ones")
        self._check_settings(state_dict["param_groups"])
        super().load_state_dict({**state_dict, "state": {}})

    def saved(self) -> dict[str, Any]:
        """What state.json keeps. `states` has the names of the parameters in each file."""
        written = {group.name: group.training.names for group in self._store.groups
                   if group.training is not None and not group.training.state.empty}
        return {"kind": type(self).__name__, "steps": self.steps, "counts": dict(self._counts),
                "states": {**self._states, **written}}

    def _check_settings(self, groups):
        expected = {"amsgrad": False, "differentiable": False, "capturable": False,
                    "decoupled_weight_decay": self._function is adamw}
        for name, value in expected.items():
            if any(bool(group.get(name, value)) != value for group in groups):
                raise ValueError(f"weightfs.offload.{type(self).__name__} does not support {name}={not value}: delete "
                                 "it from the group")

    def _step_group(self, group, settings):
        cache, training = self._store.cache, group.training
        if group.live is not None:
            training.take(cache)
        if not training.present:
            return
        new = training.state.empty
        with cache.acquired([group.entry, training.state, training.gradients]):
            cache.changed(group.entry)
            cache.changed(training.state)
            if new:
                training.fill_new(cache)
            for part in training.parts(cache):
                if id(part[0]) in settings:
                    self._update(settings[id(part[0])], *part[1:])
            group.updated([training.indices[at] for at in training.present])
        cache.start_write(group.entry)
        cache.start_write(training.state)
        training.discard(cache)

    def _update(self, settings, name, parameter, gradient, weights, m, v):
        count = torch.tensor(float(self._counts.get(name, 0)))
        beta1, beta2 = settings["betas"]
        self._function([weights], [gradient.to(weights.dtype)], [m], [v], [], [count], foreach=False, amsgrad=False,
                       beta1=beta1, beta2=beta2, lr=settings["lr"], weight_decay=settings["weight_decay"],
                       eps=settings["eps"], maximize=settings["maximize"])
        if weights is not parameter:
            parameter.copy_(weights)
        self._counts[name] = int(count)


class AdamW(Adam):
    """torch.optim.AdamW for an offloaded module; weight_decay is 0.01 by default. Otherwise as Adam."""

    _function, _weight_decay = staticmethod(adamw), 0.01
