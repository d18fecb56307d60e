// SPDX-License-Identifier: Apache-2.0
#include "store/commit/committer.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "common/log.h"
#include "common/start_thread.h"
#include "meta/keys.h"

namespace weightfs {

// One file between its seal and its batch.
struct Committer::Sealed {
  InodePtr inode;
  std::optional<SealedFile> content;  // nullopt: unchanged since its last commit
  size_t extents = 0;                 // that it had changes or runs of, when its batch was written
};

// The error of a file's writes, and the number of the failure.
struct Committer::FileError {
  Error error;
  uint64_t failure;
};

struct Committer::Cycle {
  std::vector<Request> requests;
  std::vector<Deletion> deletions;
  std::vector<std::pair<InodePtr, bool>> inodes;  // true: also while it is being replaced
  std::vector<InodePtr> failed;                   // whose errors the end reports
  std::vector<Sealed> sealed;
  std::unordered_map<const Inode*, FileError> errors;
  std::optional<Error> error;  // of the whole cycle
  bool wrote = false;
  bool sync = false;  // the changes must become durable now; otherwise they do so within the interval of the log
};

Committer::Committer(KvStore& catalog, DeviceSet& devices, SpaceManager& space, WriteBack& write_back,
                     const Options& options)
    : catalog_(catalog), devices_(devices), space_(space), write_back_(write_back), options_(options) {
  // Revert at once, because nobody can write to the file until then.
  write_back_.OnFailed(
      [this](const InodePtr& inode) { Commit(inode, CommitLevel::kOrdered, nullptr, {.settled = true}); });
}

Result<void> Committer::Start() {
  ASSIGN_OR_RETURN(thread_, StartThread("weightfs-commit", [this] { Run(); }));
  return {};
}

Committer::~Committer() { static_cast<void>(Stop().has_value()); }

void Committer::NoteChanged(const InodePtr& inode) {
  MutexLock lock(mutex_);
  const bool first = changed_.empty();
  changed_.emplace(Clock::now() + options_.interval, inode);
  if (first) wake_.notify_one();
}

void Committer::CommitSoon(const InodePtr& inode, bool last) {
  if (last && expected_ > 0) {
    --expected_;
    StartWrites(inode, /*urgent=*/false);
  }
  MutexLock lock(mutex_);
  if (closed_.empty()) {
    closed_due_ = Clock::now() + options_.close_delay;
    wake_.notify_one();
  }
  closed_.push_back(inode);
}

void Committer::Add(Request request, bool all) {
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      all_ = all_ || all;
      requests_.push_back(std::move(request));
      wake_.notify_one();
      return;
    }
  }
  if (request.done) request.done(ErrorCode::kShutdown);
}

void Committer::Commit(const InodePtr& inode, CommitLevel level, Done done, CommitOptions options) {
  Add({.inode = inode, .level = level, .done = std::move(done), .options = options}, /*all=*/false);
}

void Committer::StartEarly(const InodePtr& inode) {
  constexpr BlockCount kFew{16};  // the caller computes their checksums
  if (cycles_ == 0 || failed()) return;
  {
    MutexLock lock(inode->mutex);
    if (!inode->file || inode->file->dirty().dirty() > kFew) return;
  }
  StartWrites(inode, /*urgent=*/true);
}

Result<void> Committer::CommitHere(const InodePtr& inode, CommitOptions options) {
  constexpr int kExpected = 8;  // each file of a program that writes and renames one after the other
  expected_ = kExpected;
  Result<void> result;
  Cycle cycle;
  const auto done = [&](Result<void> outcome) { result = std::move(outcome); };
  cycle.requests.push_back({.inode = inode, .level = CommitLevel::kOrdered, .done = done, .options = options});
  cycle.inodes.emplace_back(inode, !options.settled);
  {
    MutexLock lock(mutex_);
    if (stopping_) return ErrorCode::kShutdown;
    in_cycles_.insert(inode);
  }
  const size_t extents = RunCycle(std::move(cycle));
  if (options_.freed) options_.freed(extents);
  return result;
}

void Committer::CommitAll(CommitLevel level, Done done) { Add({nullptr, level, std::move(done)}, /*all=*/true); }

std::vector<InodePtr> Committer::Uncommitted() {
  MutexLock lock(mutex_);
  std::unordered_set<InodePtr> files(closed_.begin(), closed_.end());
  files.insert(in_cycles_.begin(), in_cycles_.end());
  for (const auto& [due, inode] : changed_) files.insert(inode);
  for (const Request& request : requests_) {
    if (request.inode) files.insert(request.inode);
  }
  files.insert(failed_files_.begin(), failed_files_.end());
  return {files.begin(), files.end()};
}

void Committer::NoteError(Cycle* cycle, const InodePtr& inode) {
  const WriteErrorState& state = inode->file->write_error();
  if (!state.error()) return;
  cycle->errors.emplace(inode.get(), FileError{*state.error(), state.failures()});
  if (inode->deleted) return;
  MutexLock lock(mutex_);
  failed_files_.insert(inode);
}

void Committer::ForgetError(const InodePtr& inode) {
  if (inode->file->write_error().error()) return;  // it has failed again
  MutexLock lock(mutex_);
  failed_files_.erase(inode);
}

void Committer::FlushDevices(Done done) {
  Add({.inode = nullptr, .level = CommitLevel::kOrdered, .done = std::move(done), .flush = true}, /*all=*/false);
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
  failed_files_.erase(inode);
}

Result<void> Committer::Stop() {
  if (!thread_.joinable()) return {};
  Result<void> result;
  {
    MutexLock lock(mutex_);
    all_ = true;
    requests_.push_back({nullptr, CommitLevel::kDurable, [&](Result<void> done) { result = std::move(done); }});
    stopping_ = true;
    wake_.notify_one();
  }
  thread_.join();
  return result;
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
        wake_.wait_until(lock.native(), due);
      }
    }
    const size_t extents = RunCycle(std::move(cycle));
    if (options_.freed) options_.freed(extents);
  }
}

// Moves due work into `cycle`; returns false when there is none.
bool Committer::TakeWorkLocked(Cycle* cycle) {
  const auto now = Clock::now();
  const bool all = std::exchange(all_, false);
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
  for (const bool settled : {false, true}) {
    for (const Request& request : cycle->requests) {
      if (request.options.settled == settled) add(request.inode, !settled);
    }
  }
  cycle->sync = closed || changed || std::ranges::any_of(cycle->requests, [](const Request& request) {
                  return request.level == CommitLevel::kDurable;
                });
  if (closed) {
    for (auto& inode : std::exchange(closed_, {})) add(std::move(inode), false);
  }
  // Files that are due within a tenth of the interval share the flush.
  const auto horizon = all ? Clock::time_point::max() : now + options_.interval / 10;
  while (changed && !changed_.empty() && changed_.begin()->first <= horizon) {
    add(changed_.begin()->second, false);
    changed_.erase(changed_.begin());
  }
  if (stopping_) cycle->failed = {failed_files_.begin(), failed_files_.end()};
  for (const auto& [inode, urgent] : cycle->inodes) in_cycles_.insert(inode);
  return true;
}

size_t Committer::RunCycle(Cycle cycle) {
  ++cycles_;
  if (!failed()) Seal(&cycle);
  if (failed()) {  // perhaps another cycle, for which this one waited
    failed_ = true;
    cycle.error = Error{ErrorCode::kIo};
  }
  WaitForWrites(&cycle);
  if (!cycle.error) {
    if (auto flushed = FlushFirst(cycle); !flushed) {
      cycle.error = Fail(flushed.error(), "flushing a device failed");
    } else {
      WriteCatalog(&cycle);
    }
  }
  if (cycle.error) WakeAll(cycle);
  {
    MutexLock lock(mutex_);
    for (const auto& [inode, urgent] : cycle.inodes) in_cycles_.erase(in_cycles_.find(inode));
  }
  Finish(&cycle, CommitLevel::kOrdered);
  if (cycle.sync && !cycle.error) {
    if (auto synced = catalog_.Sync(); !synced) cycle.error = Fail(synced.error(), "syncing the catalog failed");
  }
  size_t extents = 0;
  for (const Sealed& sealed : cycle.sealed) extents += sealed.extents;
  for (const Deletion& deletion : cycle.deletions) extents += deletion.runs.size();
  if (!cycle.error) {
    std::vector<DeviceRun> freed;
    for (Sealed& sealed : cycle.sealed) {
      if (sealed.content) freed.insert(freed.end(), sealed.content->freed.begin(), sealed.content->freed.end());
    }
    for (Deletion& deletion : cycle.deletions) freed.insert(freed.end(), deletion.runs.begin(), deletion.runs.end());
    options_.retire(std::move(freed));
    if (cycle.wrote) ++commits_;
  }
  Finish(&cycle, CommitLevel::kDurable);
  --cycles_;
  return extents;
}

// Starts the write of every dirty block and takes the current differences from the catalog. A seal computes missing
// checksums under the file's mutex, and may wait for another cycle. Therefore the writes of all files are submitted
// first, and only the few blocks that become dirty meanwhile are left for the seals.
void Committer::Seal(Cycle* cycle) {
  const bool alone = cycle->inodes.size() == 1;
  for (auto& [inode, urgent] : cycle->inodes) StartWrites(inode, urgent, alone);
  for (auto& [inode, urgent] : cycle->inodes) SealFile(inode, urgent, &cycle->sealed);
}

// A partial replacement is useless: wait for its last close, for an fsync, or for the delay. A failed file is reverted
// either way.
bool Committer::LeavesOut(const Inode& inode, bool urgent) const {
  if (inode.deleted || !inode.file) return true;
  const CommitState& state = inode.file->commit();
  return state.replacing() && !inode.file->write_error().failed() && !urgent &&
         Clock::now() - state.replacing_since() < options_.replace_delay;
}

void Committer::StartWrites(const InodePtr& inode, bool urgent, bool waits) {
  PendingWrites writes;
  {
    MutexLock lock(inode->mutex);
    if (!LeavesOut(*inode, urgent)) write_back_.StartAll(inode, &writes);
  }
  write_back_.Submit(&writes, waits);
}

void Committer::SealFile(const InodePtr& inode, bool urgent, std::vector<Sealed>* sealed) {
  PendingWrites writes;
  {
    MutexLock lock(inode->mutex);
    if (!inode->file) return;
    File& file = *inode->file;
    file.WaitForCommit(lock, failed_);  // of another cycle
    if (file.commit().committing()) return;
    if (LeavesOut(*inode, urgent)) {
      if (inode->deleted) return;
      MutexLock queue(mutex_);
      changed_.emplace(file.commit().replacing_since() + options_.replace_delay, inode);
      return;
    }
    write_back_.StartAll(inode, &writes);
    sealed->push_back({inode, file.Seal()});
  }
  write_back_.Submit(&writes);
}

void Committer::WaitForWrites(Cycle* cycle) {
  for (Sealed& sealed : cycle->sealed) {
    Inode& inode = *sealed.inode;
    MutexLock lock(inode.mutex);
    File& file = *inode.file;
    file.WaitForSealedWrites(lock);
    NoteError(cycle, sealed.inode);
    if (MayRevert(sealed)) Revert(&sealed, /*written=*/false, lock);
  }
  for (const InodePtr& inode : cycle->failed) {
    MutexLock lock(inode->mutex);
    NoteError(cycle, inode);
  }
  for (Deletion& deletion : cycle->deletions) {
    MutexLock lock(deletion.inode->mutex);
    deletion.inode->file->WaitForAllWrites(lock);
  }
}

// Flushes the devices if a request wants that, or a file has blocks that others wrote.
Result<void> Committer::FlushFirst(const Cycle& cycle) {
  const bool wanted =
      std::any_of(cycle.sealed.begin(), cycle.sealed.end(),
                  [](const Sealed& sealed) { return sealed.content && sealed.content->flush_first; }) ||
      std::any_of(cycle.requests.begin(), cycle.requests.end(), [](const Request& request) { return request.flush; });
  return wanted ? devices_.FlushWritten() : Result<void>();
}

void Committer::WriteCatalog(Cycle* cycle) {
  for (Sealed& sealed : cycle->sealed) {
    if (!sealed.content) continue;
    if (auto written = WriteOne(cycle, &sealed); !written) {
      cycle->error = Fail(written.error(), "writing the catalog failed");
      return;
    }
    if (sealed.content) cycle->wrote = true;
  }
}

// Returns only errors that end all writing. A file whose records cannot be read, or do not fit, fails alone, as if a
// write of it had failed.
Result<void> Committer::WriteOne(Cycle* cycle, Sealed* sealed) {
  Inode& inode = *sealed->inode;
  ChecksumSegments loaded;
  while (true) {
    std::vector<uint64_t> missing;
    {
      MutexLock lock(inode.mutex);
      if (inode.deleted) return {};
      KvBatch batch;
      const auto complete = BuildBatch(*sealed, loaded, &missing, &batch);
      std::optional<ErrorCode> failure;
      if (!complete) {
        spdlog::error("inode {}: its change cannot be committed, because its checksums in the catalog cannot be read: "
                      "{}; run weightfs verify", inode.id.value, ToString(complete.error()));
        failure = ErrorCode::kIo;
      } else if (*complete) {
        auto written = WriteBatch(sealed, std::move(batch));
        if (written || written.error().code != ErrorCode::kNoSpace || catalog_.failed()) return written;
        spdlog::error("inode {}: its change is too large for the free space of the pool", inode.id.value);
        failure = ErrorCode::kNoSpace;
      }
      if (failure) {
        const bool written = inode.file->write_error().WriteFailed(Error{*failure});  // no write has failed
        NoteError(cycle, sealed->inode);
        Revert(sealed, written, lock);
        return {};
      }
    }
    loaded.Load(catalog_, inode.id, missing);
  }
}

Result<void> Committer::WriteBatch(Sealed* sealed, KvBatch batch) {
  Inode& inode = *sealed->inode;
  const CommittedData old = inode.committed;
  inode.committed = {sealed->content->size, sealed->content->blocks, sealed->content->version};
  batch.Put(keys::Inode(inode.id), inode.CatalogRecord().Encode());
  if (!sealed->content->flush_first) batch.NoteUnflushedData();
  batch.NoteAccepted();
  sealed->extents = sealed->content->changes.size() + sealed->content->freed.size();
  if (auto written = catalog_.Write(std::move(batch)); !written) {
    inode.committed = old;
    return written;
  }
  // Whoever finds the file clean may look for the space at once.
  options_.retire(std::exchange(sealed->content->freed, {}));
  inode.file->FinishCommit();
  return {};
}

void Committer::AppendExtents(InodeId ino, const SealedFile& content, KvBatch* batch) {
  for (const auto& change : content.changes) {
    std::string key = keys::Extent(ino, change.key);
    if (change.record) {
      std::string value = change.record->Encode(key);
      batch->Put(std::move(key), std::move(value));
    } else if (change.end == change.key + BlockCount{1}) {
      batch->Delete(std::move(key));
    } else {
      batch->DeleteRange(std::move(key), keys::Extent(ino, change.end));
    }
  }
}

// Builds everything except the inode's record. Returns false when checksums must be loaded first.
Result<bool> Committer::BuildBatch(const Sealed& sealed, ChecksumSegments& loaded, std::vector<uint64_t>* missing,
                                   KvBatch* batch) {
  const Inode& inode = *sealed.inode;
  const SealedFile& content = *sealed.content;
  // Delete segments beyond the smallest size since the last commit first; rewritten ones follow.
  const uint64_t first = content.shrunk_to == UINT64_MAX ? UINT64_MAX : keys::SegmentsOf(content.shrunk_to);
  DeleteChecksums(inode.id, first, keys::SegmentsOf(inode.committed.size), batch);
  AppendExtents(inode.id, content, batch);
  return inode.file->AppendChecksums(first, loaded, missing, batch);
}

// True if the file has failed, and no other cycle has it, which then reverts it. A deleted file needs no revert.
bool Committer::MayRevert(const Sealed& sealed) {
  const Inode& inode = *sealed.inode;
  return !inode.deleted && inode.file->write_error().failed() &&
         (sealed.content || !inode.file->commit().committing());
}

// Reverts the file to its last commit after a failed write.
void Committer::Revert(Sealed* sealed, bool written, MutexLock& lock) {
  Inode& inode = *sealed->inode;
  // Wait for later writes too: after the revert, new writes may go to the same blocks.
  inode.file->WaitForAllWrites(lock);
  if (!MayRevert(*sealed)) return;  // meanwhile
  spdlog::error("inode {}: back at its last commit after a failed write", inode.id.value);
  const auto unused = inode.file->Revert(inode.committed.size, inode.committed.blocks);
  ForgetError(sealed->inode);
  write_back_.UpdateQueue(sealed->inode);
  sealed->content.reset();
  lock.Unlock();
  if (written) space_.Retire(unused);
  MutexLock notify(notify_mutex_);
  if (reverted_) reverted_(inode.id);
}

Error Committer::Fail(const Error& error, const char* what) {
  if (!failed_.exchange(true)) {
    spdlog::critical("{}: {}; the mount is read-only from now on: unmount, find the cause, run weightfs verify", what,
                     ToString(error));
  }
  return Error{ErrorCode::kIo};
}

// Other cycles may wait for the files of one that has failed.
void Committer::WakeAll(const Cycle& cycle) {
  for (const Sealed& sealed : cycle.sealed) {
    MutexLock lock(sealed.inode->mutex);
    sealed.inode->file->WakeCommits();
  }
}

// Completes the requests of one level and clears them.
void Committer::Finish(Cycle* cycle, CommitLevel level) {
  for (Request& request : cycle->requests) {
    if (!request.done || request.level != level) continue;
    Result<void> result;
    if (cycle->error) {
      result = *cycle->error;
    } else if (request.inode) {
      const auto found = cycle->errors.find(request.inode.get());
      if (found != cycle->errors.end()) {
        result = found->second.error;
        MutexLock lock(request.inode->mutex);
        // A file that has failed again keeps its error for its next cycle, although this caller may have received it.
        WriteErrorState& state = request.inode->file->write_error();
        if (!request.options.kept && !state.failed()) state.Report(found->second.failure);
        ForgetError(request.inode);
      }
    } else if (!request.flush && !cycle->errors.empty()) {
      const auto& [inode, failure] = *cycle->errors.begin();
      const size_t others = cycle->errors.size() - 1;
      const std::string more = others == 0 ? "" : fmt::format(", and of {} other{}", others, others == 1 ? "" : "s");
      result = Error{failure.error.code, fmt::format("writes of inode {} have failed{}", inode->id.value, more)};
    }
    std::exchange(request.done, nullptr)(std::move(result));
  }
}

}  // namespace weightfs
