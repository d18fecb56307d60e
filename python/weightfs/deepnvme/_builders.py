# SPDX-License-Identifier: Apache-2.0
"""The builders in place of those of deepspeed.ops.op_builder. There is nothing to build."""

import importlib
import sys

from weightfs.deepnvme._handles import aio_handle, gds_handle


class AsyncIOBuilder:
    """DeepSpeed's builder of the asynchronous I/O module."""

    BUILD_VAR, NAME, _KIND = "DS_BUILD_AIO", "async_io", aio_handle

    @property
    def name(self):
        return self.NAME

    def absolute_name(self):
        return __package__

    def is_compatible(self, verbose=False):
        """True if a handle can be created here. If `verbose`, prints the reason otherwise."""
        try:
            self._KIND(queue_depth=1).close()
        except (RuntimeError, OSError) as error:
            if verbose:
                print(f"weightfs: {self.NAME} cannot be used: {getattr(error, 'strerror', error)}", file=sys.stderr)
            return False
        return True

    def load(self, verbose=True):
        return importlib.import_module(__package__)

    def jit_load(self, verbose=True):
        return self.load(verbose)

    def builder(self):
        return self


class PinMemoryBuilder(AsyncIOBuilder):
    """DeepSpeed's builder for locked memory without I/O."""

    BUILD_VAR, NAME = "DS_BUILD_PIN_MEMORY", "pin_memory"

    def is_compatible(self, verbose=False):
        return True


class GDSBuilder(AsyncIOBuilder):
    """DeepSpeed's builder for GPUDirect Storage; not compatible without a GPU."""

    BUILD_VAR, NAME, _KIND = "DS_BUILD_GDS", "gds", gds_handle

    def load(self, verbose=True):
        """Returns the module. RuntimeError without a GPU."""
        gds_handle(queue_depth=1).close()
        return super().load(verbose)
