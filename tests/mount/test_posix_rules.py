# SPDX-License-Identifier: Apache-2.0
"""The rules of posix_rules hold on a mount, and on ext4, XFS and tmpfs, which show that they are rules; so do the
scripts of the other tests of POSIX. Each difference is in the tables, with its reason."""

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
from small_filesystem import FILESYSTEMS

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


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rules(anywhere, rule):
    kind, path = anywhere
    if kind == "tmpfs" and "user." in rule.script and errno_of(os.setxattr, path, "user.a", b"") == errno.EOPNOTSUPP:
        pytest.skip("needs user attributes: tmpfs has none before Linux 6.6")
    check(rule, fresh(path / "rule"), kind)


@pytest.mark.full
@pytest.mark.parametrize("anywhere", FILESYSTEMS, indirect=True)
@pytest.mark.parametrize("name, script", scripts().items(), ids=scripts())
def test_scripts_of_the_mount_elsewhere(anywhere, name, script):
    kind, path = anywhere
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
