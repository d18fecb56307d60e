# SPDX-License-Identifier: Apache-2.0
"""Versions that are listed as complete, but are damaged: push --verify and push --take-over repair them."""
import json

import pytest

from harness.tree import differences
from versions import MIB, SERIES, URL, comparable, keys, pull, put, refused, weightfs, write

LARGE = MIB   # bytes
FIRST = f"{SERIES}/1/"


def push(server, tree, *words):
    return json.loads(weightfs(server, "push", tree, URL, "--version", 1, "--json", *words).out)


def assert_pulled(server, tree, target):
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


def damage(server, name, kind):
    body = server.objects.get("tests", FIRST + name).body
    if kind == "gone":
        server.objects.delete("tests", FIRST + name)
    elif kind == "short":
        put(server)(FIRST + name, body[:-1])
    else:
        put(server)(FIRST + name, bytes([body[0] ^ 1]) + body[1:])


@pytest.mark.parametrize("kind", ["gone", "short", "other"])
@pytest.mark.parametrize("names", [["one"], ["deep/odd", "deep/er/é", "large", "block"], [".weightfs/sums/0"]],
                         ids=["one", "many", "checksums"])
def test_verify_repairs_a_complete_version(server, tree, target, names, kind):
    push(server, tree)
    for name in names:
        damage(server, name, kind)
    assert push(server, tree)["existed"], "without --verify nothing is read"
    error = refused(server, "pull", URL, target)
    assert "with --verify" in error or "weightfs/sums" in error
    report = push(server, tree, "--verify")
    assert not report["existed"] and report["sent_bytes"] == report["bytes"]
    assert_pulled(server, tree, target)
    assert push(server, tree, "--verify")["existed"]


def test_a_repair_that_ends_early_is_continued_without_trust(server, tree, target):
    """Also by a push without --verify, and nobody pulls the version meanwhile."""
    push(server, tree)
    damage(server, "one", "other")
    server.fail(1, "status", method="PUT", key="/one$", status=403, code="AccessDenied")
    refused(server, "push", tree, URL, "--version", 1, "--verify")
    server.heal()
    assert "no version was pushed" in refused(server, "pull", URL, target)
    push(server, tree)
    assert_pulled(server, tree, target)


def test_another_source_repairs_nothing(server, tree, target):
    push(server, tree)
    damage(server, "one", "gone")
    before = keys(server)
    (tree / "one").write_bytes(b"2")
    assert "exists already" in refused(server, "push", tree, URL, "--version", 1, "--verify")
    assert "exists already" in refused(server, "push", tree, URL, "--version", 1, "--verify", "--take-over")
    assert keys(server) == before


def lose(server, tree):
    """The manifest of a push that has lost its claim: it arrived after the other push had removed all objects."""
    write(server, tree, 1)
    manifest = server.objects.get("tests", FIRST + ".weightfs/manifest").body
    for key in keys(server, FIRST):
        server.objects.delete("tests", key)
    (tree / "one").write_bytes(b"2")
    server.fail(1, "status", method="PUT", key="/one$", status=403, code="AccessDenied")
    refused(server, "push", tree, URL, "--version", 1)
    server.heal()
    put(server)(FIRST + ".weightfs/manifest", manifest)


def test_a_manifest_of_a_push_that_lost_its_claim_does_not_end_the_other(server, tree, target):
    lose(server, tree)
    push(server, tree)
    assert_pulled(server, tree, target)


def test_a_manifest_of_a_push_that_lost_its_claim_is_taken_over(server, tree, target):
    lose(server, tree)
    (tree / "one").write_bytes(b"3")
    assert "another push began this version" in refused(server, "push", tree, URL, "--version", 1)
    push(server, tree, "--take-over")
    assert_pulled(server, tree, target)


def test_a_damaged_manifest_of_another_source_is_taken_over(server, tree, target):
    push(server, tree)
    damage(server, ".weightfs/manifest", "short")
    (tree / "one").write_bytes(b"2")
    assert "manifest is damaged" in refused(server, "push", tree, URL, "--version", 1)
    push(server, tree, "--take-over")
    assert_pulled(server, tree, target)
