// SPDX-License-Identifier: Apache-2.0
// The classes of store/file on top of fakes, without a Store and a committer thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/device_set.h"
#include "store/file/file.h"
#include "store/file/inode.h"
#include "store/file/write_back.h"
#include "tests/support/fault_device.h"
#include "tests/support/file_services.h"
#include "tests/support/memory_kv_store.h"

namespace weightfs {

// One device, a catalog, and loaded, empty regular files. Not thread-safe.
class FileRig {
 public:
  FileRig()
      : journal_(std::make_shared<Journal>()),
        small_(BufferPool::Create({.buffer_size = kSmallStaging, .count = 64, .name = "small"}).value()),
        stripes_(BufferPool::Create({.buffer_size = kStripeStaging, .count = 8, .name = "stripes"}).value()),
        kv_(journal_),
        write_back_(devices_),
        device_(journal_, ByteCount{66 * kMiB}) {}

  InodePtr NewFile(uint64_t ino) {
    InodeRecord record;
    record.mode = S_IFREG | 0644;
    record.links = 1;
    auto inode = std::make_shared<Inode>(InodeId{ino}, record, services_.services());
    MutexLock lock(inode->mutex);
    inode->file->Load(ExtentMap());
    return inode;
  }

  // Fetches what a plan lacks, as FileIo does, and applies the plan. `old` is the content of blocks on the device.
  // Grows the file and marks it as changed.
  void Write(const InodePtr& inode, uint64_t offset, std::string_view data) {
    WriteSupplies supplies;
    MutexLock lock(inode->mutex);
    File& file = *inode->file;
    while (true) {
      WritePlan plan(supplies);
      file.PlanCopy(offset, data.size(), reinterpret_cast<const std::byte*>(data.data()), Staging::kSmall, &plan);
      if (plan.needs().empty()) {
        file.Apply(std::move(plan));
        break;
      }
      const WriteNeeds needs = plan.needs();
      ASSERT_TRUE(services_.space().Reserve(&supplies.space, needs.space));
      for (size_t count = 0; count < needs.small; ++count) supplies.small.push_back(small_->Allocate());
      ASSERT_TRUE(needs.content.empty()) << "the test overwrites part of a block that is on the device";
    }
    if (offset + data.size() > inode->attributes.size) file.SetSize(offset + data.size());
    static_cast<void>(file.Touch());
    write_back_.UpdateQueue(inode);
  }

  // Writes everything back and waits for it.
  void WriteBackAll(const InodePtr& inode) {
    PendingWrites writes;
    {
      MutexLock lock(inode->mutex);
      write_back_.StartAll(inode, &writes);
    }
    write_back_.Submit(&writes);
    MutexLock lock(inode->mutex);
    inode->file->WaitForAllWrites(lock);
  }

  MemoryKvStore& kv() { return kv_; }
  FaultDevice& device() { return device_; }
  DeviceSet& devices() { return devices_; }
  SpaceManager& space() { return services_.space(); }
  ReadCache& cache() { return services_.cache(); }
  BufferPool& small() { return *small_; }
  BufferPool& stripes() { return *stripes_; }
  WriteBack& write_back() { return write_back_; }

 private:
  std::shared_ptr<Journal> journal_;
  std::unique_ptr<BufferPool> small_, stripes_;
  TestFileServices services_;
  MemoryKvStore kv_;
  DeviceSet devices_{{&device_}};
  WriteBack write_back_;
  FaultDevice device_;  // last member, because its destructor waits for requests that use the others
};

}  // namespace weightfs
