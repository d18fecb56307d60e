// SPDX-License-Identifier: Apache-2.0
// The kernel's side of the FUSE protocol over a socket pair: sends requests to a Session that serves a store in memory,
// and reads its answers.
#pragma once

#include <linux/fuse.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "fs/filesystem.h"
#include "fs/session.h"
#include "tests/support/test_store.h"

namespace weightfs {

// A message from the session: an answer (unique != 0) or a notification (unique 0; `error` is its code).
struct KernelReply {
  uint64_t unique = 0;
  int error = 0;  // negative errno
  std::string body;

  template <typename T>
  T As(size_t at = 0) const {
    T value{};
    if (body.size() >= at + sizeof(T)) memcpy(&value, body.data() + at, sizeof(T));
    return value;
  }
};

// Approximately the features of Linux 6.18: many that weightfs does not use, and mappings of direct I/O (bit 36).
inline constexpr uint64_t kModernOffer = 0x13'73ff'fffbULL;

class FakeKernel {
 public:
  struct Offer {
    uint32_t minor = 45;
    uint64_t flags = kModernOffer;
  };

  // Starts a session and negotiates. `negotiated()` says whether that succeeded.
  FakeKernel(const Offer& offer, MountOptions options, const TestStoreOptions& store = {});
  ~FakeKernel();

  const Result<void>& negotiated() const { return negotiated_; }
  const KernelReply& init_reply() const { return init_reply_; }
  TestStore& store() { return store_; }
  Filesystem& filesystem() { return *filesystem_; }
  Session& session() { return *session_; }

  // Sends a request and waits for its answer. Notifications that arrive first are added to `notifications`.
  KernelReply Ask(uint32_t opcode, uint64_t node, std::string_view body);
  template <typename In>
  KernelReply AskWith(uint32_t opcode, uint64_t node, const In& in, std::string_view rest = {}) {
    return Ask(opcode, node, std::string(reinterpret_cast<const char*>(&in), sizeof(in)).append(rest));
  }
  // Sends a request without waiting for its answer, if it has one.
  void Tell(uint32_t opcode, uint64_t node, std::string_view body);
  // Sends a packet that is too short for a request. The receiver that gets it leaves, and Run will report it.
  void TellNothing();
  // Waits for the next message, of any request that Tell has sent.
  KernelReply Next() { return Receive(); }
  // True if a message arrives within the time.
  bool HasNext(std::chrono::milliseconds wait) const;
  std::vector<KernelReply> notifications;
  uint32_t process = 0, user = 1000;  // of the next requests

  // Shortcuts. Names and modes are passed as the kernel sends them.
  KernelReply Lookup(uint64_t parent, std::string_view name);
  KernelReply Create(std::string_view name, uint32_t flags, uint32_t mode = 0644, uint32_t umask = 0);
  KernelReply Open(uint64_t node, uint32_t flags);
  KernelReply Write(uint64_t node, uint64_t handle, uint64_t offset, std::string_view data, uint32_t flags = 0);
  KernelReply Read(uint64_t node, uint64_t handle, uint64_t offset, uint32_t size);
  // A read that fills the page cache, and the write-back of dirty pages.
  KernelReply Fill(uint64_t node, uint64_t handle, uint64_t offset, uint32_t size);
  KernelReply WriteBack(uint64_t node, uint64_t handle, uint64_t offset, std::string_view data);
  KernelReply Release(uint64_t node, uint64_t handle);

  // The results of the next requests to drop pages, in order: a negative errno, or success, which drops them. When
  // empty, requests succeed.
  static inline std::deque<int> drop_errors;
  // If set, runs before each of those requests.
  static inline std::function<void()> on_drop;

  // Ends the connection, as an unmount does, waits for Run, and returns its result.
  Result<void> Disconnect();
  // Waits for Run to return by itself.
  Result<void> WaitForEnd();

 private:
  void Send(uint32_t opcode, uint64_t node, std::string_view body);
  KernelReply Receive();

  TestStore store_;
  MountOptions options_;
  std::unique_ptr<Filesystem> filesystem_;
  std::unique_ptr<Session> session_;
  int socket_ = -1;
  uint64_t unique_ = 0;
  Result<void> negotiated_;
  KernelReply init_reply_;
  std::thread runner_;
  Result<void> run_result_;
};

}  // namespace weightfs
