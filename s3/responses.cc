// SPDX-License-Identifier: Apache-2.0
#include "s3/responses.h"

#include <fmt/format.h>

#include <charconv>
#include <pugixml.hpp>
#include <sstream>

#include "common/result.h"
#include "s3/http_time.h"

namespace weightfs::s3 {
namespace {

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
  const std::string_view text = node.child_value(name);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return BadDocument(name);
  return number;
}

bool IsTruncated(pugi::xml_node root) { return std::string_view(root.child_value("IsTruncated")) == "true"; }

// Keys are percent-encoded if the service says so; one that does not know encoding-type does not.
std::string KeyOf(pugi::xml_node root, pugi::xml_node node, const char* name) {
  const bool encoded = std::string_view(root.child_value("EncodingType")) == "url";
  return encoded ? PercentDecode(node.child_value(name)) : TextOf(node, name);
}

std::string Serialize(const pugi::xml_document& document) {
  std::ostringstream text;
  document.save(text, "", pugi::format_raw);
  return text.str();
}

void AppendText(pugi::xml_node parent, const char* name, const std::string& text) {
  parent.append_child(name).text().set(text.c_str());
}

// The length of the character at the start of `text`; 0 if it is none of XML 1.0.
size_t XmlCharacter(std::string_view text) {
  const auto byte = [&](size_t i) -> unsigned { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  unsigned character = first & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    character = character << 6 | (byte(i) & 0x3f);
  }
  const unsigned least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0xa0;
  const bool surrogate = character >= 0xd800 && character < 0xe000;
  return character >= least && character <= 0x10ffff && !surrogate && (character & 0xfffe) != 0xfffe ? length : 0;
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
  ListingPage page;
  for (const auto object : root.children("Contents")) {
    ObjectInfo info{.key = KeyOf(root, object, "Key"), .etag = TextOf(object, "ETag")};
    ASSIGN_OR_RETURN(info.size, NumberOf(object, "Size"));
    info.modified = ParseIsoTime(TextOf(object, "LastModified")).value_or(info.modified);
    if (info.key.empty()) return BadDocument("Key");
    page.listing.objects.push_back(std::move(info));
  }
  for (const auto prefix : root.children("CommonPrefixes")) {
    page.listing.prefixes.push_back(KeyOf(root, prefix, "Prefix"));
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
  for (const auto part : root.children("Part")) {
    PartInfo info{.etag = TextOf(part, "ETag")};
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
  UploadsPage page;
  for (const auto upload : root.children("Upload")) {
    UploadInfo info{KeyOf(root, upload, "Key"), TextOf(upload, "UploadId")};
    info.started = ParseIsoTime(TextOf(upload, "Initiated")).value_or(info.started);
    if (info.key.empty() || info.upload_id.empty()) return BadDocument("Upload");
    page.uploads.push_back(std::move(info));
  }
  if (IsTruncated(root)) {
    page.next_key = KeyOf(root, root, "NextKeyMarker");
    page.next_upload_id = TextOf(root, "NextUploadIdMarker");
    if (page.next_key.empty()) return BadDocument("NextKeyMarker");
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
  }
  return Serialize(document);
}

std::string DeleteDocument(std::span<const std::string> keys) {
  pugi::xml_document document;
  auto root = document.append_child("Delete");
  AppendText(root, "Quiet", "true");
  for (const auto& key : keys) AppendText(root.append_child("Object"), "Key", key);
  return Serialize(document);
}

bool CanBeInXml(std::string_view text) {
  while (!text.empty()) {
    const size_t length = XmlCharacter(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace weightfs::s3
