# SPDX-License-Identifier: Apache-2.0
"""The progress bar of long commands: shown only on a terminal, within its width, and erased at the end."""

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import termios

import pytest

from harness import process
from harness.filesystems import program

pytestmark = pytest.mark.usefixtures("weightfs_only")

ERASE = "\r\x1b[K"


def on_a_terminal(columns, *words, codes=(0,), **environment):
    """The lines that the program draws on a terminal of that width, in order."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    running = subprocess.Popen([program(), *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=slave, env={**os.environ, "TERM": "xterm", **environment})
    os.close(slave)
    drawn = b""
    try:
        while piece := os.read(master, 65536):
            drawn += piece
    except OSError:
        pass   # EIO: the last writer has closed it
    finally:
        os.close(master)
    process.finish(running, codes=codes)
    return drawn.decode()


def lines(drawn):
    assert drawn.startswith(ERASE) and drawn.endswith(ERASE), repr(drawn)
    return drawn.split(ERASE)[1:-1]


@pytest.mark.parametrize("columns", [120, 80, 40, 20])
def test_format_and_verify_draw_one_line_within_the_terminal(factory, columns):
    store = factory.directory("parent") / "store"
    drawn = lines(on_a_terminal(columns, "format", store, "--size", "256M"))
    assert all(len(line) < columns and "\n" not in line and "\x1b" not in line for line in drawn), drawn
    assert re.search(r"\b\d+%", drawn[0])
    if columns >= 80:
        assert re.match(r"format: writing zeros \[[#.]+\] +\d+%  .* of 256\.0 MiB", drawn[0]), drawn[0]
    checked = lines(on_a_terminal(columns, "verify", store))
    assert all(len(line) < columns for line in checked), checked
    assert checked[0].startswith("verify 1/2")


def test_a_data_check_shows_bytes_of_bytes(factory):
    mount = factory.mount(factory.store("256M"))
    (mount.path / "file").write_bytes(os.urandom(64 << 20))
    mount.umount()
    drawn = lines(on_a_terminal(120, "verify", mount.store.directory))
    data = [line for line in drawn if line.startswith("verify 2/2: data [")]
    assert data and "of 64.0 MiB" in data[0], drawn


def test_a_mount_shows_that_it_rebuilds_the_index(factory):
    mount = factory.mount(factory.store("64M"))
    mount.umount()
    assert "rebuilding" not in on_a_terminal(120, *mount.command("")[1:])
    mount.umount()
    shutil.rmtree(mount.store.directory / "meta")
    drawn = on_a_terminal(120, *mount.command("")[1:])
    assert re.search(r"mount: rebuilding the index \[[#.]+\] +\d+%", drawn), drawn
    assert drawn.endswith(ERASE) or drawn.splitlines()[-1].startswith("weightfs: "), repr(drawn)
    mount.umount()


def test_a_dumb_terminal_and_a_pipe_get_no_bar(factory):
    parent = factory.directory("parent")
    assert on_a_terminal(80, "format", parent / "dumb", "--size", "64M", TERM="dumb") == ""
    assert process.run([program(), "format", parent / "piped", "--size", "64M"]).err == ""
