# SPDX-License-Identifier: Apache-2.0
"""What the other parts of the package are made of. It knows none of them."""
