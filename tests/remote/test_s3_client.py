# SPDX-License-Identifier: Apache-2.0
"""The S3 client against a service in memory and against Ceph: operations, and what users see when they fail."""
import datetime
import errno
import os
import random
import socket
import ssl
import subprocess

import pytest

from harness import needs
from harness.s3_probe import Probe
from harness.s3_signature import Key
from versions import MIB, PART

ODD_KEYS = ("plain", "a b", "a+b", "ü/ä", "50%", "%20", "a//b", "a/./b/../c", "~-._", "*'()!", "#?&=;:@$,",
            "tab\there", "x/")


@pytest.fixture(params=["memory", pytest.param("radosgw", marks=pytest.mark.limit(300))])
def any_probe(request):
    """The client, connected to each service in turn."""
    service = request.getfixturevalue("server" if request.param == "memory" else "radosgw")
    return Probe(service.environment())


@pytest.fixture
def file(local):
    """A function that creates a file of random bytes and returns its path and bytes."""
    def make(size, name="source"):
        body = random.randbytes(size)
        path = local / name
        path.write_bytes(body)
        return path, body
    return make


# Operations, on both services.

def test_objects_of_all_names_are_stored_and_read(any_probe, file, local):
    path, body = file(100_000)
    for key in ODD_KEYS:
        put = any_probe("put", key="names/" + key, file=path)
        any_probe("get", key="names/" + key, file=local / "read")
        assert (local / "read").read_bytes() == body, key
        head = any_probe("head", key="names/" + key)
        assert (head["size"], head["etag"]) == (len(body), put["etag"])
    listed = [key for key, _, _ in any_probe("list", key="names/")["objects"]]
    assert listed == sorted(("names/" + key for key in ODD_KEYS), key=str.encode)
    any_probe("delete-many", keys=["names/" + key for key in ODD_KEYS])
    assert any_probe("list", key="names/")["objects"] == []


def test_empty_objects_are_stored_and_read(any_probe, file, local):
    path, _ = file(0)
    any_probe("put", key="empty", file=path)
    any_probe("get", key="empty", file=local / "read")
    assert (local / "read").read_bytes() == b""
    assert any_probe("head", key="empty")["size"] == 0


def test_large_objects_are_sent_in_parts_and_read_in_ranges(any_probe, file, local):
    path, body = file(3 * PART + 12_345)
    any_probe("upload", key="large", file=path, part_size=PART)
    any_probe("download", key="large", file=local / "read", part_size=1_000_001)
    assert (local / "read").read_bytes() == body
    any_probe("download", key="large", file=local / "read", offset=PART - 7, size=100)
    assert (local / "read").read_bytes() == body[PART - 7:PART + 93]


def test_an_unfinished_upload_is_found_and_completed_or_aborted(any_probe, file, local):
    path, body = file(2 * PART + 1)
    first = any_probe("upload", key="resumed/a b+ü", file=path, keep_upload=True)["upload_id"]
    second = any_probe("upload", key="resumed/c", file=path, keep_upload=True)["upload_id"]
    assert any_probe("uploads", key="resumed/")["uploads"] == [["resumed/a b+ü", first], ["resumed/c", second]]
    parts = any_probe("parts", key="resumed/a b+ü", upload_id=first)["parts"]
    assert [part[:2] for part in parts] == [[1, PART], [2, PART], [3, 1]]
    any_probe("complete", key="resumed/a b+ü", upload_id=first)
    any_probe("get", key="resumed/a b+ü", file=local / "read")
    assert (local / "read").read_bytes() == body
    any_probe("abort", key="resumed/c", upload_id=second)
    assert any_probe("uploads", key="resumed/")["uploads"] == []
    assert any_probe.refused("parts", key="resumed/c", upload_id=second).code == errno.ENOENT
    assert any_probe.refused("abort", key="resumed/c", upload_id=second).code == errno.ENOENT


def test_a_conditional_put_fails_if_the_object_exists(any_probe, file):
    path, _ = file(1000)
    any_probe("put", key="condition", file=path, if_none_match=True)
    error = any_probe.refused("put", key="condition", file=path, if_none_match=True)
    assert error.code == errno.EEXIST and "PUT s3://tests/condition: HTTP 412 PreconditionFailed" in error.text
    any_probe("delete", key="condition")
    any_probe("delete", key="condition")


def test_a_range_of_a_replaced_object_is_stale(any_probe, file):
    path, body = file(1000)
    etag = any_probe("put", key="replaced", file=path)["etag"]
    any_probe("download", key="replaced", if_match=etag)
    any_probe("put", key="replaced", file=file(1000)[0])
    assert any_probe.refused("download", key="replaced", if_match=etag, size=len(body)).code == errno.ESTALE


def test_a_range_past_the_end_is_an_error(any_probe, file):
    path, _ = file(1000)
    any_probe("put", key="short", file=path)
    assert any_probe.refused("download", key="short", offset=1000, size=1).code == errno.ERANGE
    error = any_probe.refused("download", key="short", offset=990, size=11)
    assert error.code == errno.ERANGE and "the object has only 1000 bytes" in error.text
    assert error.answer["requests"] == 1


def test_lists_have_common_prefixes(any_probe, file):
    path, _ = file(1)
    for key in ("tree/a/1", "tree/a/2", "tree/b", "tree/c d/1"):
        any_probe("put", key=key, file=path)
    answer = any_probe("list", key="tree/", delimiter="/")
    assert [key for key, _, _ in answer["objects"]] == ["tree/b"]
    assert answer["prefixes"] == ["tree/a/", "tree/c d/"]
    assert any_probe.refused("list", key="tree/", limit=3).code == errno.E2BIG


def test_more_objects_than_a_request_can_delete_are_deleted(any_probe, file):
    path, _ = file(1)
    any_probe("put-many", key="many/k", file=path, repeat=1005)
    keys = [key for key, _, _ in any_probe("list", key="many/")["objects"]]
    assert len(keys) == 1005
    any_probe("delete-many", keys=keys)
    assert any_probe("list", key="many/")["objects"] == []


def test_what_does_not_exist_is_not_found(any_probe):
    error = any_probe.refused("get", key="missing", file=os.devnull)
    assert error.code == errno.ENOENT and "GET s3://tests/missing: HTTP 404 NoSuchKey" in error.text
    assert any_probe.refused("head", key="missing").code == errno.ENOENT
    error = any_probe.refused("list", bucket="no-such-bucket")
    assert error.code == errno.EINVAL and "create the bucket, or check its name" in error.text


def test_wrong_keys_are_refused_with_the_next_step(any_probe):
    any_probe.environment["AWS_SECRET_ACCESS_KEY"] = "wrong-secret"
    error = any_probe.refused("list")
    assert error.code == errno.EACCES and "SignatureDoesNotMatch" in error.text
    assert "check the access key and the secret key" in error.text and "wrong-secret" not in error.text
    assert error.answer["requests"] == 1
    any_probe.environment["AWS_ACCESS_KEY_ID"] = "nobody"
    assert "InvalidAccessKeyId" in any_probe.refused("list").text


# The service in memory.

def test_lists_continue_on_the_next_page(server, probe, file):
    server.page_size = 2
    path, _ = file(2 * PART + 1)
    small, _ = file(1, "small")
    for key in ODD_KEYS:
        server.objects.put("tests", key, b"x", {})
    assert [key for key, _, _ in probe("list")["objects"]] == sorted(ODD_KEYS, key=str.encode)
    uploads = [[f"u {i}", probe("upload", key=f"u {i}", file=small, keep_upload=True)["upload_id"]] for i in range(5)]
    assert probe("uploads")["uploads"] == uploads
    upload = probe("upload", key="parts", file=path, keep_upload=True)["upload_id"]
    assert len(probe("parts", key="parts", upload_id=upload)["parts"]) == 3


def test_the_bucket_can_be_in_the_host_name(server, probe, file, local):
    probe.environment["AWS_ENDPOINT_URL"] = f"http://localhost:{server.port}"
    path, body = file(1000)
    probe("put", key="a b", file=path, addressing="host")
    probe("get", key="a b", file=local / "read", addressing="host")
    assert (local / "read").read_bytes() == body
    assert server.requests[-1].headers["host"] == f"tests.localhost:{server.port}"


def test_connections_are_kept_and_limited(server, probe, file):
    path, _ = file(1000)
    probe("put-many", key="k", file=path, repeat=100, connections=4)
    assert len(server.requests) == 100 and server.connections <= 4


def test_large_bodies_are_not_hashed_and_nothing_waits_for_100_continue(server, probe, file):
    small, _ = file(64 << 10, "small")
    large, _ = file((64 << 10) + 1, "large")
    probe("put", key="small", file=small)
    probe("put", key="large", file=large)
    hashes = [request.headers["x-amz-content-sha256"] for request in server.requests]
    assert len(hashes[0]) == 64 and hashes[1] == "UNSIGNED-PAYLOAD"
    assert all("expect" not in request.headers for request in server.requests)


def test_uploads_share_a_rate(probe, file):
    path, _ = file(500_000)
    answer = probe("put-many", key="k", file=path, repeat=4, rate=1_000_000)
    assert answer["seconds"] > 1.7


def test_uploads_at_a_rate_make_progress_together(server, probe, file):
    path, _ = file(MIB)
    probe("put-many", key="k", file=path, repeat=4, connections=4, rate=MIB)
    assert [record.arrivals[-1][1] for record in server.requests] == [MIB] * 4
    first_end = min(record.arrivals[-1][0] for record in server.requests)
    arrived = [max((size for time, size in record.arrivals if time <= first_end), default=0)
               for record in server.requests]
    assert min(arrived) >= MIB // 4, "when the first upload ended"


def test_public_objects_need_no_credentials(server, probe, file, local):
    path, body = file(1000)
    probe("put", key="public", file=path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del probe.environment[name]
    error = probe.refused("get", key="public", unsigned=True, file=local / "read")
    assert error.code == errno.EACCES and "give credentials" in error.text
    server.anonymous = True
    probe("get", key="public", unsigned=True, file=local / "read")
    assert (local / "read").read_bytes() == body
    error = probe.refused("get", key="public", file=local / "read")
    assert error.code == errno.EACCES and "no S3 credentials: looked at AWS_ACCESS_KEY_ID, " in error.text


def test_a_full_service_is_no_space(server, probe, file):
    server.objects.quota = 1000
    error = probe.refused("put", key="k", file=file(1001)[0])
    assert error.code == errno.ENOSPC and "QuotaExceeded" in error.text


def test_a_response_larger_than_the_limit_is_an_error(probe, file):
    probe("put", key="k", file=file(1001)[0])
    assert probe.refused("get", key="k", file=os.devnull, limit=1000).code == errno.E2BIG
    assert probe("get", key="k", file=os.devnull, limit=1001)["size"] == 1001


def test_no_object_without_a_name_is_deleted(server, probe):
    """The service would delete the bucket."""
    assert "without a name" in probe.refused("delete").text
    assert not server.requests


def test_objects_that_cannot_be_deleted_are_named(server, probe, file):
    for key in "abc":
        probe("put", key=key, file=file(1)[0])
    server.undeletable.add("b")
    error = probe.refused("delete-many", keys=["a", "b", "c"])
    assert error.code == errno.EACCES and "DELETE s3://tests/b: AccessDenied" in error.text
    assert [key for key, _, _ in probe("list")["objects"]] == ["b"]


def test_the_clock_of_the_service_is_used(server, probe, file):
    for hours in (-1, 1):
        server.clock_error = datetime.timedelta(hours=hours)
        path, _ = file(6 * PART)
        answer = probe("upload", key="k", file=path, connections=1)
        assert answer["requests"] == 9, "only the first request is repeated"
        assert answer["retries"] == 1


def test_the_region_of_the_bucket_is_found(server, probe, file):
    server.region = "eu-central-1"
    probe.environment["AWS_REGION"] = "us-east-1"
    path, _ = file(2 * PART)
    answer = probe("upload", key="k", file=path)
    assert answer["retries"] == 1


def test_a_service_that_is_down_is_reported(probe):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        probe.environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{free.getsockname()[1]}"
        error = probe.refused("list", attempts=3)
    assert error.code == errno.EIO and "(3 attempts in " in error.text and "that the service runs" in error.text


@needs.program("openssl")
def test_the_certificate_of_the_service_is_verified(local, file):
    from harness.s3_server import S3Server
    certificate, key = local / "certificate.pem", local / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                    "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"], check=True,
                   capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with S3Server(tls=context) as server:
        probe = Probe(server.environment())
        error = probe.refused("list")
        assert error.code == errno.EIO and "AWS_CA_BUNDLE" in error.text and error.answer["requests"] == 1
        path, body = file(PART + 1)
        for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
            trusting = Probe({**probe.environment, name: str(certificate)})
            trusting("upload", key="k", file=path)
            trusting("download", key="k", file=local / "read")
            assert (local / "read").read_bytes() == body
        missing = Probe({**probe.environment, "AWS_CA_BUNDLE": "/nonexistent.pem"})
        assert missing.refused("list").code == errno.ENOENT


def test_expired_credentials_are_renewed_once(server, probe, local):
    server.keys = {"old": Key("s", "t-old", expired=True), "new": Key("s", "t-new")}
    (local / "next").write_text("old")
    script = local / "script"
    script.write_text('name=$(cat "$1/next"); echo new >"$1/next"; echo "$name" >>"$1/calls"\n'
                      'echo "{\\"Version\\": 1, \\"AccessKeyId\\": \\"$name\\", \\"SecretAccessKey\\": \\"s\\", '
                      '\\"SessionToken\\": \\"t-$name\\"}"\n')
    config = local / "config"
    config.write_text(f"[default]\ncredential_process = sh {script} {local}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del probe.environment[name]
    probe.environment["AWS_CONFIG_FILE"] = str(config)
    assert probe("list")["retries"] == 1
    assert (local / "calls").read_text().split() == ["old", "new"]
    server.keys["new"].expired = True
    error = probe.refused("list")
    assert error.code == errno.EACCES and "ExpiredToken" in error.text and error.answer["requests"] == 2
