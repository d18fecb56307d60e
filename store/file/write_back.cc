// SPDX-License-Identifier: Apache-2.0
#include "store/file/write_back.h"

#include "common/checksum.h"
#include "common/log.h"

namespace weightfs {

// A device write in progress. It owns itself.
class WriteBack::Operation final : public IoRequest {
 public:
  Operation(WriteBack& owner, InodePtr inode, BlockWrite write)
      : IoRequest(IoRequest::Operation::kWrite, ToBytes(write.run.run.start), write.bytes()),
        owner_(owner),
        inode_(std::move(inode)),
        write_(std::move(write)) {}
  void OnComplete(Result<void> result) override {
    owner_.Complete(inode_, write_, result);
    delete this;
  }

 private:
  WriteBack& owner_;
  const InodePtr inode_;
  const BlockWrite write_;
};

void WriteBack::UpdateQueue(const InodePtr& inode) {
  File& file = *inode->file;
  const bool dirty = file.dirty().dirty().value > 0, queued = file.queue_position != 0;
  if (dirty == queued) return;
  MutexLock lock(mutex_);
  if (dirty) {
    file.queue_position = ++last_position_;
    dirty_.emplace(file.queue_position, inode);
  } else {
    dirty_.erase(std::exchange(file.queue_position, 0));
  }
}

bool WriteBack::RelievePressure() {
  InodePtr inode;
  {
    MutexLock lock(mutex_);
    if (dirty_.empty()) return false;
    inode = dirty_.begin()->second;
  }
  PendingWrites writes;
  {
    MutexLock lock(inode->mutex);
    {
      // Dequeue it first; it moves to the end of the queue if its writeback fails.
      MutexLock queue(mutex_);
      dirty_.erase(std::exchange(inode->file->queue_position, 0));
    }
    StartAll(inode, &writes);
  }
  Submit(&writes);
  return true;
}

void WriteBack::Start(const InodePtr& inode, FileBlock first, FileBlock end, bool stream, PendingWrites* writes) {
  WEIGHTFS_ASSERT(writes->empty() || writes->inode_ == inode);
  if (!inode->file->StartWriteback(first, end, stream, &writes->writes_)) Fail(inode);
  if (!writes->empty()) writes->inode_ = inode;
  UpdateQueue(inode);
}

void WriteBack::StartAll(const InodePtr& inode, PendingWrites* writes) {
  Start(inode, FileBlock{0}, FileBlock{UINT64_MAX}, false, writes);
}

void WriteBack::Submit(PendingWrites* writes, bool waits) {
  constexpr uint64_t kTogether = kMiB;  // submit small writes together
  constexpr uint64_t kSmall = 64 * kKiB;
  waits = waits && writes->writes_.size() == 1;
  const InodePtr inode = std::move(writes->inode_);
  IoBatch batch(devices_);
  uint64_t bytes = 0;
  for (BlockWrite& write : std::exchange(writes->writes_, {})) {
    std::vector<uint32_t> checksums(write.run.run.count.value);
    Crc32cBlocks(write.bytes(), checksums.data());
    {
      MutexLock lock(inode->mutex);
      inode->file->SetChecksums(write, checksums);
    }
    const uint64_t size = write.bytes().size();
    NoteInFlight(static_cast<int64_t>(size));
    written_bytes_ += size;
    bytes += size;
    const DeviceId device = write.run.device;
    auto* const operation = new Operation(*this, inode, std::move(write));
    if (waits && size <= kSmall) return devices_[device].Perform(*operation);
    batch.Add(device, operation);
    if (bytes >= kTogether) batch.Submit(), bytes = 0;
  }
  batch.Submit();
}

void WriteBack::WhenBelow(ByteCount limit, std::function<void()> next) {
  {
    MutexLock lock(mutex_);
    if (in_flight_ >= limit.value) {
      waiting_.emplace_back(limit.value, std::move(next));
      return;
    }
  }
  next();
}

void WriteBack::NoteInFlight(int64_t bytes) {
  std::vector<std::function<void()>> ready;
  {
    MutexLock lock(mutex_);
    in_flight_ += static_cast<uint64_t>(bytes);
    while (!waiting_.empty() && in_flight_ < waiting_.front().first) {
      ready.push_back(std::move(waiting_.front().second));
      waiting_.pop_front();
    }
  }
  for (auto& next : ready) next();
}

// Reports an I/O error whatever the device's error is: callers handle ENOSPC by waiting for space in the pool, which
// would not help a full device.
void WriteBack::Fail(const InodePtr& inode) {
  if (inode->file->write_error().WriteFailed(Error{ErrorCode::kIo}) && failed_) failed_(inode);
}

void WriteBack::Complete(const InodePtr& inode, const BlockWrite& write, const Result<void>& result) {
  devices_.NoteWrite(write.run.device);
  // Do this first: once the file's last write is finished, its store may be destroyed.
  NoteInFlight(-static_cast<int64_t>(write.bytes().size()));
  MutexLock lock(inode->mutex);
  File& file = *inode->file;
  if (!result && !file.write_error().failed()) {
    spdlog::error("inode {}: {} blocks from file block {} could not be written to device {}: {}", inode->id.value,
                  write.run.run.count.value, write.first.value, write.run.device.value, ToString(result.error()));
    Fail(inode);
  }
  file.FinishWrite(write);
}

}  // namespace weightfs
