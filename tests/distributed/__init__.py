# SPDX-License-Identifier: Apache-2.0
"""A store on a distributed filesystem, and machines that take it over from each other."""
