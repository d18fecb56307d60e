// SPDX-License-Identifier: Apache-2.0
#include "s3/responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <pugixml.hpp>
#include <sstream>

#include "common/printable.h"
#include "common/result.h"
#include "s3/http_time.h"
#include "s3/text.h"

namespace weightfs::s3 {
namespace {

constexpr size_t kMaxTag = 4096;  // bytes of an ETag or of the id of an upload; those of services have up to 200

Error BadDocument(std::string_view what) {
  return {ErrorCode::kIo, fmt::format("the service returned a document without a valid {}", what)};
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
  const auto number = ParseNumber(node.child_value(name));
  if (!number) return BadDocument(name);
  return *number;
}

bool IsTruncated(pugi::xml_node root) { return std::string_view(root.child_value("IsTruncated")) == "true"; }

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

Result<ListingPage> ParseListing(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const auto root, ParseRoot(document, body, "ListBucketResult"));
  const bool encoded = HasEncodedKeys(root);
  ListingPage page;
  for (const auto object : root.children("Contents")) {
    ObjectInfo info;
    ASSIGN_OR_RETURN(info.key, KeyOf(encoded, object, "Key"));
    ASSIGN_OR_RETURN(info.etag, ShortTextOf(object, "ETag"));
    ASSIGN_OR_RETURN(info.size, NumberOf(object, "Size"));
    info.modified = ParseIsoTime(TextOf(object, "LastModified")).value_or(info.modified);
    page.listing.objects.push_back(std::move(info));
  }
  for (const auto prefix : root.children("CommonPrefixes")) {
    ASSIGN_OR_RETURN(auto name, KeyOf(encoded, prefix, "Prefix"));
    page.listing.prefixes.push_back(std::move(name));
  }
  if (IsTruncated(root)) {
    page.next = TextOf(root, "NextContinuationToken");
    if (page.next.empty()) return BadDocument("NextContinuationToken");
  }
  return page;
}

Result<PartsPage> ParseParts(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const auto root, ParseRoot(document, body, "ListPartsResult"));
  PartsPage page;
  ASSIGN_OR_RETURN(page.checksum_algorithm, ShortTextOf(root, "ChecksumAlgorithm"));
  for (const auto part : root.children("Part")) {
    PartInfo info;
    ASSIGN_OR_RETURN(info.etag, ShortTextOf(part, "ETag"));
    ASSIGN_OR_RETURN(info.crc32c, ShortTextOf(part, "ChecksumCRC32C"));
    info.modified = ParseIsoTime(TextOf(part, "LastModified")).value_or(info.modified);
    ASSIGN_OR_RETURN(const auto number, NumberOf(part, "PartNumber"));
    ASSIGN_OR_RETURN(info.size, NumberOf(part, "Size"));
    if (number == 0 || number > kMaxParts) return BadDocument("PartNumber");
    info.number = static_cast<unsigned>(number);
    page.parts.push_back(std::move(info));
  }
  if (IsTruncated(root)) {
    page.next = TextOf(root, "NextPartNumberMarker");
    if (page.next.empty()) return BadDocument("NextPartNumberMarker");
  }
  return page;
}

Result<UploadsPage> ParseUploads(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const auto root, ParseRoot(document, body, "ListMultipartUploadsResult"));
  const bool encoded = HasEncodedKeys(root);
  UploadsPage page;
  for (const auto upload : root.children("Upload")) {
    UploadInfo info;
    ASSIGN_OR_RETURN(info.key, KeyOf(encoded, upload, "Key"));
    ASSIGN_OR_RETURN(info.upload_id, ShortTextOf(upload, "UploadId"));
    info.started = ParseIsoTime(TextOf(upload, "Initiated")).value_or(info.started);
    if (info.upload_id.empty()) return BadDocument("UploadId");
    page.uploads.push_back(std::move(info));
  }
  if (IsTruncated(root)) {
    ASSIGN_OR_RETURN(page.next_key, KeyOf(encoded, root, "NextKeyMarker"));
    page.next_upload_id = TextOf(root, "NextUploadIdMarker");
  }
  return page;
}

Result<VersionsPage> ParseVersions(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const auto root, ParseRoot(document, body, "ListVersionsResult"));
  const bool encoded = HasEncodedKeys(root);
  VersionsPage page;
  for (const auto node : root.children()) {
    const std::string_view kind = node.name();
    if (kind == "CommonPrefixes") {
      ASSIGN_OR_RETURN(auto name, KeyOf(encoded, node, "Prefix"));
      page.listing.prefixes.push_back(std::move(name));
    }
    if (kind != "Version" && kind != "DeleteMarker") continue;
    ObjectVersion version{.is_marker = kind == "DeleteMarker"};
    ASSIGN_OR_RETURN(version.key, KeyOf(encoded, node, "Key"));
    ASSIGN_OR_RETURN(version.version_id, ShortTextOf(node, "VersionId"));
    if (version.version_id.empty()) return BadDocument("VersionId");
    version.modified = ParseIsoTime(TextOf(node, "LastModified")).value_or(version.modified);
    if (!version.is_marker) {
      ASSIGN_OR_RETURN(version.size, NumberOf(node, "Size"));
    }
    page.listing.versions.push_back(std::move(version));
  }
  if (IsTruncated(root)) {
    ASSIGN_OR_RETURN(page.next_key, KeyOf(encoded, root, "NextKeyMarker"));
    ASSIGN_OR_RETURN(page.next_version, ShortTextOf(root, "NextVersionIdMarker"));
  }
  return page;
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
