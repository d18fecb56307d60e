# SPDX-License-Identifier: Apache-2.0
"""weightfs prune beside pushes, pulls and other prunes of the same version, and after it was killed."""
import json

import pytest

from harness import process
from harness.tree import differences
from versions import (MIB, SERIES, URL, begin_push, claim_of, comparable, complete, keys, kill, pull,
                      push_first as push, refused, wait_for, weightfs, write)

LARGE = MIB   # bytes
PRUNE = ("prune", URL, "--keep", "1", "--unfinished-after", "0")
FIRST = f"{SERIES}/1/"


def left(server, version):
    """The names of the objects, and of all their versions, that a version has."""
    prefix = f"{SERIES}/{version}/"
    return keys(server, prefix) + [key for _, key in server.objects.history if key.startswith(prefix)]


def test_a_push_notices_that_its_version_is_removed(server, start, other, tree, target):
    begin_push(server, tree)
    fault = server.fail(1, "hold", method="POST", key="^$")   # the first deletion of files
    pruning = start(server, *PRUNE)
    wait_for(server, fault)
    assert "a prune removes this version" in push(other, tree, codes=(1,)).err
    server.heal()
    process.finish(pruning)
    assert not left(server, 1) and complete(server) == []
    push(server, tree)
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


@pytest.mark.parametrize("at", ["claim", "manifest"])
def test_a_manifest_that_arrives_while_its_version_is_removed(server, start, other, tree, at):
    """The push has compared its claim before the prune replaces it, and its manifest arrives before the claim is
    removed, or after it."""
    begin_push(server, tree)
    arrives = server.fail(1, "hold", method="PUT", key="manifest$")
    pushing = start(server, "push", tree, URL, "--version", "1")
    wait_for(server, arrives)
    if at == "claim":
        ends = other.fail(1, "hold", method="DELETE", key="claim$")
        pruning = start(other, *PRUNE)
        wait_for(other, ends)
        server.heal()
        assert "was removed by weightfs prune during this push" in process.finish(pushing, codes=(1,)).err
        assert complete(server) == []
        other.heal()
        process.finish(pruning)
    else:
        weightfs(other, *PRUNE)
        server.heal()
        assert "was removed by weightfs prune during this push" in process.finish(pushing, codes=(1,)).err
    assert not left(server, 1)


def test_a_version_that_was_made_again_by_a_second_push_of_the_source(server, start, other, tree, target):
    """The first one finds that its version was removed, and its manifest is there; the second one replaces that."""
    begin_push(server, tree)
    arrives = server.fail(1, "hold", method="PUT", key="manifest$")
    pushing = start(server, "push", tree, URL, "--version", "1")
    wait_for(server, arrives)
    weightfs(other, *PRUNE)
    found = server.fail(2, "slow", method="GET", key="manifest$", rate=1e9)   # fails nothing
    look = server.fail(1, "hold", method="GET", key="claim$", after=found)
    server.heal(arrives)
    wait_for(server, look)
    push(other, tree)
    server.heal()
    assert "during this push, so this push has ended" in process.finish(pushing, codes=(1,)).err
    assert complete(server) == [1]
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


def test_a_push_that_completes_at_the_last_moment_keeps_its_version(server, start, other, tree, target):
    begin_push(server, tree)
    for method in ("PUT", "DELETE", "POST"):
        server.fail(1, "hold", method=method)   # the first change of the prune
    pruning = start(server, *PRUNE, "--json")
    server.wait_for_fault()
    push(other, tree)
    server.heal()
    report = json.loads(process.finish(pruning).out)
    assert (report["kept"], report["removed"]) == ([1], [])
    assert not claim_of(server, 1).get("removing")
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


def test_objects_that_arrive_during_a_removal_are_removed(server, start, other, tree):
    begin_push(server, tree)
    fault = server.fail(1, "hold", method="POST", key="^$")
    pruning = start(server, *PRUNE)
    wait_for(server, fault)
    server.objects.put("tests", FIRST + "late", b"of a push that has not noticed it", {})
    server.objects.create_upload("tests", FIRST + "large", {})
    server.heal()
    process.finish(pruning)
    assert not left(server, 1) and not server.objects.open_uploads("tests", "")


@pytest.mark.limit(300)
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("words", [(), ("--all-versions",)], ids=["plain", "versioned"])
def test_a_killed_prune_is_continued_at_once(server, start, tree, words, first):
    """At every second of its requests. A version that has a manifest has all its objects."""
    if words:
        server.objects.versioned.add("tests")
    kept = write(server, tree, 2)
    for at in range(first, 100, 2):
        written = write(server, tree, 1)
        fault = server.fail(at, "silence")
        pruning = start(server, "prune", URL, "--keep", "1", *words)
        server.wait_for(lambda: fault.seen >= at or pruning.poll() is not None)
        if pruning.poll() is not None:
            break
        kill(pruning)
        server.heal()
        assert FIRST + ".weightfs/manifest" not in keys(server) or not set(written) - set(keys(server))
        report = json.loads(weightfs(server, "prune", URL, "--keep", "1", "--json", *words).out)
        assert not report["unfinished"] and keys(server) == sorted(kept), at
        assert not words or not left(server, 1), at
    assert at > 10


def test_of_two_prunes_the_first_leaves_a_version_that_was_made_again(server, start, other, tree, target):
    write(server, tree, 1)
    write(server, tree, 2)
    fault = server.fail(2, "hold", method="GET", key="1/.weightfs/claim$")   # compares its claim
    pruning = start(server, "prune", URL, "--keep", "1")
    wait_for(server, fault)
    weightfs(other, "prune", URL, "--keep", "1")
    assert not left(server, 1)
    push(other, tree)
    server.heal()
    process.finish(pruning)
    pull(server, target, "--version", 1)
    assert not differences(comparable(tree), comparable(target))


def test_a_version_whose_prune_was_killed_is_taken_over(server, start, tree, target):
    begin_push(server, tree)
    fault = server.fail(1, "silence", method="POST", key="^$")
    pruning = start(server, *PRUNE)
    wait_for(server, fault)
    kill(pruning)
    server.heal()
    assert "run weightfs prune again if it was killed" in refused(server, "push", tree, URL, "--version", 1)
    push(server, tree, "--take-over")
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


@pytest.mark.parametrize("command", ["pull", "verify"])
@pytest.mark.parametrize("key", ["one$", "sums/0$"])
def test_a_version_that_is_removed_while_it_is_read_is_missing_and_not_damaged(server, start, other, tree, target,
                                                                               command, key):
    for version in (1, 2):
        write(server, tree, version)
    held = server.fail(1, "hold", method="GET", key=f"{SERIES}/1/.*{key}")
    reading = start(server, command, f"{URL}/1", *([target] if command == "pull" else []))
    wait_for(server, held)
    weightfs(other, "prune", URL, "--keep", "1")
    server.heal()
    finished = process.finish(reading, codes=(8,))
    assert "no such version" in finished.err and not finished.out and not target.exists()


@pytest.mark.parametrize("words", [("versions", f"{URL}/1"), ("verify", f"{URL}/1"), ("pull", f"{URL}/1", "new"),
                                   ("pull", URL, "new", "--version", "1")])
def test_a_version_that_was_removed_is_missing(server, tree, local, words):
    for version in (1, 2):
        write(server, tree, version)
    weightfs(server, "prune", URL, "--keep", "1")
    finished = weightfs(server, *words, codes=(8,), cwd=local)
    assert "no such version" in finished.err or "no version was pushed here" in finished.err
