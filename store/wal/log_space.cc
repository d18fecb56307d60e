// SPDX-License-Identifier: Apache-2.0
// The space of the log: its segments, the roots that list them, and the reservation for those to come.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/utc_time.h"
#include "store/wal/log_writer.h"

namespace weightfs::wal {
namespace {

constexpr uint64_t kStripe = 1024;  // blocks: successive segments go to successive devices

Error TooManySegments() {
  return {ErrorCode::kNoSpace, "the free space of the pool is in too many small pieces"};
}

}  // namespace

// Ends the old log at its last entry, and goes on behind it. After an error nothing is written.
Result<void> LogWriter::Restart() {
  const std::vector<Segment> rest = log_->Cut();
  RETURN_IF_ERROR(Extend(*log_, segment_size_, begun_));
  Release(rest);
  return {};
}

// Reserves what an entry needs, even if all free space is in single blocks, beside what the next checkpoint needs. The
// space of an accepted entry is there, unless other entries of its kind were larger than they were estimated.
Result<void> LogWriter::ReserveFor(ByteCount entry, uint64_t sequence, bool accepted) {
  MutexLock io(io_);
  promised_to_ = sequence;
  const auto reserve = [&]() REQUIRES(io_) {
    promised_ = {entry.value / (kBlockSize - kFrameHeaderSize) + 1};  // a commit may have taken segments from it
    Refill();
    const BlockCount needed = (accepted ? segment_size_ : Needed()) + Promised(), held = reservation_.held();
    if (needed <= held) return Result<void>();
    const BlockCount more = needed - held;
    return accepted ? space_.Reserve(&reservation_, more, /*privileged=*/true)
                    : space_.ReserveForLog(&reservation_, more);
  };
  if (reserve()) return {};
  // What earlier entries have freed is perhaps enough.
  auto reserved = CommitPending();
  if (reserved) reserved = Claim();
  if (reserved) reserved = reserve();
  if (!reserved) {
    promised_ = {};
    Refill();
  }
  return reserved;
}

Result<void> LogWriter::CheckSpace(KvChange change) {
  const auto fits = [&]() EXCLUDES(io_) {
    if (Accepts(change)) return true;
    MutexLock io(io_);
    Refill();
    return Accepts(change);
  };
  if (failed()) return ErrorCode::kReadOnly;
  if (fits()) return {};
  ReleaseRetired();  // what earlier entries have freed is perhaps enough
  if (fits()) return {};
  {
    MutexLock lock(mutex_);
    if (!CheckpointComes()) return ErrorCode::kNoSpace;
    const uint64_t before = statistics_.checkpoints;
    while (statistics_.checkpoints == before && !given_up_ && !stopping_ && !failure_) {
      checkpointed_.wait(lock.native());
    }
  }
  return fits() ? Result<void>() : ErrorCode::kNoSpace;
}

// Reserves blocks for a checkpoint, and leaves the log its next segment.
Result<void> LogWriter::ReserveBesideLog(BlockCount count) {
  Refill();
  const BlockCount all = count + segment_size_ + Promised(), held = reservation_.held();
  if (all <= held) return {};
  // Without a root there is no log that could go on.
  return root_ ? space_.ReserveForLog(&reservation_, all - held) : space_.Reserve(&reservation_, all - held, true);
}

// Gives the stream more segments. Those of the log also enter the root.
Result<void> LogWriter::Extend(StreamWriter& stream, BlockCount count, uint64_t begun) {
  Refill();
  const bool log = log_ && &stream == &*log_;
  const BlockCount held = reservation_.held();
  if (held < count) {
    auto reserved = space_.Reserve(&reservation_, count - held, true);
    if (!reserved && (!log || held.value == 0)) return reserved;
    if (!reserved) count = held;  // the log goes on in less
  }
  const SpaceManager::Request request{
      .ino = InodeId{}, .first = FileBlock{allocations_++ * kStripe}, .count = count};
  ASSIGN_OR_RETURN(const auto runs, space_.Allocate(request, &reservation_));
  space_.AddUsed(static_cast<int64_t>(count.value));
  blocks_ += count;
  stream.Extend(runs, begun);
  if (log) promised_ -= std::min(promised_, count);
  if (!root_ || !log) return {};
  Root root = *root_;
  root.log = stream.stream();
  return WriteRoot(std::move(root));
}

// Makes the next root durable on all devices.
Result<void> LogWriter::WriteRoot(Root root) {
  root.store_id = options_.store_id;
  root.logged = true;
  root.description = options_.description;
  root.time_ns = UtcNowNs();
  root.durable = mark_;
  root.lists.clear();
  const size_t size = EncodeRoot(root).size();
  auto written = size == 0 || size > options_.largest_root ? WriteLists(&root) : Result<void>();
  if (written) written = WriteOnDevices(root);
  // A program that does not know lists must find no older root. After the first root of a log, both pairs have one.
  if (written && (!root_ || (!root.lists.empty() && root_->lists.empty()))) written = WriteOnDevices(root);
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
  return devices_.FlushWritten();
}

// A root is durable in one copy on all devices before the other copy of the older root in its place is overwritten. So
// a crash leaves an intact root in each pair, and if none is left, it was lost. The other copy is flushed with what is
// written next: nothing that needs the root is acknowledged before that. A place that cannot be written any more ends
// all writing, before the only intact copy is there.
Result<void> LogWriter::WriteOnDevices(Root& root) {
  if (EncodeRoot(root).empty()) return TooManySegments();
  // After a failed write, only the other pair has the root before. It stays until another one is durable.
  root.sequence = root_sequence_ += roots_differ_ ? 2 : 1;
  root.ordered = true;
  roots_differ_ = true;  // until all devices have it
  RETURN_IF_ERROR(WriteCopies(root, 0));
  RETURN_IF_ERROR(devices_.FlushWritten());
  RETURN_IF_ERROR(WriteCopies(root, 1));
  roots_differ_ = false;
  return {};
}

// Writes one copy of the root to each device, the first or the second one.
Result<void> LogWriter::WriteCopies(Root& root, size_t turn) {
  const size_t pair = root.sequence % 2;
  for (uint16_t index = 0; index < devices_.size(); ++index) {
    root.device = DeviceId{index};
    const std::string bytes = EncodeRoot(root);
    std::memcpy(memory_.data(), bytes.data(), bytes.size());
    size_t& first = first_copies_[index][pair];
    const ByteOffset offset{kRootOffsets[pair + 2 * (first ^ turn)]};
    const auto written = devices_[root.device].Write(offset, {memory_.data(), bytes.size()});
    if (!written && turn == 1) first ^= 1;  // only the other one is intact now
    RETURN_IF_ERROR(written);
    devices_.NoteWrite(root.device);
  }
  return {};
}

// The copy of each pair that is overwritten first must not be the only intact one.
void LogWriter::ChooseFirstCopies() {
  first_copies_.assign(devices_.size(), {});
  for (uint16_t index = 0; index < devices_.size(); ++index) {
    for (size_t pair = 0; pair < 2; ++pair) {
      const auto second = ReadRoot(devices_[DeviceId{index}], kRootOffsets[pair + 2], {memory_.data(), kRootCapacity});
      first_copies_[index][pair] = second && *second ? 0 : 1;
    }
  }
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

// The space of the checkpoint in progress.
BlockCount LogWriter::Begun() const {
  BlockCount others = BlocksOf(log_->stream().segments) + BlocksOf(held_);
  if (root_) {
    others += BlocksOf(root_->checkpoint_stream.segments);
    for (const Stream& list : root_->lists) others += BlocksOf(list.segments);
  }
  return blocks_ - std::min(blocks_, others);
}

// The space that completes the next checkpoint, which is at most as long as the old one and the log together, and that
// the log takes meanwhile.
BlockCount LogWriter::Needed() const {
  const BlockCount checkpoint = root_ ? BlocksOf(root_->checkpoint_stream.segments) : BlockCount{};
  const BlockCount next = checkpoint + BlocksOf(log_->stream().segments);
  return next - std::min(next, Begun()) + least_log_ + BlockCount{4 * segment_size_.value};
}

// The same, and the space for a log that is as long as it may get. Together with what the log has, it is constant while
// the catalog is small, so that df does not change when segments are taken or freed.
BlockCount LogWriter::Wanted() const {
  const BlockCount has = root_ ? BlocksOf(root_->checkpoint_stream.segments) : BlockCount{};
  const BlockCount checkpoint = std::max(has, BlockCount{least_log_.value / 2});
  // The length of the log when a checkpoint is due.
  const BlockCount due = std::max(kept_, segment_size_) + std::max(has, least_log_);
  const BlockCount log = std::min(BlocksOf(log_->stream().segments), due);
  const BlockCount all{2 * (checkpoint.value + due.value) + 5 * segment_size_.value + least_log_.value};
  return all - has - log - std::min(Begun(), checkpoint);
}

// The space for what is not written yet of a large entry.
BlockCount LogWriter::Promised() const { return written_ < promised_to_ ? promised_ : BlockCount{}; }

// Reserves the space that will be needed. In a full pool there may be less. More than that is left of a time when the
// log was longer than it should be. Changes that are accepted, but not committed, will be in the log, and in the next
// checkpoint; half as much more is reserved, so that writers seldom find too little.
void LogWriter::Refill() {
  const BlockCount needed = Needed() + Promised(), growing = needed + segment_size_;
  const uint64_t uncommitted = space_.uncommitted().value;
  const BlockCount wanted = std::max(Wanted(), growing + BlocksFor(ByteCount{3 * uncommitted}));
  reservation_.TrimTo(wanted);
  for (BlockCount more = wanted - std::min(wanted, reservation_.held()); more.value > 0; more.value /= 2) {
    if (space_.ReserveForLog(&reservation_, more)) break;
  }
  const uint64_t held = reservation_.held().value, spare = least_log_.value / 4;
  grows_ = held >= growing.value;  // so changes of half a segment may follow before they have to be committed
  covered_ = grows_ ? ToBytes(BlockCount{held - needed.value}).value / 2 : 0;
  updates_ = held + spare >= needed.value;
  tight_ = held + 3 * spare < needed.value;
}

}  // namespace weightfs::wal
