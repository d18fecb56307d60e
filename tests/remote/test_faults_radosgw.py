# SPDX-License-Identifier: Apache-2.0
"""push and pull with Ceph's gateway, over a network that fails at each request."""
import itertools
import json
import shutil

import pytest

from harness.s3_server import S3Server
from harness.tree import differences
from versions import comparable, is_untouched, make_tree, pull, weightfs

FAULTS = ("status", "reset", "close", "lost", "cut", "short", "long", "flip", "flip_request")
SLOW = ("stall", "silence")   # end after the timeout of a stalled request, of 30 s
ATTEMPTS = 3                  # of one command: a damaged listing, for instance, may end the first


@pytest.fixture(scope="module")
def network(radosgw):
    with S3Server(upstream=radosgw.url) as made:
        yield made


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    tree = make_tree(tmp_path_factory.mktemp("source"))
    return tree, comparable(tree)


def positions(kind, request):
    """The numbers of the requests that fail, until the command has fewer. The short form has each number with one kind
    of fault."""
    full = request.config.getoption("full")
    if kind in SLOW:
        return itertools.count(1, 3) if full else pytest.skip("each fault takes 30 s: --full")
    return itertools.count(1) if full else itertools.count(1 + FAULTS.index(kind), len(FAULTS))


def run(network, *words):
    """Runs the command until it succeeds. Returns how often it was run."""
    for attempt in range(1, ATTEMPTS + 1):
        if weightfs(network, *words, codes=(0, 1)).code == 0:
            return attempt
    raise AssertionError(f"{words} fails {ATTEMPTS} times after one fault")


def met(network):
    return any(record.fault for record in network.requests)


@pytest.mark.limit(300)
@pytest.mark.parametrize("kind", FAULTS + SLOW)
def test_a_push_survives_a_fault_at_each_request(radosgw, network, source, local, restart_limit, kind, request):
    tree, expected = source
    series, runs = f"s3://tests/faults/push-{kind}", []
    for at in positions(kind, request):
        restart_limit()
        network.heal()
        network.requests.clear()
        network.fail(at, kind, times=1)
        runs.append(run(network, "push", tree, series, "--version", at, "--verify"))
        versions = json.loads(weightfs(radosgw, "versions", series, "--json").out)["versions"]
        assert versions[0]["version"] == at
        pull(radosgw, local / "pulled", url=series)
        assert not differences(expected, comparable(local / "pulled")), f"request {at}"
        shutil.rmtree(local / "pulled")
        weightfs(radosgw, "prune", series, "--keep", 1)
        if not met(network):
            break
    assert kind in SLOW or at > 20, "there were fewer requests than a push has"
    assert kind.startswith("flip") or runs == [1] * len(runs)


@pytest.mark.limit(300)
@pytest.mark.parametrize("kind", FAULTS + SLOW)
def test_a_pull_survives_a_fault_at_each_request(radosgw, network, source, local, restart_limit, kind, request):
    tree, expected = source
    series, runs, target = f"s3://tests/faults/pull-{kind}", [], local / "targets/pulled"
    target.parent.mkdir()
    weightfs(radosgw, "push", tree, series)
    for at in positions(kind, request):
        restart_limit()
        network.heal()
        network.requests.clear()
        network.fail(at, kind, times=1)
        runs.append(run(network, "pull", series, target))
        assert not differences(expected, comparable(target)), f"request {at}"
        shutil.rmtree(target)
        assert is_untouched(target)
        if not met(network):
            break
    assert kind in SLOW or at >= 10, "there were fewer requests than a pull has"
    assert kind.startswith("flip") or runs == [1] * len(runs)
