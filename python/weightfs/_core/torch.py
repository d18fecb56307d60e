# SPDX-License-Identifier: Apache-2.0
"""Imports torch for the modules that need it. Without torch, the error says how to install it."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("this part of weightfs needs torch, which is not installed: pip install torch",
                              name="torch") from None
