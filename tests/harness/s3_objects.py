# SPDX-License-Identifier: Apache-2.0
"""The objects of an S3 service, in memory."""
import base64
import ctypes
import dataclasses
import hashlib
import threading
import time


MIN_PART = 5 << 20


class Failure(Exception):
    def __init__(self, status, code, message=""):
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


def etag_of(body):
    return f'"{hashlib.md5(body).hexdigest()}"'


_crc32_iscsi = ctypes.CDLL("libisal.so.2").crc32_iscsi   # in Python it takes a second for 10 MiB
_crc32_iscsi.argtypes, _crc32_iscsi.restype = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint], ctypes.c_uint


def crc32c_of(body):
    return base64.b64encode((_crc32_iscsi(bytes(body), len(body), 0xFFFFFFFF) ^ 0xFFFFFFFF).to_bytes(4, "big")).decode()


@dataclasses.dataclass
class Object:
    body: bytes
    etag: str
    content_type: str = "binary/octet-stream"
    modified: float = dataclasses.field(default_factory=time.time)
    crc32c: str = ""    # as it was given, in Base64


@dataclasses.dataclass
class Upload:
    key: str
    started: float = dataclasses.field(default_factory=time.time)
    content_type: str = ""
    algorithm: str = ""                                     # of the checksums that its parts must have: CRC32C
    parts: dict = dataclasses.field(default_factory=dict)   # number → Object
    completed: str = ""                                     # the ETag of the object: Complete may be repeated


class Objects:
    """Buckets by name. Every function is atomic. With `radosgw`, checksums but Content-MD5 are unknown, and Complete
    ignores conditions and has an empty ETag. Buckets in `locked` have Object Lock: they demand checksums. Those in
    `versioned` keep all versions of their objects, and those of them in `suspended` do so no longer."""

    def __init__(self, radosgw=False, quota=None):
        self.radosgw, self.quota = radosgw, quota
        self.mutex = threading.RLock()
        self.buckets = {}
        self.locked, self.versioned, self.suspended = set(), set(), set()
        self.history = {}   # (bucket, key) → [(version id, Object, or None for a delete marker)], the oldest first
        self.ignores_conditions = False   # of writes: If-None-Match and If-Match
        self.misreads_etags = False       # of writes: no ETag matches
        self.uploads = {}
        self.next_upload = self.next_version = 1

    def bucket(self, name):
        if name not in self.buckets:
            raise Failure(404, "NoSuchBucket", "The specified bucket does not exist")
        return self.buckets[name]

    def create_bucket(self, name):
        with self.mutex:
            self.buckets.setdefault(name, {})

    def used(self):
        stored = sum(len(found.body) for bucket in self.buckets.values() for found in bucket.values())
        return stored + sum(len(part.body) for upload in self.uploads.values() for part in upload.parts.values())

    def check_quota(self, added):
        if self.quota is not None and self.used() + added > self.quota:
            raise Failure(403, "QuotaExceeded")

    def get(self, bucket, key):
        with self.mutex:
            found = self.bucket(bucket).get(key)
            if found is None:
                raise Failure(404, "NoSuchKey", "The specified key does not exist.")
            return found

    def check_conditions(self, bucket, key, headers):
        found = self.bucket(bucket).get(key)
        if headers.get("if-none-match") == "*" and found is not None and not self.ignores_conditions:
            raise Failure(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
        match = headers.get("if-match")
        if match is not None and not self.ignores_conditions and (
                found is None or self.misreads_etags or match not in ("*", found.etag)):
            raise Failure(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")

    def check_sums(self, bucket, body, headers):
        """Returns the CRC-32C that the service has verified, or ""."""
        md5, given = headers.get("content-md5"), headers.get("x-amz-checksum-crc32c", "")
        if bucket in self.locked and not md5 and (self.radosgw or not given):
            raise Failure(400, "InvalidRequest", "Content-MD5 OR x-amz-checksum- HTTP header is required for Put "
                          "Object requests with Object Lock parameters")
        if md5 and base64.b64encode(hashlib.md5(body).digest()).decode() != md5:
            raise Failure(400, "BadDigest", "The Content-MD5 you specified did not match what we received.")
        if self.radosgw:
            return ""
        if given and crc32c_of(body) != given:
            raise Failure(400, "BadDigest", "The crc32c you specified did not match the calculated checksum.")
        return given

    def put(self, bucket, key, body, headers):
        crc32c = self.check_sums(bucket, body, headers)
        made = Object(body, etag_of(body), headers.get("content-type", "binary/octet-stream"), crc32c=crc32c)
        with self.mutex:
            self.check_conditions(bucket, key, headers)
            self.check_quota(len(body))
            self.store(bucket, key, made)
        return made

    def store(self, bucket, key, made):
        """Makes an object, or with None a delete marker, the current version."""
        current = self.bucket(bucket).pop(key, None)
        if made is not None:
            self.bucket(bucket)[key] = made
        if bucket in self.versioned:
            versions = self.history.setdefault((bucket, key), [("null", current)] if current else [])
            name = "null" if bucket in self.suspended else f"version-{self.next_version}"
            versions[:] = [entry for entry in versions if entry[0] != name]
            versions.append((name, made))
            self.next_version += 1

    def delete(self, bucket, key, version=None, headers=None):
        """Deletes an object, or one of its versions. Returns True if a delete marker was made."""
        with self.mutex:
            self.check_conditions(bucket, key, headers or {})
            if version is None:
                self.store(bucket, key, None)
                return bucket in self.versioned
            versions = self.history.get((bucket, key)) or [("null", self.bucket(bucket).get(key))]
            versions[:] = [entry for entry in versions if entry[0] != version]
            self.bucket(bucket).pop(key, None)
            if versions and versions[-1][1] is not None:
                self.bucket(bucket)[key] = versions[-1][1]
            if not versions:
                self.history.pop((bucket, key), None)
            return False

    def list_versions(self, bucket, prefix, delimiter):
        """Returns the prefixes, and entries (key, version id, object or None for a delete marker, whether it is the
        current one), in the order of the keys, the youngest first."""
        with self.mutex:
            found = {key: [("null", made)] for key, made in self.bucket(bucket).items()}
            found.update({key: versions for (where, key), versions in self.history.items() if where == bucket})
            prefixes, entries = set(), []
            for key in sorted(found, key=str.encode):
                if not key.startswith(prefix):
                    continue
                end = key.find(delimiter, len(prefix)) if delimiter else -1
                if end >= 0:
                    prefixes.add(key[:end + len(delimiter)])
                    continue
                entries += [(key, name, made, at == 0) for at, (name, made) in enumerate(reversed(found[key]))]
            return sorted(prefixes, key=str.encode), entries

    def create_upload(self, bucket, key, headers):
        with self.mutex:
            self.bucket(bucket)
            name = f"upload-{self.next_upload}~+/"   # such ids must be encoded in a query
            self.next_upload += 1
            self.uploads[bucket, name] = Upload(key, content_type=headers.get("content-type", ""), algorithm=(
                "" if self.radosgw else headers.get("x-amz-checksum-algorithm", "")))
            return name

    def upload(self, bucket, key, name, completed=False):
        found = self.uploads.get((bucket, name))
        if found is None or found.key != key or (found.completed and not completed):
            raise Failure(404, "NoSuchUpload", "The specified multipart upload does not exist.")
        return found

    def put_part(self, bucket, key, name, number, body, headers):
        made = Object(body, etag_of(body), crc32c=self.check_sums(bucket, body, headers))
        with self.mutex:
            self.check_quota(len(body))
            upload = self.upload(bucket, key, name)
            given = "CRC32C" if made.crc32c else ""
            if given != upload.algorithm:
                raise Failure(400, "InvalidRequest", f"Checksum Type mismatch occurred, expected checksum Type: "
                              f"{upload.algorithm or 'null'}, actual checksum Type: {given or 'null'}")
            upload.parts[number] = made
        return made

    def complete(self, bucket, key, name, parts, headers):
        """`parts` are numbers, ETags and checksums. Returns the ETag."""
        with self.mutex:
            upload = self.upload(bucket, key, name, completed=True)
            if upload.completed:
                return upload.completed
            if not self.radosgw:
                self.check_conditions(bucket, key, headers)
            bodies = []
            for index, (number, etag, crc32c) in enumerate(parts):
                part = upload.parts.get(number)
                if upload.algorithm and not crc32c:
                    raise Failure(400, "InvalidRequest", "The upload was created using a crc32c checksum. The complete "
                                  f"request must include the checksum for each part. It was missing for part {number}")
                if part is not None and crc32c != part.crc32c:
                    raise Failure(400, "InvalidPart", "One or more of the specified parts has another checksum.")
                if part is None or part.etag.strip('"') != etag.strip('"'):
                    raise Failure(400, "InvalidPart", "One or more of the specified parts could not be found.")
                if len(part.body) < MIN_PART and index + 1 < len(parts):
                    raise Failure(400, "EntityTooSmall", "Your upload is smaller than the minimum allowed size")
                bodies.append(part)
            if not parts or [part[0] for part in parts] != sorted({part[0] for part in parts}):
                raise Failure(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
            sums = b"".join(bytes.fromhex(part.etag.strip('"')) for part in bodies)
            upload.completed = f'"{hashlib.md5(sums).hexdigest()}-{len(parts)}"'
            self.store(bucket, key, Object(b"".join(part.body for part in bodies), upload.completed,
                                           upload.content_type or "binary/octet-stream"))
            upload.parts.clear()
            return upload.completed

    def abort(self, bucket, key, name):
        with self.mutex:
            self.upload(bucket, key, name)
            del self.uploads[bucket, name]

    def open_uploads(self, bucket, prefix):
        with self.mutex:
            self.bucket(bucket)
            return sorted(((upload.key, name, upload) for (where, name), upload in self.uploads.items()
                           if where == bucket and not upload.completed and upload.key.startswith(prefix)),
                          key=lambda entry: entry[:2])

    def list(self, bucket, prefix, delimiter, after, limit):
        """Returns entries (name, object or None for a prefix), and the name of the last one if there are more."""
        with self.mutex:
            entries = {}
            for key, found in self.bucket(bucket).items():
                if not key.startswith(prefix):
                    continue
                end = key.find(delimiter, len(prefix)) if delimiter else -1
                if end < 0:
                    entries[key] = found
                else:
                    entries[key[:end + len(delimiter)]] = None
            names = [name for name in sorted(entries, key=str.encode) if name.encode() > after.encode()]
            shown = names[:limit]
            return [(name, entries[name]) for name in shown], shown[-1] if len(names) > limit else ""
