// SPDX-License-Identifier: Apache-2.0
#include "store/replica/replica_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/log.h"
#include "common/utc_time.h"
#include "meta/keys.h"

namespace weightfs::replica {
namespace {

constexpr size_t kChunkSize = kLargestFrame - kFrameHeaderSize;
constexpr size_t kPartSize = 256 * kKiB;  // of a checkpoint
// With more pending bytes than kSyncPending the thread syncs the catalog itself; with more than the limit it drops
// them.
constexpr uint64_t kWriteNow = 256 * kKiB;  // pending bytes that are written at once
constexpr uint64_t kSyncPending = 16 * kMiB, kPendingLimit = 64 * kMiB;
constexpr uint64_t kLeastSegment = 32 * kKiB;
constexpr uint64_t kSegmentsOfSpace = 4096;  // a segment is this part of the space
constexpr uint64_t kLeastLogSegments = 2;    // before a checkpoint is due
// A small catalog needs an old checkpoint, a log and a new checkpoint at most. They are reserved.
constexpr uint64_t kReservedSegments = kLeastLogSegments + 6;
constexpr std::chrono::minutes kLongestRetry{5};
constexpr uint64_t kStripe = 1024;  // blocks: successive segments go to successive devices

// Streams of an earlier replica may have left frames anywhere. A random number distinguishes them.
uint64_t FirstStream() {
  uint64_t number = 0;
  const Uuid random = NewUuid();
  std::memcpy(&number, random.data(), sizeof(number));
  return number >> 1;
}

Error TooManySegments() {
  return {ErrorCode::kNoSpace, "the free space of the pool is in too many small pieces"};
}

}  // namespace

ReplicaWriter::ReplicaWriter(MirroredKvStore& catalog, DeviceSet& devices, SpaceManager& space, Flush flush,
                             WriterOptions options)
    : catalog_(catalog),
      devices_(devices),
      space_(space),
      flush_(std::move(flush)),
      options_(std::move(options)),
      segment_size_(BlocksFor(ByteCount{std::clamp(ToBytes(space.total()).value / kSegmentsOfSpace, kLeastSegment,
                                                   ToBytes(kLargestSegment).value)})) {
  if (auto memory = HugePageMemory::Map(kLargestFrame)) memory_ = std::move(*memory);
  root_ = options_.root;
  root_sequence_ = options_.root_sequence;
  next_stream_ = root_ ? root_->next_stream : FirstStream();
  retry_ = options_.first_retry;
  if (root_) {
    for (const Stream* stream : StreamsOf(*root_)) blocks_ += BlocksOf(stream->segments);
  }
  Refill();
  if (root_ && memory_.data() != nullptr && !options_.tail.damaged && options_.version == options_.tail.version) {
    log_.emplace(devices_, options_.store_id, root_->log, options_.tail.position, &memory_);
    log_in_root_ = true;
    begun_ = options_.tail.version.sequence;
    collecting_ = true;
  }
  durable_ = options_.tail.version.sequence;
  appended_ = durable_;
  UpdateStatistics();
  thread_ = std::thread([this] { Run(); });
}

ReplicaWriter::~ReplicaWriter() { Stop(); }

void ReplicaWriter::Append(std::string entry, Version version) {
  MutexLock lock(mutex_);
  if (appended_ <= durable_) {
    sync_due_ = Clock::now() + options_.commit_interval;
    wake_.notify_one();
  }
  appended_ = version.sequence;
  if (!collecting_) return;
  if (pending_bytes_ > kPendingLimit) {
    collecting_ = false;
    overflowed_ = true;
    pending_.clear();
    pending_bytes_ = 0;
    wake_.notify_one();
    return;
  }
  if (pending_.empty()) {
    write_due_ = Clock::now() + kFlushInterval / 2;
    wake_.notify_one();
  }
  const auto crosses = [&](uint64_t mark) { return pending_bytes_ < mark && pending_bytes_ + entry.size() >= mark; };
  const bool full = crosses(kWriteNow) || crosses(kSyncPending);
  pending_bytes_ += entry.size();
  pending_.push_back({version.sequence, std::move(entry)});
  if (full) wake_.notify_one();
}

void ReplicaWriter::NoteDurable(uint64_t sequence) {
  MutexLock lock(mutex_);
  if (sequence <= durable_) return;
  const bool first = !pending_.empty() && pending_.front().sequence > durable_ && pending_.front().sequence <= sequence;
  durable_ = sequence;
  if (first && std::exchange(complete_, false)) complete_until_ = Clock::now();
  sync_due_ = Clock::now() + options_.commit_interval;  // of what was appended since
  if (first) wake_.notify_one();
}

bool ReplicaWriter::MustSyncLocked(Clock::time_point now) const {
  if (stopping_ || sync_failed_ || appended_ <= durable_) return false;
  return now >= sync_due_ || (pending_bytes_ >= kSyncPending && pending_.front().sequence > durable_);
}

// Small changes are gathered, so that each fsync of a program does not cost a write here.
bool ReplicaWriter::HasDueEntriesLocked(Clock::time_point now) const {
  if (MustSyncLocked(now)) return true;
  if (!HasDurableLocked()) return false;
  return stopping_ || pending_bytes_ >= kWriteNow || now >= write_due_;
}

void ReplicaWriter::Renew() {
  MutexLock lock(mutex_);
  renew_ = true;
  wake_.notify_one();
}

void ReplicaWriter::Stop() {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    wake_.notify_one();
  }
  thread_.join();
  catalog_.Attach(nullptr);
}

ReplicaStatistics ReplicaWriter::statistics() const {
  MutexLock lock(mutex_);
  return statistics_;
}

std::chrono::nanoseconds ReplicaWriter::age() const {
  MutexLock lock(mutex_);
  return complete_ ? Clock::duration(0) : std::max(Clock::now() - complete_until_, Clock::duration(1));
}

void ReplicaWriter::UpdateStatistics() {
  MutexLock lock(mutex_);
  statistics_.bytes = ToBytes(blocks_).value;
  statistics_.current = log_in_root_;
  const bool written = log_in_root_ && !unflushed_ && !flush_failed_;
  if (written) complete_until_ = std::max(complete_until_, taken_at_);
  complete_ = written && !HasDurableLocked();
}

void ReplicaWriter::Run() {
  while (true) {
    Chunk chunk;
    if (TakeChunk(&chunk) && log_) {
      if (const auto written = WriteEntries(*log_, chunk); !written) FallBehind(written.error());
    }
    if (checkpoint_) {
      ContinueCheckpoint();
    } else if (NeedsCheckpoint()) {
      BeginCheckpoint();
    }
    FlushIfDue();
    UpdateStatistics();
    if (!WaitForWork()) return;
  }
}

// Moves durable entries, about kChunkSize, from the queue into `chunk`. Returns false when there are none.
bool ReplicaWriter::TakeChunk(Chunk* chunk) {
  bool sync = false, overflowed = false;
  {
    MutexLock lock(mutex_);
    overflowed = std::exchange(overflowed_, false);
    sync = MustSyncLocked(Clock::now());
  }
  if (overflowed) FallBehind({ErrorCode::kNoMemory, "the devices are too slow for the changes of the catalog"});
  const bool failed = sync && !catalog_.Sync();  // a failure makes the store read-only
  MutexLock lock(mutex_);
  sync_failed_ = sync_failed_ || failed;
  while (!pending_.empty() && pending_.front().sequence <= durable_ && chunk->bytes.size() < kChunkSize) {
    chunk->starts.push_back({chunk->bytes.size(), pending_.front().sequence});
    pending_bytes_ -= pending_.front().entry.size();
    chunk->bytes += pending_.front().entry;
    pending_.pop_front();
  }
  const auto now = Clock::now();
  if (!HasDurableLocked()) taken_at_ = now;
  write_due_ = now + kFlushInterval / 2;  // of what is left
  return !chunk->starts.empty();
}

// Waits until there is something to do. Returns false when the thread must end.
bool ReplicaWriter::WaitForWork() {
  MutexLock lock(mutex_);
  while (true) {
    const auto now = Clock::now();
    if (HasDueEntriesLocked(now) || overflowed_) return true;
    // After a clean unmount the replica is current and undamaged, so a checkpoint that it needs is completed first.
    if (stopping_ && log_in_root_ && !renew_) return false;
    if (stopping_) return checkpoint_ || (NeedsCheckpoint() && now >= retry_at_);
    if (checkpoint_ || (NeedsCheckpoint() && now >= retry_at_)) return true;
    auto due = Clock::time_point::max();
    if (unflushed_) due = flush_due_;
    if (!sync_failed_ && appended_ > durable_) due = std::min(due, sync_due_);
    if (HasDurableLocked()) due = std::min(due, write_due_);
    if (NeedsCheckpoint()) due = std::min(due, retry_at_);
    if (due <= now) return true;
    if (due == Clock::time_point::max()) {
      wake_.wait(lock.native());
    } else {
      wake_.wait_until(lock.native(), due);
    }
  }
}

Result<void> ReplicaWriter::WriteEntries(StreamWriter& stream, const Chunk& chunk) {
  std::string_view rest = chunk.bytes;
  size_t next = 0;  // the first entry that begins at or behind the first byte of `rest`
  while (!rest.empty()) {
    const size_t written = chunk.bytes.size() - rest.size();
    for (; next < chunk.starts.size() && chunk.starts[next].offset < written; ++next) {
      begun_ = chunk.starts[next].sequence;
    }
    if (stream.full()) RETURN_IF_ERROR(Extend(stream, begun_));
    const size_t first_entry = next < chunk.starts.size() ? chunk.starts[next].offset - written : kNoEntry;
    RETURN_IF_ERROR(stream.WriteFrame(&rest, first_entry));
    if (!std::exchange(unflushed_, true)) flush_due_ = Clock::now() + kFlushInterval / 2;
  }
  begun_ = chunk.starts.back().sequence;
  return {};
}

// Gives the stream another segment. The segment of the current log also enters the root.
Result<void> ReplicaWriter::Extend(StreamWriter& stream, uint64_t begun) {
  if (reservation_.held() < segment_size_) {
    RETURN_IF_ERROR(space_.Reserve(&reservation_, segment_size_ - reservation_.held()));
  }
  const SpaceManager::Request request{
      .ino = InodeId{}, .first = FileBlock{allocations_++ * kStripe}, .count = segment_size_};
  ASSIGN_OR_RETURN(const auto runs, space_.Allocate(request, &reservation_));
  space_.AddUsed(static_cast<int64_t>(segment_size_.value));
  blocks_ += segment_size_;
  stream.Extend(runs, begun);
  if (!log_in_root_ || &stream != &*log_) return {};
  Root root = *root_;
  root.log = stream.stream();
  auto written = WriteRoot(std::move(root));
  if (!written) {  // the caller drops the stream, and root_ lacks these segments
    const auto& segments = stream.stream().segments;
    Release({segments.end() - static_cast<ptrdiff_t>(runs.size()), segments.end()});
  }
  return written;
}

// The current log is too long, or there is none.
bool ReplicaWriter::NeedsCheckpoint() const {
  if (checkpoint_ || memory_.data() == nullptr || flush_failed_ || catalog_.failed()) return false;
  if (!root_ || !log_in_root_ || renew_) return true;
  const BlockCount least{kLeastLogSegments * segment_size_.value};
  return BlocksOf(log_->stream().segments) > std::max(BlocksOf(root_->checkpoint_stream.segments), least);
}

StreamWriter ReplicaWriter::NewStream() {
  return {devices_, options_.store_id, Stream{.id = next_stream_++, .segments = {}}, {}, &memory_};
}

void ReplicaWriter::BeginCheckpoint() {
  if (Clock::now() < retry_at_) return;
  if (auto settled = SettleRoots(); !settled) {
    Report(settled.error());
    return Postpone();
  }
  if (!log_) {
    // Collect before the snapshot: the log needs every entry after it.
    log_.emplace(NewStream());
    log_in_root_ = false;
    MutexLock lock(mutex_);
    collecting_ = true;
  }
  auto snapshot = catalog_.TakeSnapshot();
  checkpoint_.emplace(Checkpoint{std::move(snapshot), NewStream()});
}

void ReplicaWriter::ContinueCheckpoint() {
  auto written = WritePart();
  if (written && !checkpoint_->snapshot.records->Valid()) {
    written = checkpoint_->snapshot.records->status();
    if (written) written = FinishCheckpoint();
  }
  if (written) return;
  if (log_in_root_ && !roots_differ_) return GiveUpCheckpoint(written.error());
  FallBehind(written.error());
}

// Ends a checkpoint that cannot be completed, if there is one. The log goes on after the old one.
void ReplicaWriter::GiveUpCheckpoint(const Error& error) {
  Report(error);
  if (checkpoint_) Release(checkpoint_->stream.stream().segments);
  checkpoint_.reset();
  Postpone();
}

// The first time, and again after the replica was current.
void ReplicaWriter::Report(const Error& error) {
  if (std::exchange(reported_behind_, true)) return;
  spdlog::warn("the replica of the catalog on the devices cannot be renewed: {}; it will be tried again",
               ToString(error));
}

void ReplicaWriter::Postpone() {
  retry_at_ = Clock::now() + retry_;
  retry_ = std::min<Clock::duration>(2 * retry_, kLongestRetry);
}

// Writes about kPartSize of records.
Result<void> ReplicaWriter::WritePart() {
  Checkpoint& checkpoint = *checkpoint_;
  KvBatch part;
  const std::string version = keys::Store(kVersionFact);
  size_t size = 0;
  for (KvIterator& records = *checkpoint.snapshot.records; records.Valid() && size < kPartSize; records.Next()) {
    if (records.key() == version) continue;
    part.Put(std::string(records.key()), std::string(records.value()));
    size += records.key().size() + records.value().size();
  }
  const std::string entry = EncodePart(part, checkpoint.snapshot.version);
  std::string_view rest = entry;
  for (size_t first_entry = 0; !rest.empty(); first_entry = kNoEntry) {
    if (checkpoint.stream.full()) RETURN_IF_ERROR(Extend(checkpoint.stream, 0));
    RETURN_IF_ERROR(checkpoint.stream.WriteFrame(&rest, first_entry));
  }
  return {};
}

// Makes the root refer to the new checkpoint, and frees the old one and the log before it.
Result<void> ReplicaWriter::FinishCheckpoint() {
  const Version version = checkpoint_->snapshot.version;
  RETURN_IF_ERROR(catalog_.Sync());  // the replica must not be newer than the catalog on stable storage
  RETURN_IF_ERROR(flush_());
  std::vector<Segment> old;
  if (root_) {
    old = root_->checkpoint_stream.segments;
    if (!log_in_root_) old.insert(old.end(), root_->log.segments.begin(), root_->log.segments.end());
  }
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
  checkpoint_.reset();
  renew_ = false;
  log_in_root_ = true;
  Release(old);
  unflushed_ = false;
  retry_ = options_.first_retry;
  if (std::exchange(reported_behind_, false)) spdlog::info("the replica of the catalog is current again");
  MutexLock lock(mutex_);
  ++statistics_.checkpoints;
  return {};
}

// Writes the next root to all devices and flushes them.
Result<void> ReplicaWriter::WriteRoot(Root root) {
  root.store_id = options_.store_id;
  root.description = options_.description;
  root.time_ns = UtcNowNs();
  root.lists.clear();
  const size_t size = EncodeRoot(root).size();
  auto written = size == 0 || size > options_.largest_root ? WriteLists(&root) : Result<void>();
  root.next_stream = next_stream_;
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
Result<void> ReplicaWriter::WriteLists(Root* root) {
  const std::string bytes = EncodeList(*root);
  root->list_size = bytes.size();
  if (bytes.size() > kLargestList) return TooManySegments();
  while (root->lists.size() < kListCopies) {
    StreamWriter list = NewStream();
    const auto written = [&]() -> Result<void> {
      for (std::string_view rest = bytes; !rest.empty();) {
        if (list.full()) RETURN_IF_ERROR(Extend(list, 0));
        RETURN_IF_ERROR(list.WriteFrame(&rest, kNoEntry));
      }
      return {};
    }();
    root->lists.push_back(list.stream());
    RETURN_IF_ERROR(written);
  }
  return flush_();
}

Result<void> ReplicaWriter::WriteOnDevices(Root& root) {
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
  RETURN_IF_ERROR(flush_());
  roots_differ_ = false;
  return {};
}

// After a failed write of a root, some devices may have it and others not. Before more space is taken, all get the root
// before it again, or none if there was none, so that the space of the failed one is free.
Result<void> ReplicaWriter::SettleRoots() {
  if (!roots_differ_) return {};
  if (root_) {
    root_->next_stream = next_stream_;
    RETURN_IF_ERROR(WriteOnDevices(*root_));
  } else {
    std::memset(memory_.data(), 0, kBlockSize);
    for (uint16_t index = 0; index < devices_.size(); ++index) {
      for (const uint64_t offset : kRootOffsets) {
        RETURN_IF_ERROR(devices_[DeviceId{index}].Write(ByteOffset{offset}, {memory_.data(), kBlockSize}));
      }
      devices_.NoteWrite(DeviceId{index});
    }
    RETURN_IF_ERROR(flush_());
    roots_differ_ = false;
  }
  Release(std::exchange(held_, {}));
  return {};
}

void ReplicaWriter::FlushIfDue() {
  if (!unflushed_ || Clock::now() < flush_due_) return;
  unflushed_ = false;
  // A failed flush makes the store read-only. The replica then stays as it is.
  if (auto flushed = flush_(); !flushed) flush_failed_ = true;
}

// Gives up the checkpoint under construction and the log. The root on the devices stays valid up to its last entry.
// Later entries are dropped until a checkpoint succeeds.
void ReplicaWriter::FallBehind(const Error& error) {
  {
    MutexLock lock(mutex_);
    collecting_ = false;
    pending_.clear();
    pending_bytes_ = 0;
  }
  GiveUpCheckpoint(error);
  if (log_ && !log_in_root_) Release(log_->stream().segments);
  log_.reset();
  log_in_root_ = false;
  begun_ = 0;
}

void ReplicaWriter::Release(const std::vector<Segment>& segments) {
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

void ReplicaWriter::ReleaseLists(const Root& root) {
  for (const Stream& list : root.lists) Release(list.segments);
}

// Reserves the space that a small catalog may still need. In a full pool there may be none.
void ReplicaWriter::Refill() {
  const BlockCount wanted{kReservedSegments * segment_size_.value};
  const BlockCount held = blocks_ + reservation_.held();
  if (held >= wanted) return;
  static_cast<void>(space_.Reserve(&reservation_, wanted - held).has_value());
}

}  // namespace weightfs::replica
