# SPDX-License-Identifier: Apache-2.0
"""The tables of bench/growth.py."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.filesystems import program

GROWTH = Path(__file__).resolve().parents[2] / "bench/growth.py"


@pytest.mark.limit(360)
def test_every_table_has_a_row_for_each_size(tmp_path, request):
    """All tables with --full, otherwise two."""
    full = request.config.getoption("full")
    only = [] if full else ["--only", "names", "devices"]
    words = [tmp_path, "--program", program(), "--scale", "0.002", "--json", *only]
    made = subprocess.run([sys.executable, GROWTH, *words],
                          check=True, capture_output=True, text=True, timeout=300)
    tables = json.loads(made.stdout)
    expected = {
        "files": ["20", "200", "2000"], "extents": ["20", "200", "2000"], "names": ["20", "200", "2000"],
        "devices": ["1"], "programs": ["1"]}
    assert {name: list(rows) for name, rows in tables.items()} == {
        name: rows for name, rows in expected.items() if full or name in only}
    assert all(row["memory"] > 0 for rows in tables.values() for row in rows.values())
    assert not list(tmp_path.iterdir())
