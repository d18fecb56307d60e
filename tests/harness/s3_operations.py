# SPDX-License-Identifier: Apache-2.0
"""The operations of the S3 service in memory: from requests to its objects, and to responses."""
import re
import time
import urllib.parse
import xml.etree.ElementTree as ElementTree
from xml.sax.saxutils import escape

from harness.s3_objects import Failure

XMLNS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class Operations:
    """A base of Handler, which has the request and sends the responses."""

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
        marks = self.objects.delete(self.bucket, self.key, self.query.get("versionId"), self.lower)
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
                         f"<LastModified>{iso_time(parts[number].modified)}</LastModified>"
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
        shown = self.objects.open_uploads(self.bucket, self.prefix())
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

    def prefix(self):
        return "" if self.server.owner.unfiltered & self.query.keys() else self.query.get("prefix", "")

    def encoding(self):
        return "<EncodingType>url</EncodingType>" if self.query.get("encoding-type") == "url" else ""

    def shown_key(self, key):
        return urllib.parse.quote_plus(key, safe="/") if self.encoding() else escape(key)

    def get_bucket(self, _):
        limit = min(int(self.query.get("max-keys", 1000)), self.server.owner.page_size)
        after = self.query.get("continuation-token", "") or self.query.get("start-after", "")
        prefix, delimiter = self.prefix(), self.query.get("delimiter", "")
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
        if not self.objects.check_sums(self.bucket, body, self.lower) and "content-md5" not in self.lower:
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
        prefixes, entries = self.objects.list_versions(self.bucket, self.prefix(), self.query.get("delimiter", ""))
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
            size = f"<LastModified>{iso_time(made.modified)}</LastModified><Size>{len(made.body)}</Size>" if made else ""
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
