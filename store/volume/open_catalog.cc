// SPDX-License-Identifier: Apache-2.0
#include "store/volume/open_catalog.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "common/log.h"
#include "common/shell_quote.h"
#include "common/sync_directory.h"
#include "common/utc_time.h"
#include "io/huge_pages.h"
#include "meta/keys.h"
#include "meta/overlay_kv_store.h"
#include "meta/records.h"
#include "meta/rocks_kv_store.h"
#include "store/wal/logged_kv_store.h"
#include "store/wal/wal_reader.h"

namespace weightfs {
namespace {

// Writes a new owner to the superblocks and starts the guard. From then on an earlier owner that returns does not
// write.
Result<void> ClaimOwnership(StoreParts* parts) {
  const Uuid owner = NewUuid();
  std::vector<UniqueFd> locked, devices;
  ASSIGN_OR_RETURN(locked.emplace_back(), parts->lock.Duplicate());
  for (size_t index = 0; index < parts->devices.size(); ++index) {
    parts->superblocks[index].owner = owner;
    RETURN_IF_ERROR(WriteSuperblock(*parts->devices[index], parts->superblocks[index]));
    const auto& file = dynamic_cast<const FileDevice&>(*parts->devices[index]);
    ASSIGN_OR_RETURN(locked.emplace_back(), file.Duplicate());
    ASSIGN_OR_RETURN(devices.emplace_back(), file.Duplicate());
  }
  RETURN_IF_ERROR(parts->guard->Start(std::move(locked), std::move(devices), owner));
  return parts->guard->Verify();
}

constexpr wal::Version kNoVersion;

// The version of the index that a superblock names, or kNoVersion.
wal::Version NamedBy(const Superblock& superblock) { return {superblock.catalog_sequence, superblock.catalog_chain}; }

// Gives the index a version that no log and no other index has, with other changes. Returns it. `whole`: the index has
// everything of the version before.
Result<wal::Version> MakeUnique(KvStore& index, KvBatch changes, bool whole, uint64_t added = 0) {
  ASSIGN_OR_RETURN(const wal::Version before, wal::ReadVersion(index));
  wal::Version version = before;
  const Uuid unique = NewUuid();
  version.sequence += added;
  std::memcpy(&version.chain, unique.data(), sizeof(version.chain));
  changes.Put(keys::Store(wal::kUniqueFact), wal::EncodeVersion(version) + (whole ? wal::EncodeVersion(before) : ""));
  RETURN_IF_ERROR(index.Write(wal::WithVersion(std::move(changes), version)));
  return version;
}

// A clean unmount writes the same version to all superblocks. So two that differ are of two copies of the store.
Result<void> CheckOneCopy(const StoreLocation& store, const StoreParts& parts) {
  for (size_t index = 1; parts.was_clean && index < parts.superblocks.size(); ++index) {
    const Superblock &first = parts.superblocks[0], &other = parts.superblocks[index];
    if (NamedBy(first) == NamedBy(other) || NamedBy(first) == kNoVersion || NamedBy(other) == kNoVersion) continue;
    const auto path = [&](size_t at) { return DevicePath(store.directory, parts.description.devices[at]); };
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: {} and {} are of two copies of the store, which were changed since; name the devices "
                             "of one copy",
                             store.name, path(0), path(index))};
  }
  return {};
}

// Creates an empty catalog beside that of the store. Removes what interrupted calls have left.
Result<std::unique_ptr<KvStore>> CreateNewCatalog(const std::string& directory) {
  const std::string path = directory + "/" + kNewCatalogName;
  RETURN_IF_ERROR(RemoveTree(path));
  RETURN_IF_ERROR(RemoveTree(directory + "/" + kReplacedCatalogName));
  ASSIGN_OR_RETURN(auto catalog, RocksKvStore::Open(path, {.create = true}));
  return std::unique_ptr<KvStore>(std::move(catalog));
}

// Puts the new catalog, which must be closed, in the place of the old one. Returns where that is kept; empty if it is
// to be removed (kReplacedCatalogName), or if there was none.
Result<std::string> SwapCatalogs(const std::string& directory, bool keep) {
  const std::string catalog = directory + "/" + kCatalogName, built = directory + "/" + kNewCatalogName;
  std::string kept;
  if (access(catalog.c_str(), F_OK) == 0) {
    std::string old = directory + "/" + kReplacedCatalogName;
    if (keep) {
      const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
      const std::string name = fmt::format("{}/{}{:%Y%m%dT%H%M%SZ}", directory, kOldCatalogs, fmt::gmtime(now));
      kept = name;
      for (int more = 2; access(kept.c_str(), F_OK) == 0; ++more) kept = fmt::format("{}-{}", name, more);
      old = kept;
    }
    if (rename(catalog.c_str(), old.c_str()) != 0) return SystemError(catalog, "cannot be renamed");
  }
  if (rename(built.c_str(), catalog.c_str()) != 0) return SystemError(built, "cannot be renamed");
  RETURN_IF_ERROR(SyncDirectory(directory));
  return kept;
}

// One opening of the catalog of one store.
class Opening {
 public:
  Opening(const StoreLocation& store, const OpenOptions& options, StoreParts* parts)
      : store_(store),
        path_(store.directory + "/" + kCatalogName),
        options_(options),
        parts_(*parts),
        log_(parts->log),
        devices_(Borrow(parts->devices)) {}

  Result<void> Run();

 private:
  Result<void> LookAtIndex();
  Result<void> CheckId();
  Result<void> FindLog();
  Result<void> LookAtSuperblocks();
  Result<void> CheckIsLatest();
  Result<void> UseLog();
  Result<void> UseReplica();
  Result<void> AcceptDamage(const std::string& damage);
  void DropLog() {
    if (log_.root) log_.replaced = wal::SegmentsOf(*std::exchange(log_.root, std::nullopt));
  }
  void Note(const std::string& what) { parts_.note += (parts_.note.empty() ? "" : "; ") + what; }
  Result<void> OpenDamaged();
  Result<void> OpenInMemory();
  Result<void> OpenForWriting();
  Result<void> Rebuild();
  Result<void> ReplayAll(const std::function<Result<void>(KvBatch)>& apply);
  Result<void> CatchUp(wal::Version from, const std::function<Result<void>(KvBatch)>& apply) const {
    return log_.root ? wal::CatchUp(devices_, *log_.root, from, log_.tail, apply) : Result<void>();
  }

  const StoreLocation& store_;
  const std::string path_;
  const OpenOptions& options_;
  StoreParts& parts_;
  wal::WriterOptions& log_;  // without a root, no log can be used
  const std::vector<BlockDevice*> devices_;
  std::unique_ptr<KvStore> index_;  // null if it cannot be used, because of
  Error damage_{ErrorCode::kCorrupt};
  wal::Version version_;  // of index_
  std::optional<wal::Version> before_;  // if MakeUnique gave version_ to an index that has everything of this one
  bool rebuilt_ = false;                // if MakeUnique gave version_ to an index that lacks what is lost
  bool foreign_ = false;  // the index belongs to another store, or is something else
  // The superblocks say that this is the index of the last clean unmount, and that no change has followed.
  bool complete_ = false;
};

Result<void> Opening::Run() {
  log_.store_id = parts_.description.id;
  log_.description = ToJson(parts_.description);
  RETURN_IF_ERROR(CheckOneCopy(store_, parts_));
  if (parts_.guard != nullptr && !options_.read_only) RETURN_IF_ERROR(ClaimOwnership(&parts_));
  if (!options_.read_only) {
    // A daemon that was killed has perhaps not flushed what is read now, and what will be taken for durable.
    for (BlockDevice* device : devices_) RETURN_IF_ERROR(device->Flush());
  }
  RETURN_IF_ERROR(LookAtIndex());
  RETURN_IF_ERROR(FindLog());
  const bool logged = std::ranges::any_of(parts_.superblocks, &Superblock::logged);
  if (!logged) RETURN_IF_ERROR(CheckIsLatest());
  RETURN_IF_ERROR(LookAtSuperblocks());
  RETURN_IF_ERROR(logged ? UseLog() : UseReplica());
  if (!log_.root) log_.tail = {.version = version_};
  if (index_ == nullptr && !log_.root) return OpenDamaged();
  if (index_ == nullptr) {
    parts_.rebuilt = true;
    Note(fmt::format("the index of the catalog is rebuilt from the log on the devices, as of {}",
                     FormatUtc(log_.tail.time_ns)));
  }
  if (options_.read_only) return OpenInMemory();
  if (index_ == nullptr) {
    RETURN_IF_ERROR(Rebuild());
  } else {
    RETURN_IF_ERROR(OpenForWriting());
    if (version_ == before_) RETURN_IF_ERROR(index_->Write(wal::WithVersion({}, version_)));
    RETURN_IF_ERROR(CatchUp(version_, [&](KvBatch batch) { return index_->Write(std::move(batch)); }));
  }
  if (!logged && !options_.repair) {
    spdlog::info("{}: from now on its devices have the log of all changes; older versions of weightfs cannot open it",
                 store_.name);
  }
  // Until something that is lost was accepted by a repair, the superblocks say that there was more.
  if (logged && !complete_ && !parts_.lost) {
    for (Superblock& superblock : parts_.superblocks) superblock.catalog_sequence = superblock.catalog_chain = 0;
  }
  parts_.catalog = std::move(index_);
  return {};
}

// Opens the index for reading: opening it for writing changes the directory, and it may belong to another store.
Result<void> Opening::LookAtIndex() {
  const auto look = [&]() -> Result<void> {
    ASSIGN_OR_RETURN(index_, RocksKvStore::Open(path_, {.read_only = true, .cache = options_.catalog_cache}));
    RETURN_IF_ERROR(CheckId());
    RETURN_IF_ERROR(index_->Verify([](ByteCount) { return true; }));
    ASSIGN_OR_RETURN(version_, wal::ReadVersion(*index_));
    ASSIGN_OR_RETURN(const auto unique, index_->Get(keys::Store(wal::kUniqueFact)));
    const std::string own = wal::EncodeVersion(version_);
    if (!unique || !unique->starts_with(own)) return {};  // of a version before
    rebuilt_ = unique->size() == own.size();
    before_ = wal::DecodeVersion(std::string_view(*unique).substr(own.size()));
    return {};
  };
  auto looked = look();
  if (looked) return {};
  const ErrorCode code = looked.error().code;
  const bool closed = code == ErrorCode::kAccess && store_.described && options_.read_only;
  if (code != ErrorCode::kCorrupt && code != ErrorCode::kNotFound && code != ErrorCode::kIo && !closed) return looked;
  index_.reset();
  damage_ = looked.error();
  return {};
}

Result<void> Opening::CheckId() {
  ASSIGN_OR_RETURN(const auto id, index_->Get(keys::Store(kStoreIdFact)));
  foreign_ = !id || *id != ToString(parts_.description.id);
  if (!id) return Error{ErrorCode::kCorrupt, fmt::format("{}: the catalog names no store", path_)};
  if (!foreign_) return {};
  return Error{ErrorCode::kCorrupt, fmt::format("{}: the catalog belongs to the store {}, not to {}", path_, *id,
                                                ToString(parts_.description.id))};
}

Result<void> Opening::FindLog() {
  const auto kept = [](const Superblock& superblock) { return superblock.logged || superblock.keeps_replica; };
  if (!std::ranges::all_of(parts_.superblocks, kept)) return {};
  auto found = wal::FindRoot(devices_, parts_.description.id);
  if (!found && found.error().code == ErrorCode::kIo) {
    // A new root must be newer than those that may be read again some day. No store has counted so far.
    log_.root_sequence = UtcNowNs();
    spdlog::error("{}", found.error().what);
    return {};
  }
  ASSIGN_OR_RETURN(auto root, std::move(found));
  if (!root) return {};
  log_.root_sequence = root->sequence;
  auto loaded = wal::LoadSegments(devices_, &*root);
  if (loaded) log_.root = std::move(root);
  return loaded || loaded.error().code == ErrorCode::kCorrupt ? Result<void>() : loaded;
}

Result<void> Opening::LookAtSuperblocks() {
  // A repair that was killed before it began may have named its index on some of them only.
  complete_ = index_ != nullptr && std::ranges::all_of(parts_.superblocks, [&](const Superblock& superblock) {
                const wal::Version named = NamedBy(superblock);
                return named != kNoVersion && (named == version_ || named == before_);
              });
  if (!complete_ || !log_.root) return {};
  ASSIGN_OR_RETURN(log_.tail, wal::FindDurableTail(devices_, *log_.root, version_));
  // They have lost what the mount wrote that appended the rest.
  if (log_.tail.continues && log_.tail.version.sequence > version_.sequence) complete_ = false;
  return {};
}

// Devices without a log do not have the changes of the store. Only its directory, or the index that the superblocks
// name, has them.
Result<void> Opening::CheckIsLatest() {
  if (!store_.described || (options_.repair && log_.root)) return {};
  const auto is_named = [&](const Superblock& superblock) { return NamedBy(superblock) == version_; };
  if (index_ != nullptr && std::ranges::all_of(parts_.superblocks, is_named)) return {};
  return Error{ErrorCode::kNotFound,
               fmt::format("{}: its devices have no log of the catalog yet; mount it once with its store directory, or "
                           "with the index= of the last command that used it",
                           store_.name)};
}

// Of a store with a log. Drops an index that the log does not continue, and a log that lacks what the index has.
Result<void> Opening::UseLog() {
  if (complete_) {
    const bool damaged = !log_.root || log_.tail.damaged || log_.tail.unreadable || log_.root->newer_lost;
    if (!damaged && log_.tail.continues) return {};
    if (damaged) {
      spdlog::error("{}: the log of the catalog on the devices is damaged; it is written anew", store_.name);
    } else {
      spdlog::info("{}: the log of the catalog on the devices lacks repairs; it is written anew", store_.name);
    }
    DropLog();
    return {};
  }
  if (!log_.root) return AcceptDamage("the log of the catalog on the devices is damaged");
  bool continues = false;
  if (index_ != nullptr) {
    ASSIGN_OR_RETURN(log_.tail, wal::FindDurableTail(devices_, *log_.root, version_));
    continues = log_.tail.continues;
    if (!continues && before_) {  // the repair was killed before it began
      ASSIGN_OR_RETURN(log_.tail, wal::FindDurableTail(devices_, *log_.root, *before_));
      continues = log_.tail.continues;
      if (continues) version_ = *before_;
    }
  }
  if (!continues) {
    ASSIGN_OR_RETURN(log_.tail, wal::FindDurableTail(devices_, *log_.root, log_.root->checkpoint));
  }
  const uint64_t last = log_.tail.version.sequence;
  // The last unmount has noted what the log has, and 0 if there was none.
  const uint64_t noted = std::ranges::max(parts_.superblocks, {}, &Superblock::catalog_sequence).catalog_sequence;
  if (last < noted) {
    log_.tail.damaged = true;
    log_.tail.durable = std::max(log_.tail.durable, noted);
  }
  if (log_.tail.unreadable && !log_.tail.damaged) {
    RETURN_IF_ERROR(AcceptDamage(fmt::format("the device cannot read the log of the catalog behind {}",
                                             FormatUtc(log_.tail.time_ns))));
  }
  if (log_.tail.damaged || log_.root->newer_lost) {
    // The sequence alone says nothing: the index may be of another copy of the store.
    const bool has_all =
        continues && !log_.root->newer_lost && version_.sequence >= std::max(last, log_.tail.durable);
    if (!has_all) {
      RETURN_IF_ERROR(AcceptDamage(fmt::format("the log of the catalog on the devices is damaged behind {}",
                                               FormatUtc(log_.tail.time_ns))));
    } else {
      spdlog::error("{}: the log of the catalog on the devices is damaged; it is written anew", store_.name);
    }
    if (continues && version_.sequence >= last) {
      DropLog();
      return {};
    }
  }
  if (index_ != nullptr && !continues) {
    const bool behind = version_.sequence < log_.root->checkpoint.sequence;  // its filesystem was full
    damage_.what = fmt::format("{}: the index of the catalog is {} the log on the devices", path_,
                               behind ? "older than" : "not one of");
    index_.reset();
  }
  return {};
}

// Of a store from before the log. Its devices have a replica of the catalog, which is a little behind. So a catalog
// that can be read and is not older than that is the right one.
Result<void> Opening::UseReplica() {
  bool behind = false;
  if (log_.root) {
    ASSIGN_OR_RETURN(log_.tail, wal::FindDurableTail(devices_, *log_.root, log_.root->checkpoint));
    const wal::Version& last = log_.tail.version;
    behind = last.sequence > version_.sequence || (last.sequence == version_.sequence && last != version_);
  }
  if (index_ != nullptr && !behind) {
    if (log_.tail.version != version_ || log_.tail.damaged) DropLog();
    return {};
  }
  if (!log_.root) return {};
  const std::string damage = index_ == nullptr ? damage_.what
                                               : fmt::format("{}: the catalog lacks changes that it had on {}", path_,
                                                             FormatUtc(log_.tail.time_ns));
  RETURN_IF_ERROR(AcceptDamage(damage));
  if (index_ == nullptr) return {};
  ASSIGN_OR_RETURN(const wal::Tail rest, wal::FindDurableTail(devices_, *log_.root, version_));
  if (!rest.continues) index_.reset();
  damage_.what = damage;
  return {};
}

// Returns an error unless the store is repaired, or only read.
Result<void> Opening::AcceptDamage(const std::string& damage) {
  if (!options_.repair && !options_.read_only) {
    return Error{ErrorCode::kCorrupt, fmt::format("{}: {}; 'weightfs verify {} --repair' restores what can be read",
                                                  store_.name, damage, ShellQuote(store_.name))};
  }
  spdlog::error("{}: {}", store_.name, damage);
  Note(damage);
  parts_.lost = true;
  return {};
}

Result<void> Opening::OpenDamaged() {
  if (!options_.damaged_too || damage_.code != ErrorCode::kCorrupt || foreign_) return damage_;
  spdlog::error("{}", damage_.what);
  const RocksKvStore::Options reading{.read_only = true, .damaged_too = true, .cache = options_.catalog_cache};
  ASSIGN_OR_RETURN(parts_.catalog, RocksKvStore::Open(path_, reading));
  return {};
}

// Keeps in memory what the index lacks.
Result<void> Opening::OpenInMemory() {
  const bool rebuild = index_ == nullptr;
  auto overlay = std::make_unique<OverlayKvStore>(std::move(index_));
  const auto apply = [&](const KvBatch& batch) -> Result<void> {
    overlay->Apply(batch);
    return {};
  };
  RETURN_IF_ERROR(rebuild ? ReplayAll(apply) : CatchUp(version_, apply));
  parts_.catalog = std::move(overlay);
  return {};
}

Result<void> Opening::OpenForWriting() {
  index_.reset();
  // A kill may have left it.
  const auto removed = RemoveTree(store_.directory + "/" + kReplacedCatalogName);
  if (!removed) spdlog::warn("{}", ToString(removed.error()));
  RocksKvStore::Options index;
  index.cache = options_.catalog_cache;
  index.awaits_space = !options_.repair;  // of which no log has the changes
  index.before_flush = [gate = log_.gate] { gate->Commit(); };
  if (parts_.guard != nullptr) index.may_write = [guard = parts_.guard.get()] { return guard->MayWrite(); };
  ASSIGN_OR_RETURN(index_, RocksKvStore::Open(path_, index));
  return {};
}

// The checkpoint, and the log up to its tail.
Result<void> Opening::ReplayAll(const std::function<Result<void>(KvBatch)>& apply) {
  const wal::Root& root = *log_.root;
  Progress done{.step = "rebuilding the index", .total = root.checkpoint_frames, .unit = Progress::Unit::kParts};
  ASSIGN_OR_RETURN(const uint64_t damaged, wal::ReplayCheckpoint(devices_, root, [&](const wal::Entry& part) {
                     done.done = std::min(done.done + 1, done.total);
                     if (options_.progress) options_.progress(done);
                     return apply(part.batch);
                   }));
  if (damaged > 0) {
    rebuilt_ = false;  // more may be damaged than when an earlier repair rebuilt the index
    RETURN_IF_ERROR(AcceptDamage(fmt::format("{} parts of the checkpoint of the catalog are damaged; their records are "
                                             "lost",
                                             damaged)));
  }
  RETURN_IF_ERROR(apply(wal::WithVersion({}, root.checkpoint)));
  return CatchUp(root.checkpoint, apply);
}

// Beside the old one, which goes only when the log is known to replace it.
Result<void> Opening::Rebuild() {
  spdlog::warn("{}; rebuilding the index of the catalog from the log on the devices", damage_.what);
  const auto fill = [&]() -> Result<void> {
    ASSIGN_OR_RETURN(const auto made, CreateNewCatalog(store_.directory));
    RETURN_IF_ERROR(ReplayAll([&](KvBatch batch) { return made->Write(std::move(batch)); }));
    // What is lost is missed again at each opening, until a repair begins.
    if (parts_.lost) RETURN_IF_ERROR(MakeUnique(*made, {}, /*whole=*/false));
    return made->Sync();
  };
  const auto build = [&] {
    const auto filled = fill();
    // It takes space.
    if (!filled) static_cast<void>(RemoveTree(store_.directory + "/" + kNewCatalogName).has_value());
    return filled;
  };
  auto built = build();
  // An index that is ahead has what the devices have lost, or it is newer than a copy of them that was put back.
  const bool ahead = version_.sequence > log_.tail.version.sequence;
  // After a failed flush, an index refuses writes.
  const bool full = !built && (built.error().code == ErrorCode::kNoSpace || built.error().code == ErrorCode::kReadOnly);
  // One that another try can perhaps read may have repairs that the superblocks name. One that an earlier repair has
  // rebuilt like this has nothing else.
  const auto is_repair = [&](const Superblock& superblock) {
    return NamedBy(superblock) != kNoVersion && NamedBy(superblock) != log_.tail.version;
  };
  const bool repaired = damage_.code == ErrorCode::kIo && std::ranges::any_of(parts_.superblocks, is_repair);
  const auto keeps = [&] { return foreign_ || ahead || repaired || (parts_.lost && !rebuilt_); };
  if (full && !keeps()) {
    // Both do not fit. The log is read to its end, and then the old one goes first.
    RETURN_IF_ERROR(ReplayAll([](const KvBatch&) { return Result<void>(); }));
    if (keeps()) return built;
    static_cast<void>(RemoveTree(path_).has_value());
    built = build();
  }
  RETURN_IF_ERROR(built);
  if (parts_.guard != nullptr) RETURN_IF_ERROR(parts_.guard->Verify());
  ASSIGN_OR_RETURN(const std::string kept, SwapCatalogs(store_.directory, keeps()));
  if (!kept.empty()) {
    Note(fmt::format("the old index is in {}", kept));
    spdlog::warn("{}", parts_.note);
  }
  return OpenForWriting();
}

}  // namespace

Result<void> EraseRoots(std::span<BlockDevice* const> devices, ErasedRoots erased) {
  ASSIGN_OR_RETURN(const HugePageMemory memory, HugePageMemory::Map(wal::kRootCapacity));
  const std::span<std::byte> block(memory.data(), kBlockSize);
  for (BlockDevice* device : devices) {
    for (const uint64_t offset : wal::kRootOffsets) {
      if (erased == ErasedRoots::kWithLists) {  // and what cannot be read
        const auto root = wal::ReadRoot(*device, offset, {memory.data(), memory.size()});
        if (root && (!*root || (*root)->lists.empty())) continue;
      }
      std::ranges::fill(block, std::byte{0});
      RETURN_IF_ERROR(device->Write(ByteOffset{offset}, block));
    }
    RETURN_IF_ERROR(device->Flush());
  }
  return {};
}

Result<void> OpenCatalog(const StoreLocation& store, const OpenOptions& options, StoreParts* parts) {
  RETURN_IF_ERROR(Opening(store, options, parts).Run());
  if (parts->guard != nullptr && !options.read_only) {
    parts->catalog = std::make_unique<GuardedKvStore>(std::move(parts->catalog), *parts->guard);
  }
  return {};
}

Result<void> BeginRepair(StoreParts* parts) {
  KvBatch changes;
  changes.Delete(keys::Store(kInodeCountFact));  // a repair that is killed may have changed it
  const bool logged = std::ranges::any_of(parts->superblocks, &Superblock::logged);
  ASSIGN_OR_RETURN(wal::Version version, wal::ReadVersion(*parts->catalog));
  ASSIGN_OR_RETURN(const auto unique, parts->catalog->Get(keys::Store(wal::kUniqueFact)));
  // A mount between two repairs has put the version into its log.
  const bool in_log = parts->log.root && parts->log.tail.version == version;
  if (logged && !in_log && unique && unique->starts_with(wal::EncodeVersion(version))) {
    RETURN_IF_ERROR(parts->catalog->Write(std::move(changes)));  // no repair has begun with it
  } else {
    // An older program takes a replica of the same sequence for newer than the repairs.
    ASSIGN_OR_RETURN(version, MakeUnique(*parts->catalog, std::move(changes), /*whole=*/true, logged ? 0 : 1));
  }
  RETURN_IF_ERROR(parts->catalog->Sync());
  for (size_t index = 0; index < parts->superblocks.size(); ++index) {
    parts->superblocks[index].catalog_sequence = version.sequence;
    parts->superblocks[index].catalog_chain = version.chain;
    RETURN_IF_ERROR(WriteSuperblock(*parts->devices[index], parts->superblocks[index]));
  }
  if (!logged) RETURN_IF_ERROR(EraseRoots(Borrow(parts->devices), ErasedRoots::kAll));
  KvBatch begun;  // RocksDB stores writes in order, so an index with a repair lacks the fact
  begun.Delete(keys::Store(wal::kUniqueFact));
  return parts->catalog->Write(std::move(begun));
}

}  // namespace weightfs
