// SPDX-License-Identifier: Apache-2.0
#include "store/commit/committer.h"

#include <algorithm>
#include <future>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "common/log.h"
#include "meta/keys.h"
#include "store/file/file_state.h"

namespace weightfs {

// One file's state between its seal and its batch.
struct Committer::Sealed {
  InodePtr inode;
  bool changed = false;
  std::vector<ExtentMap::Change> changes;
  std::vector<DeviceRun> freed;
  uint64_t size = 0, blocks = 0, version = 0;
  uint64_t shrunk_to = UINT64_MAX;
};

struct Committer::Cycle {
  std::vector<Request> requests;
  std::vector<Deletion> deletions;
  std::vector<std::pair<InodePtr, bool>> inodes;  // and whether somebody waits for it
  std::vector<Sealed> sealed;
  std::unordered_map<const Inode*, Error> errors;
  std::optional<Error> error;  // of the cycle as a whole
  bool wrote = false;
};

Committer::Committer(KvStore& catalog, DeviceSet& devices, SpaceManager& space, WriteBack& write_back,
                     const Options& options)
    : catalog_(catalog), devices_(devices), space_(space), write_back_(write_back), options_(options) {
  // At once: until then nobody can write to the file.
  write_back_.OnTorn([this](const InodePtr& inode) { Commit(inode, Level::kOrdered, nullptr); });
  thread_ = std::thread([this] { Run(); });
}

Committer::~Committer() { static_cast<void>(Stop().has_value()); }

void Committer::NoteChanged(const InodePtr& inode) {
  inode->file->changed = true;
  if (std::exchange(inode->file->queued, true)) return;
  MutexLock lock(mutex_);
  const bool first = changed_.empty();
  changed_.emplace(Clock::now() + options_.interval, inode);
  if (first) wake_.notify_one();
}

void Committer::CommitSoon(const InodePtr& inode) {
  MutexLock lock(mutex_);
  if (closed_.empty()) {
    closed_due_ = Clock::now() + options_.close_delay;
    wake_.notify_one();
  }
  closed_.push_back(inode);
}

void Committer::Add(Request request, Scope scope) {
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      scope_ = std::max(scope_, scope);
      requests_.push_back(std::move(request));
      wake_.notify_one();
      return;
    }
  }
  if (request.done) request.done(ErrorCode::kShutdown);
}

void Committer::Commit(const InodePtr& inode, Level level, Done done, bool kept) {
  Add({.inode = inode, .level = level, .done = std::move(done), .kept = kept}, Scope::kNone);
}

void Committer::CommitAll(Scope scope, Level level, Done done) { Add({nullptr, level, std::move(done)}, scope); }

std::vector<InodePtr> Committer::Uncommitted() {
  MutexLock lock(mutex_);
  std::unordered_set<InodePtr> files(closed_.begin(), closed_.end());
  files.insert(in_cycle_.begin(), in_cycle_.end());
  for (const auto& [due, inode] : changed_) files.insert(inode);
  for (const Request& request : requests_) {
    if (request.inode) files.insert(request.inode);
  }
  for (const auto& failed : failed_files_) {
    if (InodePtr inode = failed.lock()) files.insert(std::move(inode));
  }
  return {files.begin(), files.end()};
}

void Committer::NoteFailed(const InodePtr& inode) {
  MutexLock lock(mutex_);
  std::erase_if(failed_files_, [&](const auto& failed) { return failed.expired() || failed.lock() == inode; });
  failed_files_.push_back(inode);
}

void Committer::FlushDevices(Done done) {
  Add({.inode = nullptr, .level = Level::kOrdered, .done = std::move(done), .flush = true}, Scope::kNone);
}

void Committer::OnReverted(std::function<void(InodeId)> notify) {
  MutexLock lock(notify_mutex_);
  reverted_ = std::move(notify);
}

void Committer::AddDeleted(const InodePtr& inode, std::vector<DeviceRun> runs) {
  MutexLock lock(mutex_);
  if (deletions_.empty()) {
    deletions_due_ = Clock::now() + options_.close_delay;
    wake_.notify_one();
  }
  deletions_.push_back({inode, std::move(runs)});
}

Result<void> Committer::Stop() {
  std::promise<Result<void>> promise;
  auto result = promise.get_future();
  {
    MutexLock lock(mutex_);
    if (stopping_) return {};
    scope_ = Scope::kEverything;
    requests_.push_back({nullptr, Level::kDurable, [&](Result<void> done) { promise.set_value(std::move(done)); }});
    stopping_ = true;
    wake_.notify_one();
  }
  thread_.join();
  return result.get();
}

void Committer::Run() {
  while (true) {
    Cycle cycle;
    {
      MutexLock lock(mutex_);
      while (!TakeWorkLocked(&cycle)) {
        if (stopping_) return;
        auto due = Clock::time_point::max();
        if (!changed_.empty()) due = std::min(due, changed_.begin()->first);
        if (!closed_.empty()) due = std::min(due, closed_due_);
        if (!deletions_.empty()) due = std::min(due, deletions_due_);
        if (due == Clock::time_point::max()) {
          wake_.wait(lock.native());
        } else {
          wake_.wait_until(lock.native(), due);
        }
      }
    }
    RunCycle(std::move(cycle));
  }
}

// Moves what is due into `cycle`; false when nothing is.
bool Committer::TakeWorkLocked(Cycle* cycle) {
  const auto now = Clock::now();
  const Scope scope = std::exchange(scope_, Scope::kNone);
  const bool all = scope != Scope::kNone;
  const bool closed = !closed_.empty() && (all || closed_due_ <= now);
  const bool changed = !changed_.empty() && (all || changed_.begin()->first <= now);
  const bool deleted = !deletions_.empty() && (deletions_due_ <= now || all || !requests_.empty());
  if (requests_.empty() && !closed && !changed && !deleted) return false;
  cycle->requests = std::exchange(requests_, {});
  cycle->deletions = std::exchange(deletions_, {});
  std::unordered_set<const Inode*> seen;
  const auto add = [&](InodePtr inode, bool urgent) {
    if (inode && seen.insert(inode.get()).second) cycle->inodes.emplace_back(std::move(inode), urgent);
  };
  for (const Request& request : cycle->requests) add(request.inode, true);
  if (closed) {
    for (auto& inode : std::exchange(closed_, {})) add(std::move(inode), false);
  }
  // Files that fall due within a tenth of the interval share the flush.
  const auto horizon = all ? Clock::time_point::max() : now + options_.interval / 10;
  while (changed && !changed_.empty() && changed_.begin()->first <= horizon) {
    add(std::move(changed_.begin()->second), scope == Scope::kEverything);
    changed_.erase(changed_.begin());
  }
  for (const auto& [inode, urgent] : cycle->inodes) in_cycle_.push_back(inode);
  return true;
}

void Committer::RunCycle(Cycle cycle) {
  if (failed()) cycle.error = Error{ErrorCode::kIo};
  if (!cycle.error) Seal(&cycle);
  WaitForWrites(&cycle);
  const bool any = std::any_of(cycle.sealed.begin(), cycle.sealed.end(), [](const Sealed& s) { return s.changed; }) ||
                   std::any_of(cycle.requests.begin(), cycle.requests.end(), [](const Request& r) { return r.flush; });
  if (any && !cycle.error) {
    const auto flushed = devices_.FlushWritten();
    if (!flushed) {
      cycle.error = Fail(flushed.error(), "flushing a device failed");
    } else {
      flushes_ += *flushed;
      WriteCatalog(&cycle);
    }
  }
  {
    MutexLock lock(mutex_);
    in_cycle_.clear();
  }
  Finish(&cycle, Level::kOrdered);
  const bool sync = cycle.wrote || !cycle.deletions.empty() || !cycle.requests.empty();
  if (sync && !cycle.error) {
    if (auto synced = catalog_.Sync(); !synced) cycle.error = Fail(synced.error(), "syncing the catalog failed");
  }
  if (!cycle.error) {
    for (Sealed& sealed : cycle.sealed) space_.Retire(std::move(sealed.freed));
    for (Deletion& deletion : cycle.deletions) space_.Retire(std::move(deletion.runs));
    if (cycle.wrote) ++commits_;
  }
  Finish(&cycle, Level::kDurable);
}

// Sends out every dirty block and takes the differences from the catalog as of this moment.
void Committer::Seal(Cycle* cycle) {
  for (auto& [inode, urgent] : cycle->inodes) {
    WriteBatch batch(write_back_);
    MutexLock lock(inode->mutex);
    if (inode->deleted || !inode->file) continue;
    FileState& file = *inode->file;
    // Half of a replacement is nobody's wish: it waits for its last close, for an fsync, or for the delay.
    const bool half = file.replacing && inode->open_handles > 0;
    if (half && !urgent && Clock::now() - file.replacing_since < options_.replace_delay) {
      MutexLock queue(mutex_);
      changed_.emplace(file.replacing_since + options_.replace_delay, inode);
      continue;
    }
    write_back_.SubmitAll(inode, &batch);
    Sealed sealed;
    sealed.inode = inode;
    file.queued = false;
    file.replacing = false;
    if (std::exchange(file.changed, false)) {
      sealed.changed = true;
      file.committing = true;
      sealed.changes = file.extents.TakeChanges();
      sealed.freed = std::exchange(file.freed, {});
      sealed.size = inode->attributes.size;
      sealed.blocks = file.extents.mapped().value;
      sealed.version = ++inode->attributes.data_version;
      sealed.shrunk_to = std::exchange(file.shrunk_to, UINT64_MAX);
      write_back_.SumAll(*inode);
      file.checksums.Seal(sealed.size);
      file.writes_before_seal = std::exchange(file.writes_since_seal, 0);
      ++file.seals;
    }
    cycle->sealed.push_back(std::move(sealed));
  }
}

void Committer::WaitForWrites(Cycle* cycle) {
  for (Sealed& sealed : cycle->sealed) {
    Inode& inode = *sealed.inode;
    MutexLock lock(inode.mutex);
    FileState& file = *inode.file;
    file.drained.wait(lock.native(), [&] { return file.writes_before_seal == 0; });
    if (file.error) {
      cycle->errors.emplace(&inode, *file.error);
      NoteFailed(sealed.inode);
    }
    if (!file.torn || inode.deleted) continue;  // Of a deleted one nothing is left to put back.
    // What was sent since goes too: once the file is back, no older write of it may come to where new ones go.
    file.drained.wait(lock.native(), [&] { return file.writes_before_seal + file.writes_since_seal == 0; });
    Revert(&sealed);
    lock.Unlock();
    MutexLock notify(notify_mutex_);
    if (reverted_) reverted_(inode.id);
  }
  for (Deletion& deletion : cycle->deletions) {
    Inode& inode = *deletion.inode;
    MutexLock lock(inode.mutex);
    inode.file->drained.wait(lock.native(),
                             [&] { return inode.file->writes_before_seal + inode.file->writes_since_seal == 0; });
  }
}

void Committer::WriteCatalog(Cycle* cycle) {
  for (Sealed& sealed : cycle->sealed) {
    if (!sealed.changed) continue;
    if (auto written = WriteOne(&sealed); !written) {
      cycle->error = Fail(written.error(), "writing the catalog failed");
      return;
    }
    cycle->wrote = true;
  }
}

Result<void> Committer::WriteOne(Sealed* sealed) {
  Inode& inode = *sealed->inode;
  MutexLock lock(inode.mutex);
  if (inode.deleted) return {};
  KvBatch batch;
  const auto old = std::tuple(inode.committed_size, inode.committed_blocks, inode.committed_version);
  auto written = BuildBatch(*sealed, &batch);
  if (written) written = catalog_.Write(batch);
  if (!written) {
    std::tie(inode.committed_size, inode.committed_blocks, inode.committed_version) = old;
    return written;
  }
  inode.file->checksums.DropSealed();
  inode.file->committing = false;
  return {};
}

Result<void> Committer::BuildBatch(Sealed& sealed, KvBatch* batch) {
  Inode& inode = *sealed.inode;
  const InodeId ino = inode.id;
  // Segments behind the smallest size since the last commit go first: the ones written again follow.
  const uint64_t first = sealed.shrunk_to == UINT64_MAX ? UINT64_MAX : keys::SegmentsOf(sealed.shrunk_to);
  DeleteChecksums(ino, first, keys::SegmentsOf(inode.committed_size), batch);
  for (const auto& change : sealed.changes) {
    std::string key = keys::Extent(ino, change.key);
    if (change.record) {
      std::string value = change.record->Encode(key);
      batch->Put(std::move(key), std::move(value));
    } else {
      batch->Delete(std::move(key));
    }
  }
  RETURN_IF_ERROR(inode.file->checksums.AppendSealed(catalog_, ino, batch));
  inode.committed_size = sealed.size;
  inode.committed_blocks = sealed.blocks;
  inode.committed_version = sealed.version;
  batch->Put(keys::Inode(ino), inode.CatalogRecord().Encode());
  return {};
}

// After a failed write the file is what its last commit says. The space of what was written since is not told from
// the committed one any more: it comes back at the next mount.
void Committer::Revert(Sealed* sealed) {
  Inode& inode = *sealed->inode;
  FileState& file = *inode.file;
  spdlog::error("inode {}: back at its last commit after a failed write", inode.id.value);
  MappedBlocksUpdate update(inode, space_);
  file.reverted = true;
  file.loaded = false;
  file.extents.Clear();
  file.checksums.Clear();
  file.unsummed.clear();
  file.dirty.Clear();
  file.reservation.TrimTo({});
  file.freed.clear();
  file.changed = file.committing = false;
  file.shrunk_to = UINT64_MAX;
  file.torn = false;
  if (file.told) file.ForgetError();
  inode.attributes.size = inode.committed_size;
  sealed->changed = false;
  sealed->freed.clear();
}

Error Committer::Fail(const Error& error, const char* what) {
  if (!failed_.exchange(true)) {
    spdlog::critical("{}: {}; the mount is read-only from now on: unmount, find the cause, run weightfs fsck", what,
                     ToString(error));
  }
  return Error{ErrorCode::kIo};
}

// Answers the requests of one level and forgets them.
void Committer::Finish(Cycle* cycle, Level level) {
  for (Request& request : cycle->requests) {
    if (!request.done || request.level != level) continue;
    Result<void> result;
    if (cycle->error) {
      result = *cycle->error;
    } else if (request.inode) {
      const auto found = cycle->errors.find(request.inode.get());
      if (found != cycle->errors.end()) {
        result = found->second;
        MutexLock lock(request.inode->mutex);
        FileState& file = *request.inode->file;
        if (!file.torn && !request.kept) file.ForgetError();  // Torn again meanwhile: that was told to nobody yet.
      }
    } else if (!request.flush && !cycle->errors.empty()) {
      result = cycle->errors.begin()->second;
    }
    std::exchange(request.done, nullptr)(std::move(result));
  }
}

}  // namespace weightfs
