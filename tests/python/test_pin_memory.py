# SPDX-License-Identifier: Apache-2.0
"""Locked memory through DeepSpeed's module pin_memory."""

import torch

import weightfs
from weightfs import deepnvme


def test_locked_memory_is_known_to_every_handle_of_the_process(handle):
    builder = deepnvme.PinMemoryBuilder()
    assert builder.is_compatible(verbose=True) and builder.NAME == "pin_memory"
    pinned = builder.load().pin_handle()
    example = torch.empty(0, dtype=torch.float)
    tensor = pinned.new_cpu_locked_tensor(num_elem=4096, example_tensor=example)
    for one in (pinned, handle):
        assert one.is_pinned(tensor) and one.is_pinned(tensor.narrow(0, 16, 16))
        assert not one.is_pinned(torch.empty(4096))
    theirs = handle.new_cpu_locked_tensor(4096, example)
    assert pinned.is_pinned(theirs)
    assert pinned.free_cpu_locked_tensor(locked_tensor=tensor) is True
    assert pinned.free_cpu_locked_tensor(tensor) is False
    assert not handle.is_pinned(tensor)
    assert pinned.free_cpu_locked_tensor_by_ptr(address=theirs.data_ptr()) is True
    for nothing in (theirs.data_ptr(), 0, -1, 2 ** 70):
        assert pinned.free_cpu_locked_tensor_by_ptr(nothing) is False
    assert not weightfs.is_pinned(theirs)
    theirs.fill_(1)   # the memory belongs to the tensors
