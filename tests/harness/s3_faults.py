# SPDX-License-Identifier: Apache-2.0
"""The faults of the S3 service in memory, and its record of a request."""
import dataclasses
import re
import threading

# The faults, and the arguments of each:
FAULTS = {
    "status": "an error response: status, code, retry_after; early=1: without reading the body",
    "reset": "the connection is reset when the head of the request has arrived",
    "lost": "the request takes effect, but the connection is reset instead of a response",
    "close": "the connection is closed instead of a response",
    "cut": "the response ends after half of its body",
    "short": "the response has a body that is one byte too short, with a matching Content-Length",
    "long": "the same, one byte too long",
    "stall": "the response stops after half of its body, until the server ends, and so do all later ones that match",
    "hold": "this request and all later ones that match are read, and carried out only after heal()",
    "silence": "this request and all later ones that match are read and not answered, until the server ends",
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
    after: "Fault | None" = None   # only requests that come after it has happened count
    seen: int = 0
    healed: threading.Event = dataclasses.field(default_factory=threading.Event)

    def has_begun(self):
        return self.after is None or self.after.seen >= self.after.at

    def meets(self, method, key):
        if self.times == 0 or (self.method and self.method != method) or not re.search(self.key, key):
            return False
        self.seen += 1
        # A client that repeats such a request after its timeout must not get an answer either: what a test does
        # meanwhile may take longer.
        lasts = self.kind in ("hold", "silence", "stall") and self.seen > self.at
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


def parse_fault(text):
    """NUMBER:KIND[:NAME=VALUE...]; "/5" as the number is each fifth request; method and key choose among them."""
    number, kind, *rest = text.split(":")
    arguments = dict(word.split("=", 1) for word in rest)
    return int(number.lstrip("/")), kind, {"every": number.startswith("/"), **arguments}
