// SPDX-License-Identifier: Apache-2.0
#include "meta/keys.h"

#include "common/bytes.h"

namespace weightfs::keys {
namespace {

constexpr size_t kNumberSize = sizeof(uint64_t);
constexpr size_t kMaximumNameSize = 255;  // of entries and attributes; the limit of POSIX and Linux

std::string Numbered(char kind, uint64_t number, size_t room_after = 0) {
  std::string key;
  key.reserve(1 + kNumberSize + room_after);
  key.push_back(kind);
  AppendBig64(key, number);
  return key;
}

std::string Named(char kind, InodeId ino, std::string_view name) {
  std::string key = Numbered(kind, ino.value, name.size());
  key.append(name);
  return key;
}

std::string Indexed(char kind, InodeId ino, uint64_t index) {
  std::string key = Numbered(kind, ino.value, kNumberSize);
  AppendBig64(key, index);
  return key;
}

bool IsKind(std::string_view key, char one, char other) { return !key.empty() && (key[0] == one || key[0] == other); }

}  // namespace

std::string Inode(InodeId ino) { return Numbered(kInode, ino.value); }
std::string Entry(InodeId parent, std::string_view name) { return Named(kEntry, parent, name); }
std::string EntryPrefix(InodeId parent) { return Numbered(kEntry, parent.value); }
std::string Extent(InodeId ino, FileBlock first) { return Indexed(kExtent, ino, first.value); }
std::string ExtentPrefix(InodeId ino) { return Numbered(kExtent, ino.value); }
std::string Checksums(InodeId ino, uint64_t segment) { return Indexed(kChecksums, ino, segment); }
std::string Attribute(InodeId ino, std::string_view name) { return Named(kAttribute, ino, name); }
std::string AttributePrefix(InodeId ino) { return Numbered(kAttribute, ino.value); }
std::string Orphan(InodeId ino) { return Numbered(kOrphan, ino.value); }

std::string Store(std::string_view name) {
  std::string key(1, kStore);
  key.append(name);
  return key;
}

std::string KindPrefix(char kind) { return std::string(1, kind); }

std::string PrefixEnd(std::string prefix) {
  // A trailing 0xFF has no successor of the same length, so increment the byte before it.
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xFF) prefix.pop_back();
  if (!prefix.empty()) ++prefix.back();
  return prefix;
}

std::optional<InodeId> ParseInode(std::string_view key) {
  if (!IsKind(key, kInode, kOrphan)) return std::nullopt;
  Decoder decoder(key.substr(1));
  const InodeId ino{decoder.Big64()};
  return decoder.Done() ? std::optional(ino) : std::nullopt;
}

std::optional<NamedKey> ParseNamed(std::string_view key) {
  if (!IsKind(key, kEntry, kAttribute)) return std::nullopt;
  Decoder decoder(key.substr(1));
  const InodeId ino{decoder.Big64()};
  const std::string_view name = decoder.rest();
  if (!decoder.ok() || name.empty() || name.size() > kMaximumNameSize) return std::nullopt;
  return NamedKey{ino, name};
}

std::optional<IndexedKey> ParseIndexed(std::string_view key) {
  if (!IsKind(key, kExtent, kChecksums)) return std::nullopt;
  Decoder decoder(key.substr(1));
  const InodeId ino{decoder.Big64()};
  const uint64_t index = decoder.Big64();
  if (!decoder.Done()) return std::nullopt;
  return IndexedKey{ino, index};
}

}  // namespace weightfs::keys
