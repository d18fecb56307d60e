# SPDX-License-Identifier: Apache-2.0
"""Programs that go on after they have lost a claim, answers about claims that are lost, and programs that are killed
between two changes of a claim."""
import json
import signal

import pytest

from harness import process
from harness.filesystems import weightfs as plain
from harness.tree import differences
from versions import (MIB, SERIES, URL, begin_push, claim_of, comparable, complete, keys, kill, make_tree, pull,
                      push_first as push, put, refused, wait_for, weightfs, write)

LARGE = MIB   # bytes
FIRST = f"{SERIES}/1/"
CLAIM, MANIFEST = FIRST + ".weightfs/claim", FIRST + ".weightfs/manifest"


def assert_pulled(server, tree, target):
    pull(server, target, "--version", 1)
    assert not differences(comparable(tree), comparable(target))


def sent(server, method, key):
    return [record.status for record in server.requests if (record.method, record.key) == (method, key)]


# Pushes that have lost their claim.

@pytest.mark.parametrize("connections", [16, 1])
def test_a_slow_push_ends_soon_after_it_was_taken_over(server, start, other, tree, rival, target, connections):
    """It waits for the answer to a file, and has not looked at its claim for the last time."""
    fault = server.fail(1, "hold", method="PUT", key="/one$")
    pushing = start(server, "push", tree, URL, "--version", 1, "--connections", connections)
    wait_for(server, fault)
    push(other, rival, "--take-over")
    assert "was taken over from" in process.finish(pushing, limit=20, codes=(1,)).err   # the request ends after 30 s
    assert_pulled(other, rival, target)


def test_a_push_that_was_taken_over_deletes_no_damaged_object(server, start, other, tree, rival, target):
    """It compares an object of the other push with its own file."""
    fault = server.fail(1, "hold", method="GET", key="/one$")
    pushing = start(server, "push", tree, URL, "--version", 1, "--verify")
    wait_for(server, fault)
    push(other, rival, "--take-over")
    server.heal()
    assert "was taken over from" in process.finish(pushing, codes=(1,)).err
    assert_pulled(other, rival, target)


@pytest.mark.parametrize("name", ["one", "deep/er/é", "large", ".weightfs/sums/0"])
def test_an_object_of_the_same_size_that_arrives_late_is_replaced(server, start, tree, target, name):
    """It is sent by a push that was taken over, and does not know it yet."""
    fault = server.fail(1, "hold", method="PUT", key="/sums/0$")
    pushing = start(server, "push", tree, URL, "--version", 1)
    wait_for(server, fault)
    server.wait_for(lambda: len(keys(server, FIRST)) == 7)   # the claim and all files
    late = server.fail(1, "hold", method="GET", key="^$")
    server.heal(fault)
    wait_for(server, late)
    body = server.objects.get("tests", FIRST + name).body
    put(server)(FIRST + name, bytes([body[0] ^ 1]) + body[1:])
    server.heal()
    process.finish(pushing)
    # A second push of the same source may have completed the version with it.
    assert not [record for record in server.requests if record.method == "DELETE" or record.method == "POST" and
                not record.key]
    assert_pulled(server, tree, target)


def test_a_manifest_without_a_claim_never_completes_a_push(server, start, tree, target):
    """A late manifest stays behind when a prune has removed the version. The same source is pushed again."""
    push(server, tree)
    stale = server.objects.get("tests", MANIFEST).body
    for key in keys(server, FIRST):
        server.objects.delete("tests", key)
    put(server)(MANIFEST, stale)
    fault = server.fail(1, "hold", method="PUT", key="1/one$")
    pushing = start(server, "push", tree, URL, "--version", 1)
    wait_for(server, fault)
    assert complete(server) == []
    server.heal()
    process.finish(pushing)
    assert_pulled(server, tree, target)


def test_a_repair_that_compared_for_long_replaces_no_other_version(server, start, other, tree, rival, target):
    for version in (1, 2):
        weightfs(server, "push", tree, URL, "--version", version)
    fault = server.fail(1, "hold", method="GET", key="1/one$")
    repairing = start(server, "push", tree, URL, "--version", 1, "--verify")
    wait_for(server, fault)
    weightfs(other, "prune", URL, "--keep", 1)
    push(other, rival)
    server.heal()
    assert "was taken over from" in process.finish(repairing, codes=(1,)).err
    assert_pulled(other, rival, target)


def test_a_take_over_replaces_only_the_claim_that_it_has_read(server, start, other, tree, rival, local, target):
    """Its request arrives after that of another one."""
    begin_push(server, tree)
    fault = server.fail(1, "hold", method="PUT", key="claim$")
    late = start(server, "push", make_tree(local / "third", large=MIB), URL, "--version", 1, "--take-over")
    wait_for(server, fault)
    push(other, rival, "--take-over")
    server.heal()
    assert "was taken over from" in process.finish(late, codes=(1,)).err
    assert sent(server, "PUT", CLAIM)[-1] == 412
    assert_pulled(other, rival, target)


def test_two_take_overs_of_one_source_are_told_apart(server, start, other, tree, rival, target):
    """The first one has decided to delete, and lists what the second one has sent."""
    begin_push(server, tree)
    fault = server.fail(2, "hold", method="GET", key="^$")   # the list of objects
    first = start(server, "push", rival, URL, "--version", 1, "--take-over")
    wait_for(server, fault)
    push(other, rival)
    server.heal()
    assert "was taken over from" in process.finish(first, codes=(1,)).err
    assert not [record for record in server.requests if record.method == "POST" and not record.key]
    assert_pulled(other, rival, target)


def test_each_batch_of_deletions_is_preceded_by_a_comparison(server, tree, rival):
    begin_push(server, tree)
    for number in range(2500):
        put(server)(f"{FIRST}more/{number}", b"")
    server.requests.clear()
    push(server, rival, "--take-over", "--claim-check-ms", 1000)
    changes = [(record.method, record.key) for record in server.requests if record.key in ("", CLAIM)]
    batches = [at for at, change in enumerate(changes) if change == ("POST", "")]
    assert len(batches) == 3 and all(changes[at - 1] == ("GET", CLAIM) for at in batches)


# Answers that are lost.

@pytest.mark.parametrize("key", ["claim$", "manifest$"])
def test_a_lost_answer_is_followed_by_a_look(server, tree, rival, target, key):
    """The request may have taken effect, and another program may have acted since."""
    begin_push(server, tree)
    server.requests.clear()
    server.fail(1, "lost", method="PUT", key=key)
    push(server, rival, "--take-over")
    # A claim is written undecided, tried again with a condition, and decided.
    assert sent(server, "PUT", CLAIM) == ([0, 412, 200] if key == "claim$" else [200, 412, 200])
    assert sent(server, "PUT", MANIFEST) == ([200] if key == "claim$" else [0, 412])
    assert_pulled(server, rival, target)


@pytest.mark.parametrize("key", ["claim$", "manifest$", "^$"])
def test_a_lost_answer_to_a_deletion_is_followed_by_a_look(server, tree, key):
    for version in (1, 2):
        write(server, tree, version)
    fault = server.fail(1, "lost", method="POST" if key == "^$" else "DELETE", key=key)
    report = json.loads(weightfs(server, "prune", URL, "--keep", 1, "--json").out)
    assert [one["version"] for one in report["removed"]] == [1] and not keys(server, FIRST)
    [lost] = [at for at, record in enumerate(server.requests) if record.fault]
    after = server.requests[lost + 1]
    assert (after.method, after.key) == ("GET", CLAIM) and fault.seen >= 1


def test_a_service_that_compares_etags_in_another_manner(server, tree, rival, target):
    """It refuses the condition though nothing has changed."""
    begin_push(server, tree)
    server.objects.misreads_etags = True
    push(server, rival, "--take-over")
    assert_pulled(server, rival, target)
    write(server, rival, 2)
    report = json.loads(weightfs(server, "prune", URL, "--keep", 1, "--json").out)
    assert [one["version"] for one in report["removed"]] == [1] and not keys(server, FIRST)


# Kills between two changes of a claim.

def complete_beside(server, start, other, tree, *words):
    """A push that completes its version after another program has read its claim. That one replaces the claim, and is
    killed before it looks for the manifest."""
    begin_push(server, tree)
    claim = server.fail(1, "hold", method="PUT", key="claim$")
    replacing = start(server, *words)
    wait_for(server, claim)
    push(other, tree)
    silent = server.fail(1, "silence", method="GET", key="manifest$")
    server.heal(claim)
    wait_for(server, silent)
    kill(replacing)
    server.heal()


def test_a_take_over_that_is_killed_loses_no_completed_push(server, start, other, tree, rival, target):
    complete_beside(server, start, other, tree, "push", rival, URL, "--version", 1, "--take-over")
    first = json.loads(server.objects.get("tests", MANIFEST).body.splitlines()[0])["push"]
    assert claim_of(server, 1)["replaces"] == first and complete(server) == [1]
    assert "exists already" in refused(server, "push", rival, URL, "--version", 1, "--take-over")
    assert json.loads(push(server, tree, "--json").out)["existed"]
    assert_pulled(server, tree, target)


def test_a_prune_that_is_killed_loses_no_completed_push(server, start, other, tree, target):
    words = ("prune", URL, "--keep", "1", "--unfinished-after", "0", "--json")
    complete_beside(server, start, other, tree, *words)
    assert claim_of(server, 1)["removing"] and complete(server) == [1]
    report = json.loads(weightfs(server, *words).out)
    assert (report["kept"], report["removed"]) == ([1], [])
    assert_pulled(server, tree, target)
    write(server, tree, 2)
    report = json.loads(weightfs(server, *words).out)
    assert report["kept"] == [2] and [one["version"] for one in report["removed"]] == [1]
    assert not keys(server, FIRST)


def test_a_take_over_that_was_killed_undecided_is_continued(server, start, tree, rival, target):
    """The other push has not completed the version, and its objects are removed."""
    (tree / "more").write_bytes(b"of the other push alone")
    begin_push(server, tree)
    silent = server.fail(2, "silence", method="GET", key="manifest$")
    taking = start(server, "push", rival, URL, "--version", 1, "--take-over")
    wait_for(server, silent)
    kill(taking)
    server.heal()
    push(server, rival)
    assert FIRST + "more" not in keys(server) and "replaces" not in claim_of(server, 1)
    assert_pulled(server, rival, target)


# Claims that are damaged.

def test_a_claim_that_changes_on_its_way_is_read_again(server, tree, target):
    begin_push(server, tree)
    fault = server.fail(1, "flip", method="GET", key="claim$", times=1)
    push(server, tree)
    assert fault.times == 0
    assert_pulled(server, tree, target)


def test_a_claim_that_is_too_large_is_damaged(server, tree, target):
    put(server)(CLAIM, bytes(100_000))
    assert "with a damaged claim" in refused(server, "push", tree, URL, "--version", 1)
    push(server, tree, "--take-over")
    assert_pulled(server, tree, target)


# push --watch.

def test_a_watch_fails_though_the_directory_was_unpublished(server, start, factory, weightfs_only):
    """It has found the directory, and has not pushed it."""
    run = factory.mount(factory.store("256M")).path / "run"
    run.mkdir()
    step = make_tree(run / "step-5", large=MIB)
    plain("publish", step, "--version", 5)
    server.fail(1, "status", method="PUT", key="/claim$", status=403, code="AccessDenied", every=True)
    watching = start(server, "push", "--watch", run, URL)
    assert "AccessDenied" in watching.stderr.readline()
    plain("publish", "--undo", step)
    other = make_tree(run / "step-6", large=MIB)
    server.heal()
    plain("publish", other, "--version", 6)
    server.wait_for(lambda: f"{SERIES}/6/.weightfs/manifest" in keys(server))
    watching.send_signal(signal.SIGTERM)
    assert "1 published directory was not pushed" in process.finish(watching, codes=(1,)).err
