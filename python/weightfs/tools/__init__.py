# SPDX-License-Identifier: Apache-2.0
"""The package's programs: weightfs-io, weightfs-tune, weightfs-checkpoint and the benchmark of HDF5's drivers."""
