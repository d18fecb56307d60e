# SPDX-License-Identifier: Apache-2.0
"""The S3 client while the network and the service fail: every request succeeds in the end, or ends with an error."""
import contextlib
import errno
import os
import random
import re
import socket

import pytest

from harness.s3_probe import clean_environment
from versions import PART, URL, command

# Faults after which a repeated request succeeds.
PASSING = ("status", "reset", "lost", "close", "cut", "short", "long", "stall", "silence")


@pytest.fixture
def source(local):
    path = local / "source"
    path.write_bytes(random.randbytes(2 * PART + 1000))
    return path


def positions(count, kind, request):
    """A stalled request takes seconds, so that only --full stalls each."""
    full = kind not in ("stall", "silence") or request.config.getoption("full")
    return range(1, count + 1) if full else [2]


@pytest.mark.limit(300)
@pytest.mark.parametrize("kind", PASSING)
def test_an_upload_survives_a_fault_at_each_request(server, probe, source, kind, request):
    """Create, three parts, Complete. Responses to parts have no body that could be cut."""
    for at in positions(5, kind, request):
        server.heal()
        server.fail(at, kind, times=1)
        key = f"{kind}-{at}"
        probe("upload", key=key, file=source, connections=2, stall=1)
        assert server.objects.get("tests", key).body == source.read_bytes(), key
    assert any(one.fault for one in server.requests)


@pytest.mark.limit(300)
@pytest.mark.parametrize("kind", PASSING)
def test_a_download_survives_a_fault_at_each_request(server, probe, source, local, kind, request):
    """HEAD and three ranges."""
    server.objects.put("tests", "k", source.read_bytes(), {})
    for at in positions(4, kind, request):
        if kind in ("short", "long") and at == 1:
            continue   # there is no body
        server.heal()
        server.fail(at, kind, times=1)
        probe("download", key="k", file=local / "read", connections=2, stall=1)
        assert (local / "read").read_bytes() == source.read_bytes()
    assert any(one.fault for one in server.requests)


def test_frequent_faults_are_survived(server, probe, source, local):
    for at, kind in enumerate(("status", "reset", "cut", "lost"), start=4):
        server.fail(at, kind, every=True)
    for key in "abcd":
        probe("upload", key=key, file=source)
        probe("download", key=key, file=local / "read", part_size=500_000)
        assert (local / "read").read_bytes() == source.read_bytes()


def test_a_lasting_fault_ends_after_all_attempts(server, probe):
    for kind in ("status", "reset", "close", "cut"):
        server.heal()
        server.fail(1, kind, every=True)
        error = probe.refused("list", attempts=3)
        assert error.code == errno.EIO and "GET s3://tests/: " in error.text and "(3 attempts in " in error.text, kind
        assert error.answer["requests"] == 3
    server.heal()
    server.fail(1, "status", every=True, status=409, code="ConditionalRequestConflict")
    assert probe.refused("put", key="k", file=os.devnull, attempts=2).code == errno.EEXIST


def test_a_stall_ends_after_its_timeout(server, probe, source):
    server.objects.put("tests", "k", source.read_bytes(), {})
    for kind, attempts in (("stall", 2), ("silence", 1)):
        server.heal()
        server.fail(1, kind, every=True)
        error = probe.refused("get", key="k", file=os.devnull, attempts=attempts, stall=1)
        assert error.code == errno.EIO and (attempts == 1 or "(2 attempts in " in error.text)


def test_a_service_that_never_answers_is_given_up(server, probe):
    """The time of all attempts together is bounded, and repetitions are reported. The time is over in the middle of the
    second attempt, so that the count does not depend on when exactly an attempt stalls."""
    server.fail(1, "silence", every=True)
    error = probe.refused("get", key="k", file=os.devnull, stall=6, give_up=9, quiet=1)
    assert error.code == errno.EIO and error.answer["requests"] == 2 and "(2 attempts in " in error.text
    [line] = error.answer["reported"]
    assert line.startswith("GET s3://tests/k: ") and line.endswith("; it gives up after the last one or 9 s")
    assert "; attempt 2 of 10 follows in " in line
    server.heal()
    server.fail(1, "status")
    assert probe("list")["reported"] == [], "a failure that passes at once is not reported"


def test_a_pause_is_reported_before_it_begins(server, probe):
    server.fail(1, "status", every=True, retry_after=2)
    [line] = probe.refused("list", attempts=2, quiet=2).answer["reported"]
    assert "; attempt 2 of 2 follows in " in line


def unconnected(processes, endpoint, *words):
    """The first line of a command whose service is down."""
    environment = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    return processes.start(command(*words), env=clean_environment(environment)).stderr


@pytest.mark.parametrize("words", [("versions", URL), ("push", "{tree}", URL), ("pull", URL, "{tree}/new"),
                                   ("prune", URL, "--keep", 1)], ids=lambda words: words[0])
def test_a_service_that_is_down_is_reported(processes, tree, words):
    """Then it is repeated, so the program is not waited for."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    words = [str(word).format(tree=tree) for word in words]
    lines = iter(unconnected(processes, endpoint, *words))
    line = next(line for line in lines if "attempt" in line)
    assert re.search(r"; attempt \d+ of 10 follows in \d+ s; it gives up after the last one or 120 s$", line), line


def test_a_machine_that_is_down_is_reported(processes):
    """Nobody accepts connections, and those in the queue are the most."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        lines = unconnected(processes, f"http://127.0.0.1:{listener.getsockname()[1]}", "versions", URL)
        line = next(line for line in lines if "attempt" in line)
        assert "attempt 1 of 10 is not connected to the service yet; it gives up after the last one or 120 s" in line


def test_no_attempt_waits_until_the_time_is_over(server, probe):
    """The pause before it counts, too."""
    server.fail(1, "status", every=True, retry_after=60)
    assert probe.refused("list", give_up=5).answer["requests"] == 1


def test_a_slow_answer_that_stalls_is_repeated(server, probe, source):
    """A single attempt to complete an upload may be silent for longer than all attempts of another request."""
    upload = probe("upload", key="k", file=source, keep_upload=True)["upload_id"]
    server.fail(1, "silence", method="POST", times=1)
    assert probe("complete", key="k", upload_id=upload, stall=1, give_up=5)["retries"] == 1
    assert server.objects.get("tests", "k").body == source.read_bytes()


def test_retry_after_is_honored(server, probe):
    server.fail(1, "status", retry_after=2)
    assert probe("list")["seconds"] >= 2


def test_errors_that_cannot_pass_are_not_retried(server, probe):
    for status in (400, 403, 404, 501):
        server.heal()
        server.fail(1, "status", every=True, status=status, code="Whatever")
        assert probe.refused("list").answer["requests"] == 1


def test_an_early_error_ends_the_upload(server, probe, source):
    server.fail(1, "status", early=True)
    assert probe("put", key="k", file=source)["retries"] == 1
    server.heal()
    server.fail(1, "status", early=True, status=403, code="AccessDenied", every=True)
    error = probe.refused("put", key="k", file=source, attempts=5)
    assert error.code in (errno.EACCES, errno.EIO)   # EIO: the connection was reset before the response was read


def test_an_error_in_a_successful_response_is_an_error(server, probe, source):
    upload = probe("upload", key="k", file=source, keep_upload=True)["upload_id"]
    server.fail(1, "error200", method="POST")
    assert probe("complete", key="k", upload_id=upload)["retries"] == 1
    assert server.objects.get("tests", "k").body == source.read_bytes()
    upload = probe("upload", key="k", file=source, keep_upload=True)["upload_id"]
    server.fail(1, "error200", method="POST", code="AccessDenied")
    assert "HTTP 200 AccessDenied" in probe.refused("complete", key="k", upload_id=upload).text


def test_a_conditional_put_may_meet_its_own_lost_attempt(server, probe, source):
    server.fail(1, "lost", method="PUT")
    error = probe.refused("put", key="k", file=source, if_none_match=True)
    assert error.code == errno.EEXIST and error.answer["retries"] == 1
    assert server.objects.get("tests", "k").body == source.read_bytes()


def test_a_small_body_that_changes_on_its_way_is_sent_again(server, probe, local):
    path = local / "small"
    path.write_bytes(random.randbytes(10_000))
    server.fail(1, "flip_request", method="PUT")
    assert probe("put", key="k", file=path)["retries"] == 1
    assert server.objects.get("tests", "k").body == path.read_bytes()


def test_a_request_under_way_can_be_interrupted(server, probe):
    server.objects.put("tests", "k", bytes(1000), {})
    for kind in ("silence", "stall"):
        server.heal()
        server.fail(1, kind)
        error = probe.refused("cancel", key="k", cancel_after_ms=200)
        assert error.code == errno.ECANCELED
    server.heal()
    server.fail(1, "status", every=True, retry_after=60)
    error = probe.refused("cancel", key="k", cancel_after_ms=200)
    assert error.code == errno.ECANCELED, "also while it waits for the next attempt"
