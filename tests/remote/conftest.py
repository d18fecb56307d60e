# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests with S3 services."""
import pytest

from harness.radosgw import missing_programs, temporary_radosgw
from harness.s3_probe import Probe
from harness.s3_server import S3Server
from versions import make_tree


@pytest.fixture
def server():
    """A service in memory with the bucket `tests`; see harness/s3_server.py for its faults."""
    with S3Server() as made:
        yield made


@pytest.fixture
def probe(server):
    """The client, connected to `server`."""
    return Probe(server.environment())


@pytest.fixture(scope="session")
def radosgw():
    """Ceph's gateway with the bucket `tests`."""
    if reason := missing_programs():
        pytest.skip(reason)
    with temporary_radosgw() as gateway:
        Probe(gateway.environment())("send", method="PUT")
        yield gateway


@pytest.fixture
def tree(local):
    """A directory to push; see versions.make_tree."""
    return make_tree(local / "source")


@pytest.fixture
def target(local):
    """The path of a directory to pull, which does not exist; nothing is beside it."""
    (local / "targets").mkdir()
    return local / "targets/pulled"
