// SPDX-License-Identifier: Apache-2.0
#include "remote/manifest.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>

#include "common/hex.h"
#include "common/json.h"
#include "common/make_error.h"
#include "common/printable.h"
#include "s3/digest.h"

namespace weightfs::remote {
namespace {

using Json = nlohmann::ordered_json;  // to write; its objects take quadratic time
using Parsed = nlohmann::json;

constexpr int kFormat = 1;
constexpr uint64_t kMaximumVersion = INT64_MAX;
constexpr size_t kIdDigits = 32, kShaDigits = 64;
constexpr std::string_view kClaimChecksum = ",\"sha256\":\"";
constexpr std::string_view kReserved = ".weightfs";
constexpr uint64_t kMaximumSize = uint64_t{1} << 60;  // of all files together

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

Json EncodeAttributes(const Attributes& attributes) {
  Json json = Json::object();
  for (const auto& [name, value] : attributes) json[name] = s3::EncodeBase64(value);
  return json;
}

Attributes DecodeAttributes(const Parsed& entry) {
  Attributes attributes;
  if (!entry.contains("attributes")) return attributes;
  for (const auto& [name, value] : entry.at("attributes").items()) {
    if (!name.starts_with("user.")) throw std::runtime_error("an impossible attribute");
    const auto decoded = s3::DecodeBase64(value.get<std::string>());
    if (!decoded) throw std::runtime_error("an impossible attribute");
    attributes[name] = *decoded;
  }
  return attributes;
}

uint32_t DecodeMode(const Parsed& entry) {
  const auto mode = entry.at("mode").get<uint64_t>();
  if (mode > 07777) throw std::runtime_error("an impossible mode");
  return static_cast<uint32_t>(mode);
}

std::string Line(const Json& json) { return json.dump() + "\n"; }

Parsed ParseLine(std::string_view line) {
  auto json = ParseJson(line, {.bytes = kMaximumLine});
  if (!json) throw std::runtime_error(json.error().what);
  return std::move(*json);
}

// The checksum is that of the line without it.
bool HasItsChecksum(std::string_view text) {
  const size_t at = text.rfind(kClaimChecksum);
  return at != text.npos && text.substr(at + kClaimChecksum.size()) ==
                                ToHex(Sha256Of(std::string(text.substr(0, at)) + "}\n")) + "\"}\n";
}

// Every path occurs once, its parent is a directory of the manifest, and the paths of each kind are in order.
Result<void> CheckTree(const Manifest& manifest) {
  std::set<std::string_view> directories, all;
  const auto add = [&](std::string_view path) -> Result<void> {
    RETURN_IF_ERROR(CheckPath(path));
    const size_t slash = path.rfind('/');
    const std::string_view parent = slash == path.npos ? std::string_view() : path.substr(0, slash);
    if (!all.insert(path).second) return Error{ErrorCode::kCorrupt, "a path occurs twice: " + Printable(path)};
    if (!directories.contains(parent)) {
      return Error{ErrorCode::kCorrupt, "a path is in no directory: " + Printable(path)};
    }
    return {};
  };
  for (const DirectoryEntry& directory : manifest.directories) {
    if (directory.path.empty() != directories.empty())
      return Error{ErrorCode::kCorrupt, "the first directory is not ''"};
    if (!directory.path.empty()) RETURN_IF_ERROR(add(directory.path));
    directories.insert(directory.path);
  }
  if (directories.empty()) return Error{ErrorCode::kCorrupt, "there is no directory"};
  for (const FileEntry& file : manifest.files) RETURN_IF_ERROR(add(file.path));
  for (const LinkEntry& link : manifest.links) RETURN_IF_ERROR(add(link.path));
  if (!std::ranges::is_sorted(manifest.directories, {}, &DirectoryEntry::path)) {
    return Error{ErrorCode::kCorrupt, "directories out of order"};
  }
  if (!std::ranges::is_sorted(manifest.files, {}, &FileEntry::path)) {
    return Error{ErrorCode::kCorrupt, "files out of order"};
  }
  if (!std::ranges::is_sorted(manifest.links, {}, &LinkEntry::path)) {
    return Error{ErrorCode::kCorrupt, "links out of order"};
  }
  return {};
}

// The entries of each kind follow those of the kind before it.
enum class EntryKind : unsigned char { kDirectory, kFile, kLink, kSlice };

EntryKind TakeEntry(const Parsed& entry, Manifest* manifest) {
  if (entry.contains("directory")) {
    manifest->directories.push_back({.path = entry.at("directory").get<std::string>(),
                                     .mode = DecodeMode(entry),
                                     .modified_ns = entry.at("modified").get<int64_t>(),
                                     .attributes = DecodeAttributes(entry)});
    return EntryKind::kDirectory;
  }
  if (entry.contains("file")) {
    manifest->files.push_back({.path = entry.at("file").get<std::string>(),
                               .mode = DecodeMode(entry),
                               .size = entry.at("size").get<uint64_t>(),
                               .modified_ns = entry.at("modified").get<int64_t>(),
                               .attributes = DecodeAttributes(entry)});
    return EntryKind::kFile;
  }
  if (entry.contains("link")) {
    manifest->links.push_back(
        {.path = entry.at("link").get<std::string>(), .target = entry.at("target").get<std::string>()});
    const std::string& target = manifest->links.back().target;
    if (target.empty() || target.size() > 4095) throw std::runtime_error("an impossible link");
    return EntryKind::kLink;
  }
  if (!entry.contains("slice")) throw std::runtime_error("an unknown entry");
  const auto text = entry.at("slice").get<std::string>();
  if (!IsHex(text, kShaDigits)) throw std::runtime_error("an impossible hash");
  Sha256 hash;
  for (size_t at = 0; at < hash.size(); ++at) {
    hash[at] = static_cast<uint8_t>(std::stoul(text.substr(2 * at, 2), nullptr, 16));
  }
  manifest->slices.push_back(hash);
  return EntryKind::kSlice;
}

// Reads the lines after the first one.
void TakeEntries(std::string_view text, Manifest* manifest) {
  auto last = EntryKind::kDirectory;
  uint64_t bytes = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n') + 1;
    const EntryKind kind = TakeEntry(ParseLine(text.substr(0, end)), manifest);
    if (kind < last) throw std::runtime_error("entries out of order");
    last = kind;
    if (kind == EntryKind::kFile) {
      const uint64_t size = manifest->files.back().size;
      if (size > kMaximumSize - bytes) throw std::runtime_error("impossible sizes");
      bytes += size;
    }
    text.remove_prefix(end);
  }
}

Error Damaged(std::string_view why) {
  return MakeError(ErrorCode::kCorrupt, "the manifest is damaged: {}; use another version, or push this one again",
                   why);
}

Error NewerFormat(std::string_view what, int format) {
  return MakeError(ErrorCode::kVersion, "the {} has format {}, and this program knows {}: use a newer weightfs", what,
                   format, kFormat);
}

}  // namespace

Sha256 Sha256Of(std::string_view bytes) {
  Sha256 hash{};
  std::ranges::copy(s3::Sha256(bytes).value_or(""), hash.begin());
  return hash;
}

Result<void> CheckPath(std::string_view path) {
  const auto refuse = [&](std::string_view why) -> Result<void> {
    return MakeError(ErrorCode::kInvalid, "{}: cannot be in a bucket: {}", Printable(path), why);
  };
  if (path.empty()) return refuse("its path is empty");
  if (path.size() > 900) return refuse("its path has more than 900 bytes");
  if (path == kReserved || path.starts_with(".weightfs/")) return refuse("the name .weightfs is reserved");
  if (path.find('\0') != path.npos) return refuse("a byte of its name is zero");
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return refuse("a component is impossible");
    at = end + 1;
  }
  if (!IsUtf8(path)) return refuse("its name is not UTF-8");
  return {};
}

bool LinkEntry::may_lead_outside() const {
  if (target.starts_with('/')) return true;
  auto above = std::ranges::count(path, '/');
  bool has_name = false;
  for (size_t at = 0; at < target.size();) {
    const size_t end = std::min(target.find('/', at), target.size());
    const std::string_view part = std::string_view(target).substr(at, end - at);
    if (part == ".." && (has_name || above-- == 0)) return true;
    has_name = has_name || (part != ".." && part != "." && !part.empty());
    at = end + 1;
  }
  return false;
}

uint64_t Manifest::bytes() const {
  return std::accumulate(files.begin(), files.end(), uint64_t{0},
                         [](uint64_t sum, const FileEntry& file) { return sum + file.size; });
}

uint64_t Manifest::blocks() const {
  return std::accumulate(files.begin(), files.end(), uint64_t{0},
                         [](uint64_t sum, const FileEntry& file) { return sum + file.blocks(); });
}

void Manifest::NumberBlocks() {
  uint64_t next = 0;
  for (FileEntry& file : files) {
    file.first_block = next;
    next += file.blocks();
  }
}

std::string Manifest::Encode() const {
  Json head = {{"weightfs-manifest", kFormat},
               {"version", version},
               {"push", push},
               {"source", Printable(source)},
               {"created", created_ns}};
  if (published_ns != 0) head["published"] = published_ns;
  std::string text = Line(head);
  for (const DirectoryEntry& directory : directories) {
    Json json = {{"directory", directory.path}, {"mode", directory.mode}, {"modified", directory.modified_ns}};
    if (!directory.attributes.empty()) json["attributes"] = EncodeAttributes(directory.attributes);
    text += Line(json);
  }
  for (const FileEntry& file : files) {
    Json json = {{"file", file.path}, {"size", file.size}, {"mode", file.mode}, {"modified", file.modified_ns}};
    if (!file.attributes.empty()) json["attributes"] = EncodeAttributes(file.attributes);
    text += Line(json);
  }
  for (const LinkEntry& link : links) text += Line({{"link", link.path}, {"target", link.target}});
  for (const Sha256& slice : slices) text += Line({{"slice", ToHex(slice)}});
  return text + Line({{"sha256", ToHex(Sha256Of(text))}});
}

Result<Manifest> Manifest::Decode(std::string_view text) {
  if (!text.ends_with('\n')) return Damaged("its end is missing");
  const size_t end = text.substr(0, text.size() - 1).rfind('\n');
  if (end == text.npos) return Damaged("its end is missing");
  const std::string_view content = text.substr(0, end + 1);
  try {
    Manifest manifest;
    const Parsed last = ParseLine(text.substr(end + 1));
    if (last.at("sha256").get<std::string>() != ToHex(Sha256Of(content))) return Damaged("its SHA-256 is wrong");
    const size_t at = content.find('\n') + 1;
    const Parsed head = ParseLine(content.substr(0, at));
    const int format = head.at("weightfs-manifest").get<int>();
    if (format > kFormat) return NewerFormat("manifest", format);
    manifest.version = head.at("version").get<uint64_t>();
    manifest.push = head.at("push").get<std::string>();
    manifest.source = head.at("source").get<std::string>();
    manifest.created_ns = head.at("created").get<int64_t>();
    manifest.published_ns = head.value("published", int64_t{0});
    if (format < 1 || manifest.version == 0 || manifest.version > kMaximumVersion || !IsHex(manifest.push, kIdDigits)) {
      return Damaged("an impossible first line");
    }
    TakeEntries(content.substr(at), &manifest);
    if (auto sound = CheckTree(manifest); !sound.has_value()) return Damaged(sound.error().what);
    manifest.NumberBlocks();
    if (manifest.slices.size() != (manifest.blocks() + kSliceBlocks - 1) / kSliceBlocks) {
      return Damaged("a wrong number of checksums");
    }
    return manifest;
  } catch (const std::exception& error) {
    return Damaged(Printable(error.what()));
  }
}

std::string RandomId() {
  std::array<uint8_t, kIdDigits / 2> id{};
  std::random_device random;  // ends the program where there is no randomness: two equal numbers could lose a version
  std::ranges::generate(id, [&] { return static_cast<uint8_t>(random()); });
  return ToHex(id);
}

std::string Claim::Encode() const {
  Json json = {{"weightfs-claim", kFormat}, {"push", push}, {"source", Printable(source)}, {"created", created_ns}};
  if (published_ns != 0) json["published"] = published_ns;
  if (!origin.empty()) json["origin"] = Printable(origin);
  if (!storage_class.empty()) json["storage-class"] = Printable(storage_class);
  if (!encryption.empty()) json["encryption"] = Printable(encryption);
  if (!encryption_key.empty()) json["encryption-key"] = Printable(encryption_key);
  if (taken_over) json["taken-over"] = true;
  if (removing) json["removing"] = true;
  if (!take.empty()) json["take"] = take;
  if (!replaces.empty()) json["replaces"] = replaces;
  json["sha256"] = ToHex(Sha256Of(Line(json)));
  return Line(json);
}

Result<Claim> Claim::Decode(std::string_view text) {
  try {
    const Parsed json = ParseLine(text);
    const int format = json.at("weightfs-claim").get<int>();
    if (format > kFormat) return NewerFormat("claim", format);
    Claim claim{.push = json.at("push").get<std::string>(),
                .source = json.at("source").get<std::string>(),
                .created_ns = json.at("created").get<int64_t>(),
                .published_ns = json.value("published", int64_t{0}),
                .origin = json.value("origin", std::string()),
                .storage_class = json.value("storage-class", std::string()),
                .encryption = json.value("encryption", std::string()),
                .encryption_key = json.value("encryption-key", std::string()),
                .taken_over = json.value("taken-over", false),
                .removing = json.value("removing", false),
                .take = json.value("take", std::string()),
                .replaces = json.value("replaces", std::string())};
    const bool whole = !json.contains("sha256") || HasItsChecksum(text);
    if (!whole || !IsHex(claim.push, kIdDigits)) return Error{ErrorCode::kCorrupt, "the claim is damaged"};
    return claim;
  } catch (const std::exception&) {
    return Error{ErrorCode::kCorrupt, "the claim is damaged"};
  }
}

}  // namespace weightfs::remote
