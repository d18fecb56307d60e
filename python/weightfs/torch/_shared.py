# SPDX-License-Identifier: Apache-2.0
"""Finds tensors of a dict that share memory, by the rule of safetensors.torch, so that a save is refused in the same
cases."""

import torch

_REFUSAL = """
            Some tensors share memory, this will lead to duplicate memory on disk and potential differences when loading them again: {}.
            A potential way to correctly save your model is to use `save_model`.
            More information at https://huggingface.co/docs/safetensors/torch_shared_tensors
            """  # noqa: E501  (programs that know it from safetensors may look for this very text)


def refuse_shared(tensors):
    """Raises RuntimeError, with the text of safetensors.torch.save_file, if tensors share memory."""
    shared = [names for names in groups(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(_REFUSAL.format(shared))


def groups(tensors):
    """Returns sets of names; the tensors of a set share memory. Only tensors of one storage are compared; adjacent
    tensors do not share memory. Tensors without memory are in no set."""
    by_storage = {}
    for name, tensor in tensors.items():
        storage = _storage_of(tensor)
        if storage is not None:
            by_storage.setdefault(storage, []).append(name)
    return [group for names in by_storage.values() for group in _overlapping(names, tensors)]


def duplicates(tensors, preferred=()):
    """For each set of tensors that share memory, maps the name that is kept to the sorted other names. The kept tensor
    must cover its whole storage; if several do, names in `preferred` come first, then the alphabetical order.
    RuntimeError if no tensor covers the storage."""
    found = {}
    for names in groups(tensors):
        whole = {name for name in names if _has_all_of_its_storage(tensors[name])}
        if not whole:
            raise RuntimeError(f"none of the tensors {sorted(names)} covers the whole storage that it shares: saving "
                               "one of them would lose the rest; save a copy of each (tensor.clone())")
        kept = min(whole & set(preferred) or whole)
        if len(names) > 1:
            found[kept] = sorted(names - {kept})
    return found


def _storage_of(tensor):
    """(device, address, size) of the tensor's storage; None if it has no memory."""
    if tensor.device.type == "meta":
        return None
    storage = tensor.untyped_storage()
    if storage.data_ptr() == 0 or storage.nbytes() == 0:
        return None
    return tensor.device, storage.data_ptr(), storage.nbytes()


def _overlapping(names, tensors):
    """The names in sets, by address: a tensor that begins before the previous one ended belongs to the same set."""
    areas = sorted((*_area_of(tensors[name]), name) for name in names)
    sets, last_end = [], 0
    for begin, end, name in areas:
        if sets and begin < last_end:
            sets[-1].add(name)
        else:
            sets.append({name})
        last_end = end
    return sets


def _area_of(tensor):
    """(address of the first element, address after the last one)"""
    begin = tensor.data_ptr()
    if tensor.numel() == 0:
        return begin, begin
    last = sum((count - 1) * step for count, step in zip(tensor.shape, tensor.stride()))
    return begin, begin + (last + 1) * tensor.element_size()


def _has_all_of_its_storage(tensor: torch.Tensor):
    storage = tensor.untyped_storage()
    return (tensor.data_ptr(), tensor.numel() * tensor.element_size()) == (storage.data_ptr(), storage.nbytes())
