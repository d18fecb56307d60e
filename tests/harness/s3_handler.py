# SPDX-License-Identifier: Apache-2.0
"""One connection to the S3 service in memory: reads requests, injects their faults, and sends responses."""
import contextlib
import http.client
import http.server
import socket
import struct
import time
import urllib.parse
from xml.sax.saxutils import escape

from harness import s3_signature
from harness.s3_objects import Failure
from harness.s3_operations import Operations

SLOW_PIECE = 16 << 10
WAIT_LIMIT_S = 60
HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "expect")   # of one connection


class Dropped(Exception):
    """The connection ends without a response."""


class Handler(Operations, http.server.BaseHTTPRequestHandler):
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
