// SPDX-License-Identifier: Apache-2.0
// Access control lists. An input is a mode (two bytes), then the extended attribute.
#include "store/names/acl.h"

#include <sys/stat.h>

#include <array>

#include "common/assert.h"
#include "common/bytes.h"
#include "tests/fuzz/fuzz.h"

namespace weightfs {
namespace {

constexpr uint32_t kPermissions = 0777;
constexpr size_t kHeaderSize = 4, kEntrySize = 8;

// A changed list is still valid, and has one form only.
void CheckEncoded(const Acl& acl) {
  const std::string bytes = acl.Encode();
  const auto again = Acl::Decode(bytes);
  WEIGHTFS_ASSERT(again.has_value() && again->Encode() == bytes && again->empty() == acl.empty());
}

// The bytes differ from the input only in the ids of entries that have none.
void CheckSame(std::string_view bytes, const std::string& encoded) {
  if (bytes.empty()) return;
  WEIGHTFS_ASSERT(encoded.size() == bytes.size());
  for (size_t at = kHeaderSize; at < bytes.size(); at += kEntrySize) {
    const auto tag = Decoder(bytes.substr(at)).Little<uint16_t>();
    const size_t same = tag == 0x02 || tag == 0x08 ? kEntrySize : kEntrySize / 2;
    WEIGHTFS_ASSERT(bytes.substr(at, same) == std::string_view(encoded).substr(at, same));
  }
}

void CheckModes(Acl acl, uint32_t mode) {
  const uint32_t applied = acl.ApplyToMode(mode);
  WEIGHTFS_ASSERT((applied & ~kPermissions) == (mode & ~kPermissions));
  Acl inherited = acl;
  uint32_t both = mode;
  inherited.Inherit(&both);
  CheckEncoded(inherited);
  // No permission that the list or the mode does not give.
  WEIGHTFS_ASSERT((both & ~kPermissions) == (mode & ~kPermissions) && (both & ~mode) == 0);
  if (acl.empty()) return;
  WEIGHTFS_ASSERT((both & kPermissions & ~acl.ApplyToMode(0)) == 0);
  acl.SetMode(mode);
  CheckEncoded(acl);
  WEIGHTFS_ASSERT((acl.ApplyToMode(0) & kPermissions) == (mode & kPermissions));
  // The owner's class is that of the mode, and so is everyone's when the list is a mode.
  const Credentials owner{.uid = 1, .gid = 2}, other{.uid = 3, .gid = 4};
  for (uint16_t wanted = 0; wanted <= 7; ++wanted) {
    WEIGHTFS_ASSERT(acl.Permits(owner, 1, 2, wanted) == ((mode >> 6 & wanted) == wanted));
    if (acl.IsMode()) WEIGHTFS_ASSERT(acl.Permits(other, 1, 2, wanted) == ((mode & wanted) == wanted));
  }
}

std::string ListOf(const std::vector<std::array<uint32_t, 3>>& entries) {
  std::string bytes;
  AppendLittle(bytes, uint32_t{2});
  for (const auto& [tag, permissions, id] : entries) {
    AppendLittle(bytes, static_cast<uint16_t>(tag));
    AppendLittle(bytes, static_cast<uint16_t>(permissions));
    AppendLittle(bytes, id);
  }
  return bytes;
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const std::string mode("\xED\x41", 2);
  return {mode, mode + ListOf({}), mode + ListOf({{1, 7, 0}, {4, 5, 0}, {32, 1, 0}}),
          mode + ListOf({{1, 7, 0}, {2, 6, 1000}, {2, 4, 1001}, {4, 5, 0}, {8, 7, 100}, {16, 6, 0}, {32, 0, 0}})};
}

}  // namespace weightfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightfs;
  Decoder input(fuzz::Text(data, size));
  const uint32_t mode = input.Little<uint16_t>();
  const auto acl = Acl::Decode(input.rest());
  if (!acl.has_value()) {
    WEIGHTFS_ASSERT(acl.error().code == ErrorCode::kInvalid);
    return 0;
  }
  CheckSame(input.rest(), acl->Encode());
  CheckEncoded(*acl);
  CheckModes(*acl, mode);
  return 0;
}
