# SPDX-License-Identifier: Apache-2.0
"""weightfs.s3 with a program that leaves another process running, which has inherited its standard error."""

import concurrent.futures
import json
import os
import shlex

import pytest

from harness.process import kill, wait_gone
from weightfs import s3

URL = "s3://bucket/run"
LIMIT_S = 60
PUSHED = {"path": "", "url": f"{URL}/5", "version": 5, "files": 1, "bytes": 2, "sent_bytes": 2, "existed": False}


@pytest.fixture
def program(local):
    """Makes a program that starts a process and then runs shell commands."""
    path, left = local / "program", local / "left"

    def make(commands, started="sleep 1000"):
        path.write_text(f"#!/bin/sh\n{started} &\necho $! >{shlex.quote(str(left))}\n{commands}\n")
        path.chmod(0o755)
        return path

    yield make
    kill(int(left.read_text()))
    wait_gone(int(left.read_text()))


@pytest.mark.parametrize("started", ["sleep 1000", "yes >&2"], ids=["silent", "printing"])
def test_a_push_ends_with_its_program(local, program, started):
    calls = []
    made = program(f"""echo '{{"done":1,"total":2}}' >&2; echo {shlex.quote(json.dumps(PUSHED))}""", started)
    pushing = s3.push_async(local, URL, progress=lambda *numbers: calls.append(numbers), program=made)
    assert pushing.result(LIMIT_S) == s3.Pushed(**{**PUSHED, "path": str(local)})
    assert calls == [(1, 2), (2, 2)] and not s3._running


def test_the_last_line_of_a_program_is_its_error(local, program):
    with pytest.raises(s3.S3Error, match="no such bucket$"):
        s3.push_async(local, URL, program=program("printf '\\nweightfs: no such bucket' >&2; exit 1")).result(LIMIT_S)


def test_a_push_that_is_canceled_ends_with_its_program(local, program):
    begun = local / "begun"
    os.mkfifo(begun)
    pushing = s3.push_async(local, URL, program=program(f"echo >{shlex.quote(str(begun))}; exec sleep 1000"))
    begun.read_text()   # waits for the program
    assert pushing.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        pushing.result(LIMIT_S)
