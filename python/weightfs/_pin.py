# SPDX-License-Identifier: Apache-2.0
"""Locked memory without a handle for files: what DeepSpeed's module pin_memory offers."""

import operator

from weightfs import _native
from weightfs._handle import is_pinned, unlock
from weightfs._locked import new_like


class pin_handle:  # noqa: N801  (DeepSpeed's name)
    """Locked tensors. They are those of the process: every handle knows them."""

    def new_cpu_locked_tensor(self, num_elem, example_tensor):
        """A 1-D tensor (an array, for an array) of the example's type in page-aligned memory that is locked in RAM."""
        return new_like(num_elem, example_tensor)

    def free_cpu_locked_tensor(self, locked_tensor):
        """Unlocks the memory of such a tensor; False when it is none. The memory itself goes with the last tensor that
        uses it."""
        return unlock(locked_tensor)

    def free_cpu_locked_tensor_by_ptr(self, address):
        """The same by the address at which the memory begins."""
        number = operator.index(address)
        return 0 <= number < 1 << 64 and _native.unlock(number)

    def is_pinned(self, buffer):
        """Whether torch pinned it, or it lies (a view, too) in locked memory of this process."""
        return is_pinned(buffer)
