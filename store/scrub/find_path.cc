// SPDX-License-Identifier: Apache-2.0
#include "store/scrub/find_path.h"

#include <optional>
#include <utility>

#include "meta/keys.h"
#include "meta/records.h"

namespace weightfs {
namespace {

constexpr int kDeepest = 2048;  // directories of the longest path

struct Name {
  InodeId parent;
  std::string name;
};

// The first name of the inode in a part of the catalog's entries.
std::optional<Name> FindName(KvStore& catalog, const std::string& prefix, InodeId ino,
                             const std::function<bool()>& stop) {
  const auto entries = catalog.NewIterator(prefix);
  for (uint64_t count = 1; entries->Valid(); entries->Next(), ++count) {
    if (count % 1024 == 0 && stop()) break;
    const auto entry = EntryRecord::Decode(entries->value());
    if (!entry || entry->ino != ino) continue;
    const auto key = keys::ParseNamed(entries->key());
    if (key) return Name{key->ino, std::string(key->name)};
  }
  return std::nullopt;
}

}  // namespace

std::string FindPath(KvStore& catalog, InodeId ino, const std::function<bool()>& stop) {
  auto name = FindName(catalog, keys::KindPrefix(keys::kEntry), ino, stop);
  if (!name) return {};
  std::string path = name->name;
  for (int depth = 0; name->parent != kRootInode; ++depth) {
    const InodeId directory = name->parent;
    const auto bytes = catalog.Get(keys::Inode(directory));
    if (depth == kDeepest || !bytes || !*bytes) return {};
    const auto record = InodeRecord::Decode(**bytes);
    if (!record) return {};
    name = FindName(catalog, keys::EntryPrefix(InodeId{record->parent}), directory, stop);
    if (!name) return {};
    path = name->name + "/" + path;
  }
  return path;
}

}  // namespace weightfs
