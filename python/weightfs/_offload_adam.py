# SPDX-License-Identifier: Apache-2.0
"""Adam and AdamW of an offloaded module: each step streams the blocks."""

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from weightfs._offload_layout import Layout

_HALF = (torch.float16, torch.bfloat16)


class Training:
    """What the optimizer keeps for a group: gradients until the next step, and the state: m and v of each trainable
    parameter, behind 32-bit weights if it has 16 bits. present: indices of the parameters that have gradients."""

    def __init__(self, group):
        self.indices, self.present = group.trainable, set()
        members = [group.members[index] for index in self.indices]
        self.gradient_layout = Layout([(member.shape, member.dtype) for member in members])
        self._counts = [3 if member.dtype in _HALF else 2 for member in members]
        self.state_layout = Layout([(member.shape, torch.float32 if member.dtype in _HALF else member.dtype)
                                    for member, count in zip(members, self._counts) for _ in range(count)])

    def open(self, store, name):
        self.gradients = store.entry(f"{name}.gradient", self.gradient_layout.nbytes, temporary=True)
        self.state = store.entry(f"{name}.adam", self.state_layout.nbytes)

    def take(self, group, cache):
        """Adds the gradients of the group's live parameters to those in the store."""
        found = {at: group.live[index] for at, index in enumerate(self.indices) if group.live[index].grad is not None}
        if not found:
            return
        with cache.acquired([self.gradients]), torch.no_grad():
            cache.changed(self.gradients)
            views = self.gradient_layout.views(cache.view(self.gradients))
            for at, parameter in found.items():
                if at in self.present:
                    views[at].add_(parameter.grad)
                else:
                    views[at].copy_(parameter.grad)
                parameter.grad = None
        self.present |= found.keys()

    def discard(self, group, cache):
        self.present.clear()
        group.clear_gradients()
        cache.discard(self.gradients)

    def parts(self, group, cache):
        """Yields (placeholder, name, parameter, gradient, weights, m, v) of each parameter with a gradient. The entries
        must be acquired."""
        parameters = group.layout.views(cache.view(group.entry))
        gradients = self.gradient_layout.views(cache.view(self.gradients))
        states, begin = self.state_layout.views(cache.view(self.state)), 0
        for at, (index, count) in enumerate(zip(self.indices, self._counts)):
            *weights, m, v = states[begin:begin + count]
            begin += count
            if at in self.present:
                member = group.members[index]
                yield (member.placeholder, member.name, parameters[index], gradients[at],
                       weights[0] if weights else parameters[index], m, v)

    def fill_new(self, group, cache):
        """The state before the first step."""
        cache.view(self.state).zero_()
        parameters = group.layout.views(cache.view(group.entry))
        states, begin = self.state_layout.views(cache.view(self.state)), 0
        for index, count in zip(self.indices, self._counts):
            if count == 3:
                states[begin].copy_(parameters[index])
            begin += count


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
        lr, betas, eps, weight_decay: as in torch.optim. `param_groups` has them, so schedulers work.

    Attributes:
        steps: the number of committed steps.

    Raises:
        MemoryError: memory= does not hold a block with its gradients and state.
        ValueError: the directory was trained with another optimizer, or an argument is out of range."""

    _function, _weight_decay = staticmethod(adam), 0.0

    def __init__(self, module, params=None, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=None):
        self._store = module._weightfs_offload
        self._store.check()
        if min(lr, eps, *betas, weight_decay or 0) < 0 or max(betas) >= 1:
            raise ValueError("lr, eps and weight_decay must be at least 0, and betas from 0 to less than 1")
        weight_decay = self._weight_decay if weight_decay is None else weight_decay
        if params is None:
            params = [group.members[index].placeholder for group in self._store.groups for index in group.trainable]
        params = [self._store.placeholder_of(one) for one in params]
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        saved = self._store.attach(self, type(self).__name__)
        self.steps, self._counts = saved.get("steps", 0), dict(saved.get("counts", {}))

    @torch.no_grad()
    def step(self, closure=None):
        """Applies the gradients. Returns the result of closure(), if there is one.

        Raises:
            OSError: a file cannot be read or written.
            RuntimeError: a parameter was frozen when the optimizer was created, and is not now. The step can be
                repeated."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._store.check_optimizer(self._store.groups)
        with self._store.failing():
            settings = {id(parameter): group for group in self.param_groups for parameter in group["params"]}
            for group in self._store.groups:
                if group.training is not None:
                    self._step_group(group, settings)
            self.steps += 1
            self._store.commit()
        return loss

    def zero_grad(self, set_to_none=True):
        """Discards the gradients."""
        self._store.check_use()
        for group in self._store.groups:
            if group.training is not None:
                group.training.discard(group, self._store.cache)

    def saved(self):
        """What state.json keeps: None before the first step."""
        return None if self.steps == 0 else {"kind": type(self).__name__, "steps": self.steps, "counts": dict(self._counts)}

    def _step_group(self, group, settings):
        cache, training = self._store.cache, group.training
        if group.live is not None:
            training.take(group, cache)
        if not training.present:
            return
        new = training.state.empty
        with cache.acquired([group.entry, training.state, training.gradients]):
            cache.changed(group.entry)
            cache.changed(training.state)
            if new:
                training.fill_new(group, cache)
            for part in training.parts(group, cache):
                if id(part[0]) in settings:
                    self._update(settings[id(part[0])], *part[1:])
        cache.start_write(group.entry)
        cache.start_write(training.state)
        training.discard(group, cache)

    def _update(self, settings, name, parameter, gradient, weights, m, v):
        count = torch.tensor(float(self._counts.get(name, 0)))
        beta1, beta2 = settings["betas"]
        self._function([weights], [gradient.to(weights.dtype)], [m], [v], [], [count], foreach=False, amsgrad=False,
                       beta1=beta1, beta2=beta2, lr=settings["lr"], weight_decay=settings["weight_decay"],
                       eps=settings["eps"], maximize=False)
        if weights is not parameter:
            parameter.copy_(weights)
        self._counts[name] = int(count)


class AdamW(Adam):
    """torch.optim.AdamW for an offloaded module; weight_decay is 0.01 by default. Otherwise as Adam."""

    _function, _weight_decay = staticmethod(adamw), 0.01
