// SPDX-License-Identifier: Apache-2.0
#include "store/wal/log_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/log.h"
#include "common/start_thread.h"

namespace weightfs::wal {
namespace {

constexpr uint64_t kLeastSegment = kSmallBatch;
constexpr uint64_t kSegmentsOfSpace = 4096;  // a segment is this part of the space
constexpr uint64_t kLogsOfSpace = 256;       // and the log has this part of it before a checkpoint is due
constexpr uint64_t kLargestLeastLog = 8 * kMiB;

// Streams of an earlier log may have left frames anywhere. A random number distinguishes them.
uint64_t FirstStream() {
  uint64_t number = 0;
  const Uuid random = NewUuid();
  std::memcpy(&number, random.data(), sizeof(number));
  return number >> 1;
}

BlockCount PartOf(BlockCount space, uint64_t parts, uint64_t least, uint64_t most) {
  return BlocksFor(ByteCount{std::clamp(ToBytes(space).value / parts, least, most)});
}

}  // namespace

LogWriter::LogWriter(KvStore& index, DeviceSet& devices, SpaceManager& space, WriterOptions options)
    : index_(index),
      devices_(devices),
      space_(space),
      options_(std::move(options)),
      segment_size_(PartOf(space.total(), kSegmentsOfSpace, kLeastSegment, ToBytes(kLargestSegment).value)),
      least_log_(PartOf(space.total(), kLogsOfSpace, 4 * kLeastSegment, kLargestLeastLog)),
      root_(options_.root),
      root_sequence_(options_.root_sequence),
      next_stream_(FirstStream()),
      retry_(options_.first_retry),
      durable_until_(Clock::now()) {}

Result<std::unique_ptr<LogWriter>> LogWriter::Start(KvStore& index, DeviceSet& devices, SpaceManager& space,
                                                    WriterOptions options) {
  std::unique_ptr<LogWriter> writer(new LogWriter(index, devices, space, std::move(options)));
  RETURN_IF_ERROR(writer->Prepare());
  if (writer->options_.started) RETURN_IF_ERROR(writer->options_.started());
  ASSIGN_OR_RETURN(writer->timer_, StartThread("weightfs-log", [raw = writer.get()] { raw->KeepTimes(); }));
  const auto checkpoints = [raw = writer.get()] {
    while (raw->WaitForCheckpoint()) raw->ContinueCheckpoint();
  };
  ASSIGN_OR_RETURN(writer->checkpointer_, StartThread("weightfs-checkp", checkpoints));
  writer->options_.gate->Open(writer.get());
  return writer;
}

LogWriter::~LogWriter() {
  if (timer_.joinable()) static_cast<void>(Stop().has_value());
}

// Everything up to the tail is durable: the mount has flushed the devices before it read the log.
Result<void> LogWriter::Prepare() {
  {
    MutexLock lock(mutex_);
    appended_ = durable_ = marked_ = options_.tail.version.sequence;
  }
  {
    MutexLock io(io_);
    ASSIGN_OR_RETURN(memory_, HugePageMemory::Map(kLargestFrame));
    ChooseFirstCopies();
    begun_ = written_ = mark_ = options_.tail.version.sequence;
    held_ = options_.replaced;
    blocks_ = BlocksOf(held_);
    if (root_) {
      blocks_ += BlocksOf(SegmentsOf(*root_));
      log_.emplace(devices_, options_.store_id, root_->log, options_.tail.position, &memory_);
      // The mark comes first: what the entries behind the old one have freed may be used from now on.
      root_->logged = true;
      root_->durable = begun_;
      // Of the paths of this mount, unless they are so long that only a root with lists has space for them.
      const std::string before = std::exchange(root_->description, options_.description);
      if (EncodeRoot(*root_).empty()) root_->description = before;
      RETURN_IF_ERROR(WriteOnDevices(*root_));
      Refill();
      if (!options_.tail.clean) RETURN_IF_ERROR(Restart());
      UpdateStatistics();
      return {};
    }
    log_.emplace(NewStream());
    Refill();
  }
  RETURN_IF_ERROR(BeginCheckpoint());
  while (checkpoint_->records->Valid()) RETURN_IF_ERROR(WritePart());
  return FinishCheckpoint();
}

Result<void> LogWriter::Append(std::string_view entry, uint64_t sequence, bool accepted) {
  if (entry.size() > options_.largest_entry) return ErrorCode::kNoSpace;
  if (entry.size() > ToBytes(segment_size_).value) {
    RETURN_IF_ERROR(ReserveFor(ByteCount{entry.size()}, sequence, accepted));
  }
  bool full = false;
  {
    MutexLock lock(mutex_);
    while (tight_ && CheckpointComes() && !failure_) checkpointed_.wait(lock.native());
    const auto now = Clock::now();
    if (appended_ == durable_) {
      commit_due_ = now + options_.commit_interval;
      durable_until_ = now;
    }
    const bool first = pending_.starts.empty();
    if (first) write_due_ = now + options_.write_delay;
    appended_ = sequence;
    pending_.starts.push_back({pending_.bytes.size(), sequence});
    pending_.bytes += entry;
    full = BlocksFor(ByteCount{pending_.bytes.size()}) > segment_size_;
    if (first && !ticking_) wake_.notify_one();
  }
  if (!full) return {};
  MutexLock io(io_);
  static_cast<void>(WritePending().has_value());  // an error stays
  return {};
}

void FlushGate::Open(LogWriter* log) {
  MutexLock lock(mutex_);
  log_ = log;
}

void FlushGate::Commit() {
  MutexLock lock(mutex_);
  if (log_ != nullptr) static_cast<void>(log_->Commit().has_value());  // an error stays
}

Result<void> LogWriter::Commit() {
  uint64_t begun = 0;
  {
    MutexLock lock(mutex_);
    begun = commits_;
  }
  MutexLock io(io_);
  {
    MutexLock lock(mutex_);
    if (failure_) return *failure_;
    if (commits_ != begun) return {};  // one that began after the call has ended
  }
  return CommitPending();
}

Result<void> LogWriter::CommitPending() {
  {
    MutexLock lock(mutex_);
    if (failure_) return *failure_;
    ++commits_;
  }
  RETURN_IF_ERROR(WritePending());
  return Flush();
}

// Writes what was appended. After an error nothing more is written.
Result<void> LogWriter::WritePending() {
  Chunk chunk;
  uint64_t durable = 0;
  {
    MutexLock lock(mutex_);
    if (failure_) return *failure_;
    std::swap(chunk, pending_);
    durable = durable_;
  }
  if (chunk.starts.empty()) return {};
  if (auto written = WriteEntries(chunk, durable); !written) return Fail(written.error());
  UpdateStatistics();
  return {};
}

Result<void> LogWriter::WriteEntries(const Chunk& chunk, uint64_t durable) {
  std::string_view rest = chunk.bytes;
  size_t next = 0;  // the first entry that begins at or behind the first byte of `rest`
  while (!rest.empty()) {
    const size_t written = chunk.bytes.size() - rest.size();
    for (; next < chunk.starts.size() && chunk.starts[next].offset < written; ++next) {
      begun_ = chunk.starts[next].sequence;
    }
    if (log_->full()) {
      const BlockCount more = std::clamp(BlocksFor(ByteCount{rest.size()}), segment_size_, kLargestSegment);
      RETURN_IF_ERROR(Extend(*log_, more, begun_));
    }
    const size_t first_entry = next < chunk.starts.size() ? chunk.starts[next].offset - written : kNoEntry;
    RETURN_IF_ERROR(log_->WriteFrame(&rest, first_entry, durable));
  }
  begun_ = written_ = chunk.starts.back().sequence;
  mark_ = durable;
  return {};
}

// Makes all frames durable, and all data that was written before. Before that, WritePending has taken every entry.
Result<void> LogWriter::Flush() {
  const uint64_t written = begun_;
  const auto now = Clock::now();
  auto flushed = devices_.FlushWritten();
  // Another machine may have replaced what was flushed.
  if (flushed && options_.still_owned) flushed = options_.still_owned();
  if (!flushed) return Fail(flushed.error());
  {
    MutexLock lock(mutex_);
    if (written > durable_) claim_due_ = now + options_.claim_delay;
    durable_ = std::max(durable_, written);
    marked_ = std::max(marked_, mark_);
    durable_until_ = now;
    commit_due_ = now + options_.commit_interval;  // of what was appended meanwhile
    if (durable_ > marked_ && !ticking_) wake_.notify_one();
  }
  ReleaseDeferred();
  return {};
}

// Makes a mark of everything that is durable.
Result<void> LogWriter::Claim() {
  {
    MutexLock lock(mutex_);
    if (failure_) return *failure_;
    if (marked_ == durable_) return {};
  }
  RETURN_IF_ERROR(WritePending());
  uint64_t durable = 0;
  {
    MutexLock lock(mutex_);
    durable = durable_;
  }
  if (mark_ < durable) {
    const auto write = [&]() REQUIRES(io_) -> Result<void> {
      if (log_->full()) RETURN_IF_ERROR(Extend(*log_, segment_size_, begun_));
      std::string_view nothing;
      return log_->WriteFrame(&nothing, kNoEntry, durable);
    };
    if (auto written = write(); !written) return Fail(written.error());
    mark_ = durable;
  }
  return Flush();
}

Error LogWriter::Fail(const Error& error) {
  failed_.store(true, std::memory_order_release);
  MutexLock lock(mutex_);
  if (!failure_) {
    failure_ = Error{ErrorCode::kIo};
    checkpointed_.notify_all();
    spdlog::critical("the log of the catalog cannot be written: {}; the mount is read-only from now on: unmount, find "
                     "the cause, run weightfs verify",
                     ToString(error));
  }
  return *failure_;
}

void LogWriter::Retire(std::vector<DeviceRun> runs) {
  if (runs.empty()) return;
  {
    MutexLock lock(mutex_);
    if (appended_ > marked_) {
      deferred_.push_back({appended_, std::move(runs)});
      return;
    }
  }
  space_.Retire(runs);
}

void LogWriter::ReleaseRetired() {
  {
    MutexLock lock(mutex_);
    if (deferred_.empty()) return;
  }
  MutexLock io(io_);
  auto claimed = CommitPending();
  if (claimed) claimed = Claim();  // an error stays
}

// What has left deferred_ counts as retired: whoever finds neither has nothing to wait for.
void LogWriter::ReleaseDeferred() {
  bool released = false;
  MutexLock lock(mutex_);
  while (!deferred_.empty() && deferred_.front().sequence <= marked_) {
    const std::vector<DeviceRun> runs = std::move(deferred_.front().runs);  // perhaps a million
    lock.Unlock();
    space_.Retire(runs);
    lock.Lock();
    deferred_.pop_front();
    released = true;
  }
  lock.Unlock();
  if (released) Refill();
}

void LogWriter::Renew() {
  MutexLock lock(mutex_);
  ++renewals_;
  checkpoint_wake_.notify_one();
}

Result<void> LogWriter::Stop() {
  {
    MutexLock lock(mutex_);
    if (stopping_) return {};
    stopping_ = true;
    wake_.notify_one();
    checkpoint_wake_.notify_one();
    checkpointed_.notify_all();
  }
  timer_.join();
  if (checkpointer_.joinable()) checkpointer_.join();  // it may not have started
  Result<void> ended;
  {
    MutexLock io(io_);
    ended = CommitPending();
    if (ended) ended = Claim();
  }
  options_.gate->Open(nullptr);  // last: what the index stores before must be durable
  return ended;
}

LogStatistics LogWriter::statistics() const {
  MutexLock lock(mutex_);
  return statistics_;
}

std::chrono::nanoseconds LogWriter::age() const {
  MutexLock lock(mutex_);
  return appended_ == durable_ ? Clock::duration(0) : std::max(Clock::now() - durable_until_, Clock::duration(1));
}

void LogWriter::UpdateStatistics() {
  const bool due = NeedsCheckpoint();
  MutexLock lock(mutex_);
  statistics_.bytes = ToBytes(blocks_).value;
  statistics_.intact = !failure_ && renewals_ == renewed_;
  if (due && !std::exchange(checkpoint_due_, due)) checkpoint_wake_.notify_one();
}

void LogWriter::KeepTimes() {
  while (WaitForTime()) {
    MutexLock io(io_);
    bool write = false, commit = false, claim = false;
    {
      MutexLock lock(mutex_);
      const auto now = Clock::now();
      write = !pending_.starts.empty() && write_due_ <= now;
      commit = appended_ > durable_ && commit_due_ <= now;
      claim = durable_ > marked_ && claim_due_ <= now;
    }
    Result<void> done;
    if (write) done = WritePending();
    if (commit && done) done = CommitPending();
    if (claim && done) done = Claim();
  }
}

// Waits until something must be written. Returns false when the thread must end. While anything is to be written it
// looks after each shortest delay, so that a program that syncs again and again need not wake it.
bool LogWriter::WaitForTime() {
  const auto shortest = std::min({options_.write_delay, options_.commit_interval, options_.claim_delay});
  MutexLock lock(mutex_);
  while (!stopping_) {
    auto due = Clock::time_point::max();
    if (!failure_) {
      if (!pending_.starts.empty()) due = std::min(due, write_due_);
      if (appended_ > durable_) due = std::min(due, commit_due_);
      if (durable_ > marked_) due = std::min(due, claim_due_);
    }
    const auto now = Clock::now();
    if (due <= now) return true;
    ticking_ = due != Clock::time_point::max();
    wake_.wait_until(lock.native(), ticking_ ? std::min(due, now + shortest) : due);
  }
  return false;
}

StreamWriter LogWriter::NewStream() {
  return {devices_, options_.store_id, Stream{.id = next_stream_++, .segments = {}}, {}, &memory_};
}

}  // namespace weightfs::wal
