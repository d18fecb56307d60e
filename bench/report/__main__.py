# SPDX-License-Identifier: Apache-2.0
"""The program behind scripts/report: python bench/report DIR --program build/release/bin/weightfs"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

try:
    from report.main import main
except ModuleNotFoundError as error:
    sys.exit(f"report: needs the Python package {error.name}; scripts/report installs it, or says why it cannot")

sys.exit(main())
