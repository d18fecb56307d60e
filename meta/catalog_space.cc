// SPDX-License-Identifier: Apache-2.0
#include "meta/catalog_space.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/size_text.h"
#include "common/units.h"

namespace weightfs {
namespace {

constexpr uint64_t kMeasureBytes = kMiB;  // the surplus is measured again after this much was written
// Every batch is written to the log, and later to a table.
constexpr uint64_t kWritesPerByte = 2;
// The pause after a compaction for lack of space, in durations of that compaction.
constexpr int kPauseFactor = 2;
// This share of the need is much.
constexpr uint64_t kMuchWritten = 32;

// The bytes that this process can still write to the filesystem. Root may use the blocks that are kept for it.
uint64_t FreeBytes(int directory) {
  struct statvfs space = {};
  if (fstatvfs(directory, &space) != 0) return 0;
  return uint64_t{geteuid() == 0 ? space.f_bfree : space.f_bavail} * space.f_frsize;
}

}  // namespace

uint64_t CatalogSpace::NeedOf(uint64_t catalog_bytes) {
  // Whole MiB, so that the reserve seldom changes.
  return std::clamp(RoundUp(2 * catalog_bytes, kMiB), kLeastNeed, kLargestNeed);
}

Result<std::unique_ptr<CatalogSpace>> CatalogSpace::Open(const GuardedDirectory& directory) {
  UniqueFd descriptor(open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) return SystemError(directory.path(), "cannot be opened");
  ASSIGN_OR_RETURN(ReserveFile reserve, ReserveFile::Open(directory, kReserveName));
  return std::unique_ptr<CatalogSpace>(
      new CatalogSpace(directory.path(), std::move(descriptor), std::move(reserve)));
}

void CatalogSpace::Start(std::function<uint64_t()> size, std::function<void()> compact) {
  size_ = std::move(size);
  compact_ = std::move(compact);
  Measure();
}

int64_t CatalogSpace::LeastSurplus(KvChange change) const {
  const auto need = static_cast<int64_t>(need_.load(std::memory_order_relaxed));
  switch (change) {
    case KvChange::kGrow: return static_cast<int64_t>(kMargin);
    case KvChange::kUpdate: return -need / 2;
    default: return -need / 8 * 7;
  }
}

Result<void> CatalogSpace::Check(KvChange change) {
  if (Allows(change)) return {};
  Measure();
  if (!Allows(change) && Compact()) Measure();
  if (!Allows(change)) {
    LogFull(/*full=*/true);
    return ErrorCode::kNoSpace;
  }
  if (change == KvChange::kGrow) LogFull(/*full=*/false);
  return {};
}

void CatalogSpace::NoteWrite(uint64_t bytes) {
  const uint64_t use = kWritesPerByte * bytes;
  surplus_.fetch_sub(static_cast<int64_t>(use), std::memory_order_relaxed);
  uncompacted_.fetch_add(use, std::memory_order_relaxed);
  if (unmeasured_.fetch_add(use, std::memory_order_relaxed) + use >= kMeasureBytes) Measure();
}

void CatalogSpace::Measure() {
  unmeasured_.store(0, std::memory_order_relaxed);
  const uint64_t need = NeedOf(size_());  // takes RocksDB's mutex, under which RocksDB may call Release
  MutexLock lock(mutex_);
  reserve_.Resize(need + kSurplus);
  need_.store(need, std::memory_order_relaxed);
  const uint64_t free = FreeBytes(directory_.get());
  const int64_t surplus = static_cast<int64_t>(free + reserve_.size()) - static_cast<int64_t>(need);
  surplus_.store(surplus, std::memory_order_relaxed);
}

void CatalogSpace::LogFull(bool full) {
  MutexLock lock(mutex_);
  if (std::exchange(logged_full_, full) == full) return;
  if (full) {
    spdlog::warn("{}: the filesystem of the catalog is full ({} free, {} in reserve): writing and creating fail with "
                 "ENOSPC until there is more space; deleting works",
                 path_, FormatSize(ByteCount{FreeBytes(directory_.get())}), FormatSize(ByteCount{reserve_.size()}));
  } else {
    spdlog::info("{}: the filesystem of the catalog has space again", path_);
  }
}

bool CatalogSpace::Release(uint64_t bytes) {
  MutexLock lock(mutex_);
  const uint64_t held = reserve_.size();
  if (held == 0) return false;
  reserve_.Resize(held - std::min(held, bytes));
  return true;
}

// Callers that arrive during a compaction wait for it. A caller who keeps the filesystem full does not keep everybody
// waiting: after a compaction the next one begins only after twice its duration, unless much was written.
bool CatalogSpace::Compact() {
  MutexLock lock(compacting_);
  const uint64_t written = uncompacted_.load();
  if (written == 0) return Clock::now() < next_compaction_;  // somebody else has just compacted
  const auto start = Clock::now();
  if (start < next_compaction_ && written < need_.load() / kMuchWritten) return false;
  uncompacted_.store(0);
  compact_();
  const auto end = Clock::now();
  next_compaction_ = end + kPauseFactor * (end - start);
  return true;
}

uint64_t CatalogSpace::FreeSpace() {
  Measure();
  const int64_t surplus = surplus_.load(std::memory_order_relaxed) - static_cast<int64_t>(kMargin);
  return static_cast<uint64_t>(std::max<int64_t>(surplus, 0));
}

}  // namespace weightfs
