// SPDX-License-Identifier: Apache-2.0
// A pool device on a regular file or a block device, through libaio with O_DIRECT.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/unique_fd.h"
#include "engine/block_device.h"
#include "engine/threaded_ring.h"

namespace weightfs {

// Thread-safe. A device error or a short transfer (kIo) is logged once with operation, offset and device. A misaligned
// request or one past the end completes with kInvalid, a write to a read-only device with kReadOnly. Without O_DIRECT
// the kernel transfers the data inside Submit, which is slow then.
class FileDevice final : public BlockDevice {
 public:
  struct Options {
    unsigned queue_depth = 256;  // transfers in the kernel
    bool read_only = false;
    bool direct = true;        // O_DIRECT; if the filesystem rejects it (EINVAL): buffered, with a logged warning
    bool follow_links = true;  // of the last part of the path; false: such a link is no device (kIo)
    bool exclusive = true;     // flock (and O_EXCL on a block device): kBusy names the path when it is taken
    std::chrono::milliseconds lock_wait{0};  // for a holder that was killed and is just ending
    // Asked before each write and flush, which fail with kReadOnly if it returns false. May wait, but not for this
    // device. Other processes get no descriptors for writing then, because they would not ask. Empty: always true.
    std::function<bool()> may_write = {};
  };

  // Opens `path`. Errors are full lines: missing (kNotFound), taken (kBusy), aio-max-nr exhausted (kAgain, naming
  // the sysctl and its value), anything else kIo.
  static Result<std::unique_ptr<FileDevice>> Open(const std::string& path, const Options& options);

  // Waits for every request in flight.
  ~FileDevice() override;

  ByteCount size() const override { return size_; }  // a multiple of kBlockSize, rounded down
  std::string_view path() const override { return path_; }
  void Submit(std::span<IoRequest* const> requests) override;
  void Perform(IoRequest& request) override;
  size_t outstanding() const override { return ring_->outstanding(); }
  Result<void> Write(ByteOffset offset, std::span<const std::byte> in) override;
  Result<void> Flush() override;  // fdatasync; kIo when the file was deleted meanwhile

  // Returns a new descriptor of the same file or device (same O_DIRECT, close-on-exec), to be passed to other
  // processes. A descriptor for writing holds a lock on the byte `writer` until its last copy is closed and its last
  // transfer has ended, even after this process has ended. Until then Open for writing fails with kBusy, because a
  // write may still be in flight.
  Result<UniqueFd> OpenAgain(bool write, uint64_t writer = 0) const;
  // True while any process has a descriptor of that writer.
  Result<bool> HasWriter(uint64_t writer) const;

  // Returns another descriptor of the same open file, with its lock.
  Result<UniqueFd> Duplicate() const;

  bool is_block_device() const { return is_block_device_; }

 private:
  FileDevice(std::string path, const Options& options);
  Result<void> OpenDescriptor();
  Error InUse(std::string_view otherwise) const;
  // True if the lock's holder shares it. A store never does. udevd does for a moment after a program has written a
  // block device.
  bool HeldOnlyByProbe() const;
  Result<void> Lock();
  // Fails while a program still holds a lease for writing from an earlier mount: its blocks may have new owners.
  Result<void> CheckNoWriters();
  Result<void> Measure();
  // Returns why a request must not go to the kernel. A write past the end would silently extend the file.
  std::optional<ErrorCode> Check(const IoRequest& request) const;

  const std::string path_;
  const Options options_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  UniqueFd file_;
  bool is_block_device_ = false;
  ByteCount size_;
  std::unique_ptr<ThreadedRing> ring_;
};

}  // namespace weightfs
