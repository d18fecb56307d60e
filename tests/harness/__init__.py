# SPDX-License-Identifier: Apache-2.0
"""What the tests of the mount share: filesystems under test, processes with time limits, other users, system calls."""
