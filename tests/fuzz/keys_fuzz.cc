// SPDX-License-Identifier: Apache-2.0
// The keys of the catalog. An input is two keys, of which the first one has the size in the first byte.
#include "meta/keys.h"

#include <algorithm>

#include "common/assert.h"
#include "common/bytes.h"
#include "tests/fuzz/fuzz.h"

namespace weightfs {
namespace {

// The key that the parts of `key` give again; empty when it has no parts.
std::string Rebuilt(std::string_view key) {
  std::string found;
  const auto inode = keys::ParseInode(key);
  const auto named = keys::ParseNamed(key);
  const auto indexed = keys::ParseIndexed(key);
  WEIGHTFS_ASSERT(inode.has_value() + named.has_value() + indexed.has_value() <= 1);
  if (inode) found = key[0] == keys::kInode ? keys::Inode(*inode) : keys::Orphan(*inode);
  if (named) {
    WEIGHTFS_ASSERT(!named->name.empty() && named->name.size() <= 255);
    found = key[0] == keys::kEntry ? keys::Entry(named->ino, named->name) : keys::Attribute(named->ino, named->name);
  }
  if (indexed) {
    found = key[0] == keys::kExtent ? keys::Extent(indexed->ino, FileBlock{indexed->index})
                                    : keys::Checksums(indexed->ino, indexed->index);
  }
  return found;
}

// The order of the bytes is that of the numbers, and the end of a prefix is behind its keys alone.
void CheckOrder(std::string_view a, std::string_view b) {
  const auto one = keys::ParseIndexed(a), other = keys::ParseIndexed(b);
  if (one && other && a[0] == b[0]) {
    const auto numbers = std::pair(one->ino, one->index), others = std::pair(other->ino, other->index);
    WEIGHTFS_ASSERT((a < b) == (numbers < others));
  }
  const std::string end = keys::PrefixEnd(std::string(a));
  if (!end.empty()) WEIGHTFS_ASSERT((b >= a && b < end) == b.starts_with(a));
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const InodeId ino{0x0102'0304'0506'0708};
  std::vector<std::string> seeds;
  for (const std::string& key :
       {keys::Inode(ino), keys::Orphan(ino), keys::Entry(ino, "name"), keys::Attribute(ino, "user.name"),
        keys::Extent(ino, FileBlock{77}), keys::Checksums(ino, 1), keys::Store("next_ino"),
        keys::Entry(ino, std::string(255, 'n'))}) {
    seeds.push_back(static_cast<char>(key.size()) + key + key);
  }
  return seeds;
}

}  // namespace weightfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightfs;
  Decoder input(fuzz::Text(data, size));
  const auto first_size = input.Little<uint8_t>();
  const std::string_view first = input.Bytes(std::min<size_t>(first_size, input.rest().size()));
  for (const std::string_view key : {first, input.rest()}) {
    const std::string rebuilt = Rebuilt(key);
    if (!rebuilt.empty()) WEIGHTFS_ASSERT(rebuilt == key);
  }
  CheckOrder(first, input.rest());
  return 0;
}
