# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of stores and mounts."""

import pytest

from store_files import filled_store


@pytest.fixture
def store(factory):
    """A store that is not mounted, with one file in it. A module may have another one under this name."""
    return filled_store(factory)
