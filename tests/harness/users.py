# SPDX-License-Identifier: Apache-2.0
"""Runs code as another user in a forked child."""

import ctypes
import os
import pickle
import select
import signal
import struct
import traceback

NOBODY, OTHER = 65534, 65533


class ChildFailed(AssertionError):
    pass


def become(uid, gid=None, groups=()):
    """Drops all privileges of this process."""
    os.setgroups(list(groups))
    os.setresgid(*[uid if gid is None else gid] * 3)
    os.setresuid(uid, uid, uid)


def drop_capabilities(keep=()):
    """Permanently drops all capabilities of this thread except the given ones; the user ID stays the same."""
    libc, version_3, drop_from_bounding_set, last = ctypes.CDLL(None, use_errno=True), 0x20080522, 24, 63
    for capability in range(last):
        if capability not in keep:
            libc.prctl(drop_from_bounding_set, capability, 0, 0, 0)   # EINVAL after the last capability
    kept = sum(1 << capability for capability in keep)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    sets = struct.pack("6I", low, low, 0, high, high, 0)
    if libc.capset(struct.pack("Ii", version_3, 0), sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def call_without_capabilities(function, *arguments, keep=(), **options):
    """Like call_as for user 0 with only these capabilities: root as in many containers."""
    def bare():
        drop_capabilities(keep)
        return function(*arguments)

    return call_as(None, bare, **options)


def call_as(uid, function, *arguments, gid=None, groups=(), limit=60):
    """Runs `function` as `uid` in a child process and returns its result. Raises the OSError that it raises, or a
    ChildFailed with its traceback. uid None: in a child, with our own privileges."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(writer, uid, gid, groups, function, arguments)
    os.close(writer)
    try:
        return _collect(child, reader, limit)
    finally:
        os.close(reader)


def _answer(writer, uid, gid, groups, function, arguments):
    try:
        if uid is not None:
            become(uid, gid, groups)
        reply = ("value", function(*arguments))
    except OSError as error:
        reply = ("errno", error.errno, str(error))
    except BaseException:
        reply = ("failed", traceback.format_exc())
    try:
        with os.fdopen(writer, "wb") as stream:
            pickle.dump(reply, stream)
    finally:
        os._exit(0)


def _collect(child, reader, limit):
    data = b""
    while True:
        if not select.select([reader], [], [], limit)[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise ChildFailed(f"the child did not answer within {limit} s")
        piece = os.read(reader, 65536)
        if not piece:
            break
        data += piece
    _, status = os.waitpid(child, 0)
    if not data:
        raise ChildFailed(f"the child ended without an answer, wait status {status:#x}")
    reply = pickle.loads(data)
    if reply[0] == "errno":
        raise OSError(reply[1], reply[2])
    if reply[0] == "failed":
        raise ChildFailed(reply[1])
    return reply[1]
