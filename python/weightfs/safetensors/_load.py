# SPDX-License-Identifier: Apache-2.0
"""load_file and load_model."""

from weightfs import _shared_tensors
from weightfs.safetensors._files import Shard, device_of, handle_for, view


def load_file(filename, device="cpu", *, handle=None):
    """Returns a dict of names and tensors on the CPU or a GPU ("cuda:0"). All of them are views of one allocation,
    which is filled by one read. ValueError if the file is not in the safetensors format."""
    device = device_of(device)
    with Shard(filename) as shard, handle_for(handle, device) as used:
        memory = shard.read(used, device, 0, shard.size)
        return {name: view(memory, facts) for name, facts in shard.tensors.items()}


def load_model(model, filename, strict=True, device="cpu", *, handle=None):
    """Loads a file of save_model into a torch.nn.Module of the same layout, as safetensors.torch.load_model does.

    Args:
        strict: RuntimeError if the file lacks a tensor of the model, or has one that the model does not have.
        device, handle: as in load_file.

    Returns:
        (missing, unexpected): the names that the file lacks, and the names that the model does not have."""
    loaded = load_file(filename, device, handle=handle)
    tied = _shared_tensors.duplicates(model.state_dict(), preferred=loaded)
    missing, unexpected = model.load_state_dict(loaded, strict=False)
    missing = set(missing)
    for name in (name for others in tied.values() for name in others):
        # The file need not contain it: it is filled through the tensor that it shares memory with.
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                quoted = ", ".join(f'"{name}"' for name in sorted(names))
                lines.append(f"    {what} key(s) in state_dict: {quoted}")
        raise RuntimeError("\n".join(lines))
    return missing, unexpected

