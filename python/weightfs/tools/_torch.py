# SPDX-License-Identifier: Apache-2.0
"""Imports torch for the programs that need it. Without torch, they end with a line that says how to install it."""

try:
    from weightfs._core.torch import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise SystemExit("weightfs-io, weightfs-tune, weightfs-checkpoint and weightfs-loads need torch: "
                     "pip install torch") from None
