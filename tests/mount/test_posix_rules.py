# SPDX-License-Identifier: Apache-2.0
"""The rules of posix_rules hold on a mount, and on ext4, XFS and tmpfs, which show that they are rules; so do the
scripts of the other tests of POSIX. Each difference is in the tables, with its reason."""

import contextlib
import errno
import os

import pytest

import test_posix_attributes
import test_posix_lookup
import test_posix_names
import test_posix_rename
from harness import needs
from harness.syscalls import errno_of
from posix_rules import check, fresh, rules_of
from posix_rules_table import RULES
from posix_script import run_script
from small_filesystem import FILESYSTEMS, small_filesystem

MOUNT_OPTIONS = "allow_other,dev,suid"
pytestmark = needs.root
# What other filesystems answer to the scripts, and why.
DIFFERENT_SCRIPTS = {
    **{(kind, f"test_truncate[{call} to an impossible size]"): ("got 0", "files of 2^63-1 bytes are possible")
       for kind in ("tmpfs", "xfs") for call in ("truncate", "ftruncate")},
    ("xfs", "test_truncate[truncate moves mtime and ctime, of the same size too]"):
        ("mtime is still", "Linux requires it of ftruncate, O_TRUNC and a size that changes"),
    ("xfs", "test_mknod[makes each kind]"): ("block 0644 259 1048575: got EINVAL", "minor numbers have 18 bits"),
    ("xfs", "test_open[of pipes and sockets]"): ("4095 1: got EINVAL", "major numbers have 9 bits"),
    ("xfs", "test_symlink[of 4,095 bytes]"): ("ENAMETOOLONG", "links have 1,024 bytes at most"),
    ("ext4", "test_symlink[of 4,095 bytes]"): ("ENAMETOOLONG", "a link is shorter than a block, here of 1 KiB"),
}


def scripts():
    """name -> the script of a test that runs on a mount alone."""
    found = {}
    for module in (test_posix_attributes, test_posix_lookup, test_posix_names, test_posix_rename):
        for name, test in vars(module).items():
            for mark in getattr(test, "pytestmark", []):
                found.update({f"{name}[{case.id}]": case.values[0] for case in mark.args[1]})
    return found


@pytest.fixture(scope="module", params=FILESYSTEMS)
def local_filesystem(request, session_factory, weightfs_target):
    mark = session_factory.mark()
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(small_filesystem(session_factory, request.param))
        path.chmod(0o755)
        yield request.param, path
    session_factory.close(mark)


@pytest.fixture(scope="module")
def weightfs_target(session_factory):
    if session_factory.kind != "weightfs":
        pytest.skip("compares weightfs with others: not for --target")


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rules_on_a_mount(weightfs_target, mounted, rule):
    check(rule, fresh(mounted.path / "rule"), "weightfs")


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rules_elsewhere(local_filesystem, rule):
    kind, path = local_filesystem
    if "user." in rule.script and errno_of(os.setxattr, path, "user.a", b"") == errno.EOPNOTSUPP:
        pytest.skip(f"needs user attributes: {kind} has none before Linux 6.6")
    check(rule, fresh(path / "rule"), kind)


@pytest.mark.parametrize("name, script", scripts().items(), ids=scripts())
def test_scripts_elsewhere(local_filesystem, name, script):
    kind, path = local_filesystem
    answer, _ = DIFFERENT_SCRIPTS.get((kind, name), (None, ""))
    try:
        run_script(fresh(path / "script"), script)
    except AssertionError as error:
        assert answer and answer in str(error)
    else:
        assert answer is None, f"{kind} no longer differs"


def test_a_difference_that_is_not_explained_or_has_gone_fails(local):
    """The table itself can fail."""
    def checked(text):
        check(rules_of(text)["a"], fresh(local / "rule"), "ext4")

    for script in ("mkdir d; rmdir d -> ENOTEMPTY", "mkdir d; rmdir d -> ENOTEMPTY\n!ext4 EPERM: another",
                   "mkdir d\n!ext4 EPERM: never", "mkdir d; mark d; newer d mtime"):
        with pytest.raises(AssertionError):
            checked(f"== a | s\n{script}")
    checked("== a | s\nmkdir d; mkdir d -> 0\n!ext4 EEXIST: it is there\n!xfs EPERM: of others")
