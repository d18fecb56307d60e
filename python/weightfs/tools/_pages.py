# SPDX-License-Identifier: Apache-2.0
"""The page cache in measurements of reads."""

import os


def drop_pages(path):
    """Writes the file to the device, and drops it from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
