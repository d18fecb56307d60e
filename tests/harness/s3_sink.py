# SPDX-License-Identifier: Apache-2.0
"""An S3 service that costs almost no processor time: the kernel discards the bodies of parts, so what was pushed cannot
be read. For measurements of what a push costs beside other work.

    with S3Sink() as sink:      sink.url, sink.environment()"""
import contextlib
import hashlib
import multiprocessing
import socket
import threading
import urllib.parse
from xml.sax.saxutils import escape

KEPT = 4 << 20          # bytes; larger bodies are discarded
DISCARDED_AT_ONCE = 4 << 20


class Service:
    """The objects, without authentication: any bucket exists."""

    def __init__(self):
        self.objects = {}   # by key: size, ETag and body
        self.uploads = []   # of each: the sizes of its parts
        self.mutex = threading.Lock()

    def answer(self, method, key, query, headers, body):
        """Returns status line, headers and body of the response. `body` is None if it was discarded."""
        size = int(headers.get("content-length", 0))
        with self.mutex:
            checked = {name: value for name, value in headers.items() if name.startswith("x-amz-checksum-")}
            if method == "PUT" and "partNumber" in query:
                self.uploads[int(query["uploadId"][0])][query["partNumber"][0]] = size
                return "200 OK", {"ETag": '"part"', **checked}, b""
            if method == "PUT" and "if-none-match" in headers and key in self.objects:
                return self.error("412 Precondition Failed", "PreconditionFailed")
            if method == "PUT":
                self.objects[key] = size, tag(body), body
                return "200 OK", {"ETag": tag(body), **checked}, b""
            if method == "POST" and "uploads" in query:
                status, _, body = self.xml("InitiateMultipartUploadResult", f"<UploadId>{len(self.uploads)}</UploadId>")
                self.uploads.append({})
                return status, checked, body
            if method == "POST" and "uploadId" in query:
                self.objects[key] = sum(self.uploads[int(query["uploadId"][0])].values()), '"parts"', None
                return self.xml("CompleteMultipartUploadResult", f"<Key>{escape(key)}</Key>")
            if method == "GET" and "uploads" in query:
                return self.xml("ListMultipartUploadsResult", "<IsTruncated>false</IsTruncated>")
            if method == "GET" and "list-type" in query:
                return self.listing(f"{key.rstrip('/')}/", query.get("prefix", [""])[0])
            if method in ("GET", "HEAD"):
                _, etag, body = self.objects.get(key, (0, "", None))
                if body is not None:
                    return "200 OK", {"ETag": etag}, body
                return self.error("404 Not Found", "NoSuchKey")
            return self.error("501 Not Implemented", "NotImplemented")

    def listing(self, bucket, prefix):
        return self.xml("ListBucketResult", "<IsTruncated>false</IsTruncated>" + "".join(
            f"<Contents><Key>{escape(key.removeprefix(bucket))}</Key><Size>{size}</Size><ETag>{escape(etag)}</ETag>"
            "</Contents>"
            for key, (size, etag, _) in sorted(self.objects.items()) if key.startswith(bucket + prefix)))

    @staticmethod
    def xml(name, content):
        return "200 OK", {}, f'<?xml version="1.0" encoding="UTF-8"?><{name}>{content}</{name}>'.encode()

    def error(self, status, code):
        return status, {}, self.xml("Error", f"<Code>{code}</Code>")[2]


def tag(body):
    return f'"{hashlib.md5(body or b"").hexdigest()}"'


def serve(connection, service):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    scratch, received = bytearray(DISCARDED_AT_ONCE), b""
    while True:
        while b"\r\n\r\n" not in received:
            if not (piece := connection.recv(64 << 10)):
                return
            received += piece
        head, received = received.split(b"\r\n\r\n", 1)
        first, *lines = head.decode().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        size, kept = int(headers.get("content-length", 0)), None
        if "expect" in headers:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if size <= KEPT:
            while len(received) < size:
                if not (piece := connection.recv(64 << 10)):
                    return
                received += piece
            kept, received = received[:size], received[size:]
        else:
            size -= len(received)
            received = b""
            while size > 0:
                count = connection.recv_into(scratch, min(size, len(scratch)), socket.MSG_TRUNC)
                if not count:
                    return
                size -= count
        url = urllib.parse.urlsplit(target)
        query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
        status, more, body = service.answer(method, urllib.parse.unquote(url.path), query, headers, kept)
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**more, "Content-Length": len(body)}.items())
        connection.sendall(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + (b"" if method == "HEAD" else body))


def run(listener):
    """The process of the service: its Python threads must not wait for those of the caller."""
    service = Service()

    def serve_until_it_closes(connection):
        with contextlib.suppress(ConnectionError), connection:
            serve(connection, service)

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve_until_it_closes, args=(connection,), daemon=True).start()


class S3Sink:
    def __init__(self):
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.process = multiprocessing.get_context("fork").Process(target=run, args=(listener,), daemon=True)
        self.process.start()
        listener.close()

    @property
    def pids(self):
        return [self.process.pid]

    def environment(self):
        """The variables that a program needs to reach the service, and only it."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any",
                "AWS_REGION": "us-east-1", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                "AWS_EC2_METADATA_DISABLED": "true"}

    def close(self):
        self.process.kill()
        self.process.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
