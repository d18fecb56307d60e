# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of stores and mounts."""

import pytest

from store_files import filled_store


@pytest.fixture
def store(factory):
    """An unmounted store with one file. A module may override this fixture."""
    return filled_store(factory)
