# SPDX-License-Identifier: Apache-2.0
"""weightfs versions and weightfs prune."""
import datetime
import json
import time

import pytest

from harness import process
from harness.filesystems import program
from harness.s3_probe import clean_environment
from harness.tree import differences
from versions import SERIES, URL, comparable, keys, pull, put, refused, weightfs, write

DAY_NS = 86_400_000_000_000


@pytest.fixture
def tree(local):
    root = local / "source"
    (root / "deep").mkdir(parents=True)
    (root / "one").write_bytes(b"1")
    (root / "deep/two").write_bytes(b"22" * 5000)
    return root


def listed(server, *words):
    return json.loads(weightfs(server, "versions", URL, "--json", *words).out)["versions"]


def prune(server, *words):
    return json.loads(weightfs(server, "prune", URL, "--json", *words).out)


def age(server, prefix, days):
    """The objects and uploads below `prefix` become older."""
    for key, found in server.objects.buckets["tests"].items():
        if key.startswith(prefix):
            found.modified -= days * 86_400
    for upload in server.objects.uploads.values():
        if upload.key.startswith(prefix):
            upload.started -= days * 86_400
            for part in upload.parts.values():
                part.modified -= days * 86_400


def abandon(server, tree, version, days):
    """A push that ended `days` ago in the middle of an upload."""
    written = write(server, tree, version, finish=False, created=time.time_ns() - days * DAY_NS)
    key = f"{SERIES}/{version}/large"
    upload = server.objects.create_upload("tests", key, {})
    server.objects.put_part("tests", key, upload, 1, b"part", {})
    age(server, f"{SERIES}/{version}/", days)
    return written


def open_uploads(server):
    return sorted(upload.key for upload in server.objects.uploads.values())


def test_versions_are_listed_the_greatest_first(server, tree):
    assert "no version was pushed" in weightfs(server, "versions", URL).out
    write(server, tree, 9, created=1_000_000_000_000_000_000)
    write(server, tree, 10)
    write(server, tree, 11, finish=False)
    put(server)(f"{SERIES}/12/notes.txt", b"not of weightfs")
    put(server)(f"{SERIES}/latest/notes.txt", b"not of weightfs")
    found = listed(server)
    assert [each["version"] for each in found] == [10, 9] and all(each["complete"] for each in found)
    assert found[1] == {"version": 9, "complete": True, "created": "2001-09-09T01:46:40Z", "files": 2, "bytes": 10_001,
                        "source": f"test:{tree}", "push": found[1]["push"]}
    assert [(each["version"], each["complete"]) for each in listed(server, "--all")] == [
        (11, False), (10, True), (9, True)]
    text = weightfs(server, "versions", URL, "--all").out.splitlines()
    assert text[0].split() == ["VERSION", "PUSHED", "FILES", "SIZE", "SOURCE"]
    assert "unfinished" in text[1] and "9.77 KiB" in text[2] and "2001-09-09T01:46:40Z" in text[3]


def test_a_url_with_a_number_lists_that_version(server, tree):
    write(server, tree, 9)
    write(server, tree, 10)
    (found,) = json.loads(weightfs(server, "versions", f"{URL}/9", "--json").out)["versions"]
    assert found["version"] == 9 and found["complete"]
    assert "no such version" in weightfs(server, "versions", f"{URL}/8", codes=(8,)).err


def test_the_greatest_versions_are_kept(server, tree):
    written = {version: write(server, tree, version) for version in (1, 2, 30, 4)}
    put(server)(f"{SERIES}-2/1/other", b"another series")
    put(server)(f"{SERIES}/1x/other", b"no version")
    dry = prune(server, "--keep", 2, "--dry-run")
    assert [each["version"] for each in dry["removed"]] == [2, 1] and dry["kept"] == [30, 4]
    assert len(keys(server)) == sum(map(len, written.values())) + 2
    assert prune(server, "--keep", 2)["removed"] == dry["removed"]
    assert keys(server) == sorted([*written[30], *written[4], f"{SERIES}-2/1/other", f"{SERIES}/1x/other"])
    assert prune(server, "--keep", 2)["removed"] == []


def test_abandoned_pushes_are_removed_after_their_age(server, tree, local):
    written = write(server, tree, 1)
    abandon(server, tree, 2, days=8)
    young = abandon(server, tree, 3, days=6)
    foreign = f"{SERIES}/4/notes.txt"
    put(server)(foreign, b"not of weightfs")
    age(server, foreign, 100)
    report = prune(server, "--keep", 1)
    assert [(each["version"], each["unfinished"], each["uploads"]) for each in report["removed"]] == [(2, True, 1)]
    assert (report["kept"], report["unfinished"], report["foreign"]) == ([1], [3], [4])
    assert keys(server) == sorted([*written, *young, foreign]) and open_uploads(server) == [f"{SERIES}/3/large"]
    assert [each["version"] for each in prune(server, "--keep", 1, "--unfinished-after", 5.5)["removed"]] == [3]
    assert keys(server) == sorted([*written, foreign]) and open_uploads(server) == []
    pull(server, local / "pulled")


def test_a_push_that_still_changes_something_is_not_abandoned(server, tree):
    abandon(server, tree, 2, days=8)
    put(server)(f"{SERIES}/2/new", b"uploaded now")
    assert prune(server, "--keep", 1)["unfinished"] == [2]


def test_a_part_that_was_sent_is_a_sign_of_life(server, tree):
    """Of one file that takes longer to send than the age."""
    abandon(server, tree, 2, days=8)
    [name] = [name for bucket, name in server.objects.uploads]
    server.objects.put_part("tests", f"{SERIES}/2/large", name, 2, b"sent now", {})
    assert prune(server, "--keep", 1)["unfinished"] == [2]
    age(server, f"{SERIES}/2/", 8)
    assert [each["version"] for each in prune(server, "--keep", 1)["removed"]] == [2]


def test_the_age_of_a_push_is_by_the_clock_of_the_service(server, tree):
    """The clock of this machine is 8 days ahead."""
    server.clock_error = -datetime.timedelta(days=8)
    abandon(server, tree, 2, days=8)   # now, by the clock of the service
    assert prune(server, "--keep", 1)["unfinished"] == [2]
    abandon(server, tree, 3, days=16)
    assert [each["version"] for each in prune(server, "--keep", 1)["removed"]] == [3]


def test_a_claim_of_the_future_does_not_keep_a_push(server, tree):
    write(server, tree, 2, finish=False, created=time.time_ns() + 3650 * DAY_NS)
    assert prune(server, "--keep", 1)["unfinished"] == [2]
    age(server, f"{SERIES}/2/", 8)
    assert [each["version"] for each in prune(server, "--keep", 1)["removed"]] == [2]


def test_the_manifest_goes_first_and_the_claim_last(server, tree):
    write(server, tree, 1)
    write(server, tree, 2)
    prune(server, "--keep", 1)
    changes = [request for request in server.requests if request.method in ("DELETE", "POST")]
    assert changes[0].key == f"{SERIES}/1/.weightfs/manifest" and changes[-1].key == f"{SERIES}/1/.weightfs/claim"


def test_an_interrupted_prune_is_continued(server, tree):
    write(server, tree, 1)
    written = write(server, tree, 2)
    server.undeletable = {f"{SERIES}/1/one"}
    refused(server, "prune", URL, "--keep", 1)
    assert [each["version"] for each in listed(server)] == [2]
    assert f"{SERIES}/1/.weightfs/claim" in keys(server)
    server.undeletable = set()
    assert prune(server, "--keep", 1)["unfinished"] == []
    assert keys(server) == sorted(written)


def test_at_least_one_version_is_kept(server, tree):
    written = write(server, tree, 1)
    weightfs(server, "prune", URL, "--keep", 0, codes=(2,))
    weightfs(server, "prune", URL, codes=(2,))
    assert keys(server) == sorted(written)


def test_no_sign_request_sends_no_credentials(server, tree, target):
    """Although the environment has some."""
    write(server, tree, 1)
    server.anonymous = True
    for words in (["versions", URL], ["pull", URL, target], ["prune", URL, "--keep", "1"],
                  ["push", tree, URL, "--version", 2]):
        first = len(server.requests)
        weightfs(server, *words, "--no-sign-request")
        assert len(server.requests) > first
        for request in server.requests[first:]:
            assert not {"authorization", "x-amz-security-token"} & set(request.headers), words


@pytest.mark.parametrize("status", [403, 500])
def test_messages_have_no_secret_key_or_session_token(server, tree, target, status):
    server.fail(1, "status", every=True, status=status, code="InvalidToken")
    secrets = {"AWS_SECRET_ACCESS_KEY": "topsecret-key", "AWS_SESSION_TOKEN": "topsecret-token"}
    environment = clean_environment({**server.environment(), **secrets, "AWS_MAX_ATTEMPTS": "1"})
    for words in (["versions", URL], ["pull", URL, target], ["prune", URL, "--keep", "1"], ["push", tree, URL]):
        first = len(server.requests)
        finished = process.run([program(), *words], codes=(1,), env=environment)
        assert "topsecret" not in finished.out + finished.err
        assert server.requests[first].headers["x-amz-security-token"] == secrets["AWS_SESSION_TOKEN"]


@pytest.mark.parametrize("words", [["prune", URL], ["push", "--version", 9, URL]], ids=["prune", "push"])
def test_objects_that_belong_to_no_version_stay(server, tree, words):
    """Also those whose names begin as those of the versions do."""
    for version in (1, 2):
        write(server, tree, version)
    objects = server.objects.buckets["tests"]
    others = [f"{SERIES}2/1/one", f"{SERIES}-1/1/.weightfs/manifest", f"{SERIES}/notes", f"{SERIES}/10/notes",
              f"{SERIES}/1x/one", f"{SERIES}/01/one", f"{SERIES}/-1/one", f"{SERIES}/one/.weightfs/manifest",
              "runs/1/one", "1/one", SERIES]
    for key in others:
        objects[key] = objects[f"{SERIES}/1/one"]
    weightfs(server, *words[:1], *([tree] if words[0] == "push" else []), *words[1:], "--keep", 1)
    assert set(others) <= set(keys(server)) and not [key for key in keys(server) if key.startswith(f"{SERIES}/1/")]


@pytest.mark.parametrize("unfiltered", ["list-type", "uploads", "versions"])
@pytest.mark.parametrize("words", [["push", "--version", 1, "--take-over"], ["prune", "--keep", 1],
                                   ["prune", "--keep", 1, "--all-versions"]], ids=["push", "prune", "all-versions"])
def test_a_list_outside_its_prefix_deletes_nothing(server, tree, words, unfiltered):
    """A service that ignores the prefix of a list names objects, uploads and versions of others."""
    write(server, tree, 1, finish=words[0] == "prune")
    write(server, tree, 2)
    put(server)("other", b"not of weightfs")
    server.objects.create_upload("tests", "other", {})
    before = keys(server), open_uploads(server)
    server.unfiltered = {unfiltered}
    command, *options = words
    finished = weightfs(server, command, *([tree] if command == "push" else []), URL, *options, codes=(0, 1))
    assert {"other", *[key for key in before[0] if key.startswith(f"{SERIES}/2/")]} <= set(keys(server))
    assert open_uploads(server) == before[1]
    if any(unfiltered in request.query for request in server.requests):   # this command uses this list
        assert "outside the prefix" in finished.err and keys(server) == before[0]


def test_a_prune_after_a_push_does_not_look_at_greater_versions(server, tree):
    for version in (1, 2, 30, 31):
        write(server, tree, version)
    server.requests.clear()
    weightfs(server, "push", tree, URL, "--version", 3, "--keep", 2)
    looked_at = {request.key + request.query.get("prefix", "") for request in server.requests}
    assert not [name for name in looked_at if name.startswith((f"{SERIES}/30/", f"{SERIES}/31/"))]
    assert [one["version"] for one in listed(server)] == [31, 30, 3, 2]


# Buckets that keep old versions of objects.

def history(server, version):
    return sorted(key for bucket, key in server.objects.history if key.startswith(f"{SERIES}/{version}/"))


def test_a_prune_that_frees_nothing_says_so(server, tree):
    for version in (1, 2):
        write(server, tree, version)
    assert weightfs(server, "prune", URL, "--keep", 1).err == ""
    server.objects.versioned.add("tests")
    write(server, tree, 3)
    finished = weightfs(server, "prune", URL, "--keep", 1)
    assert f"{URL}: its bucket keeps old versions of the objects that were removed" in finished.err
    assert f"'weightfs prune {URL} --keep N --all-versions'" in finished.err
    assert not keys(server, f"{SERIES}/2/") and history(server, 2)


def test_all_versions_of_objects_are_deleted_on_request(server, tree, target):
    server.objects.versioned.add("tests")
    server.page_size = 3
    for version in (1, 2, 3, 4):
        write(server, tree, version)
    put(server)(f"{SERIES}/3/one", b"damaged")       # an object with two versions
    put(server)(f"{SERIES}/3/one", (tree / "one").read_bytes())
    put(server)(f"{SERIES}/9/notes", b"not of weightfs")
    server.objects.delete("tests", f"{SERIES}/9/notes")
    prune(server, "--keep", 3)                       # an earlier call, which left the versions of 1
    expected = prune(server, "--keep", 1, "--all-versions", "--dry-run")
    assert history(server, 1) and keys(server, f"{SERIES}/3/")
    report = prune(server, "--keep", 1, "--all-versions")
    assert {**report, "dry_run": True} == expected
    assert [removed["version"] for removed in report["removed"]] == [3, 2, 1] and report["foreign"] == []
    objects = len(keys(server, f"{SERIES}/4/"))
    assert [removed["objects"] for removed in report["removed"]] == [objects + 2, objects, objects + 1], \
        "one version more, and the claim of the first prune"
    for version in (1, 2, 3):
        assert not history(server, version) and not keys(server, f"{SERIES}/{version}/")
    assert history(server, 9) and len(history(server, 4)) == objects
    pull(server, target)
    assert prune(server, "--keep", 1, "--all-versions")["removed"] == []


@pytest.mark.parametrize("at", range(1, 19))
def test_an_interrupted_removal_of_all_versions_is_continued(server, tree, at):
    """No state in between has a manifest, which would be a version again."""
    server.objects.versioned.add("tests")
    for version in (1, 2):
        write(server, tree, version)
    server.fail(at, "status", status=403, code="AccessDenied")
    weightfs(server, "prune", URL, "--keep", 1, "--all-versions", codes=(0, 1))
    server.heal()
    assert [one["version"] for one in listed(server)] in ([2], [2, 1])
    has_manifest = f"{SERIES}/1/.weightfs/manifest" in keys(server)
    deletes = [record for record in server.requests if record.method in ("DELETE", "POST") and record.status < 300]
    assert not (has_manifest and deletes)
    prune(server, "--keep", 1, "--all-versions", "--unfinished-after", 0)
    assert not history(server, 1) and len(history(server, 2)) == len(keys(server, f"{SERIES}/2/"))


def test_all_versions_are_those_that_were_listed(server, start, tree, target):
    """A push completes the version again while its old objects are deleted."""
    server.objects.versioned.add("tests")
    for version in (1, 2):
        write(server, tree, version)
    prune(server, "--keep", 1)
    for method in ("POST", "DELETE"):
        server.fail(1, "hold", method=method)
    pruning = start(server, "prune", URL, "--keep", "1", "--all-versions")
    server.wait_for_fault()
    weightfs(server, "push", tree, URL, "--version", 1)
    server.heal()
    process.finish(pruning)
    assert [one["version"] for one in listed(server)] == [2, 1]
    pull(server, target, "--version", 1)
    assert not differences(comparable(tree), comparable(target))


def test_a_push_that_is_sending_is_not_abandoned_with_all_versions(server, tree):
    server.objects.versioned.add("tests")
    abandon(server, tree, 2, days=8)
    put(server)(f"{SERIES}/2/new", b"uploaded now")
    assert prune(server, "--keep", 1, "--all-versions")["unfinished"] == [2]


def test_push_keep_deletes_all_versions_on_request(server, tree):
    server.objects.versioned.add("tests")
    weightfs(server, "push", tree, URL, "--version", 1)
    assert "their space is not free" in weightfs(server, "push", tree, URL, "--version", 2, "--keep", 1).err
    assert weightfs(server, "push", tree, URL, "--version", 3, "--keep", 1, "--all-versions").err == ""
    assert not history(server, 1) and not history(server, 2) and history(server, 3)
    assert "--all-versions needs --keep" in weightfs(server, "push", tree, URL, "--all-versions", codes=(2,)).err
