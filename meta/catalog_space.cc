// SPDX-License-Identifier: Apache-2.0
#include "meta/catalog_space.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/size_text.h"
#include "common/start_thread.h"
#include "common/units.h"

namespace weightfs {
namespace {

// The surplus is measured again after this much was written, and after this time.
constexpr uint64_t kMeasureBytes = kMiB;
constexpr std::chrono::seconds kMeasureTime{1};
// The pause after a compaction for lack of space, in durations of that compaction.
constexpr int kPauseFactor = 2;
// This share of the need is much.
constexpr uint64_t kMuchWritten = 32;
// Pauses between two attempts of a file to get space.
constexpr std::chrono::milliseconds kFirstPause{20}, kLongestPause{1000};

}  // namespace

uint64_t CatalogSpace::NeedOf(uint64_t catalog_bytes) {
  return std::clamp(2 * catalog_bytes, kLeastNeed, kLargestNeed);
}

Result<std::unique_ptr<CatalogSpace>> CatalogSpace::Open(const std::string& directory, bool awaits_space) {
  UniqueFd descriptor(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) return SystemError(directory, "cannot be opened");
  return std::unique_ptr<CatalogSpace>(new CatalogSpace(directory, std::move(descriptor), awaits_space));
}

Result<void> CatalogSpace::Start(Catalog catalog) {
  catalog_ = std::move(catalog);
  {
    MutexLock lock(mutex_);
    opener_ = {};
  }
  Measure();
  ASSIGN_OR_RETURN(thread_, StartThread("weightfs-index", [this] { RunWork(); }));
  return {};
}

void CatalogSpace::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
    retry_.notify_all();
    work_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

// What is added counts three times: it is stored once, and the need grows by twice as much.
bool CatalogSpace::Allows(KvChange change, uint64_t bytes) const {
  if (change == KvChange::kRemove) return true;
  const int64_t surplus = surplus_.load() - static_cast<int64_t>(3 * (claimed_.load() + bytes));
  if (change == KvChange::kGrow) return waiting_.load() == 0 && surplus >= static_cast<int64_t>(kMargin);
  return memory_.load() < kUpdatesInMemory ||
         (waiting_.load() == 0 && surplus >= -static_cast<int64_t>(need_.load() / 2));
}

Result<void> CatalogSpace::Check(KvChange change) {
  const bool outdated = change == KvChange::kGrow && Clock::now() - measured_.load() > kMeasureTime;
  if (outdated || !Allows(change)) {
    Measure();
    if (!Allows(change) && MayCompact() && Do(Work::kCompact)) Measure();
    if (!Allows(change)) {
      LogFull(/*full=*/true);
      return ErrorCode::kNoSpace;
    }
  }
  if (change == KvChange::kGrow && logged_full_.load()) LogFull(/*full=*/false);
  return {};
}

Result<KvClaim> CatalogSpace::Claim(uint64_t bytes) {
  const auto claim = [&] {
    MutexLock lock(measuring_);
    MeasureLocked();
    if (!Allows(KvChange::kGrow, bytes)) return false;
    claimed_ += bytes;
    return true;
  };
  if (!claim() && !(MayCompact() && Do(Work::kCompact) && claim())) {
    LogFull(/*full=*/true);
    return ErrorCode::kNoSpace;
  }
  return KvClaim(this, [bytes](CatalogSpace* space) {
    MutexLock lock(space->measuring_);
    space->claimed_ -= bytes;
  });
}

void CatalogSpace::NoteWrite(uint64_t bytes) {
  uncompacted_ += bytes;
  if (unmeasured_.fetch_add(bytes) + bytes < kMeasureBytes && !behind_.load()) return;
  uint64_t progress = progress_.load();
  Measure();
  // Removing records takes space, too, until they are compacted.
  if (surplus_.load() < static_cast<int64_t>(kMargin) && MayCompact()) Request(Work::kCompact);
  for (; behind_.load(); Measure()) {
    MutexLock lock(mutex_);
    // A failure is known before it counts as progress.
    while (progress_.load() == progress && waiting_.load() == 0 && !closed_ && !catalog_.failed()) {
      changed_.wait(lock.native());
    }
    if (waiting_.load() > 0 || closed_ || catalog_.failed()) return;
    progress = progress_.load();
  }
}

void CatalogSpace::NoteProgress() {
  MutexLock lock(mutex_);
  ++progress_;
  changed_.notify_all();
}

void CatalogSpace::Measure() {
  MutexLock lock(measuring_);
  MeasureLocked();
}

void CatalogSpace::MeasureLocked() {
  unmeasured_ = 0;
  measured_ = Clock::now();
  const Usage usage = catalog_.usage();
  const uint64_t need = NeedOf(usage.stored + usage.memory);
  need_ = need;
  memory_ = usage.memory;
  behind_ = usage.behind;
  surplus_ = static_cast<int64_t>(FreeBytes()) - static_cast<int64_t>(usage.memory + need);
}

uint64_t CatalogSpace::FreeBytes() const {
  struct statvfs space = {};
  if (fstatvfs(directory_.get(), &space) != 0) return 0;
  return uint64_t{space.f_bavail} * space.f_frsize;
}

uint64_t CatalogSpace::FreeSpace() {
  Measure();
  const int64_t free = surplus_.load() - static_cast<int64_t>(3 * claimed_.load() + kMargin);
  return waiting_.load() == 0 && free > 0 ? static_cast<uint64_t>(free) : 0;
}

void CatalogSpace::LogFull(bool full) {
  if (logged_full_.exchange(full) == full) return;
  if (full) {
    spdlog::warn("{}: the filesystem of the catalog is full ({} free): writing and creating fail with ENOSPC until "
                 "there is more space; deleting works",
                 path_, FormatSize(ByteCount{FreeBytes()}));
  } else {
    spdlog::info("{}: the filesystem of the catalog has space again", path_);
  }
}

// A caller who keeps the filesystem full does not keep everybody waiting: after a compaction the next one begins only
// after twice its duration, unless much was written. Callers that arrive during a compaction wait for it.
bool CatalogSpace::MayCompact() {
  const uint64_t written = uncompacted_.load();
  MutexLock lock(mutex_);
  if (compacting_) return true;
  return written > 0 && (Clock::now() >= next_compaction_ || written >= need_.load() / kMuchWritten);
}

// Returns the number of the run that does the work.
uint64_t CatalogSpace::Request(Work work) {
  MutexLock lock(mutex_);
  if (work == Work::kCompact && compacting_) return running_;
  compacts_ = compacts_ || work == Work::kCompact;
  requested_ = running_ + 1;
  work_.notify_one();
  return requested_;
}

Result<void> CatalogSpace::Do(Work work) {
  const uint64_t run = Request(work);
  MutexLock lock(mutex_);
  while (done_ < run && waiting_.load() == 0 && !closed_) changed_.wait(lock.native());
  if (done_ >= run) return result_;
  return Error{ErrorCode::kNoSpace,
               fmt::format("{}: the filesystem of the catalog is full; make some space there", path_)};
}

void CatalogSpace::RunWork() {
  MutexLock lock(mutex_);
  while (true) {
    while (requested_ == running_ && !closed_) work_.wait(lock.native());
    if (closed_) return;
    running_ = requested_;
    const bool compacts = compacting_ = std::exchange(compacts_, false);
    lock.Unlock();
    if (compacts) uncompacted_ = 0;
    const auto start = Clock::now();
    auto result = catalog_.work(compacts ? Work::kCompact : Work::kFlush);
    const auto end = Clock::now();
    lock.Lock();
    compacting_ = false;
    if (compacts) next_compaction_ = end + kPauseFactor * (end - start);
    result_ = std::move(result);
    done_ = running_;
    changed_.notify_all();
  }
}

void CatalogSpace::Await(const std::function<bool()>& attempt) {
  MutexLock lock(mutex_);
  if (closed_ || !awaits_space_ || std::this_thread::get_id() == opener_) return;
  LogFull(/*full=*/true);
  ++waiting_;
  changed_.notify_all();
  for (Clock::duration pause = kFirstPause; !closed_; pause = std::min<Clock::duration>(2 * pause, kLongestPause)) {
    retry_.wait_for(lock.native(), pause);
    lock.Unlock();
    const bool done = attempt();
    lock.Lock();
    if (done) break;
  }
  --waiting_;
}

}  // namespace weightfs
