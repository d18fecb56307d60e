# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests with S3 services."""
import os
import sys

import pytest

from harness.filesystems import program
from harness.process import Processes
from harness.radosgw import missing_programs, temporary_radosgw
from harness.s3_probe import Probe, chooses_service, clean_environment
from harness.s3_server import S3Server
from versions import command, make_tree


@pytest.fixture
def server():
    """A service in memory with the bucket `tests`; see harness/s3_server.py for its faults."""
    with S3Server() as made:
        yield made


@pytest.fixture
def other(server):
    """A second service with the same buckets, which has none of the faults."""
    with S3Server(objects=server.objects) as made:
        yield made


@pytest.fixture
def probe(server):
    """The client, connected to `server`."""
    return Probe(server.environment())


@pytest.fixture
def service(server, monkeypatch):
    """The same service, which Python's weightfs.s3 uses in this process, with the program under test."""
    for name in filter(chooses_service, list(os.environ)):
        monkeypatch.delenv(name)
    for name, value in {**server.environment(), "WEIGHTFS_PROGRAM": str(program())}.items():
        monkeypatch.setenv(name, value)
    yield server
    running = getattr(sys.modules.get("weightfs.s3"), "_running", ())

    def have_ended():   # a manager may start the next push
        for transfer in list(running):
            transfer.cancel()
        return not running

    server.wait_for(have_ended)


@pytest.fixture
def processes():
    with Processes() as made:
        yield made


@pytest.fixture
def start(processes):
    """A function that starts weightfs with a service and returns the Popen, which is killed at the end of the test."""
    def run(service, *words):
        return processes.start(command(*words), env=clean_environment(service.environment()))
    return run


@pytest.fixture(scope="session")
def radosgw():
    """Ceph's gateway with the bucket `tests`. Its start counts for the limit of the first test."""
    if reason := missing_programs():
        pytest.skip(reason)
    with temporary_radosgw() as gateway:
        Probe(gateway.environment())("send", method="PUT")
        yield gateway


@pytest.fixture
def tree(local, request):
    """A directory to push; see versions.make_tree. The module may set the size of the large file as LARGE."""
    return make_tree(local / "source", **large_of(request))


@pytest.fixture
def rival(local, request):
    """Another one, of another program that pushes the same version."""
    return make_tree(local / "rival", **large_of(request))


def large_of(request):
    return {"large": request.module.LARGE} if hasattr(request.module, "LARGE") else {}


@pytest.fixture
def target(local):
    """The path of a directory to pull, which does not exist; nothing is beside it."""
    (local / "targets").mkdir()
    return local / "targets/pulled"
