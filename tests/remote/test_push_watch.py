# SPDX-License-Identifier: Apache-2.0
"""weightfs push --watch of a run that goes back: its new steps are pushed, kept, and replace those of before."""
import json
import os
import shutil
import signal

import pytest

from harness import process
from harness.filesystems import weightfs as plain
from harness.tree import differences
from versions import MIB, SERIES, URL, claim_of, comparable, keys, make_tree, pull, refused, weightfs, write


@pytest.fixture
def run(factory, weightfs_only):
    """A directory for the steps of a run, on a mount."""
    path = factory.mount(factory.store("512M")).path / "run"
    path.mkdir()
    return path


def save(run, step, large=MIB):
    """Makes and publishes a step; one that is there is removed before, as by a run that goes back."""
    path = run / f"step-{step}"
    if path.exists():
        plain("publish", "--undo", path)
        shutil.rmtree(path)
    make_tree(path, large=large)
    plain("publish", path, "--version", step)
    return path


def next_version(watching):
    return json.loads(process.read_line(watching))["version"]


def end(watching, code=0):
    """Ends the watch. Returns what it has printed to standard error since."""
    watching.send_signal(signal.SIGTERM)
    return process.finish(watching, codes=(code,)).err


def id_of(step):
    return json.loads(plain("publish", step, "--json").out)["id"]   # it is published already


def has_version(server):
    """By what weightfs lists."""
    return bool(json.loads(weightfs(server, "versions", URL, "--json").out)["versions"])


def pushed(server):
    """The id of the push whose manifest version 5 has; None without one."""
    with server.objects.mutex:
        manifest = server.objects.buckets["tests"].get(f"{SERIES}/5/.weightfs/manifest")
    return json.loads(manifest.body.splitlines()[0])["push"] if manifest else None


def complete(server):
    return sorted(int(key.split("/")[-3]) for key in keys(server) if key.endswith("/.weightfs/manifest"))


def test_steps_of_a_run_that_went_back_are_not_outdated(server, start, run):
    """Greater versions that were published before do not count, also those that are published still."""
    for step in (1000, 1100):
        save(run, step)
    watching = start(server, "push", "--watch", run, URL, "--json", "--keep", 2)
    assert [next_version(watching) for _ in range(2)] == [1000, 1100]
    end(watching)
    save(run, 600)
    watching = start(server, "push", "--watch", run, URL, "--json", "--keep", 2)
    assert [next_version(watching) for _ in range(3)] == [600, 1000, 1100]   # the latter were there already
    end(watching)
    assert complete(server) == [600, 1000, 1100]


def test_a_step_of_before_that_is_pushed_late_removes_no_step_of_now(server, start, run):
    save(run, 1100)
    save(run, 600)
    server.fail(1, "status", method="PUT", key="/1100/.weightfs/claim$", status=403, code="AccessDenied")
    watching = start(server, "push", "--watch", run, URL, "--json", "--keep", 1)
    assert [next_version(watching) for _ in range(2)] == [600, 1100]
    save(run, 700)
    assert next_version(watching) == 700
    server.wait_for(lambda: complete(server) == [700, 1100])
    end(watching)


def test_a_step_of_before_that_is_pushed_late_removes_none_that_only_the_bucket_has(server, start, run):
    save(run, 1100)
    save(run, 600)
    server.fail(1, "status", method="PUT", key="/1100/.weightfs/claim$", status=403, code="AccessDenied", every=True)
    watching = start(server, "push", "--watch", run, URL, "--json", "--keep", 1)
    assert next_version(watching) == 600
    plain("publish", "--undo", run / "step-600")
    shutil.rmtree(run / "step-600")
    server.heal()
    assert next_version(watching) == 1100
    end(watching)
    assert complete(server) == [600, 1100]


def test_a_directory_that_was_pushed_and_not_pushed_again_is_left(server, start, run):
    save(run, 5)
    watching = start(server, "push", "--watch", run, URL, "--json")
    assert next_version(watching) == 5
    server.fail(1, "status", method="PUT", key="/5/.weightfs/claim$", status=403, code="AccessDenied", every=True)
    save(run, 5)
    assert "AccessDenied" in watching.stderr.readline()
    assert "1 published directory was not pushed" in end(watching, code=1)


def test_old_versions_that_cannot_be_removed_do_not_hide_that_a_version_is_pushed(server, local):
    tree = make_tree(local / "source", large=MIB)
    weightfs(server, "push", tree, URL, "--version", 1)
    server.undeletable = {key for key in keys(server) if not key.endswith("/claim")}
    failed = weightfs(server, "push", tree, URL, "--version", 2, "--keep", 1, codes=(1,))
    assert f"{URL}/2 is pushed, but old versions could not be removed: " in failed.err
    assert 2 in complete(server)


def test_steps_that_were_removed_after_later_ones_are_outdated(server, start, run):
    for step in (1, 2, 3):
        save(run, step)
        weightfs(server, "push", run / f"step-{step}", URL, "--keep", 2)
    watching = start(server, "push", "--watch", run, URL, "--json", "--keep", 2)
    assert "version 1 is older than the 2 that are kept: not pushed" in watching.stderr.readline()
    assert [next_version(watching) for _ in range(2)] == [2, 3]
    assert end(watching) == "" and complete(server) == [2, 3]


def test_versions_without_the_time_of_a_publication_count_by_their_own(server, start, run, local):
    """Earlier programs did not record it."""
    tree = make_tree(local / "source", large=MIB)
    write(server, tree, 1000, created=1)
    save(run, 600)
    write(server, tree, 2000)
    watching = start(server, "push", "--watch", run, URL, "--json", "--keep", 2)
    assert next_version(watching) == 600
    end(watching)
    write(server, tree, 2001)
    watching = start(server, "push", "--watch", run, URL, "--json", "--keep", 2)
    assert "version 600 is older" in watching.stderr.readline()
    end(watching)


def test_a_version_whose_push_has_lost_its_claim_does_not_count(server, start, run, local):
    save(run, 5)
    write(server, make_tree(local / "source", large=MIB), 9)
    claim = json.dumps({**claim_of(server, 9), "push": 32 * "0"}).encode()
    server.objects.put("tests", f"{SERIES}/9/.weightfs/claim", claim, {})
    watching = start(server, "push", "--watch", run, URL, "--json", "--keep", 1)
    assert next_version(watching) == 5
    end(watching)


def test_a_step_that_is_saved_again_replaces_its_unfinished_push(server, start, run, target):
    """The claim of the first publication is of this source, and no person need act."""
    save(run, 5, large=17 * MIB)
    server.fail(1, "silence", method="PUT", key="/large$")
    watching = start(server, "push", "--watch", run, URL)
    server.wait_for_fault()
    watching.kill()
    watching.wait()
    server.heal()
    expected = comparable(save(run, 5))
    save(run, 6)
    watching = start(server, "push", "--watch", run, URL, "--json")
    assert [next_version(watching) for _ in range(2)] == [5, 6]
    assert end(watching) == ""
    pull(server, target, "--version", 5)
    assert not differences(expected, comparable(target))


@pytest.mark.parametrize("restart", [True, False])
def test_a_step_that_is_saved_again_replaces_its_version(server, start, run, target, restart):
    """A pull must not give the state that the run has left."""
    save(run, 5, large=17 * MIB)
    watching = start(server, "push", "--watch", run, URL, "--json")
    assert next_version(watching) == 5
    first = claim_of(server, 5)["push"]
    if restart:
        end(watching)
    expected = comparable(save(run, 5))
    if restart:
        watching = start(server, "push", "--watch", run, URL, "--json")
    assert next_version(watching) == 5 and claim_of(server, 5)["push"] != first
    assert end(watching) == ""
    pull(server, target)
    assert not differences(expected, comparable(target))


@pytest.mark.limit(400)
def test_a_replacement_that_is_interrupted_is_continued(server, start, run, target):
    """At each of its requests. No kill leaves a mixture: the version is that of one of the saves, or there is none."""
    saves, states, at = {}, [], 0
    while True:
        at += 1
        step = save(run, 5)
        saves[id_of(step)] = comparable(step)
        fault = server.fail(at, "silence")
        watching = start(server, "push", "--watch", run, URL, "--json")
        server.wait_for(lambda: fault.seen >= at or pushed(server) == list(saves)[-1])
        ended = fault.seen < at
        watching.kill()
        watching.wait()
        server.heal()
        if has_version(server):
            pull(server, target.with_name(f"pulled-{at}"))
            assert not differences(saves[claim_of(server, 5)["push"]], comparable(target.with_name(f"pulled-{at}"))), at
        states.append(has_version(server))
        if ended:
            break
    assert at > 15 and {True, False} == set(states), "kills before and after the version was replaced"
    expected = comparable(save(run, 5))
    watching = start(server, "push", "--watch", run, URL, "--json")
    assert next_version(watching) == 5
    assert end(watching) == ""
    pull(server, target)
    assert not differences(expected, comparable(target))


@pytest.mark.parametrize("finish", [True, False])
def test_a_version_of_another_source_is_left_alone_and_delays_no_other(server, start, run, local, finish):
    """It exits with 1, because a published directory was not pushed."""
    write(server, make_tree(local / "source", large=MIB), 5, finish=finish)
    before = claim_of(server, 5)
    for step in (5, 6):
        save(run, step)
    watching = start(server, "push", "--watch", run, URL, "--json")
    assert next_version(watching) == 6
    save(run, 7)
    assert next_version(watching) == 7
    err = end(watching, code=1)
    assert ("exists already" if finish else "another push began this version") in err and err.count("\n") == 2
    assert err.endswith(f"{run}: 1 published directory was not pushed\n")
    assert claim_of(server, 5) == before


@pytest.mark.parametrize("moved", [False, True])
def test_the_version_of_another_store_is_left_alone(server, start, factory, weightfs_only, moved):
    """Two machines may have the same name, and directories with the same path. That of a run may be moved."""
    path = factory.directory("shared")
    for number in (1, 2):
        mount = factory.mount(factory.store("256M"), path=path)
        run = path / "run"
        run.mkdir()
        save(run, 5)
        watching = start(server, "push", "--watch", run, URL, "--json")
        if number == 1:
            assert next_version(watching) == 5
            end(watching)
            if moved:
                run.rename(path / "moved")
                save(path / "moved", 5)
                watching = start(server, "push", "--watch", path / "moved", URL, "--json")
                assert next_version(watching) == 5
                end(watching)
            before = claim_of(server, 5)
            mount.umount()
    assert "exists already" in watching.stderr.readline()
    end(watching, code=1)
    assert claim_of(server, 5) == before


def test_a_version_without_the_time_of_its_publication_is_left_alone(server, start, run):
    """It may be a push of somebody else, whose clock is not that of the store."""
    save(run, 5)
    weightfs(server, "push", run / "step-5", URL)
    before = {name: value for name, value in claim_of(server, 5).items() if name != "published"}
    server.objects.put("tests", f"{SERIES}/5/.weightfs/claim", json.dumps(before).encode(), {})
    save(run, 5)
    watching = start(server, "push", "--watch", run, URL, "--json")
    assert "exists already" in watching.stderr.readline()
    end(watching, code=1)
    assert claim_of(server, 5) == before


def test_a_directory_that_cannot_be_pushed_delays_no_other(server, start, run):
    for step in (5, 6):
        save(run, step)
    server.fail(1, "status", method="PUT", key="/5/.weightfs/claim$", status=403, code="AccessDenied", every=True)
    watching = start(server, "push", "--watch", run, URL, "--json")
    assert next_version(watching) == 6
    save(run, 7)
    assert next_version(watching) == 7
    err = end(watching, code=1)
    assert "AccessDenied" in err and err.endswith(f"{run}: 1 published directory was not pushed\n")
    assert complete(server) == [6, 7]


def test_a_version_that_exists_is_tried_again(server, start, run, local):
    """It may be removed meanwhile, and a service may answer 409 while another request is under way."""
    written = write(server, make_tree(local / "source", large=MIB), 5)
    save(run, 5)
    watching = start(server, "push", "--watch", run, URL, "--json")
    assert "exists already" in watching.stderr.readline()
    with server.objects.mutex:   # no attempt sees a part of it
        for key in written:
            server.objects.delete("tests", key)
    assert next_version(watching) == 5
    assert end(watching) == ""


def test_only_a_watch_replaces_a_version(server, start, run):
    """Both objects have the time of the publication, which decides what is earlier."""
    save(run, 5)
    weightfs(server, "push", run / "step-5", URL)
    key = f"{SERIES}/5/.weightfs/manifest"
    lines = server.objects.get("tests", key).body.splitlines(keepends=True)
    assert json.loads(lines[0])["published"] == claim_of(server, 5)["published"]
    watching = start(server, "push", "--watch", run, URL, "--json")
    assert next_version(watching) == 5 and end(watching) == ""
    step = save(run, 5)
    error = refused(server, "push", step, URL)
    assert "exists already" in error


def test_the_exit_status_of_a_watch_that_was_interrupted(server, start, run):
    save(run, 5, large=17 * MIB)
    server.fail(1, "hold", method="PUT", key="/large$")
    watching = start(server, "push", "--watch", run, URL)
    server.wait_for_fault()
    watching.send_signal(signal.SIGTERM)
    server.wait_for(lambda: watching.poll() is not None)
    server.heal()
    assert process.finish(watching, codes=(1,)).err == f"weightfs: {run}: 1 published directory was not pushed\n"


def test_old_versions_that_the_bucket_keeps_are_named_once(server, start, run):
    server.objects.versioned.add("tests")
    for step in (1, 2, 3):
        save(run, step)
    watching = start(server, "push", "--watch", run, URL, "--json", "--keep", 1)
    assert [next_version(watching) for _ in range(3)] == [1, 2, 3]
    save(run, 4)
    assert next_version(watching) == 4
    server.wait_for(lambda: complete(server) == [4])
    assert end(watching).count("warning") == 1


def test_a_name_that_is_not_utf8_ends_no_watch(server, start, run):
    odd = run / os.fsdecode(b"step-\xe9")
    make_tree(odd, large=MIB)
    plain("publish", odd, "--version", 1)
    save(run, 2)
    watching = start(server, "push", "--watch", run, URL, "--json")
    assert [next_version(watching) for _ in range(2)] == [1, 2]
    end(watching)
