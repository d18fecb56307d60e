# SPDX-License-Identifier: Apache-2.0
"""Whatever is killed at whatever request, a version that counts as complete has all its objects: take-overs, pushes
that lost their claim, prunes, and pushes of one source at the same time."""
import json

import pytest

from harness import process
from harness.tree import differences
from versions import (MIB, SERIES, URL, begin_push, claim_of, comparable, complete, keys, kill, make_tree, pull,
                      push_first as push, put, refused, wait_for, weightfs, write)

LARGE = MIB   # bytes
FIRST = f"{SERIES}/1/"
MANIFEST = FIRST + ".weightfs/manifest"


def assert_sound(server, target, trees):
    """A version that is listed can be pulled, and is one of the trees."""
    if 1 in complete(server):
        pull(server, target)
        assert any(not differences(comparable(tree), comparable(target)) for tree in trees)
        return True
    return False


def held_manifest(server, start, tree):
    """A push that has made sure of its claim, and whose manifest arrives after heal()."""
    fault = server.fail(1, "hold", method="PUT", key="manifest$")
    pushing = start(server, "push", tree, URL, "--version", "1")
    wait_for(server, fault)
    return pushing


def test_a_take_over_deletes_after_it_has_the_claim(server, tree, rival):
    begin_push(server, tree)
    server.requests.clear()
    push(server, rival, "--take-over")
    changes = [record for record in server.requests if record.method in ("PUT", "DELETE", "POST")]
    assert (changes[0].method, changes[0].key) == ("PUT", FIRST + ".weightfs/claim")
    assert any(record.method == "POST" and not record.key for record in changes[1:])


@pytest.mark.limit(400)
def test_a_killed_take_over_leaves_no_version_without_its_objects(server, start, other, tree, rival, target):
    """At each of its requests; the first push goes on then, with its manifest."""
    at = 0
    while True:
        at += 1
        for key in keys(server, FIRST):
            server.objects.delete("tests", key)
        first = held_manifest(server, start, tree)
        silent = other.fail(at, "silence")
        taking = start(other, "push", rival, URL, "--version", "1", "--take-over")
        other.wait_for(lambda: silent.seen >= at or taking.poll() is not None)
        ended = taking.poll() is not None
        if not ended:
            kill(taking)
        other.heal()
        server.heal()
        code = process.finish(first, codes=(0, 1)).code
        found = assert_sound(server, target.with_name(f"pulled-{at}"), (tree, rival))
        assert code == 1 or found, at
        if ended:
            break
        push(server, rival, "--take-over", codes=(0, 1))
        assert assert_sound(server, target.with_name(f"again-{at}"), (tree, rival)), at
    assert at > 20


def test_the_manifest_of_a_push_that_was_taken_over_makes_no_version(server, start, other, tree, rival, target):
    """It arrives after the other push has removed all objects, and that one is killed. It may be another one by then,
    so the push that lost its claim leaves it."""
    first = held_manifest(server, start, tree)
    silent = other.fail(1, "silence", method="PUT", key="/large$")
    taking = start(other, "push", rival, URL, "--version", "1", "--take-over")
    wait_for(other, silent)
    kill(taking)
    server.heal()
    assert "was taken over from" in process.finish(first, codes=(1,)).err
    assert MANIFEST in keys(server) and complete(server) == []
    other.heal()
    push(server, rival)
    assert assert_sound(server, target, [rival])


def test_a_push_that_completes_at_the_last_moment_is_not_taken_over(server, start, other, tree, rival, target):
    begin_push(server, tree)
    claim = server.fail(1, "hold", method="PUT", key="claim$")
    taking = start(server, "push", rival, URL, "--version", "1", "--take-over")
    wait_for(server, claim)
    push(other, tree)
    server.heal()
    assert "was completed meanwhile, from" in process.finish(taking, codes=(1,)).err
    assert assert_sound(server, target, [tree])


def test_what_arrives_after_a_take_over_is_sent_again(server, start, other, tree, rival, target):
    """The other push had sent it, but it is there when the take-over was killed, and is continued."""
    begin_push(server, tree)
    silent = other.fail(1, "silence", method="PUT", key="/large$")
    taking = start(other, "push", rival, URL, "--version", "1", "--take-over")
    wait_for(other, silent)
    kill(taking)
    put(server)(FIRST + "large", (tree / "large").read_bytes())
    push(server, rival)
    assert assert_sound(server, target, [rival])


def lose(server, start, other, tree, rival, version=1):
    """A version whose manifest is that of a push which has lost its claim, and was killed."""
    fault = server.fail(1, "lost", method="PUT", key=f"{version}/.weightfs/manifest$")
    after = server.fail(2, "silence", method="GET", key=f"{version}/.weightfs/manifest$")
    first = start(server, "push", tree, URL, "--version", version)
    wait_for(server, fault)
    wait_for(server, after)
    kill(first)
    server.heal()
    body = server.objects.get("tests", f"{SERIES}/{version}/.weightfs/manifest").body
    server.objects.delete("tests", f"{SERIES}/{version}/.weightfs/manifest")
    silent = other.fail(1, "silence", method="PUT", key="/large$")
    taking = start(other, "push", rival, URL, "--version", version, "--take-over")
    wait_for(other, silent)
    kill(taking)
    other.heal()
    put(server)(f"{SERIES}/{version}/.weightfs/manifest", body)


def test_a_manifest_without_its_claim_is_no_version(server, start, other, tree, rival, local):
    """It is not listed, pulled or kept, and does not count."""
    write(server, tree, 1)
    write(server, tree, 2)
    lose(server, start, other, tree, rival, 3)
    assert complete(server) == [2, 1]
    assert pull(server, local / "pulled")["version"] == 2
    assert "no such version" in weightfs(server, "pull", URL, local / "third", "--version", 3, codes=(8,)).err
    report = json.loads(weightfs(server, "prune", URL, "--keep", 1, "--json").out)
    assert (report["kept"], report["unfinished"]) == ([2], [3])
    assert [one["version"] for one in report["removed"]] == [1]
    report = json.loads(weightfs(server, "prune", URL, "--keep", 1, "--unfinished-after", 0, "--json").out)
    assert [(one["version"], one["unfinished"]) for one in report["removed"]] == [(3, True)] and complete(server) == [2]


def test_a_manifest_without_any_claim_is_no_version(server, tree, rival, local):
    """A push was killed after a prune had removed the version. Nobody knows, so it stays, and is named."""
    kept = write(server, tree, 1)
    written = write(server, tree, 2)
    server.objects.delete("tests", f"{SERIES}/2/.weightfs/claim")
    assert complete(server) == [1] and pull(server, local / "pulled")["version"] == 1
    finished = weightfs(server, "prune", URL, "--keep", 1)
    assert "/2 has a damaged manifest" in finished.err and len(keys(server)) == len(kept) + len(written) - 1
    assert "has a manifest without a claim" in refused(server, "push", rival, URL, "--version", 2)
    weightfs(server, "push", rival, URL, "--version", 2, "--take-over")
    assert complete(server) == [2, 1]


def test_objects_that_are_removed_during_a_push_are_sent_again(server, start, tree, target):
    """Deletions of a prune that has lost its claim long ago may arrive late."""
    fault = server.fail(1, "hold", method="PUT", key="/sums/0$")
    pushing = start(server, "push", tree, URL, "--version", "1")
    wait_for(server, fault)
    server.wait_for(lambda: FIRST + "one" in keys(server))
    server.objects.delete("tests", FIRST + "one")
    server.heal()
    process.finish(pushing)
    assert assert_sound(server, target, [tree])


def test_two_pushes_of_one_source_abort_no_upload_of_each_other(server, start, other, local, target):
    """Both have begun an upload of their own when a third one completes the version."""
    tree = make_tree(local / "large", large=40 * MIB)
    begun = server.fail(1, "hold", method="POST", key="/large$")
    pushing = [start(server, "push", tree, URL, "--version", "1") for _ in range(2)]
    server.wait_for(lambda: begun.seen >= 2)
    sent = server.fail(1, "hold", method="PUT", key="/large$")
    server.heal(begun)
    server.wait_for(lambda: len(server.objects.open_uploads("tests", "")) == 2 and sent.seen >= 2)
    push(other, tree)
    server.heal()
    for one in pushing:
        process.finish(one)
    for where in (server, other):
        made = next(at for at, record in enumerate(where.requests) if record.method == "PUT" and
                    record.key == MANIFEST)
        assert not [record for record in where.requests[:made] if record.method == "DELETE"]
    assert not server.objects.open_uploads("tests", "") and assert_sound(server, target, [tree])


@pytest.mark.parametrize("error", ["AccessDenied", "newer", "damaged"])
def test_a_repair_replaces_no_claim_that_it_cannot_read(server, start, tree, target, error):
    """It was readable before the version was compared, which may take hours."""
    push(server, tree)
    put(server)(FIRST + "one", b"2")
    if error == "damaged":
        put(server)(FIRST + ".weightfs/claim", b"damaged")
    fault = server.fail(1, "hold", method="GET", key="/one$")
    pushing = start(server, "push", tree, URL, "--version", 1, "--verify")
    wait_for(server, fault)
    if error == "AccessDenied":
        server.fail(1, "status", method="GET", key="/claim$", status=403, code=error, every=True)
    elif error == "newer":
        claim = {**claim_of(server, 1), "weightfs-claim": 2}
        put(server)(FIRST + ".weightfs/claim", json.dumps(claim).encode())
    before = server.objects.get("tests", FIRST + ".weightfs/claim").body
    server.heal(fault)
    message = process.finish(pushing, codes=(1,)).err
    assert {"AccessDenied": "AccessDenied", "newer": "use a newer weightfs", "damaged": "--take-over"}[error] in message
    assert server.objects.get("tests", FIRST + ".weightfs/claim").body == before and MANIFEST in keys(server)
    server.heal()
    if error == "damaged":
        push(server, tree, "--verify", "--take-over")
        assert assert_sound(server, target, [tree])


# Prunes.

def test_a_killed_prune_is_continued_whatever_is_kept(server, start, tree):
    """It has replaced the claim, and nothing else."""
    for version in (1, 2):
        write(server, tree, version)
    fault = server.fail(1, "silence", method="DELETE")
    pruning = start(server, "prune", URL, "--keep", "1")
    wait_for(server, fault)
    kill(pruning)
    server.heal()
    assert claim_of(server, 1)["removing"] and MANIFEST in keys(server) and complete(server) == [2]
    report = json.loads(weightfs(server, "prune", URL, "--keep", 9, "--json").out)
    assert report["kept"] == [2] and [one["version"] for one in report["removed"]] == [1]
    assert not keys(server, FIRST)


def test_no_prune_gives_a_version_back_to_a_prune(server, start, other, tree):
    """The first one was killed; the manifest is that of a push which had lost its claim to it."""
    begin_push(server, tree)
    pushing = held_manifest(server, start, tree)
    silent = other.fail(1, "silence", method="DELETE")
    words = ("prune", URL, "--keep", "1", "--unfinished-after", "0", "--json")
    first = start(other, *words)
    wait_for(other, silent)
    kill(first)
    other.heal()
    replaces = other.fail(1, "hold", method="PUT", key="claim$")
    second = start(other, *words)
    wait_for(other, replaces)
    after = server.fail(1, "silence", method="GET")   # the push is killed before it looks at its claim again
    server.heal(server.faults[0])
    server.wait_for(lambda: MANIFEST in keys(server))
    wait_for(server, after)
    kill(pushing)
    other.heal()
    report = json.loads(process.finish(second).out)
    assert report["kept"] == [] and [one["version"] for one in report["removed"]] == [1]
    assert not keys(server, FIRST)


def test_a_version_that_is_given_back_counts_as_it_is(server, start, other, tree):
    """It is complete, but older than the ones that are kept."""
    write(server, tree, 2)
    begin_push(server, tree)
    fault = server.fail(1, "hold", method="PUT", key="claim$")
    pruning = start(server, "prune", URL, "--keep", "1", "--unfinished-after", "0", "--json")
    wait_for(server, fault)
    push(other, tree)
    server.heal()
    report = json.loads(process.finish(pruning).out)
    assert report["kept"] == [2] and [one["version"] for one in report["removed"]] == [1]
    assert not keys(server, FIRST)


def test_a_prune_whose_claim_was_replaced_deletes_nothing(server, start, other, tree, target):
    """Another one has removed the version meanwhile, and a push has made it again."""
    for version in (1, 2):
        write(server, tree, version)
    fault = server.fail(2, "hold", method="GET", key="1/.weightfs/claim$")
    pruning = start(server, "prune", URL, "--keep", "1", "--json")
    wait_for(server, fault)
    weightfs(other, "prune", URL, "--keep", "1")
    push(other, tree)
    server.heal()
    assert json.loads(process.finish(pruning).out)["removed"] == []
    assert not [record for record in server.requests if record.method in ("DELETE", "POST")]
    assert complete(server) == [2, 1]


def test_an_object_that_cannot_be_deleted_delays_no_other(server, tree):
    for version in (1, 2, 3, 4):
        write(server, tree, version)
    server.undeletable = {f"{SERIES}/3/one", f"{SERIES}/3/block"}
    finished = weightfs(server, "prune", URL, "--keep", 1, "--json", codes=(1,))
    report = json.loads(finished.out)
    assert [one["version"] for one in report["removed"]] == [2, 1] and report["kept"] == [4]
    [error] = report["errors"]
    assert f"{SERIES}/3/block: AccessDenied" in error and "(2 objects are not deleted)" in error
    assert error in finished.err
    left = [key.removeprefix(f"{SERIES}/3/") for key in keys(server, f"{SERIES}/3/")]
    assert sorted(left) == [".weightfs/claim", "block", "one"], "all others of this version are deleted"
    server.undeletable = set()
    weightfs(server, "prune", URL, "--keep", 1)
    assert complete(server) == [4] and not keys(server, f"{SERIES}/3/")
