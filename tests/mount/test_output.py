# SPDX-License-Identifier: Apache-2.0
"""Output that cannot be written is an error, but does not stop the command's work."""

import os
import pty
import subprocess

import pytest

from harness import process
from harness.filesystems import program

pytestmark = pytest.mark.usefixtures("weightfs_only")

FSCK_ERROR = 8


def run_into(path, *words, **streams):
    with open(path, "wb") as out:
        return subprocess.run([program(), *map(str, words)], stdout=out, stderr=subprocess.PIPE, text=True, check=False,
                              **streams)


@pytest.mark.parametrize("words, code", [(["info"], 1), (["info", "--json"], 1), (["verify", "--catalog"], FSCK_ERROR),
                                         (["verify", "--catalog", "--json"], FSCK_ERROR)], ids=lambda words: str(words))
def test_a_report_on_a_full_device_is_a_failure(factory, words, code):
    finished = run_into("/dev/full", *words, factory.store("32M").directory)
    assert finished.returncode == code and finished.stderr.count("\n") == 1
    assert finished.stderr.startswith("weightfs: standard output: cannot be written: No space left")


@pytest.mark.parametrize("words", [["doctor", "--json"], ["bench", "--list"], ["bench", "--list", "--json"], ["--help"]],
                         ids=" ".join)
def test_a_list_on_a_full_device_is_a_failure(words):
    finished = run_into("/dev/full", *words)
    assert finished.returncode == 1 and finished.stderr.startswith("weightfs: standard output: cannot be written")


def test_a_store_is_whole_though_its_description_could_not_be_written(factory):
    store = factory.directory("parent") / "store"
    assert run_into("/dev/full", "format", store, "--size", "32M", "--json").returncode == 1
    process.run([program(), "verify", "--catalog", store])


def test_closed_streams_are_not_written_to(factory):
    """A pool that is opened must not become standard output."""
    store = factory.directory("parent") / "store"
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", program()]
    process.run([*closed, "format", store, "--size", "32M"], codes=(1,))
    process.run([program(), "verify", "--catalog", store])
    process.run([*closed, "info", "/nonexistent"], codes=(1,))


def test_a_terminal_that_goes_away_does_not_end_the_command(factory):
    store = factory.directory("parent") / "store"
    master, slave = pty.openpty()
    running = subprocess.Popen([program(), "format", store, "--size", "512M"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=slave, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    os.read(master, 1)   # wait until the bar is drawn
    os.close(master)
    process.finish(running, limit=110)
    process.run([program(), "verify", "--catalog", store])


@pytest.mark.parametrize("words", [["umount", ""], ["mount", "", "/mnt"], ["mount", "/", ""], ["recover", ""],
                                   ["verify", "", "--repair"], ["format", "--device", "", "--size", "16M"]], ids=str)
def test_an_empty_name_is_an_error_of_one_line(words):
    finished = process.run([program(), *words], codes=(1, 2, 8))
    assert finished.err.count("\n") == 1


def test_a_removed_working_directory(tmp_path):
    command = f'cd "{tmp_path}" && mkdir gone && cd gone && rmdir ../gone && exec "{program()}" umount x'
    assert process.run(["sh", "-c", command], codes=(1,)).err.count("\n") == 1
