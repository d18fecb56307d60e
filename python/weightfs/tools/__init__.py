# SPDX-License-Identifier: Apache-2.0
"""The package's programs: weightfs-io and weightfs-tune."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise SystemExit("weightfs-io and weightfs-tune need torch: pip install torch")
