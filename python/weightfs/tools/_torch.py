# SPDX-License-Identifier: Apache-2.0
"""Imports torch for weightfs-io and weightfs-tune. Without torch, they end with a line that says how to install it."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise SystemExit("weightfs-io and weightfs-tune need torch: pip install torch") from None
