"""Code run as another user, in a forked child."""

import os
import pickle
import select
import signal
import traceback

NOBODY, OTHER = 65534, 65533


class ChildFailed(AssertionError):
    pass


def become(uid, gid=None, groups=()):
    """Gives up every privilege of this process."""
    os.setgroups(list(groups))
    os.setresgid(*[uid if gid is None else gid] * 3)
    os.setresuid(uid, uid, uid)


def call_as(uid, function, *arguments, gid=None, groups=(), limit=60):
    """Returns what `function` returns when a child process runs it as `uid`; raises what it raises (OSError) or a
    ChildFailed with its traceback. uid None: in a child, with our own rights."""
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
