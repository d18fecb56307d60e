// SPDX-License-Identifier: Apache-2.0
// Open directories: listing with and without attributes, and fsync.
#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fs/filesystem.h"
#include "fs/operations.h"

namespace weightfs {
namespace {

using DirectoryPtr = std::shared_ptr<DirectoryHandle>;

DirectoryPtr HandleOf(const fuse_file_info* file) { return HandleRegistry<DirectoryHandle>::Get(file->fh); }

void CloseDirectory(Filesystem& filesystem, uint64_t number) {
  const DirectoryPtr handle = filesystem.directories().Remove(number);
  if (handle == nullptr) return;
  filesystem.tickets().Forget(handle.get());
  filesystem.names().Close(handle->inode);
}

void OpenDirectory(Filesystem& filesystem, Reply reply, InodeId ino, fuse_file_info file) {
  auto share = TakeOpen(filesystem, reply);
  if (!share.has_value()) return;
  Result<InodePtr> inode = filesystem.names().Open(ino);
  if (!inode.has_value()) return reply.Fail(inode.error());
  auto handle = std::make_shared<DirectoryHandle>(std::move(*inode), filesystem.listing_memory());
  handle->share = std::move(*share);
  file.fh = filesystem.directories().Add(std::move(handle));
  // The kernel may cache the listing for the next reader, because it sees and invalidates on every change of names.
  file.cache_readdir = 1;
  file.keep_cache = 1;
  if (!reply.Open(file, {})) CloseDirectory(filesystem, file.fh);
}

void ReleaseDirectory(Filesystem& filesystem, Reply reply, uint64_t number) {
  CloseDirectory(filesystem, number);
  reply.Ok();
}

// One READDIR or READDIRPLUS request: which entries, and its reply. `plus` adds the attributes of each entry.
struct ListingRequest {
  DirectoryPtr directory;
  uint64_t position = 0;  // behind which entry it goes on
  size_t size = 0;        // of the reply, at most
  fuse_req_t request{};
  bool plus = false;

  // Adds an entry to the reply and returns its size. Without a buffer libfuse only returns the size.
  size_t Put(char* to, size_t capacity, const std::string& name, const fuse_entry_param& shown, uint64_t next) const {
    const auto offset = static_cast<off_t>(next);
    return plus ? fuse_add_direntry_plus(request, to, capacity, name.c_str(), &shown, offset)
                : fuse_add_direntry(request, to, capacity, name.c_str(), &shown.attr, offset);
  }
};

bool IsDots(std::string_view name) { return name == "." || name == ".."; }

// The name after which the names of a listing begin or go on. Empty: with the first one.
Result<std::string> NameBefore(Filesystem& filesystem, const ListingRequest& listing) {
  const uint64_t position = listing.position;
  const InodeId ino = listing.directory->inode->id;
  if (position <= kDots) return std::string();
  if (auto known = listing.directory->listing.Find(position)) return *std::move(known);
  if (auto removed = filesystem.removed_names().Find(ino, position)) return *std::move(removed);
  std::string name;
  uint64_t count = 0;
  bool found = false;
  const auto look = [&](const DirectoryEntry& entry) {
    found = IsBehind(position, entry.name);
    if (found || ++count <= NamesBefore(position)) name = entry.name;
    return !found;
  };
  const Result<void> listed = filesystem.names().ListEntries(ino, {}, look);
  if (!listed.has_value() && !found) return listed.error();
  return name;
}

// Reads as many entries as the reply holds. The iterator of the catalog ends with this call, because it keeps memory of
// RocksDB in use.
Result<std::vector<DirectoryEntry>> ReadEntries(Filesystem& filesystem, const ListingRequest& listing) {
  const InodeId ino = listing.directory->inode->id;
  std::vector<DirectoryEntry> entries;
  size_t used = 0;
  const auto add = [&](const DirectoryEntry& entry) {
    used += listing.Put(nullptr, 0, entry.name, {}, 0);
    if (used > listing.size) return false;
    entries.push_back(entry);
    return true;
  };
  if (listing.position < 1 && !add({".", ino, S_IFDIR})) return entries;
  if (listing.position < kDots) {
    ASSIGN_OR_RETURN(const Attributes above, filesystem.names().Lookup(ino, ".."));
    if (!add({"..", above.ino, S_IFDIR})) return entries;
  }

  ASSIGN_OR_RETURN(std::string after, NameBefore(filesystem, listing));
  const size_t names = entries.size();
  const auto listed = filesystem.names().ListEntries(ino, after, add);
  // The entries before a damaged one are listed; the next request fails.
  if (!listed.has_value() && entries.empty()) return listed.error();
  std::vector<std::string_view> recorded;
  recorded.reserve(entries.size() - names);
  for (size_t index = names; index < entries.size(); ++index) recorded.push_back(entries[index].name);
  listing.directory->listing.Record(std::move(after), recorded);
  return entries;
}

fuse_entry_param OnlyType(const DirectoryEntry& entry) {
  fuse_entry_param only_type{};
  only_type.attr.st_ino = entry.ino.value;
  only_type.attr.st_mode = entry.type;
  return only_type;
}

// The kernel caches the name and attributes of an entry for a long time. The name still leads to the inode, without a
// second look-up: the kernel holds the lock of the directory until it has the reply, so no other request changes the
// directory. A leased commit may, but then it drops the entry, for which the kernel takes the same lock
// (Filesystem::ReplacedEntries). Inode 0 makes the kernel ignore the name of a file that the commit replaced.
fuse_entry_param EntryWithAttributes(Filesystem& filesystem, const DirectoryEntry& entry) {
  if (!IsDots(entry.name)) {
    const Result<Attributes> found = filesystem.names().GetAttributes(entry.ino);
    if (found.has_value()) return ToEntry(*found, filesystem.cache_seconds());
  }
  return OnlyType(entry);
}

void ReadDirectory(Filesystem& filesystem, Reply reply, const ListingRequest& listing) {
  const auto entries = ReadEntries(filesystem, listing);
  if (!entries.has_value()) return reply.Fail(entries.error());
  std::vector<char> out(listing.size);
  std::vector<InodeId> known;  // the kernel counts a lookup for each
  size_t used = 0;
  uint64_t next = listing.position;
  for (const DirectoryEntry& entry : *entries) {
    const fuse_entry_param shown = listing.plus ? EntryWithAttributes(filesystem, entry) : OnlyType(entry);
    next = IsDots(entry.name) ? next + 1 : PositionBehind(next, entry.name);
    used += listing.Put(out.data() + used, out.size() - used, entry.name, shown, next);
    if (shown.ino == 0) continue;
    filesystem.store().inodes().AddLookups(InodeId{shown.ino}, 1);
    known.push_back(InodeId{shown.ino});
  }
  if (reply.Bytes({out.data(), used})) return;
  for (const InodeId ino : known) filesystem.names().Forget(ino, 1);
}

ListingRequest ListingOf(fuse_req_t request, size_t size, off_t position, const fuse_file_info* file, bool plus) {
  return {.directory = HandleOf(file),
          .position = static_cast<uint64_t>(position),
          .size = std::min(size, kLargestListing),
          .request = request,
          .plus = plus};
}

// Makes the names of a directory durable, with everything before them: one log holds all changes.
void SyncDirectory(Filesystem& filesystem, Reply reply, const InodePtr& directory) {
  filesystem.store().Sync(directory, FinishWith(std::move(reply)));
}

}  // namespace

void AddDirectoryOperations(fuse_lowlevel_ops& operations) {
  operations.opendir = [](fuse_req_t request, fuse_ino_t ino, fuse_file_info* file) {
    Dispatch(request, OpenDirectory, InodeId{ino}, *file);
  };
  operations.releasedir = [](fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
    Dispatch(request, ReleaseDirectory, file->fh);
  };
  operations.readdir = [](fuse_req_t request, fuse_ino_t, size_t size, off_t position, fuse_file_info* file) {
    DispatchToReceiverOrPool(request, ReadDirectory, ListingOf(request, size, position, file, /*plus=*/false));
  };
  operations.readdirplus = [](fuse_req_t request, fuse_ino_t, size_t size, off_t position, fuse_file_info* file) {
    DispatchToReceiverOrPool(request, ReadDirectory, ListingOf(request, size, position, file, /*plus=*/true));
  };
  operations.fsyncdir = [](fuse_req_t request, fuse_ino_t, int, fuse_file_info* file) {
    Dispatch(request, SyncDirectory, HandleOf(file)->inode);
  };
}

}  // namespace weightfs
