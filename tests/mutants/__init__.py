# SPDX-License-Identifier: Apache-2.0
"""The mutants of scripts/mutants."""
