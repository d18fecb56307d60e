// SPDX-License-Identifier: Apache-2.0
#include "store/wal/log_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/log.h"
#include "common/utc_time.h"
#include "meta/keys.h"
#include "store/wal/logged_kv_store.h"

namespace weightfs::wal {
namespace {

constexpr size_t kPartSize = 256 * kKiB;        // of a checkpoint, written in one hold of io_
constexpr uint64_t kLeastSegment = 32 * kKiB;
constexpr uint64_t kSegmentsOfSpace = 4096;     // a segment is this part of the space
constexpr uint64_t kLogsOfSpace = 256;          // and the log has this part of it before a checkpoint is due
constexpr uint64_t kLargestLeastLog = 8 * kMiB;
constexpr std::chrono::minutes kLongestRetry{5};
constexpr uint64_t kStripe = 1024;  // blocks: successive segments go to successive devices

// Streams of an earlier log may have left frames anywhere. A random number distinguishes them.
uint64_t FirstStream() {
  uint64_t number = 0;
  const Uuid random = NewUuid();
  std::memcpy(&number, random.data(), sizeof(number));
  return number >> 1;
}

Error TooManySegments() {
  return {ErrorCode::kNoSpace, "the free space of the pool is in too many small pieces"};
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
  writer->timer_ = std::thread([raw = writer.get()] { raw->KeepTimes(); });
  writer->checkpointer_ = std::thread([raw = writer.get()] {
    while (raw->WaitForCheckpoint()) raw->ContinueCheckpoint();
  });
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
    begun_ = mark_ = options_.tail.version.sequence;
    for (const auto& root : {options_.root, options_.replaced}) {
      if (!root) continue;
      for (const Stream* stream : StreamsOf(*root)) blocks_ += BlocksOf(stream->segments);
    }
    if (options_.replaced) {
      for (const Stream* stream : StreamsOf(*options_.replaced)) {
        held_.insert(held_.end(), stream->segments.begin(), stream->segments.end());
      }
    }
    if (root_) {
      log_.emplace(devices_, options_.store_id, root_->log, options_.tail.position, &memory_);
      // The mark comes first: what the entries behind the old one have freed may be used from now on.
      root_->logged = true;
      root_->durable = begun_;
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

// Ends the old log at its last entry, and goes on behind it.
Result<void> LogWriter::Restart() {
  StreamWriter old = *log_;
  const std::vector<Segment> rest = log_->Cut();
  auto extended = Extend(*log_, segment_size_, begun_);
  if (extended) {
    Release(rest);
    return {};
  }
  // After a failed write of a root, some device may have one that ends the log here.
  if (roots_differ_) return Fail(extended.error());
  log_.emplace(std::move(old));
  return extended;
}

Result<void> LogWriter::Append(std::string entry, uint64_t sequence) {
  if (entry.size() > ToBytes(segment_size_).value) RETURN_IF_ERROR(ReserveFor(ByteCount{entry.size()}));
  bool full = false;
  {
    MutexLock lock(mutex_);
    while (tight_ && checkpointing_ && !failure_ && !stopping_) checkpointed_.wait(lock.native());
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
    if (first) wake_.notify_one();
  }
  if (!full) return {};
  MutexLock io(io_);
  static_cast<void>(WritePending().has_value());  // an error stays
  return {};
}

// Reserves what an entry needs, even if all free space is in single blocks, beside what the next checkpoint needs.
Result<void> LogWriter::ReserveFor(ByteCount entry) {
  MutexLock io(io_);
  const auto reserve = [&]() REQUIRES(io_) {
    Refill();
    const BlockCount needed = Needed() + BlockCount{entry.value / (kBlockSize - kFrameHeaderSize) + 1};
    const BlockCount held = reservation_.held();
    return held < needed ? space_.Reserve(&reservation_, needed - held, /*privileged=*/true) : Result<void>();
  };
  if (reserve()) return {};
  // What earlier entries have freed is perhaps enough.
  RETURN_IF_ERROR(CommitPending());
  RETURN_IF_ERROR(Claim());
  return reserve();
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
  begun_ = chunk.starts.back().sequence;
  mark_ = durable;
  return {};
}

// Makes all frames durable, and all data that was written before. Before that, WritePending has taken every entry.
Result<void> LogWriter::Flush() {
  const uint64_t written = begun_;
  const auto now = Clock::now();
  auto flushed = FlushDevices();
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
    if (durable_ > marked_) wake_.notify_one();
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

void LogWriter::Retire(const std::vector<DeviceRun>& runs) {
  if (runs.empty()) return;
  MutexLock lock(mutex_);
  deferred_.push_back({appended_, runs});
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

void LogWriter::ReleaseDeferred() {
  while (true) {
    std::vector<DeviceRun> runs;
    {
      MutexLock lock(mutex_);
      if (deferred_.empty() || deferred_.front().sequence > marked_) return;
      runs = std::move(deferred_.front().runs);
      deferred_.pop_front();
    }
    space_.Retire(runs);
  }
}

Result<void> LogWriter::CheckSpace(KvChange change) {
  const auto fits = [&]() EXCLUDES(io_) {
    if (change == KvChange::kRemove || grows_ || (updates_ && change == KvChange::kUpdate)) return true;
    MutexLock io(io_);
    Refill();
    return grows_ || (updates_ && change == KvChange::kUpdate);
  };
  if (failed()) return ErrorCode::kReadOnly;
  if (fits()) return {};
  {
    MutexLock lock(mutex_);
    if (stopping_ || (!checkpointing_ && (!checkpoint_due_ || given_up_))) return ErrorCode::kNoSpace;
    const uint64_t before = statistics_.checkpoints;
    while (statistics_.checkpoints == before && !given_up_ && !stopping_ && !failure_) {
      checkpointed_.wait(lock.native());
    }
  }
  return fits() ? Result<void>() : ErrorCode::kNoSpace;
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
  checkpointer_.join();
  options_.gate->Open(nullptr);
  MutexLock io(io_);
  RETURN_IF_ERROR(CommitPending());
  return Claim();
}

LogStatistics LogWriter::statistics() const {
  MutexLock lock(mutex_);
  LogStatistics statistics = statistics_;
  statistics.flushes = flushes_;
  return statistics;
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

// Waits until something must be written. Returns false when the thread must end.
bool LogWriter::WaitForTime() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    auto due = Clock::time_point::max();
    if (!failure_) {
      if (!pending_.starts.empty()) due = std::min(due, write_due_);
      if (appended_ > durable_) due = std::min(due, commit_due_);
      if (durable_ > marked_) due = std::min(due, claim_due_);
    }
    if (due <= Clock::now()) return true;
    if (due == Clock::time_point::max()) {
      wake_.wait(lock.native());
    } else {
      wake_.wait_until(lock.native(), due);
    }
  }
  return false;
}

// Waits until a checkpoint is in progress or due. Returns false when the thread must end.
bool LogWriter::WaitForCheckpoint() {
  MutexLock lock(mutex_);
  while (true) {
    const bool renews = renewals_ != renewed_;
    const bool wanted = !failure_ && (checkpointing_ || renews || checkpoint_due_);
    const bool ready = wanted && (checkpointing_ || Clock::now() >= retry_at_);
    if (stopping_) return ready && renews;
    if (ready) return true;
    if (wanted) {
      checkpoint_wake_.wait_until(lock.native(), retry_at_);
    } else {
      checkpoint_wake_.wait(lock.native());
    }
  }
}

// Gives the stream more segments. Those of the log also enter the root.
Result<void> LogWriter::Extend(StreamWriter& stream, BlockCount count, uint64_t begun) {
  Refill();
  const BlockCount held = reservation_.held();
  if (held < count) {
    auto reserved = space_.Reserve(&reservation_, count - held, true);
    const bool log = log_ && &stream == &*log_;
    if (!reserved && (!log || held.value == 0)) return reserved;
    if (!reserved) count = held;  // the log goes on in less
  }
  const SpaceManager::Request request{
      .ino = InodeId{}, .first = FileBlock{allocations_++ * kStripe}, .count = count};
  ASSIGN_OR_RETURN(const auto runs, space_.Allocate(request, &reservation_));
  space_.AddUsed(static_cast<int64_t>(count.value));
  blocks_ += count;
  stream.Extend(runs, begun);
  if (!root_ || !log_ || &stream != &*log_) return {};
  Root root = *root_;
  root.log = stream.stream();
  return WriteRoot(std::move(root));
}

// The log has become as long as the checkpoint, so that reading both takes about twice the time; or it has taken too
// much of the space for the next checkpoint. What a checkpoint cannot free does not count.
bool LogWriter::NeedsCheckpoint() const {
  if (!root_) return false;
  const BlockCount log = BlocksOf(log_->stream().segments), grown = log - std::min(log, kept_);
  return grown > std::max(BlocksOf(root_->checkpoint_stream.segments), least_log_) ||
         (grown > BlockCount{least_log_.value / 4} && !updates_);
}

StreamWriter LogWriter::NewStream() {
  return {devices_, options_.store_id, Stream{.id = next_stream_++, .segments = {}}, {}, &memory_};
}

// Takes the next step of the checkpoint.
void LogWriter::ContinueCheckpoint() {
  Result<void> done;
  if (!checkpoint_) {
    done = BeginCheckpoint();
  } else if (checkpoint_->records->Valid()) {
    done = WritePart();
  } else {
    done = FinishCheckpoint();
  }
  if (!done) GiveUpCheckpoint(done.error());
}

Result<void> LogWriter::BeginCheckpoint() {
  uint64_t renewing = 0;
  {
    MutexLock lock(mutex_);
    checkpoint_due_ = given_up_ = false;
    checkpointing_ = true;
    renewing = renewals_;
  }
  {
    MutexLock io(io_);
    RETURN_IF_ERROR(SettleRoots());
  }
  // The snapshot has its version, so no lock keeps both together.
  auto records = index_.NewIterator({});
  const std::string key = keys::Store(kVersionFact);
  records->Seek(key);
  Version version;
  if (!records->Valid()) RETURN_IF_ERROR(records->status());
  if (records->Valid() && records->key() == key) {
    const auto decoded = DecodeVersion(records->value());
    if (!decoded) return Error{ErrorCode::kCorrupt, "the version of the catalog cannot be decoded"};
    version = *decoded;
  }
  records->Seek({});
  MutexLock io(io_);
  checkpoint_.emplace(Checkpoint{std::move(records), version, NewStream(), renewing});
  return {};
}

// Writes about kPartSize of records.
Result<void> LogWriter::WritePart() {
  Checkpoint& checkpoint = *checkpoint_;
  KvBatch part;
  const std::string version = keys::Store(kVersionFact);
  size_t size = 0;
  for (KvIterator& records = *checkpoint.records; records.Valid() && size < kPartSize; records.Next()) {
    if (records.key() == version) continue;
    part.Put(std::string(records.key()), std::string(records.value()));
    size += records.key().size() + records.value().size();
  }
  const std::string entry = EncodePart(part, checkpoint.version);
  std::string_view rest = entry;
  MutexLock io(io_);
  for (size_t first_entry = 0; !rest.empty(); first_entry = kNoEntry) {
    if (checkpoint.stream.full()) {
      RETURN_IF_ERROR(Extend(checkpoint.stream, std::max(segment_size_, BlocksFor(ByteCount{rest.size()})), 0));
    }
    RETURN_IF_ERROR(checkpoint.stream.WriteFrame(&rest, first_entry));
  }
  return {};
}

// Makes the root refer to the new checkpoint, and frees the old one and the log before it.
Result<void> LogWriter::FinishCheckpoint() {
  RETURN_IF_ERROR(checkpoint_->records->status());
  // The root must not refer to frames, or to entries, that a crash takes back. The next mount catches the index up from
  // what that has stored, so the log must reach back to it.
  RETURN_IF_ERROR(Commit());
  RETURN_IF_ERROR(index_.Sync());
  const Version version = checkpoint_->version;
  MutexLock io(io_);
  std::vector<Segment> old;
  if (root_) old = root_->checkpoint_stream.segments;
  StreamWriter log = *log_;  // if the root cannot be written, the log goes on after the old checkpoint
  const auto trimmed = log.TrimTo(version.sequence);
  old.insert(old.end(), trimmed.begin(), trimmed.end());
  Root root;
  root.checkpoint = version;
  root.checkpoint_frames = checkpoint_->stream.frames();
  root.checkpoint_stream = checkpoint_->stream.stream();
  root.log = log.stream();
  RETURN_IF_ERROR(WriteRoot(std::move(root)));
  log_.emplace(std::move(log));
  kept_ = log_->stream().segments.empty() ? BlockCount{} : log_->stream().segments.back().run.run.count;
  const uint64_t renewed = checkpoint_->renewing;
  checkpoint_.reset();
  Release(old);
  retry_ = options_.first_retry;
  if (std::exchange(reported_, false)) spdlog::info("the checkpoint of the catalog is complete now");
  {
    MutexLock lock(mutex_);
    renewed_ = renewed;
    checkpointing_ = checkpoint_due_ = false;
    ++statistics_.checkpoints;
    checkpointed_.notify_all();
  }
  UpdateStatistics();
  return {};
}

// Ends a checkpoint that cannot be completed. The log goes on after the old one.
void LogWriter::GiveUpCheckpoint(const Error& error) {
  if (!std::exchange(reported_, true)) {
    spdlog::warn("a checkpoint of the catalog cannot be written: {}; it will be tried again", ToString(error));
  }
  const auto retry = std::exchange(retry_, std::min<Clock::duration>(2 * retry_, kLongestRetry));
  MutexLock io(io_);
  if (checkpoint_) Release(checkpoint_->stream.stream().segments);
  checkpoint_.reset();
  {
    MutexLock lock(mutex_);
    retry_at_ = Clock::now() + retry;
    checkpointing_ = false;
    given_up_ = true;
    checkpointed_.notify_all();
  }
  UpdateStatistics();
}

Result<void> LogWriter::FlushDevices() {
  ASSIGN_OR_RETURN(const size_t flushed, devices_.FlushWritten());
  flushes_ += flushed;
  return {};
}

// Writes the next root to all devices and flushes them.
Result<void> LogWriter::WriteRoot(Root root) {
  root.store_id = options_.store_id;
  root.logged = true;
  root.description = options_.description;
  root.time_ns = UtcNowNs();
  root.lists.clear();
  const size_t size = EncodeRoot(root).size();
  auto written = size == 0 || size > options_.largest_root ? WriteLists(&root) : Result<void>();
  root.durable = mark_;
  if (written) written = WriteOnDevices(root);
  // A program that does not know lists must find no older root.
  if (written && !root.lists.empty() && (!root_ || root_->lists.empty())) written = WriteOnDevices(root);
  if (!written) {
    ReleaseLists(root);
    return written;
  }
  const std::optional<Root> old = std::exchange(root_, std::move(root));
  if (old) ReleaseLists(*old);
  Release(std::exchange(held_, {}));
  return {};
}

// Writes the lists of the segments, and makes them durable, because a root may refer only to such.
Result<void> LogWriter::WriteLists(Root* root) {
  const std::string bytes = EncodeList(*root);
  root->list_size = bytes.size();
  if (bytes.size() > kLargestList) return TooManySegments();
  while (root->lists.size() < kListCopies) {
    StreamWriter list = NewStream();
    const auto written = [&]() REQUIRES(io_) -> Result<void> {
      for (std::string_view rest = bytes; !rest.empty();) {
        if (list.full()) RETURN_IF_ERROR(Extend(list, segment_size_, 0));
        RETURN_IF_ERROR(list.WriteFrame(&rest, kNoEntry));
      }
      return {};
    }();
    root->lists.push_back(list.stream());
    RETURN_IF_ERROR(written);
  }
  return FlushDevices();
}

Result<void> LogWriter::WriteOnDevices(Root& root) {
  if (EncodeRoot(root).empty()) return TooManySegments();
  root.sequence = ++root_sequence_;
  roots_differ_ = true;  // until all devices have it
  for (uint16_t index = 0; index < devices_.size(); ++index) {
    root.device = DeviceId{index};
    const std::string bytes = EncodeRoot(root);
    std::memcpy(memory_.data(), bytes.data(), bytes.size());
    for (size_t copy = root.sequence % 2; copy < kRootOffsets.size(); copy += 2) {
      const std::span<const std::byte> memory(memory_.data(), bytes.size());
      RETURN_IF_ERROR(devices_[root.device].Write(ByteOffset{kRootOffsets[copy]}, memory));
    }
    devices_.NoteWrite(root.device);
  }
  RETURN_IF_ERROR(FlushDevices());
  roots_differ_ = false;
  return {};
}

// After a failed write of a root, some devices may have it and others not. Before more space is taken, all get the root
// before it again, so that the space of the failed one is free.
Result<void> LogWriter::SettleRoots() {
  if (!roots_differ_ || !root_) return {};
  RETURN_IF_ERROR(WriteOnDevices(*root_));
  Release(std::exchange(held_, {}));
  return {};
}

void LogWriter::Release(const std::vector<Segment>& segments) {
  if (roots_differ_) {
    held_.insert(held_.end(), segments.begin(), segments.end());
    return;
  }
  std::vector<DeviceRun> runs;
  for (const Segment& segment : segments) runs.push_back(segment.run);
  const BlockCount blocks = BlocksOf(segments);
  blocks_ -= blocks;
  space_.AddUsed(-static_cast<int64_t>(blocks.value));
  space_.Retire(runs);
  Refill();
}

void LogWriter::ReleaseLists(const Root& root) {
  for (const Stream& list : root.lists) Release(list.segments);
}

// The space that completes the next checkpoint, which is at most as long as the old one and the log together, and that
// the log takes meanwhile.
BlockCount LogWriter::Needed() const {
  const BlockCount checkpoint = root_ ? BlocksOf(root_->checkpoint_stream.segments) : BlockCount{};
  const BlockCount next = checkpoint + BlocksOf(log_->stream().segments);
  BlockCount others = next + BlocksOf(held_);
  if (root_) {
    for (const Stream& list : root_->lists) others += BlocksOf(list.segments);
  }
  const BlockCount begun = blocks_ - std::min(blocks_, others);  // of the next one
  return next - std::min(next, begun) + least_log_ + BlockCount{4 * segment_size_.value};
}

// The same, and the space for a log that is as long as it may get. What it takes of that is not reserved anew, so that
// df does not change with each segment.
BlockCount LogWriter::Wanted() const {
  const BlockCount checkpoint = root_ ? BlocksOf(root_->checkpoint_stream.segments) : BlockCount{};
  const BlockCount due = kept_ + std::max(checkpoint, least_log_);  // the length of the log when a checkpoint is due
  const BlockCount log = std::min(BlocksOf(log_->stream().segments), due);
  return BlockCount{checkpoint.value + 2 * due.value + least_log_.value + 4 * segment_size_.value - log.value};
}

// Reserves the space that will be needed. In a full pool there may be less.
void LogWriter::Refill() {
  const BlockCount needed = Needed();
  const BlockCount wanted = std::max(Wanted(), needed);
  for (BlockCount more = wanted - std::min(wanted, reservation_.held()); more.value > 0; more.value /= 2) {
    if (space_.Reserve(&reservation_, more, /*privileged=*/true)) break;
  }
  const uint64_t held = reservation_.held().value, spare = least_log_.value / 4;
  grows_ = held >= needed.value;
  updates_ = held + spare >= needed.value;
  tight_ = held + 3 * spare < needed.value;
}

}  // namespace weightfs::wal
