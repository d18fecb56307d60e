// SPDX-License-Identifier: Apache-2.0
#include "s3/bucket.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "common/checksum.h"
#include "common/printable.h"
#include "common/result.h"
#include "s3/base64.h"
#include "s3/http_time.h"
#include "s3/responses.h"
#include "s3/text.h"

namespace weightfs::s3 {
namespace {

// Bytes of a page of a list. 1,000 entries with the longest keys have half of it; parsed, it takes 16 times as many.
constexpr size_t kMaxPage = size_t{8} << 20;
constexpr const char* kCrc32cHeader = "x-amz-checksum-crc32c";
constexpr std::string_view kCrc32c = "CRC32C";

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

// None if OpenSSL has no MD5 (perhaps in FIPS mode).
std::optional<std::string> Md5Text(std::span<const std::byte> body) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  if (EVP_Digest(body.data(), body.size(), reinterpret_cast<unsigned char*>(digest.data()), &size, EVP_md5(),
                 nullptr) != 1) {
    return std::nullopt;
  }
  digest.resize(size);
  return EncodeBase64(digest);
}

Error ResponseError(const Request& request, std::string_view what) {
  return {ErrorCode::kIo, fmt::format("{} {}: {}", request.method, ToString(request.object), what)};
}

// The error of a deletion. A service that does not answer refuses no object, and would not answer for others either;
// nor does a guard that has changed.
Error OfObject(Error error, const std::string& key) {
  constexpr std::array kOfAll = {ErrorCode::kIo, ErrorCode::kCancelled, ErrorCode::kBusy};
  if (std::ranges::find(kOfAll, error.code) == kOfAll.end()) error.path = key;
  return error;
}

// Returns false, and adds none, on a machine without MD5.
bool AddMd5(Request* request) {
  auto md5 = Md5Text(request->body);
  if (md5) request->headers.emplace_back("content-md5", std::move(*md5));
  return md5.has_value();
}

// Adds what was requested to an error of the parser.
template <typename T>
Result<T> Named(Result<T> result, const Location& object) {
  if (!result) return Error{result.error().code, fmt::format("{}: {}", ToString(object), result.error().what)};
  return result;
}

// Ends a list that a faulty service never ends, that takes all memory, or that names something outside its prefix,
// which a caller might delete. Pages without entries may occur: a service skips what was deleted.
class ListProgress {
 public:
  // `listed`: the bucket and the prefix.
  ListProgress(const Location& listed, size_t limit) : listed_(listed), limit_(limit) {}

  // `more`: bytes of the other texts of the entry.
  Result<void> Add(const std::string& key, size_t more) {
    if (!key.starts_with(listed_.key)) {
      return Fail(ErrorCode::kIo, "the service listed '" + Printable(key) + "', which is outside the prefix");
    }
    ++entries_;
    bytes_ += key.size() + more;
    if (entries_ > limit_) {
      return Fail(ErrorCode::kTooLarge, fmt::format("there are more than {} entries; give a longer prefix", limit_));
    }
    if (bytes_ <= kMaxListedBytes) return {};
    return Fail(ErrorCode::kTooLarge,
                fmt::format("the names of its entries have more than {} MiB; give a longer prefix",
                            kMaxListedBytes >> 20));
  }
  Result<void> EndPage() {
    if (std::exchange(entries_before_, entries_) < entries_ || ++empty_pages_ <= kMaxEmptyPages) return {};
    return Fail(ErrorCode::kIo, fmt::format("the service returned {} pages of a list without entries", empty_pages_));
  }

 private:
  static constexpr unsigned kMaxEmptyPages = 100;
  Error Fail(ErrorCode code, const std::string& what) const { return {code, ToString(listed_) + ": " + what}; }

  const Location listed_;
  const size_t limit_;
  size_t entries_ = 0, entries_before_ = 0, bytes_ = 0;
  unsigned empty_pages_ = 0;
};

std::string Crc32cText(std::span<const std::byte> body) {
  const uint32_t crc = Crc32c(body);
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(crc >> shift);
  return EncodeBase64(bytes);
}

// A service that does not know ranges returns the whole object, from its start.
Result<RangeInfo> CheckRange(const Response& response, uint64_t offset, size_t size, const Location& object) {
  RangeInfo info{std::string(response.header("etag"))};
  const auto range = response.header("content-range");  // "bytes 0-99/1234"
  if (response.status == 200 && range.empty() && offset == 0) {
    info.object_size = size;
    return info;
  }
  const auto start = fmt::format("bytes {}-{}/", offset, offset + size - 1);
  const auto total = range.starts_with(start) ? ParseNumber(range.substr(start.size())) : std::nullopt;
  if (!total) {
    return Error{ErrorCode::kIo, fmt::format("GET {}: the service returned the range '{}' instead of '{}...'",
                                             ToString(object), Printable(range), start)};
  }
  info.object_size = *total;
  return info;
}

}  // namespace

Result<std::string> Bucket::GetObject(const std::string& key, size_t limit, const Interrupted& interrupted) const {
  ASSIGN_OR_RETURN(auto content, GetContent(key, limit, interrupted));
  return std::move(content.body);
}

Result<ObjectContent> Bucket::GetContent(const std::string& key, size_t limit, const Interrupted& interrupted) const {
  ASSIGN_OR_RETURN(auto response,
                   client_.Send({.method = "GET", .object = {name_, key}, .body_limit = limit}, interrupted));
  std::string etag(response.header("etag"));
  return ObjectContent{.body = std::move(response.body), .etag = std::move(etag)};
}

RequestId Bucket::StartGetRange(const ObjectRange& range, std::span<std::byte> memory,
                                std::function<void(Result<RangeInfo>)> done) const {
  Request request{.method = "GET", .object = {name_, range.key}, .into = memory};
  request.headers.emplace_back("range", fmt::format("bytes={}-{}", range.offset, range.offset + memory.size() - 1));
  if (!range.if_match.empty()) request.headers.emplace_back("if-match", range.if_match);
  return client_.Start(std::move(request), [object = Location{name_, range.key}, offset = range.offset,
                                            size = memory.size(), done = std::move(done)](Result<Response> response) {
    if (!response) return done(std::move(response).error());
    done(CheckRange(*response, offset, size, object));
  });
}

Result<ObjectInfo> Bucket::HeadObject(const std::string& key, const Interrupted& interrupted) const {
  const Request request{.method = "HEAD", .object = {name_, key}};
  ASSIGN_OR_RETURN(const auto response, client_.Send(request, interrupted));
  const auto size = ParseNumber(response.header("content-length"));
  if (!size) return ResponseError(request, "the response has no Content-Length");
  ObjectInfo info{key, *size, std::string(response.header("etag"))};
  info.modified = ParseHttpTime(std::string(response.header("last-modified"))).value_or(info.modified);
  return info;
}

Fields Bucket::NewObjectHeaders(const PutOptions& options) const {
  const Settings& settings = client_.settings();
  Fields headers;
  if (options.if_none_match) headers.emplace_back("if-none-match", "*");
  if (!options.if_match.empty()) headers.emplace_back("if-match", options.if_match);
  if (!options.storage_class.empty()) headers.emplace_back("x-amz-storage-class", options.storage_class);
  if (!settings.encryption.empty()) headers.emplace_back("x-amz-server-side-encryption", settings.encryption);
  if (!settings.encryption_key.empty()) {
    headers.emplace_back("x-amz-server-side-encryption-aws-kms-key-id", settings.encryption_key);
  }
  return headers;
}

Request Bucket::MakePut(const std::string& key, std::span<const std::byte> body, const PutOptions& options) const {
  Request request{.method = "PUT", .object = {name_, key}, .headers = NewObjectHeaders(options), .body = body};
  request.guard = options.guard;
  const bool crc32c = client_.settings().send_crc32c;
  if (crc32c) request.headers.emplace_back(kCrc32cHeader, Crc32cText(body));
  if (!crc32c || !crc32c_confirmed_.load()) AddMd5(&request);
  return request;
}

void Bucket::NoteConfirmation(const Response& response) const {
  if (!response.header(kCrc32cHeader).empty()) crc32c_confirmed_ = true;
}

Result<std::string> Bucket::PutObject(const std::string& key, std::span<const std::byte> body,
                                      const PutOptions& options, const Interrupted& interrupted) const {
  ASSIGN_OR_RETURN(const auto response, client_.Send(MakePut(key, body, options), interrupted));
  NoteConfirmation(response);
  return std::string(response.header("etag"));
}

Result<std::string> Bucket::PutObject(const std::string& key, std::string_view body, const PutOptions& options,
                                      const Interrupted& interrupted) const {
  return PutObject(key, AsBytes(body), options, interrupted);
}

RequestId Bucket::StartPut(const std::string& key, std::span<const std::byte> body, const PutOptions& options,
                           std::function<void(Result<std::string>)> done) const {
  return client_.Start(MakePut(key, body, options), [this, done = std::move(done)](Result<Response> response) {
    if (!response) return done(std::move(response).error());
    NoteConfirmation(*response);
    done(std::string(response->header("etag")));
  });
}

Result<UploadInfo> Bucket::CreateMultipartUpload(const std::string& key, const PutOptions& options,
                                                 const Interrupted& interrupted) const {
  Request request{.method = "POST",
                  .object = {name_, key},
                  .query = {{"uploads", ""}},
                  .headers = NewObjectHeaders(options),
                  .guard = options.guard,
                  .xml_root = "InitiateMultipartUploadResult"};
  if (client_.settings().send_crc32c) request.headers.emplace_back("x-amz-checksum-algorithm", std::string(kCrc32c));
  ASSIGN_OR_RETURN(const auto response, client_.Send(request, interrupted));
  UploadInfo upload{.key = key};
  upload.crc32c = response.header("x-amz-checksum-algorithm") == kCrc32c;
  ASSIGN_OR_RETURN(upload.upload_id, Named(ParseUploadId(response.body), request.object));
  return upload;
}

RequestId Bucket::StartUploadPart(const UploadInfo& upload, unsigned number, std::span<const std::byte> body,
                                  std::function<void(Result<PartInfo>)> done) const {
  Request request{.method = "PUT", .object = {name_, upload.key}, .body = body};
  request.query = {{"partNumber", std::to_string(number)}, {"uploadId", upload.upload_id}};
  PartInfo part{.number = number, .size = body.size()};
  if (upload.crc32c) {
    part.crc32c = Crc32cText(body);
    request.headers.emplace_back(kCrc32cHeader, part.crc32c);
  } else {
    AddMd5(&request);
  }
  const Location object = request.object;
  return client_.Start(std::move(request), [object, part, done = std::move(done)](Result<Response> response) {
    if (!response) return done(std::move(response).error());
    PartInfo sent = part;
    sent.etag = response->header("etag");
    if (!sent.etag.empty()) return done(std::move(sent));
    done(Error{ErrorCode::kIo,
               fmt::format("PUT {}: the response for part {} has no ETag", ToString(object), sent.number)});
  });
}

Result<UploadedParts> Bucket::ListParts(const UploadInfo& upload, const Interrupted& interrupted) const {
  UploadedParts found;
  std::vector<PartInfo>& parts = found.parts;
  std::string marker;
  do {
    Request request{.object = {name_, upload.key}, .query = {{"uploadId", upload.upload_id}, {"max-parts", "1000"}}};
    request.xml_root = "ListPartsResult";
    request.body_limit = kMaxPage;
    if (!marker.empty()) request.query.emplace_back("part-number-marker", marker);
    ASSIGN_OR_RETURN(const auto response, client_.Send(request, interrupted));
    ASSIGN_OR_RETURN(auto page, Named(ParseParts(response.body), request.object));
    if (!page.next.empty() && page.parts.empty()) return ResponseError(request, "a page without parts is not the last");
    parts.insert(parts.end(), page.parts.begin(), page.parts.end());
    found.crc32c = page.checksum_algorithm == kCrc32c;
    if (parts.size() > kMaxParts) return ResponseError(request, "the upload has too many parts");
    marker = page.next;
  } while (!marker.empty());
  std::ranges::sort(parts, {}, &PartInfo::number);
  return found;
}

Result<std::vector<UploadInfo>> Bucket::ListMultipartUploads(const std::string& prefix,
                                                             const Interrupted& interrupted) const {
  std::vector<UploadInfo> uploads;
  std::string key, upload_id;
  ListProgress progress({name_, prefix}, kMaxListed);
  // Without encoding-type: Ceph 16 would encode the keys here, but does not say so in its response.
  do {
    Request request{.object = {name_, ""}, .query = {{"uploads", ""}}};
    request.xml_root = "ListMultipartUploadsResult";
    request.body_limit = kMaxPage;
    if (!prefix.empty()) request.query.emplace_back("prefix", prefix);
    if (!key.empty()) request.query.insert(request.query.end(), {{"key-marker", key}, {"upload-id-marker", upload_id}});
    ASSIGN_OR_RETURN(const auto response, client_.Send(request, interrupted));
    ASSIGN_OR_RETURN(auto page, Named(ParseUploads(response.body), request.object));
    const bool repeats = !page.next_key.empty() && page.next_key == key && page.next_upload_id == upload_id;
    if (repeats) return ResponseError(request, "the service returned the same page of uploads twice");
    for (const auto& upload : page.uploads) RETURN_IF_ERROR(progress.Add(upload.key, upload.upload_id.size()));
    RETURN_IF_ERROR(progress.EndPage());
    uploads.insert(uploads.end(), page.uploads.begin(), page.uploads.end());
    key = page.next_key;
    upload_id = page.next_upload_id;
  } while (!key.empty());
  return uploads;
}

Result<std::string> Bucket::CompleteMultipartUpload(const UploadInfo& upload, const std::vector<PartInfo>& parts,
                                                    const Interrupted& interrupted, const GuardPtr& guard) const {
  const auto document = CompleteDocument(parts);
  Request request{.method = "POST", .object = {name_, upload.key}, .query = {{"uploadId", upload.upload_id}}};
  request.headers = {{"content-type", "application/xml"}};
  request.body = AsBytes(document);
  request.slow_answer = true;
  request.guard = guard;
  request.xml_root = "CompleteMultipartUploadResult";
  ASSIGN_OR_RETURN(const auto response, client_.Send(request, interrupted));
  return Named(ParseCompletedEtag(response.body), request.object);
}

Result<void> Bucket::AbortMultipartUpload(const UploadInfo& upload, const Interrupted& interrupted,
                                          const GuardPtr& guard) const {
  RETURN_IF_ERROR(client_.Send({.method = "DELETE",
                                .object = {name_, upload.key},
                                .query = {{"uploadId", upload.upload_id}},
                                .guard = guard},
                               interrupted));
  return {};
}

Result<void> Bucket::AbortMultipartUploads(std::span<const UploadInfo> uploads, const Interrupted& interrupted,
                                           const GuardPtr& guard) const {
  for (const UploadInfo& upload : uploads) {
    const auto aborted = AbortMultipartUpload(upload, interrupted, guard);
    if (!aborted && aborted.error().code != ErrorCode::kNotFound) return aborted.error();
  }
  return {};
}

Result<Listing> Bucket::ListObjects(const ListOptions& options, const Interrupted& interrupted) const {
  Listing listing;
  std::string token;
  ListProgress progress({name_, options.prefix}, options.limit);
  do {
    Request request{.object = {name_, ""}, .query = {{"list-type", "2"}, {"encoding-type", "url"}}};
    request.xml_root = "ListBucketResult";
    request.body_limit = kMaxPage;
    if (!options.prefix.empty()) request.query.emplace_back("prefix", options.prefix);
    if (!options.delimiter.empty()) request.query.emplace_back("delimiter", options.delimiter);
    if (!token.empty()) request.query.emplace_back("continuation-token", token);
    ASSIGN_OR_RETURN(const auto response, client_.Send(request, interrupted));
    ASSIGN_OR_RETURN(auto page, Named(ParseListing(response.body), request.object));
    if (!page.next.empty() && page.next == token)
      return ResponseError(request, "the service repeats a page of the list");
    for (const auto& object : page.listing.objects) RETURN_IF_ERROR(progress.Add(object.key, object.etag.size()));
    for (const auto& prefix : page.listing.prefixes) RETURN_IF_ERROR(progress.Add(prefix, 0));
    RETURN_IF_ERROR(progress.EndPage());
    token = page.next;
    std::ranges::move(page.listing.objects, std::back_inserter(listing.objects));
    std::ranges::move(page.listing.prefixes, std::back_inserter(listing.prefixes));
  } while (!token.empty());
  return listing;
}

Result<VersionListing> Bucket::ListVersions(const ListOptions& options, const Interrupted& interrupted) const {
  VersionListing listing;
  std::string key, version;
  ListProgress progress({name_, options.prefix}, options.limit);
  do {
    Request request{.object = {name_, ""}, .query = {{"versions", ""}, {"encoding-type", "url"}}};
    request.xml_root = "ListVersionsResult";
    request.body_limit = kMaxPage;
    if (!options.prefix.empty()) request.query.emplace_back("prefix", options.prefix);
    if (!options.delimiter.empty()) request.query.emplace_back("delimiter", options.delimiter);
    if (!key.empty()) request.query.emplace_back("key-marker", key);
    if (!version.empty()) request.query.emplace_back("version-id-marker", version);
    ASSIGN_OR_RETURN(const auto response, client_.Send(request, interrupted));
    ASSIGN_OR_RETURN(auto page, Named(ParseVersions(response.body), request.object));
    const bool repeats = !page.next_key.empty() && page.next_key == key && page.next_version == version;
    if (repeats) return ResponseError(request, "the service repeats a page of the list");
    for (const auto& one : page.listing.versions) RETURN_IF_ERROR(progress.Add(one.key, one.version_id.size()));
    for (const auto& prefix : page.listing.prefixes) RETURN_IF_ERROR(progress.Add(prefix, 0));
    RETURN_IF_ERROR(progress.EndPage());
    key = page.next_key;
    version = page.next_version;
    std::ranges::move(page.listing.versions, std::back_inserter(listing.versions));
    std::ranges::move(page.listing.prefixes, std::back_inserter(listing.prefixes));
  } while (!key.empty());
  return listing;
}

Result<bool> Bucket::DeleteObject(const std::string& key, const Interrupted& interrupted,
                                  const DeleteOptions& options) const {
  // This request would delete the bucket.
  if (key.empty()) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("DELETE s3://{}/: an object without a name cannot be deleted", name_)};
  }
  Request request{.method = "DELETE", .object = {name_, key}, .guard = options.guard};
  if (!options.if_match.empty()) request.headers.emplace_back("if-match", options.if_match);
  auto response = client_.Send(std::move(request), interrupted);
  if (!response) return OfObject(std::move(response).error(), key);
  return response->header("x-amz-delete-marker") == "true";
}

Result<void> Bucket::DeleteObjects(std::span<const ObjectVersion> objects, const Interrupted& interrupted,
                                   const GuardPtr& guard) const {
  std::vector<ObjectVersion> batch;
  std::vector<Error> failures;
  for (const auto& object : objects) {
    if (!CanBeInXml(object.key)) {
      Request request{.method = "DELETE", .object = {name_, object.key}, .guard = guard};
      if (!object.version_id.empty()) request.query.emplace_back("versionId", object.version_id);
      auto deleted = client_.Send(request, interrupted);
      if (deleted) continue;
      failures.push_back(OfObject(std::move(deleted).error(), object.key));
      if (failures.back().path.empty()) return failures.back();
      continue;
    }
    batch.push_back(object);
    if (batch.size() < kMaxDeletedKeys) continue;
    RETURN_IF_ERROR(DeleteBatch(batch, &failures, interrupted, guard));
    batch.clear();
  }
  RETURN_IF_ERROR(DeleteBatch(batch, &failures, interrupted, guard));
  if (failures.empty()) return {};
  if (failures.size() > 1) failures[0].what += fmt::format(" ({} objects are not deleted)", failures.size());
  return failures[0];
}

Result<void> Bucket::DeleteBatch(std::span<const ObjectVersion> objects, std::vector<Error>* failures,
                                 const Interrupted& interrupted, const GuardPtr& guard) const {
  if (objects.empty()) return {};
  const auto document = DeleteDocument(objects);
  Request request{.method = "POST", .object = {name_, ""}, .query = {{"delete", ""}}, .xml_root = "DeleteResult"};
  request.headers = {{"content-type", "application/xml"}};
  request.body = AsBytes(document);
  request.guard = guard;
  // S3 demands a checksum here, and not every service knows the CRC-32C.
  if (!AddMd5(&request)) request.headers.emplace_back(kCrc32cHeader, Crc32cText(request.body));
  ASSIGN_OR_RETURN(const auto response, client_.Send(request, interrupted));
  ASSIGN_OR_RETURN(const auto refused, Named(ParseDeleteFailures(response.body), request.object));
  for (const DeleteFailure& one : refused) {
    const auto code = one.error.code == "AccessDenied" ? ErrorCode::kAccess : ErrorCode::kIo;
    failures->push_back({code,
                         fmt::format("DELETE {}: {}: {}", ToString({name_, one.key}), Printable(one.error.code),
                                     Printable(one.error.message)),
                         one.key});
  }
  return {};
}

}  // namespace weightfs::s3
