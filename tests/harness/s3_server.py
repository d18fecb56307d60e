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
import datetime
import http.server
import itertools
import threading
import time

from harness import s3_signature
from harness.s3_faults import FAULTS, Fault, Record, parse_fault
from harness.s3_handler import WAIT_LIMIT_S, Handler
from harness.s3_objects import Objects

ACCESS_KEY, SECRET_KEY = "test", "testsecret"


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
        self.unfiltered = set()                     # lists that ignore the prefix: list-type, uploads, versions
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

    def fail(self, at, kind, method="", key="", every=False, times=None, after=None, **arguments):
        """The request with this number from now on, or from another fault on, among those with this method and key,
        fails in this manner. Returns the fault, for heal()."""
        if kind not in FAULTS:
            raise ValueError(f"{kind} is none of {', '.join(FAULTS)}")
        with self.mutex:
            self.faults.append(Fault(kind, arguments, at, every, times, method, key, after))
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
            met = [fault for fault in list(filter(Fault.has_begun, self.faults)) if fault.meets(method, key)]
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
