# SPDX-License-Identifier: Apache-2.0
"""load_file, load and load_model."""

from weightfs import _native, _shared_tensors
from weightfs._memory import describe
from weightfs._stream import chosen
from weightfs.safetensors._files import device_of
from weightfs.safetensors._format import read_header
from weightfs.safetensors._memory import memory_for
from weightfs.safetensors._open import SafeOpen


def load_file(filename, device="cpu", *, backend="mmap", handle=None, direct="auto"):
    """Returns a dict of names and tensors on the CPU or a GPU ("cuda:0"). Each tensor has a storage of its own. On the
    CPU one read fills the memory of all of them; each that is freed gives its pages back.

    Args:
        filename: a file, or several as in open().
        device, backend, handle: as in open().
        direct: as in weightfs.torch.save.

    Raises:
        SafetensorError, OSError: as open()."""
    with SafeOpen(filename, "pt", device, backend=backend, handle=chosen(handle, direct)) as model:
        return model.get_tensors()


def load(data):
    """Like load_file, from the bytes of a file, on the CPU."""
    content = memoryview(data).cast("B")
    tensors, _, begin, size = read_header("the bytes", content.nbytes,
                                          lambda length, offset: bytes(content[offset:offset + length]))
    memory = memory_for(device_of("cpu"), size, begin)
    _native.copy(describe(memory.target).arguments, describe(content[begin:]).arguments)
    return memory.tensors(tensors)


def load_model(model, filename, strict=True, device="cpu", *, backend="mmap", handle=None, direct="auto"):
    """Loads a file of save_model into a torch.nn.Module of the same layout, as safetensors.torch.load_model does.

    Args:
        strict: RuntimeError if the file lacks a tensor of the model, or has one that the model does not have.
        device, backend, handle, direct: as in load_file.

    Returns:
        (missing, unexpected): the names that the file lacks, and the names that the model does not have."""
    loaded = load_file(filename, device, backend=backend, handle=handle, direct=direct)
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
