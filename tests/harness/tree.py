# SPDX-License-Identifier: Apache-2.0
"""The content of a directory tree in a comparable form, for saved trees and for comparing two filesystems."""

import hashlib
import os
import stat


def digest(path):
    state = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as stream:
        while piece := stream.read(1 << 20):
            state.update(piece)
    return state.hexdigest()


def attributes_of(path):
    """All extended attributes, with their values."""
    return {name: os.getxattr(path, name, follow_symlinks=False)
            for name in os.listxattr(path, follow_symlinks=False)}


def describe(path, times=False):
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    facts = {"mode": oct(status.st_mode), "uid": status.st_uid, "gid": status.st_gid, "links": status.st_nlink}
    if kind == stat.S_IFREG:
        facts |= {"size": status.st_size, "digest": digest(path)}
    elif kind == stat.S_IFLNK:
        facts |= {"target": os.readlink(path), "size": status.st_size}
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        facts |= {"device": status.st_rdev}
    facts["xattrs"] = attributes_of(path)
    if times:
        facts["mtime"] = status.st_mtime_ns
    return facts


def snapshot(root, times=False):
    """Path (relative) -> facts. Hard links appear as the group of paths that share an inode."""
    facts, inodes = {}, {}
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            relative = os.path.relpath(path, root)
            facts[relative] = describe(path, times)
            inodes.setdefault(os.lstat(path).st_ino, []).append(relative)
    for group in inodes.values():
        if len(group) > 1:
            for relative in group:
                facts[relative]["same inode"] = sorted(group)
    return facts


def differences(expected, actual):
    """Returns one line per difference between two snapshots; none if they are equal."""
    lines = []
    for path in sorted(expected.keys() | actual.keys()):
        if path not in actual:
            lines.append(f"{path}: missing; expected {expected[path]}")
        elif path not in expected:
            lines.append(f"{path}: not expected; {actual[path]}")
        else:
            lines += [f"{path}: {key}: expected {expected[path].get(key)}, got {actual[path].get(key)}"
                      for key in sorted(expected[path].keys() | actual[path].keys())
                      if expected[path].get(key) != actual[path].get(key)]
    return lines


def digests(root):
    """Path -> digest of every regular file below `root`, to check that nothing has changed."""
    return {os.path.relpath(os.path.join(directory, name), root): digest(os.path.join(directory, name))
            for directory, _, files in os.walk(root) for name in files
            if stat.S_ISREG(os.lstat(os.path.join(directory, name)).st_mode)}
