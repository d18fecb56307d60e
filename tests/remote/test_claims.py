# SPDX-License-Identifier: Apache-2.0
"""Whose version it is: what was in the bucket before a claim, pushes that go back, and versions that are damaged."""
import json
import os

from harness.process import finish
from harness.tree import differences
from versions import MIB, SERIES, URL, claim_of, comparable, make_tree, pull, put, refused, weightfs


def push(server, path, *words, **options):
    return json.loads(weightfs(server, "push", path, URL, "--json", *words, **options).out)


def listed(server, *words):
    return [(one["version"], one["complete"])
            for one in json.loads(weightfs(server, "versions", URL, "--json", *words).out)["versions"]]


def test_what_was_there_before_the_claim_is_sent_again(server, tree, target):
    """Another program copied files of the same sizes there."""
    for name in ("one", "deep/odd", "large"):
        put(server)(f"{SERIES}/5/{name}", bytes((tree / name).stat().st_size))
    report = push(server, tree, "--version", 5)
    assert report["sent_bytes"] == report["bytes"] and claim_of(server, 5)["taken-over"]
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


def test_parts_that_were_there_before_the_claim_are_sent_again(server, tree, target):
    key = f"{SERIES}/5/large"
    upload = server.objects.create_upload("tests", key, {})
    server.objects.put_part("tests", key, upload, 1, bytes(16 * MIB), {})
    report = push(server, tree, "--version", 5)
    assert report["sent_bytes"] == report["bytes"]
    assert not server.objects.open_uploads("tests", "")
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


def test_an_own_claim_continues(server, tree):
    """Without anything else in the bucket the claim does not say that it was taken over."""
    push(server, tree, "--version", 5)
    assert "taken-over" not in claim_of(server, 5)


def test_a_damaged_claim_is_taken_over(server, tree, target):
    put(server)(f"{SERIES}/5/.weightfs/claim", b"no claim")
    assert "with a damaged claim" in refused(server, "push", tree, URL, "--version", 5)
    push(server, tree, "--version", 5, "--take-over")
    pull(server, target)


def test_a_claim_of_a_newer_format_is_left_alone(server, tree):
    newer = json.dumps({"weightfs-claim": 2, "push": "0" * 32, "source": "x", "created": 1}).encode()
    put(server)(f"{SERIES}/5/.weightfs/claim", newer)
    assert "use a newer weightfs" in refused(server, "push", tree, URL, "--version", 5, "--take-over")
    assert server.objects.get("tests", f"{SERIES}/5/.weightfs/claim").body == newer


def test_keep_counts_the_versions_up_to_the_pushed_one(server, local):
    """A run that went back pushes versions below those that are there."""
    tree = make_tree(local / "source", large=MIB)
    for version in (1000, 1100, 1200):
        push(server, tree, "--version", version)
    left = [(1200, True), (1100, True), (1000, True)]
    for pushed, kept in ((600, [600]), (601, [601, 600]), (602, [602, 601]), (603, [603, 602])):
        push(server, tree, "--version", pushed, "--keep", 2)
        assert listed(server) == left + [(version, True) for version in kept]
    push(server, tree, "--version", 1300, "--keep", 2)
    assert listed(server) == [(1300, True), (1200, True)]


def test_a_damaged_manifest_is_listed_and_does_not_count(server, local):
    tree = make_tree(local / "source", large=MIB)
    for version in (1, 2, 3):
        push(server, tree, "--version", version)
    manifest = f"{SERIES}/3/.weightfs/manifest"
    body = bytearray(server.objects.get("tests", manifest).body)
    body[len(body) // 2] ^= 1
    put(server)(manifest, bytes(body))
    assert listed(server) == [(3, False), (2, True), (1, True)]
    assert "damaged" in weightfs(server, "versions", URL).out
    report = json.loads(weightfs(server, "prune", URL, "--keep", 1, "--json").out)
    assert (report["kept"], report["damaged"]) == ([2], [3])
    assert [one["version"] for one in report["removed"]] == [1]
    assert "use another version" in refused(server, "pull", URL, local / "new")


def test_prune_takes_only_numbers_of_days(server):
    for days in ("nan", "inf", "-1"):
        finished = weightfs(server, "prune", URL, "--keep", 1, f"--unfinished-after={days}", codes=(2,))
        assert "is not a number of days" in finished.err


def test_an_object_that_became_shorter_is_damage(server, tree, target):
    push(server, tree, "--version", 5)
    large = server.objects.get("tests", f"{SERIES}/5/large").body
    put(server)(f"{SERIES}/5/large", bytes(large[:-4096]))
    error = refused(server, "pull", URL, target)
    assert f"{SERIES}/5/large" in error and "use another version" in error and not target.exists()


def test_verify_sends_what_is_missing_or_too_short_again(server, tree, target):
    """The first push fails before its manifest; the objects are damaged before the second one."""
    server.fail(1, "status", method="PUT", key="manifest$", status=403, code="AccessDenied", every=True)
    refused(server, "push", tree, URL, "--version", 5)
    server.heal()
    put(server)(f"{SERIES}/5/large", bytes((tree / "large").stat().st_size))
    push(server, tree, "--version", 5, "--verify")
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


def test_a_file_that_is_removed_during_the_push_has_changed(server, start, local):
    """`large` is sent before `one`, and its parts wait for an answer."""
    tree = make_tree(local / "source", large=MIB)
    os.truncate(tree / "large", 300 * MIB)   # more than a push holds in memory
    server.fail(1, "hold", method="PUT", key="/large$")
    pushing = start(server, "push", tree, URL, "--version", 4)
    server.wait_for_fault()
    os.remove(tree / "one")
    server.heal()
    assert "/one: changed during the push" in finish(pushing, codes=(1,)).err
    assert listed(server) == []


def test_an_upload_that_the_service_does_not_complete_is_replaced(server, start, tree, target):
    """For ten minutes Ceph keeps the lock of a gateway that was killed while it completed an upload."""
    held = server.fail(1, "hold", method="PUT", key="/large$")
    pushing = start(server, "push", tree, URL, "--version", "5")
    server.wait_for_fault()
    server.fail(1, "status", method="POST", key="/large$", status=400, code="InvalidRequest", times=1)
    server.heal(held)
    finish(pushing)
    assert not server.objects.open_uploads("tests", "")
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))
