// SPDX-License-Identifier: Apache-2.0
#include "store/names/acl.h"

#include <algorithm>

#include "common/bytes.h"

namespace weightfs {
namespace {

// Layout of linux/posix_acl_xattr.h: a version, then tag, permissions and id of each entry, little-endian.
constexpr uint32_t kVersion = 2;
constexpr size_t kHeaderSize = 4, kEntrySize = 8;
constexpr uint16_t kUserObject = 0x01, kUser = 0x02, kGroupObject = 0x04, kGroup = 0x08, kMask = 0x10, kOther = 0x20;
constexpr uint16_t kAllPermissions = 7;
constexpr uint32_t kUndefinedId = UINT32_MAX;
constexpr unsigned kOwnerShift = 6, kGroupShift = 3, kOtherShift = 0;

uint16_t Bits(uint32_t mode, unsigned shift) { return (mode >> shift) & kAllPermissions; }

uint32_t WithBits(uint32_t mode, unsigned shift, uint16_t permissions) {
  return (mode & ~(uint32_t{kAllPermissions} << shift)) | (uint32_t{permissions} << shift);
}

bool IsNamed(uint16_t tag) { return tag == kUser || tag == kGroup; }

}  // namespace

Result<Acl> Acl::Decode(std::string_view bytes) {
  Acl acl;
  if (bytes.empty()) return acl;
  Decoder decoder(bytes);
  if (decoder.Little<uint32_t>() != kVersion) return ErrorCode::kInvalid;
  if (!decoder.ok() || (bytes.size() - kHeaderSize) % kEntrySize != 0) return ErrorCode::kInvalid;
  acl.entries_.resize((bytes.size() - kHeaderSize) / kEntrySize);
  for (Entry& entry : acl.entries_) {
    decoder.Fields(entry.tag, entry.permissions, entry.id);
    // The id is meaningless for other tags. Setting it to one value makes equal lists have equal bytes.
    if (!IsNamed(entry.tag)) entry.id = kUndefinedId;
  }
  if (!acl.empty() && !acl.IsValid()) return ErrorCode::kInvalid;
  return acl;
}

std::string Acl::Encode() const {
  std::string bytes;
  bytes.reserve(kHeaderSize + entries_.size() * kEntrySize);
  AppendLittle(bytes, kVersion);
  for (const Entry& entry : entries_) Encoder(bytes).Fields(entry.tag, entry.permissions, entry.id);
  return bytes;
}

// The tags are powers of two in the standard order, so a list is in order if its tags never decrease.
bool Acl::IsValid() const {
  uint16_t last = 0;
  uint32_t seen = 0;
  for (const Entry& entry : entries_) {
    const bool known = IsNamed(entry.tag) || entry.tag == kUserObject || entry.tag == kGroupObject ||
                       entry.tag == kMask || entry.tag == kOther;
    if (!known || entry.permissions > kAllPermissions || entry.tag < last) return false;
    if (IsNamed(entry.tag) ? entry.id == kUndefinedId : entry.tag == last) return false;
    last = entry.tag;
    seen |= entry.tag;
  }
  constexpr uint32_t kRequired = kUserObject | kGroupObject | kOther;
  const bool needs_mask = (seen & (kUser | kGroup)) != 0;
  return (seen & kRequired) == kRequired && (!needs_mask || (seen & kMask) != 0);
}

bool Acl::IsMode() const {
  return std::none_of(entries_.begin(), entries_.end(),
                      [](const Entry& entry) { return IsNamed(entry.tag) || entry.tag == kMask; });
}

uint32_t Acl::ApplyToMode(uint32_t mode) const {
  for (const Entry& entry : entries_) {
    if (entry.tag == kUserObject) mode = WithBits(mode, kOwnerShift, entry.permissions);
    // The mask follows the group in the list and overrides it.
    if (entry.tag == kGroupObject || entry.tag == kMask) mode = WithBits(mode, kGroupShift, entry.permissions);
    if (entry.tag == kOther) mode = WithBits(mode, kOtherShift, entry.permissions);
  }
  return mode;
}

Acl::Entry* Acl::GroupClass() {
  Entry* found = nullptr;
  for (Entry& entry : entries_) {
    if (entry.tag == kGroupObject || entry.tag == kMask) found = &entry;
  }
  return found;
}

bool Acl::Permits(const Credentials& who, uint32_t owner, uint32_t group, uint16_t wanted) const {
  uint16_t mask = kAllPermissions, others = 0;
  for (const Entry& entry : entries_) {
    if (entry.tag == kMask) mask = entry.permissions;
    if (entry.tag == kOther) others = entry.permissions;
  }
  const auto allows = [wanted](uint16_t permissions) { return (permissions & wanted) == wanted; };
  bool in_group = false;
  for (const Entry& entry : entries_) {  // in order: owner, named users, groups
    if (entry.tag == kUserObject && who.uid == owner) return allows(entry.permissions);
    if (entry.tag == kUser && who.uid == entry.id) return allows(entry.permissions & mask);
    const bool matches = entry.tag == kGroupObject ? who.Has(group) : entry.tag == kGroup && who.Has(entry.id);
    if (matches && allows(entry.permissions & mask)) return true;
    in_group = in_group || matches;
  }
  return !in_group && allows(others);
}

void Acl::SetMode(uint32_t mode) {
  for (Entry& entry : entries_) {
    if (entry.tag == kUserObject) entry.permissions = Bits(mode, kOwnerShift);
    if (entry.tag == kOther) entry.permissions = Bits(mode, kOtherShift);
  }
  if (Entry* group = GroupClass()) group->permissions = Bits(mode, kGroupShift);
}

void Acl::Inherit(uint32_t* mode) {
  if (empty()) return;
  SetMode(*mode & ApplyToMode(0));
  *mode = ApplyToMode(*mode);
}

}  // namespace weightfs
