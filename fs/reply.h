// SPDX-License-Identifier: Apache-2.0
// The reply to one FUSE request. Private to fs/.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "common/result.h"
#include "fs/activity.h"
#include "fs/fuse_api.h"
#include "fs/init_reply.h"
#include "fs/request_metrics.h"
#include "store/types.h"

namespace weightfs {

// Counts requests that are not yet answered, so that a session can wait for the last one. Thread-safe.
class RequestCounter {
 public:
  void Begin() {
    ++open_;
    ++begun_;
  }
  void End() {
    if (--open_ == 0) open_.notify_all();
  }
  void WaitForNone() {
    for (uint64_t open = open_.load(); open != 0; open = open_.load()) open_.wait(open);
  }
  uint64_t begun() const { return begun_.load(); }

 private:
  std::atomic<uint64_t> open_{0};
  std::atomic<uint64_t> begun_{0};
};

// Counts one request during its lifetime.
class CountedScope {
 public:
  explicit CountedScope(RequestCounter& counter) : counter_(counter) { counter_.Begin(); }
  ~CountedScope() { counter_.End(); }
  CountedScope(const CountedScope&) = delete;
  CountedScope& operator=(const CountedScope&) = delete;

 private:
  RequestCounter& counter_;
};

// Move-only; exactly one of its answers consumes it. A Reply that is destroyed unanswered answers EIO and logs; a
// second answer is logged and ignored. Used by one thread at a time, on any thread.
//
// Answers that give the kernel a reference (to an inode or an open handle) return false when the kernel has discarded
// the reply because the program was interrupted. The caller then reverts its count.
class Reply {
 public:
  // Answers the request that this thread is processing (CurrentRequest), and records it in `metrics` then.
  Reply(fuse_req_t request, RequestCounter& counter, RequestMetrics& metrics, Activity& activity);
  Reply(Reply&& other) noexcept;
  Reply& operator=(Reply&&) = delete;
  ~Reply();

  // The caller of the request. Valid only before the answer.
  const fuse_ctx& caller() const { return *fuse_req_ctx(request_); }
  // True if a signal interrupts the caller, who waits for the answer all the same.
  bool interrupted() const { return fuse_req_interrupted(request_) != 0; }

  void Ok();
  void Errno(int error);  // positive
  void Fail(const Error& error);
  // Answers Ok or the error.
  void Finish(const Result<void>& result);

  [[nodiscard]] bool Entry(const Attributes& attributes, double valid_seconds);
  void NoEntry(double valid_seconds);  // a negative entry, which the kernel may cache
  // `open_flags` are FOPEN_ bits that fuse_file_info has no member for.
  [[nodiscard]] bool Open(const fuse_file_info& file, const OpenCompletion& open);
  [[nodiscard]] bool Create(const Attributes& attributes, double valid_seconds, const fuse_file_info& file,
                            const OpenCompletion& open);
  [[nodiscard]] bool Bytes(std::string_view bytes);
  void Statistics(const struct statvfs& statistics);
  void Ioctl(const void* out = nullptr, size_t size = 0);
  template <typename Out>
  void Ioctl(const Out& out) {
    Ioctl(&out, sizeof(out));
  }
  // Answer with the value, or as Fail does.
  void Attribute(const Result<Attributes>& attributes, double valid_seconds);
  void Link(const Result<std::string>& target);
  void Data(const Result<ReadView>& view);  // reads the pieces before it returns
  void Written(const Result<size_t>& size);
  void Offset(const Result<uint64_t>& offset);
  // With the size of the value when the caller asked only for that (capacity 0), or with ERANGE.
  void ExtendedAttribute(const Result<std::string>& value, size_t capacity);

 private:
  fuse_req_t Take();
  // Answers by `send(request)`, a function of libfuse. Returns false when the kernel has discarded the reply.
  template <typename Send>
  bool Answer(const Send& send, uint64_t bytes = 0);
  // Counts the request as answered; `bytes` are those read or written.
  bool Ended(int status, uint64_t bytes = 0, bool failed = false);

  fuse_req_t request_;
  RequestCounter& counter_;
  RequestMetrics& metrics_;
  Activity& activity_;
  const RequestOrigin origin_;
};

// The stat(2) attributes of an inode.
struct stat ToStat(const Attributes& attributes);
fuse_entry_param ToEntry(const Attributes& attributes, double valid_seconds);

}  // namespace weightfs
