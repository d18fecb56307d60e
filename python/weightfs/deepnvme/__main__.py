# SPDX-License-Identifier: Apache-2.0
import sys

from weightfs.deepnvme._deepspeed import main

sys.exit(main(sys.argv[1:]))
