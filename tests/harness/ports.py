# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that must be given one."""

import random
import socket
from pathlib import Path


def free_port():
    """A TCP port of this machine that no program has now. The kernel gives it to none that does not choose one, so
    that it stays free until the server takes it."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(end // 2, end)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
