# SPDX-License-Identifier: Apache-2.0
"""Divides the tensors of a module into groups, the units that weightfs.offload keeps in files. A module has
placeholders in the place of tensors that are not in memory."""

import gc
import weakref

import torch
from torch.utils._pytree import tree_leaves

from weightfs.torch import _shared

PAGE = 4096
_ALIGNMENT = 64     # of tensors in memory, as torch allocates them: results may depend on it
_RESIDENT = 1 << 20   # tensors outside the blocks stay in memory if their module has less than this
_METADATA = {"dim", "size", "stride", "numel", "nelement", "element_size", "is_floating_point", "is_complex",
             "requires_grad_", "_has_compatible_shallow_copy_type", "__hash__", "__repr__", "__len__", "data_ptr"}
_PROPERTIES = {"shape", "dtype", "device", "layout", "ndim", "itemsize", "nbytes", "names", "requires_grad", "grad",
               "grad_fn", "retains_grad", "output_nr", "_version", "_backward_hooks"}   # and those that begin with is_


class Unbound(torch.Tensor):
    """The class of a tensor of a block while it is not in memory: operations with it raise RuntimeError. A program can
    have kept it from a forward, when its class was another."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if is_metadata(function):
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        if _changes_nothing(function, args, kwargs or {}):
            return args[0]
        name = next(tensor.offloaded for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Unbound))
        raise RuntimeError(f"{name} is offloaded: only the forward of its block can use it; call the block, add the "
                           "module that uses it to blocks=, or use weightfs.offload.tensors() or restore(); an "
                           "autograd.Function keeps it by ctx.save_for_backward() alone")

    def __repr__(self):
        return f"<offloaded {self.offloaded}: {tuple(self.shape)}, {self.dtype}>"


class Placeholder(Unbound):
    """Takes the place of a tensor in its module while the tensor is not in memory. It has the shape, type, device and
    attributes, and no data."""

    @staticmethod
    def of(tensor, name, device):
        data = torch.empty((), dtype=tensor.dtype, device=device).expand(tensor.shape)
        made = torch.Tensor._make_subclass(Placeholder, data, tensor.requires_grad)
        vars(made).update(vars(tensor), _is_param=isinstance(tensor, torch.nn.Parameter), offloaded=name)
        return made

    trained = None   # (weightfs.offload._adam.Training, position in it), once it is trained

    @property
    def grad(self):
        return None if self.trained is None else self.trained[0].gradient(self.trained[1], self)

    @grad.setter
    def grad(self, value):
        if value is not None:
            raise RuntimeError(f"{self.offloaded} is offloaded: its gradient can be deleted, but not set")
        if self.trained is not None:
            self.trained[0].forget(self.trained[1])


def is_metadata(function):
    """True if a function of torch needs no data of its tensors."""
    kind = getattr(function, "__name__", "")
    if kind not in ("__get__", "__set__"):
        return kind in _METADATA
    attribute = getattr(function.__self__, "__name__", "")
    if kind == "__set__":
        return attribute in ("requires_grad", "grad")
    return attribute in _PROPERTIES or attribute.startswith("is_")


def _changes_nothing(function, args, kwargs):
    """True for module.to(device) of the device and type that the tensor has: it calls Tensor.to, and sets the data."""
    if getattr(function, "__name__", "") == "__set__":
        return getattr(function.__self__, "__name__", "") == "data" and args[1] is args[0]
    if function is not torch.Tensor.to:
        return False
    device, dtype, *_ = torch._C._nn._parse_to(*args[1:], **kwargs)
    return device in (None, args[0].device) and dtype in (None, args[0].dtype)


class Member:
    """A tensor of a module. `places` has (module, "_parameters" or "_buffers", attribute) for each use."""

    def __init__(self, names, tensor, places, device):
        self.names, self.places, self.tensor = names, places, tensor
        self.name, self.shape, self.dtype = names[0], tensor.shape, tensor.dtype
        self.nbytes = tensor.numel() * tensor.element_size()
        self.placeholder = Placeholder.of(tensor, self.name, device)

    @property
    def is_parameter(self):
        return self.places[0][1] == "_parameters"

    @property
    def bound(self):
        module, kind, attribute = self.places[0]
        return getattr(module, kind)[attribute]

    def attributes(self):
        """Those that the program has given the tensor."""
        return {name: value for name, value in vars(self.placeholder).items()
                if name not in ("_is_param", "offloaded", "trained")}

    def bind(self, tensor):
        for module, kind, attribute in self.places:
            getattr(module, kind)[attribute] = tensor
            if isinstance(module, torch.nn.RNNBase):
                module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]


class Layout:
    """Tensors one after the other in memory, from their (shape, dtype)."""

    def __init__(self, kinds):
        self._kinds, self.offsets, at = kinds, [], 0
        for shape, dtype in kinds:
            self.offsets.append(at)
            at += _padded(shape.numel() * dtype.itemsize, _ALIGNMENT)
        self.nbytes = max(_padded(at, PAGE), PAGE)

    def views(self, memory):
        """The tensors in `memory`, each with a version counter of its own."""
        with torch.inference_mode(False):
            return [memory[at:at + shape.numel() * dtype.itemsize].view(dtype).view(shape).data
                    for (shape, dtype), at in zip(self._kinds, self.offsets)]


class Group:
    """Tensors that are read and written together. `live` are those that the modules use now, None if they have the
    placeholders. It is the same list at each use, so that their gradients add up; only their data changes.
    uses: how many running stages need them. on_gradient: is called with the group when a parameter got a gradient."""

    def __init__(self, name, members):
        self.name, self.members, self.uses, self.live = name, members, 0, None
        self.on_gradient, self.tensors = lambda group: None, []
        self._versions, self.buffers = [], []   # of all tensors, and the bytes of the buffers, at the last comparison
        self._storage, self._uses_of_storage = None, 0   # of the tensors in memory, and how many use it at bind()
        self.layout = Layout([(member.shape, member.dtype) for member in members])
        self.entry = None       # of the tensors, in the cache
        self.training = None    # weightfs.offload._adam.Training

    @property
    def trainable(self):
        tensors = self.live or [member.placeholder for member in self.members]
        return [index for index, (member, tensor) in enumerate(zip(self.members, tensors))
                if member.is_parameter and tensor.requires_grad]

    def bind(self, memory):
        """Makes the modules use the tensors in the group's memory. They have a storage of their own."""
        with torch.inference_mode(False):
            memory = torch.from_dlpack(memory)
            views = self.layout.views(memory)
            if not self.tensors:
                self.tensors = [self._made(member, view) for member, view in zip(self.members, views)]
            for member, tensor in zip(self.members, self.tensors):
                tensor.__class__ = torch.nn.Parameter if member.is_parameter else torch.Tensor
                tensor.data = views.pop(0)
                if member.is_parameter:
                    tensor.requires_grad_(member.placeholder.requires_grad)
                member.bind(tensor)
        self._storage = memory.untyped_storage()
        del memory
        self._uses_of_storage = torch._C._storage_Use_Count(self._storage._cdata)
        self._remember(self.tensors)
        self.live = self.tensors   # last, so that unbind() after an interrupt does not compare

    def _made(self, member, view):
        if not member.is_parameter:
            made = view.detach()
        else:
            made = torch.nn.Parameter(view, view.is_floating_point() or view.is_complex())
            if made.requires_grad:
                group = weakref.ref(self)   # Python does not collect cycles through hooks
                made.register_post_accumulate_grad_hook(lambda _: group().on_gradient(group()))
        made.__dict__ = vars(member.placeholder)   # attributes of the program
        return made

    def unbind(self):
        self.live = self._storage = None
        for tensor in self.tensors:
            tensor.__class__ = Unbound
        for member in self.members:
            member.bind(member.placeholder)

    def is_kept(self):
        """True if the program keeps views of the tensors, or other tensors in their memory, since bind()."""
        def more():
            return torch._C._storage_Use_Count(self._storage._cdata) > self._uses_of_storage
        return more() and bool(gc.collect() + 1) and more()   # what is left in cycles of Python is not kept

    def changed(self):
        """True if the program has changed a tensor since the last call. A buffer that was replaced is copied."""
        for member, tensor in zip(self.members, self.live):
            now = member.bound
            if now is not tensor:
                member.bind(tensor)
                if now is None or (now.shape, now.dtype) != (tensor.shape, tensor.dtype):
                    raise RuntimeError(f"{member.name} was replaced by a tensor of another shape or type in the forward "
                                       "of its block: an offloaded module cannot keep it")
                with torch.no_grad():
                    tensor.copy_(now)
        # Not all changes of a buffer count in its version: those through .data and of batch_norm do not.
        if self._versions == [_version(tensor) for tensor in self.live] and all(
                map(torch.equal, self._buffers(self.live), self.buffers)):
            return False
        self._remember(self.live)
        return True

    def undo(self):
        """Gives the buffers the content that they had at bind() or the last changed(). RuntimeError if a parameter has
        changed since."""
        for member, tensor in zip(self.members, self.live):
            if member.bound is not tensor:
                member.bind(tensor)
        self.set_buffers(self.buffers)
        versions, self._versions = self._versions, [_version(tensor) for tensor in self.live]
        for member, before, now in zip(self.members, versions, self._versions):
            if member.is_parameter and before != now:
                raise RuntimeError(f"the forward of its block changes {member.name}, and the backward, which runs the "
                                   "forward again, has changed it once more: change it outside the forward")

    def updated(self, indices):
        """The optimizer has changed parameters in memory: what autograd has saved of them outside a block is outdated.
        """
        if self.live is not None:
            for index in indices:
                torch.autograd.graph.increment_version(self.live[index])
            self._versions = [_version(tensor) for tensor in self.live]

    def set_buffers(self, content):
        for memory, before in zip(self._buffers(self.live), content):
            if not torch.equal(memory, before):
                memory.copy_(before)

    def _remember(self, tensors):
        self._versions = [_version(tensor) for tensor in tensors]
        self.buffers = [memory.clone() for memory in self._buffers(tensors)]

    def _buffers(self, tensors):
        """The bytes of the buffers, because torch does not compare all types. Their changes count in no version."""
        return [tensor.data.reshape(-1).view(torch.uint8)
                for member, tensor in zip(self.members, tensors) if not member.is_parameter]


def _padded(nbytes, alignment):
    return -(-nbytes // alignment) * alignment


def _version(tensor):
    """Changes if the program changes the tensor, or what is done to its gradient."""
    return tensor._version, len(tensor._backward_hooks or ())


def plan(module, blocks, device):
    """Returns (groups, stages). A stage is (submodule, its groups): the submodule needs them while it runs. The first
    group has the tensors that always stay in memory.

    Raises:
        ValueError: a block is no part of the module, two blocks overlap, tensors share a part of their memory, or
            modules or tensors of a kind that is not supported."""
    stages = _stages(module, _chosen(module, blocks))
    indices = {id(submodule): index for index, (_, submodule) in enumerate(stages)}
    found = {}    # path of a submodule -> index of the stage that it is part of, or -1
    uses = {}     # id of a tensor -> (tensor, names, places, indices of stages; -1: always in memory)
    for path, owner in module.named_modules(remove_duplicate=False):
        found[path] = index = indices.get(id(owner), found.get(path.rpartition(".")[0], -1))
        for kind in ("_parameters", "_buffers"):
            for attribute, tensor in getattr(owner, kind).items():
                if tensor is not None:
                    _, names, places, users = uses.setdefault(id(tensor), (tensor, [], [], set()))
                    names.append(f"{path}.{attribute}".lstrip("."))
                    users.add(index)
                    if (owner, kind, attribute) not in places:
                        places.append((owner, kind, attribute))
    _refuse_unsupported(module, uses.values())
    _refuse_partial_sharing(uses.values())
    own, shared, resident = [[] for _ in stages], [], []
    for tensor, names, places, users in uses.values():
        member = Member(names, tensor, places, device)
        if users == {-1} or -1 in users or len(users) > 1 and member.nbytes < _RESIDENT:
            resident.append(member)
        elif len(users) > 1:
            shared.append((Group(f"shared.{member.name}", [member]), users))
        else:
            own[next(iter(users))].append(member)
    groups, made = [Group("resident", resident)], []
    for index, ((name, submodule), members) in enumerate(zip(stages, own)):
        needed = [group for group, users in shared if index in users]
        if members:
            needed.insert(0, Group(f"block.{name}", members))
            groups.append(needed[0])
        if needed:
            made.append((submodule, needed))
    return groups + [group for group, _ in shared], made


def _chosen(module, blocks):
    """The paths of the blocks, given as modules or paths, or found."""
    paths = {id(submodule): path for path, submodule in module.named_modules()}
    if blocks is None:
        lists = [found for found in module.modules()
                 if isinstance(found, (torch.nn.ModuleList, torch.nn.Sequential)) and len(found) > 1]
        best = max(lists, key=_divided, default=None)
        return list(dict.fromkeys(paths[id(child)] for child in _callable(module.children() if best is None else best)))
    chosen = []
    for block in blocks:
        path = block if isinstance(block, str) else paths.get(id(block))
        if path is None or path not in paths.values():
            raise ValueError(f"blocks has {block!r}: it is no part of the module")
        if any(_is_within(path, other) or _is_within(other, path) for other in chosen):
            raise ValueError(f"blocks has {path!r}, which overlaps with another block")
        chosen.append(path)
    return chosen


def _callable(modules):
    """The modules, and the elements of those that are lists, which have no forward."""
    for module in modules:
        if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            yield from _callable(module.children())
        else:
            yield module


def _divided(modules):
    """How many bytes of a list are outside its largest element."""
    sizes = [_bytes_of(module) for module in modules]
    return sum(sizes) - max(sizes)


def _bytes_of(module):
    return sum(tensor.numel() * tensor.element_size() for tensor in [*module.parameters(), *module.buffers()])


def _is_within(path, parent):
    return path == parent or path.startswith(f"{parent}.") or not parent


def _stages(module, blocks):
    """(path, submodule) of the blocks and of the largest submodules beside them that are called as a whole."""
    found = []

    def visit(path, submodule):
        holds_blocks = any(_is_within(block, path) for block in blocks)
        if any(submodule is other for _, other in found):
            return
        if path in blocks:
            found.append((path, submodule))
        elif holds_blocks or isinstance(submodule, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            for name, child in submodule.named_children():
                visit(f"{path}.{name}".lstrip("."), child)
        elif _bytes_of(submodule) >= _RESIDENT and not isinstance(
                submodule, (torch.nn.ParameterList, torch.nn.ParameterDict)):
            found.append((path, submodule))

    visit("", module)
    return found


def _refuse_unsupported(module, uses):
    for path, submodule in module.named_modules():
        compiled = type(submodule).__name__ == "OptimizedModule" or getattr(submodule, "_compiled_call_impl", None)
        if compiled or isinstance(submodule, torch.jit.ScriptModule):
            raise ValueError(f"{path or 'the module'} is compiled: offload the module that it was made of")
    for tensor, (name, *_), _, _ in uses:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise ValueError(f"{name} is a {type(tensor).__name__}: only ordinary tensors can be offloaded")
        if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
            raise ValueError(f"{name} has a hook, which would not be called, because the block uses another Parameter: "
                             "remove it, and change gradients by hooks of the modules")


def _refuse_partial_sharing(uses):
    tensors = {names[0]: tensor for tensor, names, _, _ in uses}
    for names in _shared.groups(tensors):
        if len(names) > 1:
            raise ValueError(f"{', '.join(sorted(names))} share memory without being one tensor: assign the same "
                             "Parameter to all of them, or clone them, before offload()")
