# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of push, pull, versions and prune."""
import json
import os
import random
import signal

from harness import process, s3_versions
from harness.filesystems import program
from harness.s3_probe import clean_environment
from harness.tree import snapshot

SERIES = "runs/model"
URL = f"s3://tests/{SERIES}"
MIB = 1 << 20
PART = 5 * MIB   # the least size of a part of an upload


def command(*words):
    """The program with these words. A push compares its claim often, so that a take-over need not wait for seconds."""
    compares = words[0] == "push" and "--claim-check-ms" not in words
    return [program(), *words, *(["--claim-check-ms", 100] if compares else [])]


def weightfs(server, *words, codes=(0,), **options):
    finished = process.run(command(*words), codes=codes, env=clean_environment(server.environment()),
                           **options)
    if finished.code not in (0, 4):   # 4: verify reports damage on standard output
        assert finished.err.count("\n") == 1, finished
    return finished


def refused(server, *words, **options):
    return weightfs(server, *words, codes=(1,), **options).err


def push_first(server, tree, *words, **options):
    """As version 1."""
    return weightfs(server, "push", tree, URL, "--version", 1, *words, **options)


def begin_push(server, tree):
    """A push that sends everything but the manifest."""
    fault = server.fail(1, "status", method="PUT", key="manifest$", status=403, code="AccessDenied")
    push_first(server, tree, codes=(1,))
    server.heal(fault)


def wait_for(server, fault):
    server.wait_for(lambda: fault.seen >= fault.at)


def kill(running):
    running.kill()
    running.communicate()
    assert running.returncode == -signal.SIGKILL


def pull(server, target, *words, url=URL, **options):
    return json.loads(weightfs(server, "pull", url, target, "--json", *words, **options).out)


def put(server):
    return lambda key, body: server.objects.put("tests", key, body, {})


def write(server, root, version, series=SERIES, **options):
    return s3_versions.write(put(server), root, series, version, **options)


def keys(server, prefix=""):
    with server.objects.mutex:
        return sorted(key for key in server.objects.buckets["tests"] if key.startswith(prefix))


def claim_of(server, version):
    """Without its checksum."""
    return s3_versions.read_claim(server.objects.get("tests", f"{SERIES}/{version}/.weightfs/claim").body)


def complete(server):
    """The complete versions, the latest first."""
    return [one["version"] for one in json.loads(weightfs(server, "versions", URL, "--json").out)["versions"]]


def make_tree(root, large=17 * MIB):
    """Files around the sizes that matter, in directories, with links and attributes."""
    (root / "empty directory").mkdir(parents=True)
    (root / "deep/er").mkdir(parents=True)
    sizes = {"empty": 0, "one": 1, "block": 4096, "deep/odd": 4097, "deep/er/é": 100_000, "large": large + 1234}
    for name, size in sizes.items():
        (root / name).write_bytes(random.randbytes(size))
    (root / "deep/link").symlink_to("../one")
    (root / "nowhere").symlink_to("/does/not/exist")
    os.setxattr(root / "one", "user.note", b"\0value\xff")
    os.setxattr(root / "deep", "user.note", b"directory")
    (root / "one").chmod(0o640)
    (root / "block").chmod(0o444)
    (root / "deep").chmod(0o2750)
    os.utime(root / "one", ns=(0, 1_234_567_890_123_456_789))
    os.utime(root / "deep/er", ns=(0, -1_500_000_000))
    return root


def comparable(root):
    facts = snapshot(root, times=True)
    for path, entry in facts.items():
        entry.pop("links")
        if entry.get("target") is not None:
            entry.pop("mtime")
        mode = int(entry["mode"], 8)
        entry["mode"] = oct(mode & ~0o6000)   # the bits that run a program as another user are not pulled
    return facts


def is_untouched(target):
    """The target does not exist, and nothing temporary is beside it."""
    return not target.exists() and not [name for name in os.listdir(target.parent) if "weightfs-pull" in name]
