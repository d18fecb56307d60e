# SPDX-License-Identifier: Apache-2.0
"""The errors that all operations on a path share, and the conversion of tables to tests."""

import os

import pytest

from posix_script import needs_root

# Each operation with {x} for the path that is looked up. The other paths exist or not, as the operation requires.
ON_EXISTING = {
    "chmod": "chmod {x} 0644", "chown": "chown {x} 65534 65534", "lchown": "lchown {x} 65534 65534",
    "truncate": "truncate {x} 10", "open": "open {x} O_RDONLY", "utimensat": "utime {x} 1 1", "stat": "stat {x} mode",
    "link from": "link {x} new", "rename from": "rename {x} new", "unlink": "unlink {x}", "rmdir": "rmdir {x}",
    "setxattr": "setxattr {x} user.a b", "readlink": "readlink {x}"}
ON_NEW = {
    "create": "open {x} O_CREAT,O_WRONLY", "mkdir": "mkdir {x} 0755", "mkfifo": "mkfifo {x}", "mknod": "mknod {x} file",
    "symlink": "symlink target {x}", "link to": "link file {x}", "rename to": "rename file {x}"}
USER = "@65534"


def lookup_errors():
    """name -> script, for every operation and every reason why a path is not found."""
    cases = {}
    for name, operation in {**ON_EXISTING, **ON_NEW}.items():
        at = operation.format
        cases[f"{name}: a component that is a file"] = f"create file\n{at(x='file/below')} -> ENOTDIR"
        cases[f"{name}: a missing component"] = f"create file\n{at(x='missing/below')} -> ENOENT"
        cases[f"{name}: a component of 256 bytes"] = f"create file\n{at(x='{n256}/below')} -> ENAMETOOLONG"
        cases[f"{name}: a name of 256 bytes"] = f"create file\n{at(x='{n256}')} -> ENAMETOOLONG"
        cases[f"{name}: a path of 4096 bytes"] = f"create file\n{at(x='{p4096/file}')} -> ENAMETOOLONG"
        cases[f"{name}: a loop of links"] = (
            f"create file\nsymlink b a\nsymlink a b\n{at(x='a/below')} -> ELOOP\n{at(x='b/below')} -> ELOOP")
        cases[f"{name}: a directory without search permission"] = (
            f"chmod . 0777\ncreate file 0666\nchown file 65534 65534\nmkdir closed 0777\nchown closed 65534 65534\n"
            f"{USER} create closed/file 0666\nchmod closed 0600\n"
            f"{USER} {at(x='closed/file' if name in ON_EXISTING else 'closed/new')} -> EACCES")
    for name, operation in ON_EXISTING.items():
        cases[f"{name}: a missing name"] = f"{operation.format(x='missing')} -> ENOENT"
    for name in ("unlink", "rmdir", "rename from"):
        operation = ON_EXISTING[name].format(x="closed/victim")
        make = "mkdir closed/victim" if name == "rmdir" else "create closed/victim"
        cases[f"{name}: a directory without write permission"] = (
            f"chmod . 0777\nmkdir closed 0755\n{make}\nchown closed/victim 65534 65534\n{USER} {operation} -> EACCES\n"
            f"chown closed 65534 65534\nchmod closed 0555\n{USER} {operation} -> EACCES\n"
            f"chmod closed 0755\n{USER} {operation}")
    for name, operation in ON_NEW.items():
        cases[f"{name}: a directory without write permission"] = (
            f"chmod . 0777\ncreate file 0666\nchown file 65534 65534\nmkdir closed 0755\n"
            f"{USER} {operation.format(x='closed/new')} -> EACCES\nchmod closed 0777\n"
            f"{USER} {operation.format(x='closed/new')}")
    return cases


def names_at_the_limit():
    """Names of 255 bytes and paths of 4,095 work."""
    cases = {}
    for name, operation in ON_NEW.items():
        cases[f"{name}: a name of 255 bytes"] = (
            f"create file\n{operation.format(x='{n255}')}\nlstat {{n255}} nlink")
        cases[f"{name}: a path of 4095 bytes"] = (
            f"create file\n{operation.format(x='{p4095/new}')}\nlstat new nlink")
    for name in ("mkdir", "mkfifo", "mknod", "symlink", "link to"):
        make = "create present"
        cases[f"{name}: a name that exists"] = "\n".join(
            ["create file", make, "mkdir directory", "symlink nowhere dangling", "mkfifo fifo",
             *(f"{ON_NEW[name].format(x=x)} -> EEXIST" for x in ("present", "directory", "dangling", "fifo"))])
    return cases


def parametrize(cases):
    """A parametrize mark for scripts. Scripts that need other users are skipped unless run as root."""
    not_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: acts as other users")
    return pytest.mark.parametrize("script", [
        pytest.param(text, id=name, marks=[not_root] if needs_root(text) else []) for name, text in cases.items()])
