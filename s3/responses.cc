// SPDX-License-Identifier: Apache-2.0
#include "s3/responses.h"

#include <initializer_list>
#include <pugixml.hpp>
#include <sstream>

#include "common/make_error.h"
#include "common/printable.h"
#include "common/result.h"
#include "s3/text.h"

namespace weightfs::s3 {
namespace {

constexpr size_t kMaxTag = 4096;  // bytes of an ETag or of the id of an upload; those of services have up to 200

Error BadDocument(std::string_view what) {
  return MakeError(ErrorCode::kIo, "the service returned a document without a valid {}", what);
}

// Parses a document whose root has this name. Namespaces of the elements are their default one, so no name has a
// prefix.
Result<pugi::xml_node> ParseRoot(pugi::xml_document& document, std::string_view body, const char* name) {
  const auto parsed =
      document.load_buffer(body.data(), body.size(), pugi::parse_default | pugi::parse_ws_pcdata_single);
  const auto root = document.child(name);
  if (!parsed || !root) return BadDocument(name);
  return root;
}

std::string TextOf(pugi::xml_node node, const char* name) { return node.child_value(name); }

Result<uint64_t> NumberOf(pugi::xml_node node, const char* name) {
  const auto number = ParseNumber<uint64_t>(node.child_value(name));
  if (!number) return BadDocument(name);
  return *number;
}

// Keys are percent-encoded if the service says so; one that does not know encoding-type does not. The answer takes a
// search among all entries of a page, so it is found once a page.
bool HasEncodedKeys(pugi::xml_node root) { return std::string_view(root.child_value("EncodingType")) == "url"; }

// Keys, and what else is kept of each entry of a list, are short, whatever a hostile service sends.
Result<std::string> KeyOf(bool encoded, pugi::xml_node node, const char* name) {
  auto key = encoded ? PercentDecode(node.child_value(name)) : TextOf(node, name);
  if (key.empty() || key.size() > kMaxKey) return BadDocument(name);
  return key;
}

Result<std::string> ShortTextOf(pugi::xml_node node, const char* name) {
  auto text = TextOf(node, name);
  if (text.size() > kMaxTag) return BadDocument(name);
  return text;
}

using Time = std::chrono::system_clock::time_point;
Time TimeOf(pugi::xml_node node, const char* name) { return ParseIsoTime(TextOf(node, name)).value_or(Time()); }

// An element of a page that is not the last, and the parameter of the query that takes its text.
struct Marker {
  const char* element;
  const char* parameter;
};

// Parses a page whose root has this name. The first marker of a page that is not the last must not be missing. `take`
// returns no entry for elements that are none.
template <typename Entry>
Result<Page<Entry>> ParsePage(std::string_view body, const char* name, std::initializer_list<Marker> markers,
                              Result<std::optional<Entry>> (*take)(pugi::xml_node node, bool encoded)) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const auto root, ParseRoot(document, body, name));
  Page<Entry> page;
  ASSIGN_OR_RETURN(page.checksum_algorithm, ShortTextOf(root, "ChecksumAlgorithm"));
  const bool encoded = HasEncodedKeys(root);
  for (const auto node : root.children()) {
    if (std::string_view(node.name()) == "CommonPrefixes") {
      ASSIGN_OR_RETURN(auto prefix, KeyOf(encoded, node, "Prefix"));
      page.prefixes.push_back(std::move(prefix));
    }
    ASSIGN_OR_RETURN(auto entry, take(node, encoded));
    if (entry) page.entries.push_back(std::move(*entry));
  }
  if (std::string_view(root.child_value("IsTruncated")) != "true") return page;
  for (const auto& [element, parameter] : markers) {
    const bool is_key = std::string_view(element) == "NextKeyMarker";
    ASSIGN_OR_RETURN(auto text, is_key ? KeyOf(encoded, root, element) : ShortTextOf(root, element));
    if (text.empty() && page.next.empty()) return BadDocument(element);
    if (!text.empty()) page.next.emplace_back(parameter, std::move(text));
  }
  return page;
}

Result<std::optional<ObjectInfo>> TakeObject(pugi::xml_node node, bool encoded) {
  if (std::string_view(node.name()) != "Contents") return std::optional<ObjectInfo>();
  ObjectInfo info{.key = {}, .modified = TimeOf(node, "LastModified")};
  ASSIGN_OR_RETURN(info.key, KeyOf(encoded, node, "Key"));
  ASSIGN_OR_RETURN(info.etag, ShortTextOf(node, "ETag"));
  ASSIGN_OR_RETURN(info.size, NumberOf(node, "Size"));
  return info;
}

Result<std::optional<PartInfo>> TakePart(pugi::xml_node node, bool) {
  if (std::string_view(node.name()) != "Part") return std::optional<PartInfo>();
  PartInfo info{.modified = TimeOf(node, "LastModified")};
  ASSIGN_OR_RETURN(info.etag, ShortTextOf(node, "ETag"));
  ASSIGN_OR_RETURN(info.crc32c, ShortTextOf(node, "ChecksumCRC32C"));
  ASSIGN_OR_RETURN(const auto number, NumberOf(node, "PartNumber"));
  ASSIGN_OR_RETURN(info.size, NumberOf(node, "Size"));
  if (number == 0 || number > kMaxParts) return BadDocument("PartNumber");
  info.number = static_cast<unsigned>(number);
  return info;
}

Result<std::optional<UploadInfo>> TakeUpload(pugi::xml_node node, bool encoded) {
  if (std::string_view(node.name()) != "Upload") return std::optional<UploadInfo>();
  UploadInfo info{.key = {}, .upload_id = {}, .started = TimeOf(node, "Initiated")};
  ASSIGN_OR_RETURN(info.key, KeyOf(encoded, node, "Key"));
  ASSIGN_OR_RETURN(info.upload_id, ShortTextOf(node, "UploadId"));
  if (info.upload_id.empty()) return BadDocument("UploadId");
  return info;
}

Result<std::optional<ObjectVersion>> TakeVersion(pugi::xml_node node, bool encoded) {
  const std::string_view kind = node.name();
  if (kind != "Version" && kind != "DeleteMarker") return std::optional<ObjectVersion>();
  ObjectVersion version{.key = {}, .is_marker = kind == "DeleteMarker", .modified = TimeOf(node, "LastModified")};
  ASSIGN_OR_RETURN(version.key, KeyOf(encoded, node, "Key"));
  ASSIGN_OR_RETURN(version.version_id, ShortTextOf(node, "VersionId"));
  if (version.version_id.empty()) return BadDocument("VersionId");
  if (version.is_marker) return version;
  ASSIGN_OR_RETURN(version.size, NumberOf(node, "Size"));
  return version;
}

std::string Serialize(const pugi::xml_document& document) {
  std::ostringstream text;
  document.save(text, "", pugi::format_raw);
  return text.str();
}

void AppendText(pugi::xml_node parent, const char* name, const std::string& text) {
  parent.append_child(name).text().set(text.c_str());
}

}  // namespace

ErrorDocument ParseErrorDocument(std::string_view body) {
  pugi::xml_document document;
  if (!document.load_buffer(body.data(), body.size())) return {};
  auto error = document.child("Error");
  if (!error) error = document.child("ErrorResponse").child("Error");  // STS
  return {TextOf(error, "Code"), TextOf(error, "Message"), TextOf(error, "Region")};
}

Result<Page<ObjectInfo>> ParseListing(std::string_view body) {
  return ParsePage(body, "ListBucketResult", {{"NextContinuationToken", "continuation-token"}}, TakeObject);
}

Result<Page<PartInfo>> ParseParts(std::string_view body) {
  return ParsePage(body, "ListPartsResult", {{"NextPartNumberMarker", "part-number-marker"}}, TakePart);
}

Result<Page<UploadInfo>> ParseUploads(std::string_view body) {
  return ParsePage(body, "ListMultipartUploadsResult",
                   {{"NextKeyMarker", "key-marker"}, {"NextUploadIdMarker", "upload-id-marker"}}, TakeUpload);
}

Result<Page<ObjectVersion>> ParseVersions(std::string_view body) {
  return ParsePage(body, "ListVersionsResult",
                   {{"NextKeyMarker", "key-marker"}, {"NextVersionIdMarker", "version-id-marker"}}, TakeVersion);
}

Result<std::string> ParseUploadId(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const auto root, ParseRoot(document, body, "InitiateMultipartUploadResult"));
  auto id = TextOf(root, "UploadId");
  if (id.empty()) return BadDocument("UploadId");
  return id;
}

Result<std::string> ParseCompletedEtag(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const auto root, ParseRoot(document, body, "CompleteMultipartUploadResult"));
  return TextOf(root, "ETag");
}

Result<std::vector<DeleteFailure>> ParseDeleteFailures(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const auto root, ParseRoot(document, body, "DeleteResult"));
  std::vector<DeleteFailure> failures;
  for (const auto error : root.children("Error")) {
    failures.push_back({TextOf(error, "Key"), {TextOf(error, "Code"), TextOf(error, "Message")}});
  }
  return failures;
}

bool IsDocument(std::string_view body, std::string_view root) {
  pugi::xml_document document;
  return document.load_buffer(body.data(), body.size()) && document.child(std::string(root).c_str());
}

std::optional<Credentials> ParseAssumedRole(std::string_view body) {
  pugi::xml_document document;
  if (!document.load_buffer(body.data(), body.size())) return std::nullopt;
  const auto node =
      document.child("AssumeRoleWithWebIdentityResponse").child("AssumeRoleWithWebIdentityResult").child("Credentials");
  Credentials credentials{TextOf(node, "AccessKeyId"), TextOf(node, "SecretAccessKey"), TextOf(node, "SessionToken")};
  credentials.expires = ParseIsoTime(TextOf(node, "Expiration"));
  if (credentials.access_key.empty() || credentials.secret_key.empty()) return std::nullopt;
  return credentials;
}

std::string CompleteDocument(const std::vector<PartInfo>& parts) {
  pugi::xml_document document;
  auto root = document.append_child("CompleteMultipartUpload");
  for (const auto& part : parts) {
    auto node = root.append_child("Part");
    AppendText(node, "PartNumber", std::to_string(part.number));
    AppendText(node, "ETag", part.etag);
    if (!part.crc32c.empty()) AppendText(node, "ChecksumCRC32C", part.crc32c);
  }
  return Serialize(document);
}

std::string DeleteDocument(std::span<const ObjectVersion> versions) {
  pugi::xml_document document;
  auto root = document.append_child("Delete");
  AppendText(root, "Quiet", "true");
  for (const auto& version : versions) {
    auto node = root.append_child("Object");
    AppendText(node, "Key", version.key);
    if (!version.version_id.empty()) AppendText(node, "VersionId", version.version_id);
  }
  return Serialize(document);
}

bool CanBeInXml(std::string_view text) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  // U+0080 to U+009F
  const auto is_long_control = [](char lead, char next) {
    return lead == '\xc2' && static_cast<unsigned char>(next) < 0xa0;
  };
  return IsUtf8(text) && std::ranges::none_of(text, is_control) &&
         std::ranges::adjacent_find(text, is_long_control) == text.end() && text.find("\uFFFE") == text.npos &&
         text.find("\uFFFF") == text.npos;
}

}  // namespace weightfs::s3
