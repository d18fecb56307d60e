# SPDX-License-Identifier: Apache-2.0
"""An S3 service in memory, with faults at chosen requests.

    with S3Server() as server:                     server.url, server.environment()
        server.fail(3, "status", status=503)       the third request from now on
        server.fail(1, "reset", method="PUT")      the first PUT from now on
        server.fail(1, "hold", key="/claim$")      each request for that key waits...
        server.wait_for_fault()                    (one has arrived)
        server.heal()                              ...until now

With upstream=URL the requests are answered by another service, with the same faults on the way:

    with S3Server(upstream=gateway.url) as server:

As a program, which prints its URL: python -m harness.s3_server --port 9000 --fault 3:status:status=503"""
import argparse
import contextlib
import dataclasses
import datetime
import http.client
import http.server
import itertools
import re
import socket
import struct
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ElementTree
from xml.sax.saxutils import escape

from harness import s3_signature
from harness.s3_objects import Failure, Objects

ACCESS_KEY, SECRET_KEY = "test", "testsecret"
SLOW_PIECE = 16 << 10
WAIT_LIMIT_S = 60
HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "expect")   # of one connection
XMLNS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'

# The faults, and the arguments of each:
FAULTS = {
    "status": "an error response: status, code, retry_after; early=1: without reading the body",
    "reset": "the connection is reset when the head of the request has arrived",
    "lost": "the request takes effect, but the connection is reset instead of a response",
    "close": "the connection is closed instead of a response",
    "cut": "the response ends after half of its body",
    "short": "the response has a body that is one byte too short, with a matching Content-Length",
    "long": "the same, one byte too long",
    "stall": "the response stops after half of its body, until the server ends",
    "hold": "this request and all later ones that match are read, and carried out only after heal()",
    "silence": "the request is read, and nothing is answered, until the server ends",
    "flip": "one bit of the response body is different",
    "flip_request": "one bit of the request body is different when it arrives",
    "rot": "one bit of the request body is different when it is stored, after its checksums were compared",
    "slow": "the response body is sent at `rate` bytes per second",
    "error200": "a response with status 200 and an error in its body: code",
}


@dataclasses.dataclass
class Fault:
    kind: str
    arguments: dict
    at: int            # the number of matching requests, counted from 1, when it happens
    every: bool        # at each multiple of `at`
    times: int | None  # how often it happens at most
    method: str
    key: str           # a regular expression, found anywhere in the key
    seen: int = 0
    healed: threading.Event = dataclasses.field(default_factory=threading.Event)

    def meets(self, method, key):
        if self.times == 0 or (self.method and self.method != method) or not re.search(self.key, key):
            return False
        self.seen += 1
        # A client that repeats a held request after its timeout must not get an answer either.
        lasts = self.kind == "hold" and self.seen > self.at
        if self.seen != self.at and not lasts and not (self.every and self.seen % self.at == 0):
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclasses.dataclass
class Record:
    """A request as the server saw it."""
    number: int
    method: str
    bucket: str
    key: str
    query: dict
    headers: dict
    size: int
    status: int = 0      # 0: no response was sent
    fault: str = ""
    arrivals: list = dataclasses.field(default_factory=list)   # of the body: (monotonic time, bytes until then)


class Dropped(Exception):
    """The connection ends without a response."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 64 << 10
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def handle(self):
        with contextlib.suppress(ConnectionError, TimeoutError, Dropped):
            super().handle()

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    # One request.

    def answer(self):
        self.raw_path, _, self.raw_query = self.path.partition("?")
        self.lower = {name.lower(): value for name, value in self.headers.items()}
        self.query = dict(urllib.parse.parse_qsl(self.raw_query, keep_blank_values=True))
        self.bucket, self.key = self.address()
        size = int(self.lower.get("content-length", 0))
        self.record, self.fault = self.server.owner.count(self.command, self.bucket, self.key, self.query, self.lower,
                                                          size)
        self.fault_kind = self.fault.kind if self.fault else ""
        if self.fault_kind == "reset":
            self.reset()
        if self.fault_kind == "status" and self.fault.arguments.get("early"):
            self.close_connection = True
            return self.send_fault()
        body = self.read_body(size)
        if self.fault_kind == "silence":
            self.server.owner.ending.wait()
            raise Dropped
        if self.fault_kind == "hold":
            self.fault.healed.wait()
            if self.server.owner.ending.is_set():
                raise Dropped
        if self.fault_kind == "close":
            self.close_connection = True
            return
        if self.fault_kind == "status":
            return self.send_fault()
        if self.server.owner.upstream:
            return self.forward(body)
        try:
            self.verify(body)
            self.dispatch(body)
        except (Failure, s3_signature.Refused) as failure:
            self.send_failure(failure)

    def address(self):
        path = urllib.parse.unquote(self.raw_path)
        host = self.lower.get("host", "").rsplit(":", 1)[0]
        suffix = "." + self.server.owner.domain
        if host.endswith(suffix):
            return host[:-len(suffix)], path[1:]
        bucket, _, key = path[1:].partition("/")
        return bucket, key

    def read_body(self, size):
        body = bytearray(size)
        view, filled = memoryview(body), 0
        while filled < size:
            count = self.rfile.readinto1(view[filled:])
            if not count:
                raise Dropped
            filled += count
            self.record.arrivals.append((time.monotonic(), filled))
        if self.fault_kind == "flip_request" and size:
            body[size // 2] ^= 1
        return bytes(body)

    def verify(self, body):
        owner = self.server.owner
        if not owner.anonymous or "authorization" in self.lower:
            s3_signature.verify(self.command, self.raw_path, self.raw_query, self.lower, body, owner.keys, owner.region,
                                owner.now())

    def forward(self, body):
        """The signature is of the Host that the client has sent, so the headers stay."""
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        upstream = urllib.parse.urlsplit(self.server.owner.upstream)
        with contextlib.closing(http.client.HTTPConnection(upstream.hostname, upstream.port,
                                                           timeout=WAIT_LIMIT_S)) as connection:
            connection.request(self.command, self.path, body if body or self.command in ("PUT", "POST") else None,
                               headers)
            response = connection.getresponse()
            content = response.read()
            answered = {name: value for name, value in response.getheaders() if name.lower() not in HOP_BY_HOP}
            if self.command == "HEAD" and response.getheader("Content-Length"):
                answered["Content-Length"] = response.getheader("Content-Length")
            self.send(response.status, content, answered)

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
        raise Dropped

    # Responses.

    def send_fault(self):
        arguments = self.fault.arguments
        headers = {"Retry-After": str(arguments["retry_after"])} if "retry_after" in arguments else {}
        body = self.error_body(arguments.get("code", "SlowDown"), "Injected.")
        self.send(int(arguments.get("status", 503)), body, headers)

    def error_body(self, code, message, region=""):
        more = f"<Region>{region}</Region>" if region else ""
        return (f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{escape(message)}</Message>'
                f"{more}<RequestId>{self.record.number}</RequestId></Error>").encode()

    def send_failure(self, failure):
        region = getattr(failure, "region", "")
        headers = {"x-amz-bucket-region": region} if region else {}
        self.send(failure.status, self.error_body(failure.code, failure.message, region), headers)

    def send_xml(self, text, headers=None):
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
        self.send(200, body, {"Content-Type": "application/xml", **(headers or {})})

    def send(self, status, body=b"", headers=None):
        if self.fault_kind == "lost":
            self.reset()
        if self.fault_kind == "error200":
            status, body = 200, self.error_body(self.fault.arguments.get("code", "InternalError"), "Injected.")
        if self.fault_kind == "flip" and body:
            body = bytearray(body)
            body[len(body) // 2] ^= 1
        if self.fault_kind == "short":
            body = body[:-1]
        if self.fault_kind == "long":
            body = bytes(body) + b"x"
        self.server.owner.set_status(self.record, status)
        self.send_response_only(status)
        headers = {"Date": self.server.owner.now().strftime("%a, %d %b %Y %H:%M:%S GMT"), **(headers or {})}
        if status != 204:
            headers.setdefault("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD" and status != 204:
            self.send_body(memoryview(body))

    def send_body(self, body):
        half = len(body) // 2
        if self.fault_kind in ("cut", "stall"):
            self.wfile.write(body[:half])
            self.wfile.flush()
            if self.fault_kind == "stall":
                self.server.owner.ending.wait()
            self.close_connection = True
            raise Dropped
        if self.fault_kind == "slow":
            rate = float(self.fault.arguments.get("rate", 64 << 10))
            for start in range(0, len(body), SLOW_PIECE):
                self.wfile.write(body[start:start + SLOW_PIECE])
                self.wfile.flush()
                if self.server.owner.ending.wait(SLOW_PIECE / rate):
                    raise Dropped
            return
        self.wfile.write(body)

    # Operations.

    def dispatch(self, body):
        kind = "bucket" if not self.key else "object"
        marks = [mark for mark in ("uploads", "uploadId", "delete", "partNumber", "versions") if mark in self.query]
        name = "_".join([self.command.lower(), kind, *marks])
        operation = getattr(self, name, None)
        if operation is None or not self.bucket:
            raise Failure(501, "NotImplemented", name)
        if self.bucket in self.server.owner.requester_pays and self.lower.get("x-amz-request-payer") != "requester":
            raise Failure(403, "AccessDenied", "Access Denied")
        operation(body)

    @property
    def objects(self):
        return self.server.owner.objects

    def put_bucket(self, _):
        self.objects.create_bucket(self.bucket)
        self.send(200)

    def head_bucket(self, _):
        self.objects.bucket(self.bucket)
        self.send(200)

    def get_object(self, _, with_body=True):
        found = self.objects.get(self.bucket, self.key)
        match = self.lower.get("if-match")
        if match is not None and match not in ("*", found.etag):
            raise Failure(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
        headers = {"ETag": found.etag, "Content-Type": found.content_type, "Accept-Ranges": "bytes",
                   "Last-Modified": http_time(found.modified)}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.lower.get("range", ""))
        if not wanted:
            return self.send(200, found.body if with_body else b"", {**headers, "Content-Length": str(len(found.body))}
                             if not with_body else headers)
        first = int(wanted[1])
        last = min(int(wanted[2] or len(found.body)), len(found.body) - 1)
        if first > last:
            raise Failure(416, "InvalidRange", "The requested range is not satisfiable")
        headers["Content-Range"] = f"bytes {first}-{last}/{len(found.body)}"
        self.send(206, memoryview(found.body)[first:last + 1], headers)

    def head_object(self, body):
        self.get_object(body, with_body=False)

    def put_object(self, body):
        self.send_stored(self.objects.put(self.bucket, self.key, body, self.lower))

    def send_stored(self, made):
        if self.fault_kind == "rot" and made.body:
            middle = len(made.body) // 2
            made.body = made.body[:middle] + bytes([made.body[middle] ^ 1]) + made.body[middle + 1:]
        self.send(200, headers={"ETag": made.etag, **({"x-amz-checksum-crc32c": made.crc32c} if made.crc32c else {})})

    def delete_object(self, _):
        marks = self.objects.delete(self.bucket, self.key, self.query.get("versionId"))
        self.send(204, headers={"x-amz-delete-marker": "true"} if marks else {})

    def post_object_uploads(self, _):
        name = self.objects.create_upload(self.bucket, self.key, self.lower)
        algorithm = self.objects.upload(self.bucket, self.key, name).algorithm
        self.send_xml(f"<InitiateMultipartUploadResult {XMLNS}><Bucket>{self.bucket}</Bucket>"
                      f"<Key>{escape(self.key)}</Key><UploadId>{escape(name)}</UploadId>"
                      "</InitiateMultipartUploadResult>",
                      {"x-amz-checksum-algorithm": algorithm} if algorithm else {})

    def put_object_uploadId_partNumber(self, body):
        number = int(self.query["partNumber"])
        self.send_stored(self.objects.put_part(self.bucket, self.key, self.query["uploadId"], number, body, self.lower))

    def get_object_uploadId(self, _):
        with self.objects.mutex:
            upload = self.objects.upload(self.bucket, self.key, self.query["uploadId"])
            parts = dict(upload.parts)
        limit = min(int(self.query.get("max-parts", 1000)), self.server.owner.page_size)
        after = int(self.query.get("part-number-marker", 0))
        left = [number for number in sorted(parts) if number > after]
        shown = left[:limit]
        listed = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(parts[number].etag)}</ETag>"
                         f"<Size>{len(parts[number].body)}</Size>" + crc32c_element(parts[number].crc32c) + "</Part>"
                         for number in shown)
        algorithm = f"<ChecksumAlgorithm>{upload.algorithm}</ChecksumAlgorithm>" if upload.algorithm else ""
        more = len(left) > len(shown)
        marker = f"<NextPartNumberMarker>{shown[-1]}</NextPartNumberMarker>" if more else ""
        self.send_xml(f"<ListPartsResult {XMLNS}>{algorithm}{marker}<IsTruncated>{str(more).lower()}</IsTruncated>"
                      f"{listed}</ListPartsResult>")

    def post_object_uploadId(self, body):
        parts = []
        for part in xml_root(body).iter("Part"):
            parts.append((int(part.findtext("PartNumber")), part.findtext("ETag"),
                          part.findtext("ChecksumCRC32C") or ""))
        if self.fault_kind == "error200":
            return self.send(200)
        etag = self.objects.complete(self.bucket, self.key, self.query["uploadId"], parts, self.lower)
        shown = "" if self.objects.radosgw else escape(etag)
        self.send_xml(f"<CompleteMultipartUploadResult {XMLNS}><Key>{escape(self.key)}</Key><ETag>{shown}</ETag>"
                      "</CompleteMultipartUploadResult>")

    def delete_object_uploadId(self, _):
        self.objects.abort(self.bucket, self.key, self.query["uploadId"])
        self.send(204)

    def get_bucket_uploads(self, _):
        shown = self.objects.open_uploads(self.bucket, self.query.get("prefix", ""))
        after = self.query.get("key-marker", ""), self.query.get("upload-id-marker", "")
        shown = [entry for entry in shown if entry[:2] > after]
        limit = self.server.owner.page_size
        more, shown = len(shown) > limit, shown[:limit]
        listed = "".join(f"<Upload><Key>{self.shown_key(key)}</Key><UploadId>{escape(name)}</UploadId>"
                         f"<Initiated>{iso_time(upload.started)}</Initiated></Upload>" for key, name, upload in shown)
        marker = (f"<NextKeyMarker>{self.shown_key(shown[-1][0])}</NextKeyMarker>"
                  f"<NextUploadIdMarker>{escape(shown[-1][1])}</NextUploadIdMarker>") if more else ""
        self.send_xml(f"<ListMultipartUploadsResult {XMLNS}>{self.encoding()}{marker}"
                      f"<IsTruncated>{str(more).lower()}</IsTruncated>{listed}</ListMultipartUploadsResult>")

    def encoding(self):
        return "<EncodingType>url</EncodingType>" if self.query.get("encoding-type") == "url" else ""

    def shown_key(self, key):
        return urllib.parse.quote_plus(key, safe="/") if self.encoding() else escape(key)

    def get_bucket(self, _):
        limit = min(int(self.query.get("max-keys", 1000)), self.server.owner.page_size)
        after = self.query.get("continuation-token", "") or self.query.get("start-after", "")
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        entries, last = self.objects.list(self.bucket, prefix, delimiter, after, limit)
        listed = []
        for name, found in entries:
            if found is None:
                listed.append(f"<CommonPrefixes><Prefix>{self.shown_key(name)}</Prefix></CommonPrefixes>")
            else:
                listed.append(f"<Contents><Key>{self.shown_key(name)}</Key><Size>{len(found.body)}</Size>"
                              f"<LastModified>{iso_time(found.modified)}</LastModified>"
                              f"<ETag>{escape(found.etag)}</ETag></Contents>")
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if last else ""
        self.send_xml(f"<ListBucketResult {XMLNS}>{self.encoding()}<KeyCount>{len(entries)}</KeyCount>{token}"
                      f"<IsTruncated>{str(bool(last)).lower()}</IsTruncated>{''.join(listed)}</ListBucketResult>")

    def post_bucket_delete(self, body):
        if "content-md5" not in self.lower:
            raise Failure(400, "InvalidRequest", "Missing required header for this request: Content-MD5")
        named = [(node.findtext("Key"), node.findtext("VersionId")) for node in xml_root(body).iter("Object")]
        keys = [key for key, _ in named]
        if len(keys) > 1000:
            raise Failure(400, "MalformedXML", "too many keys")
        refused = [key for key in keys if key in self.server.owner.undeletable]
        for key, version in named:
            if key not in refused:
                self.objects.delete(self.bucket, key, version)
        errors = "".join(f"<Error><Key>{escape(key)}</Key><Code>AccessDenied</Code><Message>Access Denied</Message>"
                         "</Error>" for key in refused)
        self.send_xml(f"<DeleteResult {XMLNS}>{errors}</DeleteResult>")


    def get_bucket_versions(self, _):
        prefixes, entries = self.objects.list_versions(self.bucket, self.query.get("prefix", ""),
                                                       self.query.get("delimiter", ""))
        names = [(name, "", None, False) for name in prefixes] + entries
        names.sort(key=lambda entry: entry[0].encode())   # stable: the youngest version of a key stays the first
        after = self.query.get("key-marker", ""), self.query.get("version-id-marker", "")
        begin = next((at + 1 for at, entry in enumerate(names) if entry[:2] == after), 0)
        shown = names[begin:begin + self.server.owner.page_size]
        more = begin + len(shown) < len(names)
        listed = []
        for name, version, made, current in shown:
            if not version:
                listed.append(f"<CommonPrefixes><Prefix>{self.shown_key(name)}</Prefix></CommonPrefixes>")
                continue
            kind = "Version" if made else "DeleteMarker"
            size = f"<Size>{len(made.body)}</Size>" if made else ""
            listed.append(f"<{kind}><Key>{self.shown_key(name)}</Key><VersionId>{version}</VersionId>"
                          f"<IsLatest>{str(current).lower()}</IsLatest>{size}</{kind}>")
        marker = (f"<NextKeyMarker>{self.shown_key(shown[-1][0])}</NextKeyMarker>"
                  f"<NextVersionIdMarker>{shown[-1][1]}</NextVersionIdMarker>") if more else ""
        self.send_xml(f"<ListVersionsResult {XMLNS}>{self.encoding()}{marker}"
                      f"<IsTruncated>{str(more).lower()}</IsTruncated>{''.join(listed)}</ListVersionsResult>")


def crc32c_element(value):
    return f"<ChecksumCRC32C>{value}</ChecksumCRC32C>" if value else ""


def xml_root(body):
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise Failure(400, "MalformedXML", str(error)) from error
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
    return root


def iso_time(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def http_time(seconds):
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(seconds))


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def process_request(self, request, client_address):
        self.owner.connections += 1
        super().process_request(request, client_address)

    def handle_error(self, request, client_address):
        pass   # a client that went away


class S3Server:
    """A service on a free port of this machine. Attributes may be changed at any time; they apply to later requests.
    With `objects` of another server, the service is a second way to the same buckets, with faults of its own; with the
    URL of another service as `upstream`, a way to that one, and has no objects."""

    def __init__(self, port=0, buckets=("tests",), radosgw=False, quota=None, region="us-east-1", tls=None,
                 objects=None, upstream=None):
        self.upstream = upstream
        self.objects = objects or Objects(radosgw, quota)
        for bucket in buckets:
            self.objects.create_bucket(bucket)
        self.keys = {ACCESS_KEY: s3_signature.Key(SECRET_KEY)}
        self.region = region
        self.anonymous = False                      # unsigned requests are allowed
        self.clock_error = datetime.timedelta()     # of the service's clock
        self.page_size = 1000                       # of lists
        self.undeletable = set()                    # keys that DeleteObjects refuses
        self.requester_pays = set()                 # buckets whose requests must say that the requester pays
        self.domain = "localhost"                   # of host-style requests
        self.requests = []
        self.connections = 0                        # since the start
        self.faults = []
        self.ending = threading.Event()
        self.mutex = threading.RLock()
        self.changed = threading.Condition(self.mutex)
        self.numbers = itertools.count(1)
        self.http = Server(("127.0.0.1", port), Handler)
        self.http.owner = self
        if tls is not None:   # an ssl.SSLContext
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        self.port = self.http.server_port
        self.scheme = "https" if tls else "http"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def environment(self):
        """The variables that a program needs to reach the service, and only it."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                "AWS_REGION": self.region, "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                "AWS_EC2_METADATA_DISABLED": "true"}

    def now(self):
        return datetime.datetime.now(datetime.timezone.utc) + self.clock_error

    def fail(self, at, kind, method="", key="", every=False, times=None, **arguments):
        """The request with this number from now on, among those with this method and key, fails in this manner. Returns
        the fault, for heal()."""
        if kind not in FAULTS:
            raise ValueError(f"{kind} is none of {', '.join(FAULTS)}")
        with self.mutex:
            self.faults.append(Fault(kind, arguments, at, every, times, method, key))
            return self.faults[-1]

    def heal(self, fault=None):
        """Ends this fault, or all: no later request meets it, and those that it holds go on."""
        with self.mutex:
            for healed in [fault] if fault else list(self.faults):
                healed.healed.set()
                self.faults.remove(healed)

    def count(self, method, bucket, key, query, headers, size):
        with self.mutex:
            record = Record(next(self.numbers), method, bucket, key, query, headers, size)
            self.requests.append(record)
            met = [fault for fault in self.faults if fault.meets(method, key)]
            if met:
                record.fault = met[0].kind
            self.changed.notify_all()
            return record, met[0] if met else None

    def set_status(self, record, status):
        with self.mutex:
            record.status = status
            self.changed.notify_all()

    def wait_for(self, predicate, limit=WAIT_LIMIT_S):
        """Waits until the predicate, of the requests and the objects or of a process, is true. Returns its value."""
        end = time.monotonic() + limit
        with self.changed:
            while not (value := predicate()):
                assert time.monotonic() < end, f"nothing after {limit} s; the last requests: {self.requests[-5:]}"
                self.changed.wait(0.05)   # a process that ends does not notify
            return value

    def wait_for_fault(self, limit=WAIT_LIMIT_S):
        """Waits until a request has met a fault."""
        self.wait_for(lambda: any(record.fault for record in self.requests), limit)

    def close(self):
        self.ending.set()
        self.heal()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def parse_fault(text):
    """NUMBER:KIND[:NAME=VALUE...]; "/5" as the number is each fifth request; method and key choose among them."""
    number, kind, *rest = text.split(":")
    arguments = dict(word.split("=", 1) for word in rest)
    return int(number.lstrip("/")), kind, {"every": number.startswith("/"), **arguments}


def main():
    faults = "faults:\n" + "\n".join(f"  {name}: {text}" for name, text in FAULTS.items())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog=faults)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--bucket", action="append", default=[])
    parser.add_argument("--radosgw", action="store_true", help="the differences of Ceph's radosgw to AWS")
    parser.add_argument("--quota", type=int, help="bytes that the objects may have")
    parser.add_argument("--fault", action="append", default=[], metavar="NUMBER:KIND[:NAME=VALUE...]")
    options = parser.parse_args()
    with S3Server(options.port, options.bucket or ["tests"], options.radosgw, options.quota) as server:
        for text in options.fault:
            number, kind, arguments = parse_fault(text)
            server.fail(number, kind, **arguments)
        print(server.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
