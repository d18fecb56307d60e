# SPDX-License-Identifier: Apache-2.0
"""Checksums of what is sent, Object Lock, storage classes, encryption, requester pays, and unencrypted services."""
import pytest

from harness import needs, process
from harness.s3_server import S3Server
from harness.tree import differences
from versions import MIB, SERIES, URL, comparable, keys, make_tree, pull, refused, weightfs, write

CRC32C, MD5 = "x-amz-checksum-crc32c", "content-md5"


@pytest.fixture(params=[False, True], ids=["aws", "radosgw"])
def either(request):
    """A service that knows CRC-32C, and one that knows Content-MD5 alone."""
    with S3Server(radosgw=request.param) as made:
        yield made


def stored(server, key):
    """The requests that have stored bodies for keys that end with `key`."""
    return [record for record in server.requests
            if record.method == "PUT" and record.status == 200 and record.key.endswith(key)]


@pytest.mark.parametrize("key", ["/large$", "/deep/er/", "/manifest$", "/claim$", "/sums/0$"])
def test_a_body_that_changes_on_its_way_is_sent_again(either, tree, target, key):
    either.fail(1, "flip_request", method="PUT", key=key, times=1)
    weightfs(either, "push", tree, URL, "--version", 5)
    assert [record.status for record in either.requests if record.fault] == [400]
    pull(either, target)
    assert not differences(comparable(tree), comparable(target))


def test_a_bucket_with_object_lock_accepts_a_push(either, tree, target):
    either.objects.locked.add("tests")
    weightfs(either, "push", tree, URL, "--version", 5)
    pull(either, target)
    assert not differences(comparable(tree), comparable(target))


def test_a_service_that_confirms_crc32c_gets_no_md5(server, tree):
    for number in range(100):
        (tree / f"file-{number}").write_bytes(bytes(MIB))
    weightfs(server, "push", tree, URL, "--version", 5)
    assert len(stored(server, "/large")) == 2
    for record in stored(server, "/large"):
        assert CRC32C in record.headers and MD5 not in record.headers
    assert all(CRC32C in record.headers and MD5 not in record.headers for record in stored(server, "/manifest"))


def test_md5_alone_is_sent_on_request(server, tree, target):
    server.objects.locked.add("tests")
    environment = {**server.environment(), "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"}
    server.environment = lambda: environment
    weightfs(server, "push", tree, URL, "--version", 5)
    assert not [record for record in server.requests if any("x-amz-checksum" in name for name in record.headers)]
    assert all(MD5 in record.headers for record in server.requests if record.method == "PUT")
    pull(server, target)


@pytest.mark.parametrize("first", ["when_required", "when_supported"])
def test_an_upload_is_continued_with_its_own_checksums(server, start, tree, target, first):
    """An upload whose parts have none takes no parts with a CRC-32C, and the other way round."""
    plain = server.environment()

    def choose(calculation):
        server.environment = lambda: {**plain, "AWS_REQUEST_CHECKSUM_CALCULATION": calculation}

    choose(first)
    server.fail(1, "silence", method="PUT", key="/large$")
    pushing = start(server, "push", tree, URL, "--version", 5, "--connections", 1)
    server.wait_for_fault()
    server.wait_for(lambda: any("uploads" in record.query for record in server.requests))
    pushing.kill()
    pushing.wait()
    server.heal()
    choose("when_supported" if first == "when_required" else "when_required")
    begun = len([record for record in server.requests if record.method == "POST" and "uploads" in record.query])
    weightfs(server, "push", tree, URL, "--version", 5)
    assert len([record for record in server.requests if record.method == "POST" and "uploads" in record.query]) == begun
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


def test_files_have_a_storage_class_and_all_objects_an_encryption(server, tree, target):
    weightfs(server, "push", tree, URL, "--version", 5, "--storage-class", "STANDARD_IA", "--sse-kms-key-id", "key-1")
    made = [record for record in server.requests if record.status == 200 and "partNumber" not in record.query
            and (record.method == "PUT" or "uploads" in record.query and record.method == "POST")]
    assert len(made) == 6 + 3
    for record in made:
        ours = "/.weightfs/" in record.key
        assert record.headers.get("x-amz-storage-class") == (None if ours else "STANDARD_IA"), record.key
        assert record.headers["x-amz-server-side-encryption"] == "aws:kms"
        assert record.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
    weightfs(server, "push", tree, URL, "--version", 6, "--sse", "AES256")
    assert stored(server, "6/one")[0].headers["x-amz-server-side-encryption"] == "AES256"
    assert "x-amz-server-side-encryption-aws-kms-key-id" not in stored(server, "6/one")[0].headers
    pull(server, target)


OPTIONS = [("--storage-class", "STANDARD_IA"), ("--sse", "AES256"), ("--sse-kms-key-id", "key-1"), ()]


@pytest.mark.parametrize("first, second", [(first, second) for first in OPTIONS for second in OPTIONS
                                           if first != second])
def test_a_continued_push_does_not_mix_options(server, local, first, second):
    tree = make_tree(local / "source", large=MIB)
    server.fail(1, "status", method="PUT", key="/manifest$", status=403, code="AccessDenied")
    refused(server, "push", tree, URL, "--version", 5, *first)
    before = keys(server)
    error = refused(server, "push", tree, URL, "--version", 5, *second)
    assert f"was begun with {' '.join(first) or 'neither'}" in error.replace("--sse aws:kms ", "")
    assert keys(server) == before
    weightfs(server, "push", tree, URL, "--version", 5, *second, "--take-over")
    assert len(stored(server, "/large")) == 2
    weightfs(server, "push", tree, URL, "--version", 6, *second)


def test_a_push_with_the_same_options_is_continued(server, tree):
    options = ("--storage-class", "STANDARD_IA", "--sse-kms-key-id", "key-1")
    server.fail(1, "status", method="PUT", key="/manifest$", status=403, code="AccessDenied")
    refused(server, "push", tree, URL, "--version", 5, *options)
    weightfs(server, "push", tree, URL, "--version", 5, *options)
    assert len(stored(server, "/large")) == 2   # its parts, each once


NO_MD5 = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

const void* EVP_md5(void);

int EVP_Digest(const void* data, size_t count, unsigned char* md, unsigned* size, const void* type, void* engine) {
  int (*next)(const void*, size_t, unsigned char*, unsigned*, const void*, void*) = dlsym(RTLD_NEXT, "EVP_Digest");
  return type == EVP_md5() ? 0 : next(data, count, md, size, type, engine);
}
"""


@needs.program("cc")
def test_a_machine_without_md5(either, tree, target, local):
    """As OpenSSL in FIPS mode: bodies have the CRC-32C alone, also the list of keys to delete. A service that does not
    know it may refuse the latter, and says why."""
    source, library = local / "no_md5.c", local / "no_md5.so"
    source.write_text(NO_MD5)
    process.run(["cc", "-shared", "-fPIC", "-o", library, source, "-lcrypto"])
    plain = either.environment()
    either.environment = lambda: {**plain, "LD_PRELOAD": str(library)}
    for version in (1, 2):
        weightfs(either, "push", tree, URL, "--version", version)
    if either.objects.radosgw:
        assert "Missing required header for this request: Content-MD5" in refused(either, "prune", URL, "--keep", 1)
    else:
        weightfs(either, "prune", URL, "--keep", 1)
        assert not keys(either, f"{SERIES}/1/")
    assert not [record for record in either.requests if MD5 in record.headers]
    pull(either, target)


def test_long_documents_are_signed(server, probe):
    """The list of the parts of a large file has more than 64 KiB, and no checksum of its own."""
    upload = server.objects.create_upload("tests", "key", {})
    for number in range(1, 2001):
        server.objects.put_part("tests", "key", upload, number, b"part", {})
    assert "EntityTooSmall" in probe.refused("complete", key="key", upload_id=upload).text
    probe("delete-many", keys=[f"{number:03}" * 100 for number in range(400)])
    sent = [record for record in server.requests if record.method == "POST"]
    assert len(sent) == 2
    for record in sent:
        assert record.size > 64 << 10 and len(record.headers["x-amz-content-sha256"]) == 64


def test_a_requester_pays(server, tree, target):
    server.requester_pays.add("tests")
    assert "AccessDenied" in refused(server, "push", tree, URL, "--version", 5)
    weightfs(server, "push", tree, URL, "--version", 5, "--requester-pays", "--verify", "--keep", 1)
    assert "AccessDenied" in refused(server, "pull", URL, target)
    pull(server, target, "--requester-pays")
    weightfs(server, "versions", URL, "--requester-pays")
    weightfs(server, "prune", URL, "--keep", 1, "--requester-pays")
    assert not differences(comparable(tree), comparable(target))


def test_a_service_without_tls_elsewhere_is_named(server, tree):
    write(server, tree, 5)
    elsewhere = f"http://0.0.0.0:{server.port}"   # of this machine, but the program cannot know
    warning = f"weightfs: warning: {elsewhere} is not https: "
    assert weightfs(server, "versions", URL).err == ""
    for words in (["versions", URL], ["prune", URL, "--keep", 1], ["pull", f"{URL}/5", tree / "pulled"],
                  ["pull", f"s3://tests/{SERIES}", tree / "again"]):
        err = weightfs(server, *words, "--endpoint-url", elsewhere).err
        assert err.count(warning) == 1, words
    server.anonymous = True
    assert warning not in weightfs(server, "versions", URL, "--endpoint-url", elsewhere, "--no-sign-request").err
