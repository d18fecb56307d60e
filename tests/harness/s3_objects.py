# SPDX-License-Identifier: Apache-2.0
"""The objects of an S3 service, in memory."""
import base64
import dataclasses
import hashlib
import threading
import time

from harness.crc32c import crc32c

MIN_PART = 5 << 20


class Failure(Exception):
    def __init__(self, status, code, message=""):
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


def etag_of(body):
    return f'"{hashlib.md5(body).hexdigest()}"'


def check_sums(body, headers, accepts_wrong_crc32c):
    md5 = headers.get("content-md5")
    if md5 and base64.b64encode(hashlib.md5(body).digest()).decode() != md5:
        raise Failure(400, "BadDigest", "The Content-MD5 you specified did not match what we received.")
    given = headers.get("x-amz-checksum-crc32c")
    # The sum in Python takes a second for 10 MiB.
    if given and not accepts_wrong_crc32c and base64.b64encode(crc32c(body).to_bytes(4, "big")).decode() != given:
        raise Failure(400, "BadDigest", "The crc32c you specified did not match the calculated checksum.")


@dataclasses.dataclass
class Object:
    body: bytes
    etag: str
    content_type: str = "binary/octet-stream"
    modified: float = dataclasses.field(default_factory=time.time)


@dataclasses.dataclass
class Upload:
    key: str
    started: float = dataclasses.field(default_factory=time.time)
    content_type: str = ""
    parts: dict = dataclasses.field(default_factory=dict)   # number → Object
    completed: str = ""                                     # the ETag of the object: Complete may be repeated


class Objects:
    """Buckets by name. Every function is atomic. With `radosgw`, Complete ignores conditions and has an empty ETag."""

    def __init__(self, radosgw=False, quota=None):
        self.radosgw, self.quota = radosgw, quota
        self.mutex = threading.RLock()
        self.buckets = {}
        self.uploads = {}
        self.next_upload = 1

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
        if headers.get("if-none-match") == "*" and found is not None:
            raise Failure(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
        match = headers.get("if-match")
        if match is not None and (found is None or match not in ("*", found.etag)):
            raise Failure(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")

    def put(self, bucket, key, body, headers):
        check_sums(body, headers, self.radosgw)
        made = Object(body, etag_of(body), headers.get("content-type", "binary/octet-stream"))
        with self.mutex:
            self.check_conditions(bucket, key, headers)
            self.check_quota(len(body))
            self.bucket(bucket)[key] = made
        return made

    def delete(self, bucket, key):
        with self.mutex:
            self.bucket(bucket).pop(key, None)

    def create_upload(self, bucket, key, headers):
        with self.mutex:
            self.bucket(bucket)
            name = f"upload-{self.next_upload}~+/"   # such ids must be encoded in a query
            self.next_upload += 1
            self.uploads[bucket, name] = Upload(key, content_type=headers.get("content-type", ""))
            return name

    def upload(self, bucket, key, name, completed=False):
        found = self.uploads.get((bucket, name))
        if found is None or found.key != key or (found.completed and not completed):
            raise Failure(404, "NoSuchUpload", "The specified multipart upload does not exist.")
        return found

    def put_part(self, bucket, key, name, number, body, headers):
        check_sums(body, headers, self.radosgw)
        made = Object(body, etag_of(body))
        with self.mutex:
            self.check_quota(len(body))
            self.upload(bucket, key, name).parts[number] = made
        return made

    def complete(self, bucket, key, name, parts, headers):
        """`parts` are numbers and ETags. Returns the ETag."""
        with self.mutex:
            upload = self.upload(bucket, key, name, completed=True)
            if upload.completed:
                return upload.completed
            if not self.radosgw:
                self.check_conditions(bucket, key, headers)
            bodies = []
            for index, (number, etag) in enumerate(parts):
                part = upload.parts.get(number)
                if part is None or part.etag.strip('"') != etag.strip('"'):
                    raise Failure(400, "InvalidPart", "One or more of the specified parts could not be found.")
                if len(part.body) < MIN_PART and index + 1 < len(parts):
                    raise Failure(400, "EntityTooSmall", "Your upload is smaller than the minimum allowed size")
                bodies.append(part)
            if not parts or [number for number, _ in parts] != sorted({number for number, _ in parts}):
                raise Failure(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
            sums = b"".join(bytes.fromhex(part.etag.strip('"')) for part in bodies)
            upload.completed = f'"{hashlib.md5(sums).hexdigest()}-{len(parts)}"'
            self.bucket(bucket)[key] = Object(b"".join(part.body for part in bodies), upload.completed,
                                              upload.content_type or "binary/octet-stream")
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
