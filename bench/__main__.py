# SPDX-License-Identifier: Apache-2.0
"""`weightfs bench` runs this directory: python3 -I bench PROGRAM ARGUMENT…"""

import os
import sys

# The directory itself is not searched: its modules are those of a package.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True   # it may be in /usr

from bench.main import main  # noqa: E402

sys.exit(main(sys.argv[1], sys.argv[2:]))
