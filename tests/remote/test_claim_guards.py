# SPDX-License-Identifier: Apache-2.0
"""Requests that a service refuses for a while, or whose answers are lost: they are repeated, but none before the claim
was compared again."""
import itertools
import json
import re

import pytest

from harness import process
from harness.tree import differences
from versions import (MIB, SERIES, URL, begin_push, comparable, complete, keys, make_tree, pull, push_first as push,
                      put, wait_for, weightfs, write)

LARGE = MIB   # bytes
FIRST = f"{SERIES}/1/"
PRUNE = ("prune", URL, "--keep", "1", "--unfinished-after", "0", "--json")
FAILURES = {"SlowDown": ("status", {"status": 503}), "reset": ("reset", {}), "lost": ("lost", {})}


def sent(server, method, key):
    return sum(record.method == method and re.search(key, record.key) is not None for record in server.requests)


def fail_and_hold(server, failure, method, key):
    """One request fails, and the comparison before the next attempt is held."""
    kind, arguments = FAILURES[failure]
    failed = server.fail(1, kind, method=method, key=key, times=1, **arguments)
    return server.fail(1, "hold", method="GET", key="claim$", after=failed)


def assert_pulled(server, tree, target):
    pull(server, target, "--version", 1)
    assert not differences(comparable(tree), comparable(target))


@pytest.mark.parametrize("name, failure", [
    *itertools.product(["one", "empty", "large", ".weightfs/sums/0"], FAILURES),
    (".weightfs/manifest", "SlowDown"), (".weightfs/manifest", "reset")])   # one that arrives completes the version
def test_no_request_of_a_push_is_repeated_after_it_was_taken_over(server, start, other, tree, rival, target, name,
                                                                  failure):
    look = fail_and_hold(server, failure, "PUT", FIRST + name)
    pushing = start(server, "push", tree, URL, "--version", 1, "--claim-check-ms", 600_000)
    wait_for(server, look)
    push(other, rival, "--take-over")
    server.heal()
    assert "was taken over from" in process.finish(pushing, codes=(1,)).err
    assert sent(server, "PUT", FIRST + name) == 1
    assert_pulled(server, rival, target)


@pytest.mark.parametrize("failure", FAILURES)
def test_no_take_over_is_repeated_after_another_one(server, start, other, tree, rival, local, target, failure):
    begin_push(server, tree)
    server.requests.clear()
    look = fail_and_hold(server, failure, "PUT", "claim$")
    taking = start(server, "push", make_tree(local / "third", large=MIB), URL, "--version", 1, "--take-over")
    wait_for(server, look)
    push(other, rival, "--take-over")
    server.heal()
    assert "was taken over from" in process.finish(taking, codes=(1,)).err
    assert sent(server, "PUT", "claim$") == 1
    assert_pulled(server, rival, target)


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("method, key", [("DELETE", "manifest$"), ("POST", "^$"), ("DELETE", "claim$")])
def test_no_deletion_is_repeated_after_a_take_over(server, start, other, tree, rival, target, method, key, failure):
    for version in (1, 2):
        write(server, tree, version)
    look = fail_and_hold(server, failure, method, key)
    pruning = start(server, *PRUNE)
    wait_for(server, look)
    push(other, rival, "--take-over")
    server.heal()
    report = json.loads(process.finish(pruning).out)
    assert sent(server, method, key) == 1
    assert complete(server) == [2, 1] and report["kept"] == [2]
    assert_pulled(server, rival, target)


@pytest.mark.parametrize("kind", ["never", "suspended"])
def test_old_versions_without_ids_of_their_own(server, start, other, tree, target, kind):
    """All that a bucket stores without versioning has the id "null", also what replaces it."""
    if kind == "suspended":
        server.objects.versioned.add("tests")
    for version in (1, 2):
        write(server, tree, version)
    if kind == "suspended":
        server.objects.suspended.add("tests")
        weightfs(server, "prune", URL, "--keep", 1)
    server.requests.clear()
    look = fail_and_hold(server, "SlowDown", "POST", "^$")
    pruning = start(server, *PRUNE, "--all-versions")
    server.wait_for(lambda: look.seen or pruning.poll() is not None)
    push(other, tree, "--take-over")
    server.heal()
    assert json.loads(process.finish(pruning).out)["removed"] == []
    assert sent(server, "POST", "^$") == 1 and complete(server) == [2, 1]
    assert_pulled(server, tree, target)


def test_a_bucket_whose_versioning_is_suspended_is_emptied(server, tree):
    server.objects.versioned.add("tests")
    for version in (1, 2, 3):
        write(server, tree, version)
    server.objects.suspended.add("tests")
    weightfs(server, "prune", URL, "--keep", 2)
    write(server, tree, 1)
    report = json.loads(weightfs(server, "prune", URL, "--keep", 1, "--all-versions", "--json").out)
    assert [one["version"] for one in report["removed"]] == [2, 1] and complete(server) == [3]
    assert not [key for _, key in server.objects.history if not key.startswith(f"{SERIES}/3/")]


@pytest.mark.parametrize("every", [5, 7])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_service_that_fails_again_and_again_is_survived(server, tree, rival, target, failure, every):
    kind, arguments = FAILURES[failure]
    begin_push(server, tree)
    write(server, tree, 2)
    server.fail(every, kind, every=True, **arguments)
    push(server, rival, "--take-over")
    assert_pulled(server, rival, target)
    report = json.loads(weightfs(server, "prune", URL, "--keep", 1, "--json").out)
    assert [one["version"] for one in report["removed"]] == [1] and not keys(server, FIRST)


def test_a_claim_that_changes_on_its_way_ends_no_push(server, tree, target):
    """Before a request is repeated, a claim is read that differs."""
    for key in ("/one$", "/claim$", "/manifest$"):
        failed = server.fail(1, "status", method="PUT", key=key, times=1)
        server.fail(1, "flip", method="GET", key="claim$", times=1, after=failed)
    push(server, tree)
    assert [record.fault for record in server.requests].count("flip") == 3
    assert_pulled(server, tree, target)


@pytest.mark.parametrize("begun", [False, True])
def test_a_push_that_stalls_while_it_is_taken_over_sends_nothing_more(server, start, other, local, target, begun):
    """Its part belongs to no upload any more, or its list of the objects is too old; and not all sizes are the same."""
    tree, rival = make_tree(local / "source"), make_tree(local / "rival")
    (rival / "one").write_bytes(b"of another size")
    if begun:
        begin_push(server, tree)
    held = server.fail(1, "hold", method="GET", key="^$") if begun else server.fail(1, "hold", "PUT", "/large$")
    pushing = start(server, "push", tree, URL, "--version", 1, "--claim-check-ms", 600_000)
    wait_for(server, held)
    push(other, rival, "--take-over")
    count = len(server.requests)
    server.heal()
    assert "was taken over from" in process.finish(pushing, codes=(1,)).err
    assert {record.method for record in server.requests[count:]} == {"GET"}
    assert_pulled(server, rival, target)


def test_an_object_that_is_replaced_after_a_lost_answer_is_sent_again(server, start, local, target):
    """The service has completed the upload, and does not know it any more."""
    tree = make_tree(local / "source")
    lost = server.fail(2, "lost", method="POST", key="/large$")   # the first one begins the upload
    server.fail(1, "status", method="POST", key="/large$", times=1, after=lost, status=404, code="NoSuchUpload")
    listing = server.fail(1, "hold", method="GET", key="^$", after=lost)
    pushing = start(server, "push", tree, URL, "--version", 1)
    wait_for(server, listing)
    body = server.objects.get("tests", FIRST + "large").body
    put(server)(FIRST + "large", bytes([body[0] ^ 1]) + body[1:])
    server.heal()
    process.finish(pushing)
    assert_pulled(server, tree, target)
