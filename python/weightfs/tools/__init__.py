# SPDX-License-Identifier: Apache-2.0
"""The package's programs: weightfs-io, weightfs-tune and weightfs-checkpoint."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise SystemExit("weightfs-io, weightfs-tune and weightfs-checkpoint need torch: pip install torch")
