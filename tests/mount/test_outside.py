# SPDX-License-Identifier: Apache-2.0
"""scripts/outside with suites of two tests, of which one has another result on ext4."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from harness import needs
from harness.filesystems import REPOSITORY, wait_until
from harness.process import finish

pytestmark = needs.loop_devices()
ON_EXT4 = "test $(stat -f -c %T .) = ext2/ext3"


@pytest.fixture
def folder(tmp_path):
    """An empty directory, in which nothing is mounted and no image is a loop device afterwards."""
    yield tmp_path
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    assert str(tmp_path) not in subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout
    assert not list(tmp_path.glob("weightfs-outside-*"))


def start(folder, *options):
    words = [REPOSITORY / "scripts/outside", *options]
    return subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "TMPDIR": str(folder)})


def pjdfstest(folder, **tests):
    (folder / "tests").mkdir()
    (folder / "pjdfstest").touch()
    for name, text in tests.items():
        (folder / f"tests/{name}.t").write_text(text)
    return "--only", "pjdfstest", "--pjdfstest", folder


def ltp(folder):
    (folder / "runtest").mkdir()
    (folder / "testcases/bin").mkdir(parents=True)
    for name, text in (("fs", f"same true\ndiffers {ON_EXT4}\n"), ("fs_perms_simple", "# none\n"), ("syscalls", "")):
        (folder / "runtest" / name).write_text(text)
    return "--only", "ltp", "--ltp", folder


def torch(folder):
    (folder / "test").mkdir()
    (folder / "test/test_serialization.py").write_text(
        f"import os\ndef test_same(): pass\ndef test_differs(): assert os.system('{ON_EXT4}') == 0\n")
    return "--only", "torch", "--torch", folder


def assertions(folder):
    return pjdfstest(folder, a="echo 1..1; echo ok 1", b=f"echo 1..1; {ON_EXT4} || printf 'not '; echo ok 1")


@pytest.mark.parametrize("suite, test", [(assertions, "b.t:1"), (ltp, "fs:differs"),
                                         (torch, "test.test_serialization.test_differs")])
def test_a_difference_fails_unless_it_is_known(folder, suite, test):
    words = [*suite(folder), "--json", folder / "differences"]
    finished = finish(start(folder, *words), codes=(1,))
    assert f"UNKNOWN: {test}: failed, on ext4 passed\n" in finished.out
    assert "1 suites were run: 1 differences, 1 of them unknown" in finished.out
    assert [found["test"] for found in json.loads((folder / "differences").read_text())] == [test]
    (folder / "known").write_text(json.dumps(
        [{"suite": words[1], "tests": [test], "weightfs": "failed", "reason": "the reason"}]))
    finished = finish(start(folder, *words, "--known", folder / "known"))
    assert f"known: {test}: failed, on ext4 passed: the reason\n" in finished.out


def test_a_test_that_ends_early_fails(folder):
    words = pjdfstest(folder, a=f"echo 1..2; echo ok 1; {ON_EXT4} && echo ok 2")
    finished = finish(start(folder, *words), codes=(1,))
    assert "UNKNOWN: a.t: the end: failed, on ext4 missing\n" in finished.out


def test_a_run_of_nothing_is_no_success(folder):
    assert "0 suites were run" in finish(start(folder, "--only", "pjdfstest"), codes=(2,)).out


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_suite_and_unmounts(folder, number, code):
    running = start(folder, *pjdfstest(folder, a=f"echo $$ > {folder}/pid; exec sleep 1000"))
    assert wait_until(lambda: (folder / "pid").exists() and (folder / "pid").read_text())
    running.send_signal(number)
    finish(running, codes=(code,))
    ended = Path(f"/proc/{int((folder / 'pid').read_text())}")
    assert wait_until(lambda: not ended.exists())   # init reaps it
