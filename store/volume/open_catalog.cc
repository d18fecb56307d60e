// SPDX-License-Identifier: Apache-2.0
#include "store/volume/open_catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "common/log.h"
#include "common/shell_quote.h"
#include "common/utc_time.h"
#include "meta/keys.h"
#include "meta/overlay_kv_store.h"
#include "meta/rocks_kv_store.h"
#include "store/volume/catalog_replica.h"
#include "store/volume/catalog_swap.h"
#include "store/wal/log_recovery.h"
#include "store/wal/logged_kv_store.h"

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
  parts->guard->Start(std::move(locked), std::move(devices), owner);
  return parts->guard->Verify();
}

// One opening of the catalog of one store.
class Opening {
 public:
  Opening(const std::string& directory, const OpenOptions& options, StoreParts* parts)
      : directory_(directory),
        path_(directory + "/" + kCatalogName),
        options_(options),
        parts_(*parts),
        devices_(Borrow(parts->devices)) {}

  Result<void> Run() {
    const bool logged = std::ranges::any_of(parts_.superblocks, &Superblock::logged);
    RETURN_IF_ERROR(logged ? OpenLogged() : OpenUnlogged());
    parts_.log.store_id = parts_.description.id;
    parts_.log.description = ToJson(parts_.description);
    return {};
  }

 private:
  // The index as it is, opened for reading; null if it cannot be used, for the reason `why_`.
  Result<void> LookAtIndex();
  Result<void> CheckId(bool damaged_too);
  Result<void> OpenForWriting(bool log);

  Result<void> OpenUnlogged();
  Result<void> OpenLogged();
  Result<bool> UseLog(const wal::Root& root);
  Result<void> CatchUp();
  Result<void> Rebuild();
  Result<void> ReplayAll(const std::function<Result<void>(KvBatch)>& apply);

  const std::string directory_, path_;
  const OpenOptions& options_;
  StoreParts& parts_;
  const std::vector<BlockDevice*> devices_;
  std::unique_ptr<KvStore> index_;
  std::string why_;
  wal::Version version_;  // of index_
  bool rebuild_ = false;  // index_ is not used
  bool foreign_ = false;  // it belongs to another store
};

// `damaged_too`: accepts a catalog in which this fact cannot be read.
Result<void> Opening::CheckId(bool damaged_too) {
  const auto found = index_->Get(keys::Store(kStoreIdFact));
  if (!found && damaged_too && found.error().code == ErrorCode::kCorrupt) return {};
  if (!found) return found.error();
  const auto& id = *found;
  if (!id.has_value()) {
    return Error{ErrorCode::kCorrupt, fmt::format("{}: the catalog names no store; restore it from a copy", path_)};
  }
  foreign_ = *id != ToString(parts_.description.id);
  if (foreign_) {
    return Error{ErrorCode::kCorrupt, fmt::format("{}: the catalog belongs to the store {}, not to {}; restore the "
                                                  "right one",
                                                  path_, *id, ToString(parts_.description.id))};
  }
  return {};
}

// Opening for writing changes the directory, and the index may belong to another store.
Result<void> Opening::LookAtIndex() {
  RocksKvStore::Options look;
  look.read_only = true;
  look.cache = options_.catalog_cache;
  auto opened = RocksKvStore::Open(path_, look);
  if (!opened && options_.damaged_too && opened.error().code == ErrorCode::kCorrupt) {
    spdlog::error("{}", opened.error().what);
    look.damaged_too = true;
    opened = RocksKvStore::Open(path_, look);
  }
  if (!opened) return opened.error();
  index_ = std::move(*opened);
  return CheckId(options_.damaged_too);
}

Result<void> Opening::OpenForWriting(bool log) {
  index_.reset();
  RocksKvStore::Options index;
  index.cache = options_.catalog_cache;
  index.log = log;
  if (parts_.guard != nullptr) index.may_write = [guard = parts_.guard.get()] { return guard->MayWrite(); };
  ASSIGN_OR_RETURN(index_, RocksKvStore::Open(path_, index));
  return {};
}

Result<void> Opening::OpenUnlogged() {
  RETURN_IF_ERROR(LookAtIndex());
  auto replica = InspectReplica(devices_, parts_.superblocks, *index_);
  if (replica) {
    parts_.replica = std::move(*replica);
  } else if (!options_.damaged_too || replica.error().code != ErrorCode::kCorrupt) {
    return replica.error();
  }
  parts_.log.root_sequence = parts_.replica.root_sequence;
  parts_.log.root = parts_.replica.root;
  parts_.log.tail = parts_.replica.tail;
  if (options_.read_only) {
    parts_.catalog = std::move(index_);
    return {};
  }
  if (parts_.replica.CatalogIsBehind() && !options_.repair) {
    return Error{ErrorCode::kCorrupt, DescribeBehind(directory_, parts_.replica)};
  }
  if (parts_.guard != nullptr) RETURN_IF_ERROR(ClaimOwnership(&parts_));
  // Takes over what the log of the index has.
  RETURN_IF_ERROR(OpenForWriting(options_.repair));
  ASSIGN_OR_RETURN(version_, wal::ReadVersion(*index_));
  if (!parts_.log.root || parts_.log.tail.version != version_ || parts_.log.tail.damaged) {
    parts_.log.root.reset();
    parts_.log.tail = {.version = version_};
  } else if (!options_.repair) {
    spdlog::info("{}: from now on its devices have the log of all changes; older versions of weightfs cannot open it",
                 directory_);
  }
  parts_.catalog = std::move(index_);
  return {};
}

// Finds out what of the log the index lacks. False if the index must be rebuilt.
Result<bool> Opening::UseLog(const wal::Root& root) {
  if (index_ != nullptr) {
    ASSIGN_OR_RETURN(parts_.log.tail, wal::FindDurableTail(devices_, root, version_));
    if (parts_.log.tail.continues) return true;
    why_ = fmt::format("{}: the index of the catalog is not one of the log on the devices", path_);
  }
  ASSIGN_OR_RETURN(parts_.log.tail, wal::FindDurableTail(devices_, root, root.checkpoint));
  return false;
}

Result<void> Opening::OpenLogged() {
  if (!options_.read_only) {
    // A daemon that was killed has perhaps not flushed what is read now, and what will be taken for durable.
    for (BlockDevice* device : devices_) RETURN_IF_ERROR(device->Flush());
  }
  auto looked = LookAtIndex();
  if (looked) looked = index_->Verify([](ByteCount) { return true; });
  if (!looked) {
    const ErrorCode code = looked.error().code;
    if (code != ErrorCode::kCorrupt && code != ErrorCode::kNotFound && code != ErrorCode::kIo) return looked;
    why_ = ToString(looked.error());
    index_.reset();
  } else if (auto version = wal::ReadVersion(*index_); version) {
    version_ = *version;
  } else {
    why_ = ToString(version.error());
    index_.reset();
  }
  ASSIGN_OR_RETURN(auto root, wal::FindRoot(devices_, parts_.description.id));
  auto found = root ? wal::LoadSegments(devices_, &*root) : Result<void>(ErrorCode::kCorrupt);
  if (!found && found.error().code != ErrorCode::kCorrupt) return found;
  if (found) {
    parts_.log.root = root;
    parts_.log.root_sequence = root->sequence;
    ASSIGN_OR_RETURN(const bool continues, UseLog(*root));
    rebuild_ = !continues;
  }
  // A damaged log is no loss if the index has what it lacks.
  const bool damaged = !found || parts_.log.tail.damaged;
  if (damaged) {
    const bool complete = index_ != nullptr && found && version_.sequence >= parts_.log.tail.durable;
    if (!complete && !options_.repair) {
      return Error{ErrorCode::kCorrupt,
                   fmt::format("{}: the log of the catalog on the devices is damaged{}; 'weightfs verify {} --repair' "
                               "restores what can be read",
                               directory_, found ? fmt::format(" behind {}", FormatUtc(parts_.log.tail.time_ns)) : "",
                               ShellQuote(directory_))};
    }
    if (index_ == nullptr && !found) return Error{ErrorCode::kCorrupt, why_};
    spdlog::error("{}: the log of the catalog on the devices is damaged; it is written anew", directory_);
    if (index_ != nullptr && (!found || version_.sequence >= parts_.log.tail.version.sequence)) {
      parts_.log.root.reset();
      parts_.log.tail = {.version = version_};
      rebuild_ = false;
    }
  }
  if (rebuild_) {
    spdlog::warn("{}{}rebuilding the index of the catalog from the log on the devices", why_, why_.empty() ? "" : "; ");
    parts_.note = fmt::format("the index of the catalog was rebuilt from the log on the devices, as of {}",
                              FormatUtc(parts_.log.tail.time_ns));
    return Rebuild();
  }
  return CatchUp();
}

Result<void> Opening::CatchUp() {
  const uint64_t last = parts_.log.tail.version.sequence;
  const auto replay = [&](const std::function<Result<void>(const wal::Entry&)>& apply) -> Result<void> {
    if (!parts_.log.root) return {};
    RETURN_IF_ERROR(wal::ReplayLog(devices_, *parts_.log.root, version_, last, apply));
    return {};
  };
  if (options_.read_only) {
    auto overlay = std::make_unique<OverlayKvStore>(std::move(index_));
    RETURN_IF_ERROR(replay([&](const wal::Entry& entry) -> Result<void> {
      overlay->Apply(wal::WithVersion(entry.batch, entry.version));
      return {};
    }));
    parts_.catalog = std::move(overlay);
    return {};
  }
  if (parts_.guard != nullptr) RETURN_IF_ERROR(ClaimOwnership(&parts_));
  RETURN_IF_ERROR(OpenForWriting(false));
  RETURN_IF_ERROR(replay(
      [&](const wal::Entry& entry) { return index_->Write(wal::WithVersion(entry.batch, entry.version)); }));
  parts_.catalog = std::move(index_);
  return {};
}

// The checkpoint, and the log up to its tail.
Result<void> Opening::ReplayAll(const std::function<Result<void>(KvBatch)>& apply) {
  const wal::Root& root = *parts_.log.root;
  Progress done{.step = "rebuilding the index", .total = root.checkpoint_frames, .unit = Progress::Unit::kParts};
  ASSIGN_OR_RETURN(const auto checkpoint, wal::ReplayCheckpoint(devices_, root, [&](const wal::Entry& part) {
                     done.done = std::min(done.done + 1, done.total);
                     if (options_.progress) options_.progress(done);
                     return apply(part.batch);
                   }));
  if (checkpoint.damaged_frames > 0) {
    const std::string damage =
        fmt::format("{} parts of the checkpoint of the catalog are damaged", checkpoint.damaged_frames);
    if (!options_.repair) {
      return Error{ErrorCode::kCorrupt,
                   fmt::format("{}: {}; {}; 'weightfs verify {} --repair' restores what can be read", directory_, why_,
                               damage, ShellQuote(directory_))};
    }
    parts_.note += fmt::format("; {}, and their records are lost", damage);
    parts_.lost = true;
  }
  RETURN_IF_ERROR(wal::ReplayLog(devices_, root, root.checkpoint, parts_.log.tail.version.sequence,
                                 [&](const wal::Entry& entry) { return apply(entry.batch); }));
  return apply(wal::WithVersion({}, parts_.log.tail.version));
}

Result<void> Opening::Rebuild() {
  if (options_.read_only) {
    auto overlay = std::make_unique<OverlayKvStore>(nullptr);
    RETURN_IF_ERROR(ReplayAll([&](const KvBatch& batch) -> Result<void> {
      overlay->Apply(batch);
      return {};
    }));
    parts_.catalog = std::move(overlay);
    return {};
  }
  if (parts_.guard != nullptr) RETURN_IF_ERROR(ClaimOwnership(&parts_));
  index_.reset();
  {
    // Beside the old one, which goes only when the log is known to replace it.
    ASSIGN_OR_RETURN(const auto built, CreateNewCatalog(directory_));
    RETURN_IF_ERROR(ReplayAll([&](KvBatch batch) { return built->Write(std::move(batch)); }));
    RETURN_IF_ERROR(built->Sync());
  }
  ASSIGN_OR_RETURN(const std::string old, SwapCatalogs(directory_));
  std::error_code error;
  if (!old.empty() && !foreign_) std::filesystem::remove_all(old, error);
  if (error) spdlog::warn("{}: cannot be removed: {}", old, error.message());
  RETURN_IF_ERROR(OpenForWriting(false));
  parts_.catalog = std::move(index_);
  return {};
}

}  // namespace

Result<void> OpenCatalog(const std::string& directory, const OpenOptions& options, StoreParts* parts) {
  RETURN_IF_ERROR(Opening(directory, options, parts).Run());
  if (parts->guard != nullptr && !options.read_only) {
    parts->catalog = std::make_unique<GuardedKvStore>(std::move(parts->catalog), *parts->guard);
  }
  return {};
}

Result<void> LeaveLog(const std::string& directory, StoreParts* parts) {
  RETURN_IF_ERROR(parts->catalog->Sync());
  parts->catalog.reset();
  RocksKvStore::Options options;
  if (parts->guard != nullptr) options.may_write = [guard = parts->guard.get()] { return guard->MayWrite(); };
  ASSIGN_OR_RETURN(parts->catalog, RocksKvStore::Open(directory + "/" + kCatalogName, options));
  if (parts->guard != nullptr) {
    parts->catalog = std::make_unique<GuardedKvStore>(std::move(parts->catalog), *parts->guard);
  }
  for (size_t index = 0; index < parts->superblocks.size(); ++index) {
    parts->superblocks[index].logged = false;
    RETURN_IF_ERROR(WriteSuperblock(*parts->devices[index], parts->superblocks[index]));
  }
  parts->log.root.reset();
  return EraseRoots(Borrow(parts->devices), ErasedRoots::kAll);
}

}  // namespace weightfs
