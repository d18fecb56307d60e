# SPDX-License-Identifier: Apache-2.0
"""save_file, save and save_model."""

import torch

from weightfs import _shared_tensors
from weightfs._arguments import items_of
from weightfs._replace import writing
from weightfs._stream import bytes_of, chosen
from weightfs.safetensors._errors import SafetensorValueError
from weightfs.safetensors._format import layout


def save_file(tensors, filename, metadata=None, *, handle=None, durable=False, atomic=True, align=None, direct="auto"):
    """Saves CPU or GPU tensors in a file in the safetensors format.

    Args:
        tensors: a dict of names and tensors. A tensor that is not contiguous is saved in row-major order;
            safetensors.torch refuses it.
        filename: the path of the file.
        metadata: a dict of strings, kept in the file's header.
        handle, direct, durable, atomic: as in weightfs.torch.save.
        align: a power of two from 8 to 1 MiB: the data of the first tensor begins at a multiple of it in the file.
            4096 lets programs that map or read whole blocks do without a copy. Without it, the bytes of the file are
            those of safetensors.torch.save_file.

    Raises:
        RuntimeError: tensors share memory, by the rule and with the text of safetensors.torch.save_file.
            save_model saves the tied weights of a model once.
        TypeError, ValueError: an argument that the format cannot store.
        OSError: the file cannot be written, also to another filesystem with direct="require"."""
    write_file(*_checked(tensors), filename, metadata, chosen(handle, direct), durable, atomic, align)


def save(tensors, metadata=None):
    """Returns the bytes of the file that save_file writes."""
    return join(*_checked(tensors), metadata)


def write_file(tensors, facts, filename, metadata, handle, durable, atomic, align):
    """Writes tensors or arrays; facts: name -> (dtype, shape), as of torch. The other arguments: save_file."""
    header, places = layout(facts, metadata, align)
    with writing(filename, handle, durable, atomic) as stream:
        stream.write(header)
        for name, (begin, end) in places.items():
            stream.write_tensor(tensors[name], end - begin)


def join(tensors, facts, metadata):
    """The bytes of a file with tensors or arrays."""
    header, places = layout(facts, metadata, None)
    return b"".join([header, *(bytes_of(tensors[name], end - begin) for name, (begin, end) in places.items())])


def save_model(model, filename, metadata=None, force_contiguous=True, *, handle=None, durable=False, atomic=True,
               align=None, direct="auto"):
    """Saves the tensors of a torch.nn.Module as safetensors.torch.save_model does. Of the tensors that share memory
    (tied weights) only one is saved; the metadata maps the other names to its name.

    Args:
        force_contiguous: ignored, because save_file accepts tensors of any layout.

    The other arguments and the errors are those of save_file. Also raises RuntimeError if none of the tensors that
    share memory covers all of it."""
    tensors, metadata = model.state_dict(), dict(items_of({} if metadata is None else metadata))
    for kept, others in _shared_tensors.duplicates(tensors).items():
        for name in others:
            metadata.setdefault(name, kept)
            del tensors[name]
    save_file(tensors, filename, metadata or None, handle=handle, durable=durable, atomic=atomic, align=align,
              direct=direct)


def _checked(tensors):
    """Returns (name -> tensor, name -> (dtype, shape))."""
    if not hasattr(tensors, "items"):
        raise SafetensorValueError(f"expected a dict of names and tensors, not {type(tensors).__name__}")
    tensors = dict(tensors.items())
    for name, tensor in tensors.items():
        check_tensor(name, tensor)
    _shared_tensors.refuse_shared(tensors)
    return ({name: tensor.detach() for name, tensor in tensors.items()},
            {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()})


def check_tensor(name, tensor):
    """TypeError or ValueError for anything but a dense tensor of the CPU or a CUDA GPU."""
    if not isinstance(name, str):
        raise TypeError(f"names of tensors are strings, not {name!r}")
    if not isinstance(tensor, torch.Tensor):
        raise SafetensorValueError(f"a dict of names and tensors is needed; it has {name!r}: {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} has the layout {tensor.layout}: only dense tensors can be saved; "
                         "make it one with .to_dense()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {tensor.device}: only tensors of the CPU and of CUDA GPUs can be saved")
