// SPDX-License-Identifier: Apache-2.0
#include "s3/bucket.h"

#include <array>
#include <iterator>

#include "common/bytes.h"
#include "common/checksum.h"
#include "common/make_error.h"
#include "common/printable.h"
#include "s3/digest.h"
#include "s3/responses.h"
#include "s3/text.h"

namespace weightfs::s3 {
namespace {

// Bytes of a page of a list. 1,000 entries with the longest keys have half of it; parsed, it takes 16 times as many.
constexpr size_t kMaxPage = size_t{8} << 20;
constexpr const char* kCrc32cHeader = "x-amz-checksum-crc32c";
constexpr std::string_view kCrc32c = "CRC32C";

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

Error ResponseError(const Request& request, std::string_view what) {
  return MakeError(ErrorCode::kIo, "{} {}: {}", request.method, ToString(request.object), what);
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
  const auto md5 = Md5(TextOf(request->body));
  if (md5) request->headers.emplace_back("content-md5", EncodeBase64(*md5));
  return md5.has_value();
}

// Adds what was requested to an error of the parser.
template <typename T>
Result<T> Named(Result<T> result, const Location& object) {
  if (!result) return MakeError(result.error().code, "{}: {}", ToString(object), result.error().what);
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

// What may be long of an entry of a list, besides its key.
size_t MoreOf(const ObjectInfo& object) { return object.etag.size(); }
size_t MoreOf(const UploadInfo& upload) { return upload.upload_id.size(); }
size_t MoreOf(const ObjectVersion& version) { return version.version_id.size(); }

// Returns all pages of the list that a request begins.
template <typename Entry>
Result<Listing<Entry>> ReadPages(Client& client, Request request, const ListOptions& options,
                                 Result<Page<Entry>> (*parse)(std::string_view body), const Interrupted& interrupted) {
  Page<Entry> all;
  ListProgress progress({request.object.bucket, options.prefix}, options.limit);
  request.body_limit = kMaxPage;
  if (!options.prefix.empty()) request.query.emplace_back("prefix", options.prefix);
  if (!options.delimiter.empty()) request.query.emplace_back("delimiter", options.delimiter);
  const Fields first = request.query;
  do {
    request.query = first;
    request.query.insert(request.query.end(), all.next.begin(), all.next.end());
    ASSIGN_OR_RETURN(const auto response, client.Send(request, interrupted));
    ASSIGN_OR_RETURN(auto page, Named(parse(response.body), request.object));
    if (!page.next.empty() && page.next == all.next) {
      return ResponseError(request, "the service repeats a page of the list");
    }
    for (const Entry& entry : page.entries) RETURN_IF_ERROR(progress.Add(entry.key, MoreOf(entry)));
    for (const std::string& prefix : page.prefixes) RETURN_IF_ERROR(progress.Add(prefix, 0));
    RETURN_IF_ERROR(progress.EndPage());
    all.next = std::move(page.next);
    std::ranges::move(page.entries, std::back_inserter(all.entries));
    std::ranges::move(page.prefixes, std::back_inserter(all.prefixes));
  } while (!all.next.empty());
  return Listing<Entry>(std::move(all));
}

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
  const auto total = range.starts_with(start) ? ParseNumber<uint64_t>(range.substr(start.size())) : std::nullopt;
  if (!total) {
    return MakeError(ErrorCode::kIo, "GET {}: the service returned the range '{}' instead of '{}...'", ToString(object),
                     Printable(range), start);
  }
  info.object_size = *total;
  return info;
}

}  // namespace

Result<ObjectContent> Bucket::GetObject(const std::string& key, size_t limit, bool urgent) const {
  const Request request{.method = "GET", .object = {name_, key}, .body_limit = limit, .urgent = urgent};
  ASSIGN_OR_RETURN(auto response, Send(request));
  std::string etag(response.header("etag"));
  return ObjectContent{.body = std::move(response.body), .etag = std::move(etag)};
}

Result<RangeInfo> Bucket::GetRange(const ObjectRange& range, std::span<std::byte> memory) const {
  Request request{.method = "GET", .object = {name_, range.key}, .into = memory};
  request.headers.emplace_back("range", fmt::format("bytes={}-{}", range.offset, range.offset + memory.size() - 1));
  if (!range.if_match.empty()) request.headers.emplace_back("if-match", range.if_match);
  ASSIGN_OR_RETURN(const auto response, Send(request));
  return CheckRange(response, range.offset, memory.size(), request.object);
}

Result<ObjectInfo> Bucket::HeadObject(const std::string& key) const {
  const Request request{.method = "HEAD", .object = {name_, key}};
  ASSIGN_OR_RETURN(const auto response, Send(request));
  const auto size = ParseNumber<uint64_t>(response.header("content-length"));
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

Result<std::string> Bucket::PutObject(const std::string& key, std::span<const std::byte> body,
                                      const PutOptions& options) const {
  Request request{.method = "PUT", .object = {name_, key}, .headers = NewObjectHeaders(options), .body = body};
  request.guard = options.guard;
  const bool crc32c = client_.settings().send_crc32c;
  if (crc32c) request.headers.emplace_back(kCrc32cHeader, Crc32cText(body));
  if (!crc32c || !crc32c_confirmed_.load()) AddMd5(&request);
  ASSIGN_OR_RETURN(const auto response, Send(request));
  if (!response.header(kCrc32cHeader).empty()) crc32c_confirmed_ = true;
  return std::string(response.header("etag"));
}

Result<std::string> Bucket::PutObject(const std::string& key, std::string_view body, const PutOptions& options) const {
  return PutObject(key, AsBytes(body), options);
}

Result<UploadInfo> Bucket::CreateMultipartUpload(const std::string& key, const PutOptions& options) const {
  Request request{.method = "POST",
                  .object = {name_, key},
                  .query = {{"uploads", ""}},
                  .headers = NewObjectHeaders(options),
                  .guard = options.guard,
                  .xml_root = "InitiateMultipartUploadResult"};
  if (client_.settings().send_crc32c) request.headers.emplace_back("x-amz-checksum-algorithm", std::string(kCrc32c));
  ASSIGN_OR_RETURN(const auto response, Send(request));
  UploadInfo upload{.key = key};
  upload.crc32c = response.header("x-amz-checksum-algorithm") == kCrc32c;
  ASSIGN_OR_RETURN(upload.upload_id, Named(ParseUploadId(response.body), request.object));
  return upload;
}

Result<PartInfo> Bucket::UploadPart(const UploadInfo& upload, unsigned number, std::span<const std::byte> body) const {
  Request request{.method = "PUT", .object = {name_, upload.key}, .body = body};
  request.query = {{"partNumber", std::to_string(number)}, {"uploadId", upload.upload_id}};
  PartInfo part{.number = number, .size = body.size()};
  if (upload.crc32c) {
    part.crc32c = Crc32cText(body);
    request.headers.emplace_back(kCrc32cHeader, part.crc32c);
  } else {
    AddMd5(&request);
  }
  ASSIGN_OR_RETURN(const auto response, Send(request));
  part.etag = response.header("etag");
  if (part.etag.empty()) return ResponseError(request, fmt::format("the response for part {} has no ETag", number));
  return part;
}

Result<UploadedParts> Bucket::ListParts(const UploadInfo& upload) const {
  UploadedParts found;
  Request request{.object = {name_, upload.key}, .body_limit = kMaxPage, .xml_root = "ListPartsResult"};
  for (Fields next;;) {
    request.query = {{"uploadId", upload.upload_id}, {"max-parts", "1000"}};
    request.query.insert(request.query.end(), next.begin(), next.end());
    ASSIGN_OR_RETURN(const auto response, Send(request));
    ASSIGN_OR_RETURN(const auto page, Named(ParseParts(response.body), request.object));
    if (!page.next.empty() && page.entries.empty()) {
      return ResponseError(request, "a page without parts is not the last");
    }
    found.parts.insert(found.parts.end(), page.entries.begin(), page.entries.end());
    found.crc32c = page.checksum_algorithm == kCrc32c;
    if (found.parts.size() > kMaxParts) return ResponseError(request, "the upload has too many parts");
    next = page.next;
    if (next.empty()) break;
  }
  std::ranges::sort(found.parts, {}, &PartInfo::number);
  return found;
}

Result<std::vector<UploadInfo>> Bucket::ListMultipartUploads(const std::string& prefix) const {
  Request request{.object = {name_, ""}, .query = {{"uploads", ""}}, .xml_root = "ListMultipartUploadsResult"};
  // Without encoding-type: Ceph 16 would encode the keys here, but does not say so in its response.
  ASSIGN_OR_RETURN(auto all, ReadPages(client_, request, {.prefix = prefix}, ParseUploads, interrupted_));
  return std::move(all.entries);
}

Result<std::string> Bucket::CompleteMultipartUpload(const UploadInfo& upload, const std::vector<PartInfo>& parts,
                                                    const GuardPtr& guard) const {
  const auto document = CompleteDocument(parts);
  Request request{.method = "POST", .object = {name_, upload.key}, .query = {{"uploadId", upload.upload_id}}};
  request.headers = {{"content-type", "application/xml"}};
  request.body = AsBytes(document);
  request.slow_answer = true;
  request.guard = guard;
  request.xml_root = "CompleteMultipartUploadResult";
  ASSIGN_OR_RETURN(const auto response, Send(request));
  return Named(ParseCompletedEtag(response.body), request.object);
}

Result<void> Bucket::AbortMultipartUpload(const UploadInfo& upload, const GuardPtr& guard) const {
  RETURN_IF_ERROR(Send(
      {.method = "DELETE", .object = {name_, upload.key}, .query = {{"uploadId", upload.upload_id}}, .guard = guard}));
  return {};
}

Result<void> Bucket::AbortMultipartUploads(std::span<const UploadInfo> uploads, const GuardPtr& guard) const {
  for (const UploadInfo& upload : uploads) {
    const auto aborted = AbortMultipartUpload(upload, guard);
    if (!aborted && aborted.error().code != ErrorCode::kNotFound) return aborted.error();
  }
  return {};
}

Result<Listing<ObjectInfo>> Bucket::ListObjects(const ListOptions& options) const {
  Request request{.object = {name_, ""}, .query = {{"list-type", "2"}, {"encoding-type", "url"}}};
  request.xml_root = "ListBucketResult";
  return ReadPages(client_, request, options, ParseListing, interrupted_);
}

Result<Listing<ObjectVersion>> Bucket::ListVersions(const ListOptions& options) const {
  Request request{.object = {name_, ""}, .query = {{"versions", ""}, {"encoding-type", "url"}}};
  request.xml_root = "ListVersionsResult";
  return ReadPages(client_, request, options, ParseVersions, interrupted_);
}

Result<bool> Bucket::DeleteObject(const std::string& key, const DeleteOptions& options) const {
  // This request would delete the bucket.
  if (key.empty()) {
    return MakeError(ErrorCode::kInvalid, "DELETE s3://{}/: an object without a name cannot be deleted", name_);
  }
  Request request{.method = "DELETE", .object = {name_, key}, .guard = options.guard};
  if (!options.if_match.empty()) request.headers.emplace_back("if-match", options.if_match);
  auto response = Send(std::move(request));
  if (!response) return OfObject(std::move(response).error(), key);
  return response->header("x-amz-delete-marker") == "true";
}

Result<void> Bucket::DeleteObjects(std::span<const ObjectVersion> objects, const GuardPtr& guard) const {
  std::vector<ObjectVersion> batch;
  std::vector<Error> failures;
  for (const auto& object : objects) {
    if (!CanBeInXml(object.key)) {
      Request request{.method = "DELETE", .object = {name_, object.key}, .guard = guard};
      if (!object.version_id.empty()) request.query.emplace_back("versionId", object.version_id);
      auto deleted = Send(request);
      if (deleted) continue;
      failures.push_back(OfObject(std::move(deleted).error(), object.key));
      if (failures.back().path.empty()) return failures.back();
      continue;
    }
    batch.push_back(object);
    if (batch.size() < kMaxDeletedKeys) continue;
    RETURN_IF_ERROR(DeleteBatch(batch, &failures, guard));
    batch.clear();
  }
  RETURN_IF_ERROR(DeleteBatch(batch, &failures, guard));
  if (failures.empty()) return {};
  if (failures.size() > 1) failures[0].what += fmt::format(" ({} objects are not deleted)", failures.size());
  return failures[0];
}

Result<void> Bucket::DeleteBatch(std::span<const ObjectVersion> objects, std::vector<Error>* failures,
                                 const GuardPtr& guard) const {
  if (objects.empty()) return {};
  const auto document = DeleteDocument(objects);
  Request request{.method = "POST", .object = {name_, ""}, .query = {{"delete", ""}}, .xml_root = "DeleteResult"};
  request.headers = {{"content-type", "application/xml"}};
  request.body = AsBytes(document);
  request.guard = guard;
  // S3 demands a checksum here, and not every service knows the CRC-32C.
  if (!AddMd5(&request)) request.headers.emplace_back(kCrc32cHeader, Crc32cText(request.body));
  ASSIGN_OR_RETURN(const auto response, Send(request));
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
