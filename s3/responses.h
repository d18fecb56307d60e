// SPDX-License-Identifier: Apache-2.0
// The XML of S3's responses and requests. Bytes of a service are not trusted: a document that lacks what it must have
// is an error.
#pragma once

#include "s3/bucket.h"
#include "s3/credentials.h"

namespace weightfs::s3 {

// <Error>. All fields are empty for a body that is none.
struct ErrorDocument {
  std::string code, message;
  std::string region = {};  // the region to which the request belongs, for some errors

  bool empty() const { return code.empty(); }
};
ErrorDocument ParseErrorDocument(std::string_view body);

// One page of a list. `next` has the parameters of the query that continues it, and is empty for the last page.
template <typename Entry>
struct Page : Listing<Entry> {
  Fields next = {};
  std::string checksum_algorithm = {};  // of the upload whose parts are listed; empty: none
};

// Fail with kIo and a text that says what the document lacks.
Result<Page<ObjectInfo>> ParseListing(std::string_view body);
Result<Page<PartInfo>> ParseParts(std::string_view body);
Result<Page<UploadInfo>> ParseUploads(std::string_view body);
Result<Page<ObjectVersion>> ParseVersions(std::string_view body);
Result<std::string> ParseUploadId(std::string_view body);
Result<std::string> ParseCompletedEtag(std::string_view body);  // may be empty

// The keys that DeleteObjects could not delete, each with its error.
struct DeleteFailure {
  std::string key;
  ErrorDocument error;
};
Result<std::vector<DeleteFailure>> ParseDeleteFailures(std::string_view body);

// True if `body` is a well-formed document with this root.
bool IsDocument(std::string_view body, std::string_view root);

// The answer of STS's AssumeRoleWithWebIdentity; none if it has no credentials.
std::optional<Credentials> ParseAssumedRole(std::string_view body);

std::string CompleteDocument(const std::vector<PartInfo>& parts);
// Keys with characters that XML 1.0 cannot have are not allowed: see CanBeInXml.
std::string DeleteDocument(std::span<const ObjectVersion> versions);
// False for text with control characters or bytes that are not UTF-8.
bool CanBeInXml(std::string_view text);

}  // namespace weightfs::s3
