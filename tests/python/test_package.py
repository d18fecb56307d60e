# SPDX-License-Identifier: Apache-2.0
"""The installed package as pip sees it."""

from importlib import metadata

import pytest


def test_the_package_carries_license_and_notice():
    try:
        package = metadata.distribution("weightfs")
    except metadata.PackageNotFoundError:
        pytest.skip("weightfs comes from PYTHONPATH; a package that pip installed has metadata")
    assert package.metadata["License-Expression"] == "Apache-2.0"
    texts = {file.name: file.read_text(encoding="utf-8") for file in package.files if "licenses" in file.parts}
    assert "Version 2.0, January 2004" in texts["LICENSE"] and "Apache License, Version 2.0" in texts["NOTICE"]
