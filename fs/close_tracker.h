// SPDX-License-Identifier: Apache-2.0
// Decides whether a file was closed whose release (the end of its last descriptor) has not arrived. Private to fs/.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace weightfs {

// The closes of one handle. Each close(2) of a descriptor reports a process, but not whether other copies of the
// descriptor remain. The handle counts as closed when both the process that opened it and the one that wrote last have
// closed it since the last change. A child of such a process closes its own copies, which means nothing. A process that
// closes one of its own copies (dup) cannot be distinguished, so only a recent close counts. Thread-safe.
class CloseTracker {
 public:
  using Clock = std::chrono::steady_clock;

  // `process` has opened the file; 0: unknown. Call this before any other function.
  void Opened(uint64_t process) { opener_.store(process); }
  // `owner` stands for the descriptors of a process (fuse_file_info::lock_owner); 0: unknown. Returns true if closes
  // before the change no longer count.
  bool Changed(uint64_t owner) {
    if (owner != 0 && last_writer_.load() != owner) last_writer_.store(owner);
    if (!opener_closed_.load() && !writer_closed_.load()) return false;
    opener_closed_.store(false);  // of a copy: a shell opens the output of a group of commands, and closes a copy first
    writer_closed_.store(false);
    return true;
  }
  void Closed(uint64_t owner, uint64_t process, Clock::time_point now) {
    const uint64_t opener = opener_.load(), writer = last_writer_.load();
    const bool opened = opener != 0 && process == opener;
    const bool wrote = writer != 0 ? owner == writer : opened || opener == 0;
    if (opened) opener_closed_.store(true);
    if (wrote) writer_closed_.store(true);
    if (opened || wrote) last_close_.store(now);
  }
  // True if the handle counts as closed, by a close at `since` or later.
  bool IsClosed(Clock::time_point since) const {
    const bool by_opener = opener_closed_.load() || opener_.load() == 0;
    return by_opener && writer_closed_.load() && last_close_.load() >= since;
  }
  uint64_t opener() const { return opener_.load(); }

 private:
  std::atomic<uint64_t> opener_{0}, last_writer_{0};
  std::atomic<bool> opener_closed_{false}, writer_closed_{false};
  std::atomic<Clock::time_point> last_close_{};
};

}  // namespace weightfs
