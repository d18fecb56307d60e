# SPDX-License-Identifier: Apache-2.0
"""The S3 client against services that are faulty or hostile: every request ends, and no secret leaves."""
import concurrent.futures
import contextlib
import errno
import http.server
import itertools
import json
import os
import threading

import pytest

from harness import process
from harness.filesystems import program
from harness.s3_probe import Probe, Refused, clean_environment

JSON = {"AccessKeyId": "key", "SecretAccessKey": "secret", "Token": "token"}
TOKEN, ROLES = "/latest/api/token", "/latest/meta-data/iam/security-credentials/"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.close_connection = True
        self.server.asked.append((self.path, dict(self.headers)))
        with contextlib.suppress(ConnectionError):
            answer = self.server.answers[self.path.partition("?")[0]]
            if isinstance(answer, list):   # one answer after the other
                answer = answer.pop(0) if len(answer) > 1 else answer[0]
            if callable(answer):
                return answer(self)
            status, body = answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

    do_GET = do_PUT = do_POST = answer


@pytest.fixture
def service():
    """A service with `answers` by path: (status, body), a function of the handler, or a list of these. `ending` is set
    at its end."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.daemon_threads = True
        made.answers, made.asked, made.ending = {}, [], threading.Event()
        made.url = f"http://127.0.0.1:{made.server_port}"
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.ending.set()
        made.shutdown()
        thread.join()


FILES = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}


def probe_of(service):
    return Probe({**FILES, "AWS_ENDPOINT_URL": service.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
                  "AWS_EC2_METADATA_DISABLED": "true"})


def find(service, **variables):
    """The access key that the metadata service gives, or the error."""
    try:
        variables = variables or {"AWS_EC2_METADATA_SERVICE_ENDPOINT": service.url}
        return Probe({**FILES, **variables})("credentials")["access_key"]
    except Refused as refused:
        assert refused.code == errno.EACCES
        return refused.text


def test_concurrent_requests_follow_a_redirect_to_another_region(server, probe, local):
    server.region = "eu-central-1"
    probe.environment["AWS_REGION"] = "us-east-1"
    path = local / "source"
    path.write_bytes(b"x" * 100_000)
    server.fail(1, "hold")   # until all have been sent for the wrong region
    with concurrent.futures.ThreadPoolExecutor() as pool:
        putting = pool.submit(probe, "put-many", key="k", file=path, repeat=8, connections=8)
        try:
            server.wait_for(lambda: len(server.requests) == 8)
        finally:
            server.heal()
        assert putting.result()["retries"] == 8
    assert {key: found.body for key, found in server.objects.bucket("tests").items()} == {
        f"k-{number}": path.read_bytes() for number in range(8)}


def test_an_endless_error_ends(service):
    def answer(handler):
        handler.send_response(403)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 4096)

    service.answers["/tests/k"] = answer
    assert probe_of(service).refused("get", key="k", file=os.devnull).code == errno.EACCES


def test_endless_headers_end(service):
    def answer(handler):
        handler.send_response(200)
        while True:
            handler.send_header("x-more", "x" * 1000)
            handler.flush_headers()

    service.answers["/tests/k"] = answer
    assert probe_of(service).refused("get", key="k", file=os.devnull, attempts=1).code == errno.EIO


def test_an_endless_list_ends(service):
    numbers = itertools.count()

    def send(handler, root, more):
        body = f"<{root}><IsTruncated>true</IsTruncated>{more}</{root}>".encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    service.answers["/tests/"] = lambda handler: send(
        handler, "ListBucketResult", f"<NextContinuationToken>{next(numbers)}</NextContinuationToken>")
    error = probe_of(service).refused("list")
    assert error.code == errno.EIO and "pages of a list without entries" in error.text

    service.answers["/tests/"] = lambda handler: send(
        handler, "ListMultipartUploadsResult", f"<NextKeyMarker>{next(numbers)}</NextKeyMarker>")
    error = probe_of(service).refused("uploads")
    assert error.code == errno.EIO and "pages of a list without entries" in error.text

    uploads = "<Upload><Key>k</Key><UploadId>u</UploadId></Upload>" * 100_000
    service.answers["/tests/"] = lambda handler: send(
        handler, "ListMultipartUploadsResult", f"<NextKeyMarker>{next(numbers)}</NextKeyMarker>{uploads}")
    assert probe_of(service).refused("uploads").code == errno.E2BIG


def test_a_list_of_long_keys_ends(service):
    numbers = itertools.count()

    def send(handler, size):
        key = f"{next(numbers):07}" + "k" * size
        body = f"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>{next(numbers)}" \
               f"</NextContinuationToken><Contents><Key>{key}</Key><Size>1</Size></Contents></ListBucketResult>"
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())

    service.answers["/tests/"] = lambda handler: send(handler, 15 << 20)
    assert probe_of(service).refused("list").code == errno.E2BIG
    service.answers["/tests/"] = lambda handler: send(handler, 2000)
    error = probe_of(service).refused("list")
    assert error.code == errno.EIO and "without a valid Key" in error.text


@pytest.mark.parametrize("entry, error", [
    ("", "pages of a list without entries"),
    ("<Version><Key>runs/model/1/one</Key><VersionId>1</VersionId></Version>", "without a valid Size"),
    ("<DeleteMarker><Key>runs/model/1/one</Key></DeleteMarker>", "without a valid VersionId"),
    ("<DeleteMarker><Key>runs/models/1</Key><VersionId>1</VersionId></DeleteMarker>", "outside the prefix"),
    ("<CommonPrefixes><Prefix>1/</Prefix></CommonPrefixes>", "outside the prefix"),
    (f"<DeleteMarker><Key>runs/model/1</Key><VersionId>{'1' * 5000}</VersionId></DeleteMarker>",
     "without a valid VersionId"),
    ("<CommonPrefixes><Prefix>runs/model/1/</Prefix></CommonPrefixes>" * 20_000,
     "there are more than 1000000 entries")])
def test_a_hostile_list_of_versions_ends(service, entry, error):
    numbers = itertools.count()

    def answer(handler):
        body = f"<ListVersionsResult><IsTruncated>true</IsTruncated><NextKeyMarker>{next(numbers)}</NextKeyMarker>" \
               f"{entry}</ListVersionsResult>".encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    service.answers["/tests/"] = answer
    pruned = process.run([program(), "prune", "s3://tests/runs/model", "--keep", 1, "--all-versions"], codes=(1,),
                         env=clean_environment(probe_of(service).environment))
    assert error in pruned.err and not [path for path, _ in service.asked if "versions" not in path]


def test_pages_without_entries_are_skipped(service):
    page = "<ListBucketResult><IsTruncated>{}</IsTruncated><NextContinuationToken>{}</NextContinuationToken>{}" \
           "</ListBucketResult>"
    entry = "<Contents><Key>k</Key><Size>1</Size></Contents>"
    service.answers["/tests/"] = [(200, page.format("true", 1, "")), (200, page.format("true", 2, "")),
                                  (200, page.format("false", 3, entry))]
    assert probe_of(service)("list")["objects"] == [["k", 1, ""]]


def test_a_session_token_cannot_add_a_header(server, probe):
    probe.environment["AWS_SESSION_TOKEN"] = "abc\r\nX-Injected: 1"
    error = probe.refused("list")
    assert error.code == errno.EINVAL and "the header x-amz-security-token has a line break" in error.text
    assert server.requests == []


def test_a_session_token_of_a_metadata_service_cannot_add_a_header(service):
    service.answers[TOKEN] = (200, "t\r\nX-Injected: 1")
    service.answers[ROLES] = (200, "role")
    assert "has a line break" in find(service)
    assert [path for path, _ in service.asked] == [TOKEN]


def test_a_machine_without_hashes_sends_nothing(server, probe, local):
    configuration = local / "openssl.cnf"
    configuration.write_text("openssl_conf = all\n[all]\nalg_section = algorithms\n[algorithms]\n"
                             "default_properties = provider=none\n")
    probe.environment["OPENSSL_CONF"] = str(configuration)
    error = probe.refused("list")
    assert error.code == errno.EOPNOTSUPP and "OpenSSL on this machine has no SHA-256" in error.text
    assert server.requests == []


# The metadata service of an instance.

def test_a_failure_of_an_instance_is_an_error(service):
    service.answers = {TOKEN: (200, "t"), ROLES: (200, "role"), ROLES + "role": (200, json.dumps(JSON))}
    assert find(service) == "key"
    for path in (ROLES + "role", ROLES, TOKEN):
        service.answers[path] = (500, "")
        text = find(service)
        assert f"the metadata service {service.url}: HTTP 500; set AWS_EC2_METADATA_DISABLED=true" in text
    service.answers[TOKEN] = lambda handler: handler.server.ending.wait()
    assert f"{service.url}: Timeout was reached" in find(service)


def test_one_failure_of_an_instance_is_survived(service):
    service.answers = {TOKEN: [(503, ""), (200, "t")], ROLES: [(500, ""), (200, "role")],
                       ROLES + "role": [(500, ""), (200, json.dumps(JSON))]}
    assert find(service) == "key"


def test_a_machine_that_is_no_instance_has_no_credentials(service):
    for status in (403, 404, 405):
        service.answers[TOKEN] = (status, "")
        assert "looked at AWS_ACCESS_KEY_ID, " in find(service)
    service.answers[TOKEN] = (200, "t")
    service.answers[ROLES] = (404, "")
    assert "looked at AWS_ACCESS_KEY_ID, " in find(service), "it has no role"
    assert "looked at AWS_ACCESS_KEY_ID, " in find(
        service, AWS_EC2_METADATA_SERVICE_ENDPOINT="http://127.0.0.1:1"), "nothing has this address"


# Secrets.

def test_errors_have_no_secrets_of_urls(service):
    service.answers["/creds"] = (404, "")
    text = find(service, AWS_CONTAINER_CREDENTIALS_FULL_URI=service.url + "/creds?secret")
    assert f"{service.url}: HTTP 404" in text and "secret" not in text
    text = find(service, AWS_CONTAINER_CREDENTIALS_FULL_URI="http://127.0.0.1:1/creds?secret")
    assert "http://127.0.0.1:1: " in text and "secret" not in text
    probe = probe_of(service)
    probe.environment["AWS_ENDPOINT_URL"] = "https://me:topsecret@host"
    error = probe.refused("list")
    assert "'https://...@host' has a wrong host name" in error.text and "topsecret" not in error.text
