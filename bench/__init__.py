# SPDX-License-Identifier: Apache-2.0
"""Measurements of weightfs: `weightfs bench`, and what the package's other programs share with it. It needs no
packages, and is installed beside the program (as `bench`) and with the Python package (as `weightfs.bench`)."""
