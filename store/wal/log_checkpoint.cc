// SPDX-License-Identifier: Apache-2.0
// Checkpoints of the index, beside the log.
#include <algorithm>
#include <utility>

#include "common/log.h"
#include "meta/keys.h"
#include "store/wal/log_writer.h"
#include "store/wal/logged_kv_store.h"

namespace weightfs::wal {
namespace {

constexpr size_t kPartSize = 256 * kKiB;  // written in one hold of io_
constexpr std::chrono::minutes kLongestRetry{5};

}  // namespace

// Waits until a checkpoint is in progress or due. Returns false when the thread must end.
bool LogWriter::WaitForCheckpoint() {
  MutexLock lock(mutex_);
  while (true) {
    const bool renews = renewals_ != renewed_;
    const bool wanted = !failure_ && (checkpointing_ || renews || checkpoint_due_);
    const bool ready = wanted && (checkpointing_ || Clock::now() >= retry_at_);
    if (stopping_) return ready && renews;
    if (ready) return true;
    checkpoint_wake_.wait_until(lock.native(), wanted ? retry_at_ : Clock::time_point::max());
  }
}

// The log has become as long as the checkpoint, so that reading both takes about twice the time; or it has taken too
// much of the space for the next checkpoint. What a checkpoint cannot free does not count.
bool LogWriter::NeedsCheckpoint() const {
  if (!root_) return false;
  const BlockCount log = BlocksOf(log_->stream().segments), grown = log - std::min(log, kept_);
  return grown > std::max(BlocksOf(root_->checkpoint_stream.segments), least_log_) ||
         (grown > BlockCount{least_log_.value / 4} && !updates_);
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
      const BlockCount count = std::max(segment_size_, BlocksFor(ByteCount{rest.size()}));
      RETURN_IF_ERROR(ReserveBesideLog(count));
      RETURN_IF_ERROR(Extend(checkpoint.stream, count, 0));
    }
    RETURN_IF_ERROR(checkpoint.stream.WriteFrame(&rest, first_entry));
  }
  return {};
}

// Makes the root refer to the new checkpoint, and frees the old one and the log before it.
Result<void> LogWriter::FinishCheckpoint() {
  RETURN_IF_ERROR(checkpoint_->records->status());
  // The root must not refer to frames, or to entries, that a crash takes back. The next mount catches the index up from
  // what that has stored, so the log should reach back to it. If the filesystem of the index is full, it does not, and
  // that mount rebuilds the index.
  RETURN_IF_ERROR(Commit());
  if (auto stored = index_.Sync(); !stored && stored.error().code != ErrorCode::kNoSpace) return stored;
  const Version version = checkpoint_->version;
  const auto records = std::move(checkpoint_->records);  // destroyed without the mutex, because that deletes files
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
  const auto records = checkpoint_ ? std::move(checkpoint_->records) : nullptr;  // as above
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

}  // namespace weightfs::wal
