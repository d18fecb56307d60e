// SPDX-License-Identifier: Apache-2.0
// A pool device on a regular file or a block device, through libaio with O_DIRECT.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/unique_fd.h"
#include "engine/block_device.h"
#include "engine/threaded_ring.h"

namespace weightfs {

// Thread-safe. An error of the device is logged once with operation, offset and device, and so is a transfer that stops
// before its end (kIo). A misaligned request or one past the end completes with kInvalid, a write to a read-only device
// with kReadOnly. Without O_DIRECT the kernel transfers while it accepts a request: Submit is slow.
class FileDevice final : public BlockDevice {
 public:
  struct Options {
    unsigned queue_depth = 256;  // transfers in the kernel
    bool read_only = false;
    bool direct = true;        // O_DIRECT; falls back with a logged warning where the filesystem refuses (EINVAL)
    bool follow_links = true;  // of the last part of the path; false: such a link is no device (kIo)
    bool exclusive = true;     // flock (and O_EXCL on a block device): kBusy names the path when it is taken
    std::chrono::milliseconds lock_wait{0};  // for a holder that was killed and is just ending
  };

  // Opens `path`. Errors are full lines: missing (kNotFound), taken (kBusy), aio-max-nr exhausted (kAgain, naming
  // the sysctl and its value), anything else kIo.
  static Result<std::unique_ptr<FileDevice>> Open(const std::string& path, const Options& options);

  // Waits for every request in flight.
  ~FileDevice() override;

  ByteCount size() const override { return size_; }  // a multiple of kBlockSize, rounded down
  std::string_view path() const override { return path_; }
  void Submit(std::span<IoRequest* const> requests) override;
  Result<void> Flush() override;  // fdatasync; kIo when the file was deleted meanwhile

  // A descriptor of its own of the same file or device (O_DIRECT as here, close-on-exec), to be passed to others. One
  // for writing carries a lock on the byte `writer` for as long as anybody has a copy or a transfer of it is under way,
  // also after the end of this process: until then Open refuses the device to whoever wants to write (kBusy), for a
  // write may still be on its way.
  Result<UniqueFd> OpenAgain(bool write, uint64_t writer = 0) const;
  // Whether a descriptor of that writer is left anywhere.
  Result<bool> HasWriter(uint64_t writer) const;

  bool is_block_device() const { return is_block_device_; }

 private:
  FileDevice(std::string path, const Options& options);
  Result<void> Open();
  Result<void> OpenDescriptor();
  // Whether the holder of the lock shares it. A store never does; udevd does, for a moment, after each program that
  // wrote a block device.
  bool HeldOnlyByProbe() const;
  Result<void> Lock();
  // Programs that write past a store that has ended would write into blocks that now belong to others.
  Result<void> CheckNoWriters();
  Result<void> Measure();
  // Why a request cannot go to the kernel. A write past the end would make a file longer, silently.
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
