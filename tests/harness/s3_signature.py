# SPDX-License-Identifier: Apache-2.0
"""Verifies AWS's Signature Version 4 of a request, as a service does. Independent of the code under test."""
import dataclasses
import datetime
import hashlib
import hmac
import re
import urllib.parse

AUTHORIZATION = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, ?"
                           r"SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})")
MAX_SKEW = datetime.timedelta(minutes=15)
UNSIGNED = "UNSIGNED-PAYLOAD"


class Refused(Exception):
    """The answer of S3 to a request that is not signed correctly."""

    def __init__(self, status, code, message, region=""):
        super().__init__(message)
        self.status, self.code, self.message, self.region = status, code, message, region


@dataclasses.dataclass
class Key:
    secret: str
    token: str = ""
    expired: bool = False


def encode(text, safe=""):
    """RFC 3986, of the bytes that the request had."""
    return urllib.parse.quote_from_bytes(urllib.parse.unquote_to_bytes(text), safe=safe + "-._~")


def canonical_query(raw):
    pairs = []
    for item in filter(None, raw.split("&")):
        name, _, value = item.partition("=")
        pairs.append((encode(name), encode(value)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def digest(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def signature(secret, day, region, service, text):
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = digest(key, part)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def verify(method, raw_path, raw_query, headers, body, keys, region, now):
    """Raises Refused unless the request is signed. `headers` has lower-case names; `keys` maps access keys to Key."""
    authorization = headers.get("authorization", "")
    if not authorization:
        raise Refused(403, "AccessDenied", "Anonymous access is forbidden")
    match = AUTHORIZATION.fullmatch(authorization)
    if not match:
        raise Refused(400, "AuthorizationHeaderMalformed", "The authorization header is malformed")
    access_key, day, scope_region, service, names, given = match.groups()
    key = keys.get(access_key)
    if key is None:
        raise Refused(403, "InvalidAccessKeyId", "The access key Id you provided does not exist in our records.")
    if headers.get("x-amz-security-token", "") != key.token:
        raise Refused(403, "InvalidToken", "The provided token is malformed or otherwise invalid.")
    if key.expired:
        raise Refused(400, "ExpiredToken", "The provided token has expired.")
    time = headers.get("x-amz-date", "")
    sent = datetime.datetime.strptime(time, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
    if abs(sent - now) > MAX_SKEW or not time.startswith(day):
        raise Refused(403, "RequestTimeTooSkewed",
                      "The difference between the request time and the current time is too large.")
    if scope_region != region:
        raise Refused(400, "AuthorizationHeaderMalformed",
                      f"the region '{scope_region}' is wrong; expecting '{region}'", region)
    signed = names.split(";")
    unsigned = [name for name in headers if (name.startswith("x-amz-") or name == "host") and name not in signed]
    if unsigned or signed != sorted(signed) or service != "s3":
        raise Refused(403, "AccessDenied", f"There were headers in the request which were not signed: {unsigned}")
    payload = headers.get("x-amz-content-sha256", "")
    lines = "".join(f"{name}:{re.sub(' +', ' ', headers.get(name, '').strip())}\n" for name in signed)
    request = "\n".join((method, encode(raw_path, "/"), canonical_query(raw_query), lines, names, payload))
    text = "\n".join(("AWS4-HMAC-SHA256", time, f"{day}/{region}/{service}/aws4_request",
                      hashlib.sha256(request.encode()).hexdigest()))
    if not hmac.compare_digest(signature(key.secret, day, region, service, text), given):
        raise Refused(403, "SignatureDoesNotMatch",
                      "The request signature we calculated does not match the signature you provided.")
    if payload not in (UNSIGNED, hashlib.sha256(body).hexdigest() if payload != UNSIGNED else ""):
        raise Refused(400, "XAmzContentSHA256Mismatch",
                      "The provided 'x-amz-content-sha256' header does not match what was computed.")
