# SPDX-License-Identifier: Apache-2.0
"""Shared code of the mount tests: filesystems under test, processes with time limits, other users, system calls."""
