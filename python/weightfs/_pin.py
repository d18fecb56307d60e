# SPDX-License-Identifier: Apache-2.0
"""Locked memory without an I/O handle: the interface of DeepSpeed's module pin_memory."""

import operator

from weightfs import _native
from weightfs._handle import is_pinned, unlock
from weightfs._locked import new_like


class pin_handle:  # noqa: N801  (DeepSpeed's name)
    """Manages locked tensors. They belong to the process: every handle recognizes them."""

    def new_cpu_locked_tensor(self, num_elem, example_tensor):
        """Returns a 1-D tensor of the example's type (an array, for an array) in page-aligned, locked memory."""
        return new_like(num_elem, example_tensor)

    def free_cpu_locked_tensor(self, locked_tensor):
        """Unlocks the memory of a locked tensor. Returns False for other tensors. The memory is freed with the last
        tensor that uses it."""
        return unlock(locked_tensor)

    def free_cpu_locked_tensor_by_ptr(self, address):
        """Unlocks memory by the address at which it begins."""
        number = operator.index(address)
        return 0 <= number < 1 << 64 and _native.unlock(number)

    def is_pinned(self, buffer):
        """True if torch pinned the tensor, or if it is in locked memory of this process. Views count too."""
        return is_pinned(buffer)
