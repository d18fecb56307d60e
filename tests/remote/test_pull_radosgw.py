# SPDX-License-Identifier: Apache-2.0
"""pull, versions and prune with Ceph's gateway."""
import json
import shutil

import pytest

from harness import s3_versions
from harness.s3_probe import Probe
from harness.tree import differences
from versions import comparable, make_tree, pull, weightfs

pytestmark = pytest.mark.limit(300)


@pytest.fixture
def bucket(radosgw, local):
    """Stores an object."""
    probe, body_file = Probe(radosgw.environment()), local / "body"

    def put(key, body):
        body_file.write_bytes(body)
        probe("put", key=key, file=body_file)
    return put


def test_versions_are_pulled_and_pruned(radosgw, bucket, local):
    tree = make_tree(local / "source")
    for version in (3, 1, 2):
        (tree / "one").write_bytes(b"%d" % version)
        s3_versions.write(bucket, tree, "runs/ceph", version, finish=version != 3)
    url = "s3://tests/runs/ceph"
    assert pull(radosgw, local / "pulled", url=url)["version"] == 2
    assert not differences(comparable(tree), comparable(local / "pulled"))
    shutil.rmtree(local / "pulled")
    listed = json.loads(weightfs(radosgw, "versions", url, "--all", "--json").out)["versions"]
    assert [(each["version"], each["complete"]) for each in listed] == [(3, False), (2, True), (1, True)]
    pruned = json.loads(weightfs(radosgw, "prune", url, "--keep", 1, "--json").out)
    assert [each["version"] for each in pruned["removed"]] == [1] and pruned["unfinished"] == [3]
    weightfs(radosgw, "prune", url, "--keep", 1, "--unfinished-after", 0)
    listed = json.loads(weightfs(radosgw, "versions", url, "--all", "--json").out)["versions"]
    assert [each["version"] for each in listed] == [2]
    pull(radosgw, local / "pulled", url=url)
    assert not differences(comparable(tree), comparable(local / "pulled"))
