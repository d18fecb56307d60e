# SPDX-License-Identifier: Apache-2.0
"""A store on GlusterFS that a second machine takes over: what was synced is there, and the first machine, when it comes
back, writes nothing. Each scenario runs in namespaces of its own, with a server and two clients."""

import sys
from pathlib import Path

import pytest

from distributed.takeover import SCENARIOS
from harness import needs, process

pytestmark = [needs.root, needs.program("glusterd", "glusterfs", "gluster"),
              needs.program("ip", "unshare", "nsenter"), pytest.mark.usefixtures("weightfs_only"), pytest.mark.limit(180)]
IN_NAMESPACES = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.mark.parametrize("scenario", [scenario.__name__ for scenario in SCENARIOS])
def test_takeover(local, scenario):
    script = Path(__file__).with_name("takeover.py")
    print(process.run([*IN_NAMESPACES, sys.executable, script, scenario, local], limit=150).out)
