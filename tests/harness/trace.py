# SPDX-License-Identifier: Apache-2.0
"""Records the system calls by which a program changes files (strace), and asks tests/crash/trace_states.cc what a crash
may leave of them."""

import json
import os
import re
from pathlib import Path

from harness.filesystems import program
from harness.process import run

CALLS = ("open,openat,creat,close,lseek,write,writev,pwrite64,pwritev,ftruncate,fallocate,fsync,fdatasync,rename,"
         "renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,mkdir,mkdirat,symlink,symlinkat,copy_file_range,sendfile,io_submit")
LINE = re.compile(r"^(\d+) +(\w+)\((.*)\) += (\d+)(?:<.*>)?$", re.DOTALL)
SUBMITTED = re.compile(
    r'IOCB_CMD_PWRITE.*?aio_fildes=(\d+<[^>]*>), aio_buf=("[^"]*"), aio_nbytes=\d+, aio_offset=(\d+)')
PENDING = re.compile(r"^(\d+) +(.*) <unfinished \.\.\.>$")
RESUMED = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")


def record(command, folder):
    """Runs the command, which works in `folder`. Returns its calls that change something there."""
    log = Path(f"{folder}.strace")
    words = ["strace", "-f", "-y", "-xx", "-s", str(1 << 24), "-e", f"trace={CALLS}", "-o", log, *command]
    run(words, limit=300, cwd=folder)
    return list(_calls(log.read_text().splitlines(), f"{os.path.realpath(folder)}/"))


def states(calls, scratch):
    """What a crash may leave: pairs of a directory, and whether the program had ended before. A call {"call": "start"}
    separates what is durable before from the rest."""
    file, found = scratch / "calls", scratch / "states"
    file.write_text("".join(json.dumps(call) + "\n" for call in calls))
    words = [program().parent / "trace_states", file, found]
    printed = run(words, limit=300).out
    return [(found / number, ended == "1") for number, ended, _ in map(str.split, printed.splitlines())]


def _calls(lines, folder):
    positions, pending = {}, {}
    for line in lines:
        if match := PENDING.match(line):
            pending[match[1]] = match[2]
            continue
        if match := RESUMED.match(line):
            line = f"{match[1]} {pending.pop(match[1])}{match[2]}"
        match = LINE.match(line)
        if match is None:
            continue   # failed, or an exit
        name, result = match[2], int(match[4])
        if name == "io_submit":
            for descriptor, data, at in SUBMITTED.findall(match[3]):
                path = _path(descriptor)
                if path.startswith(folder):
                    yield {"call": "write", "path": path[len(folder):], "data": _text(data).hex(), "at": int(at)}
            continue
        call = _call(name, [word.strip() for word in _split(match[3])], result, folder, positions)
        if call is not None:
            yield call


def _call(name, words, result, folder, positions):
    def inside(path):
        return path[len(folder):] if path.startswith(folder) else None

    def named(directory, word):
        path = _text(word).decode()
        return inside(os.path.normpath(path if path.startswith("/") else f"{_path(directory)}/{path}"))

    here = f"0<{_hexed(folder.rstrip('/'))}>"   # the folder is the directory of work
    if name in ("open", "creat", "openat"):
        directory, word, *rest = words if name == "openat" else [here, *words]
        flags = rest[0] if name != "creat" else "O_WRONLY|O_CREAT|O_TRUNC"
        path = named(directory, word)
        if not path or "O_DIRECTORY" in flags:
            return None
        writes = "O_WRONLY" in flags or "O_RDWR" in flags
        if not writes and "O_CREAT" not in flags:
            return None
        positions[path] = None if "O_APPEND" in flags else 0
        return {"call": "open", "path": path, "creates": "O_CREAT" in flags, "truncates": "O_TRUNC" in flags,
                "writes": writes}
    if name in ("mkdir", "mkdirat", "unlink", "unlinkat", "rmdir"):
        path = named(words[0], words[1]) if name.endswith("at") else named(here, words[0])
        name = "rmdir" if "AT_REMOVEDIR" in words[-1] else name.removesuffix("at")
        return {"call": name, "path": path} if path else None
    if name in ("symlink", "symlinkat"):
        path = named(words[1], words[2]) if name == "symlinkat" else named(here, words[1])
        return {"call": "symlink", "path": path, "target": _text(words[0]).decode()} if path else None
    if name.startswith(("rename", "link")):
        pairs = [(words[0], words[1]), (words[2], words[3])] if "at" in name else [(here, words[0]), (here, words[1])]
        path, to = (named(*pair) for pair in pairs)
        if path in positions and name.startswith("rename"):
            positions[to] = positions[path]
        return {"call": name[:6] if name.startswith("rename") else "link", "path": path, "to": to} if path else None
    path = inside(_path(words[0]))
    if path is None and _path(words[0]) + "/" == folder and name.endswith("sync"):
        path = ""
    if path is None or path.endswith(" (deleted)"):
        return None
    assert name not in ("copy_file_range", "sendfile"), "the recorder does not know what was copied"
    if name.endswith("sync"):
        return {"call": "sync", "path": path}
    if path not in positions:
        return None   # open for reading
    if name == "close":
        return {"call": "close", "path": path}
    if name == "lseek":
        positions[path] = None if positions[path] is None else result
        return None
    if name == "ftruncate":
        return {"call": "truncate", "path": path, "size": int(words[1])}
    if name == "fallocate":
        return {"call": "allocate", "path": path, "keeps_size": "KEEP_SIZE" in words[1], "at": int(words[2]),
                "size": int(words[3])}
    data = b"".join(_text(part) for part in re.findall(r'"[^"]*"', words[1]))[:result]
    call = {"call": "write", "path": path, "data": data.hex()}
    if name.startswith("pwrite"):
        call["at"] = int(words[-1])
    elif positions[path] is not None:
        call["at"] = positions[path]
        positions[path] += result
    return call


def _split(text):
    """The arguments: separated by commas outside of brackets and strings."""
    depth, begin, quoted = 0, 0, False
    for at, letter in enumerate(text):
        if letter == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif letter in "[{<":
            depth += 1
        elif letter in "]}>":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]


def _path(word):
    deleted = " (deleted)" if word.endswith("(deleted)") else ""
    return _text(word[word.index("<") + 1:word.index(">")]).decode() + deleted


def _hexed(path):
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(path))


def _text(word):
    return bytes.fromhex(word.strip('"').replace("\\x", ""))
