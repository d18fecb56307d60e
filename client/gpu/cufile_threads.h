// SPDX-License-Identifier: Apache-2.0
// Threads that carry out cuFile's blocking transfers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "client/gpu/gpu.h"
#include "common/mutex.h"
#include "common/result.h"

namespace weightfs::client {

struct Piece;

// Thread-safe. All started transfers must have been collected before it is destroyed.
class CufileThreads {
 public:
  struct Transfer {
    Piece* piece = nullptr;  // identifies the transfer to the caller
    bool write = false;
    std::shared_ptr<GpuMemory> memory;
    const Cufile::File* file = nullptr;
    uint64_t at = 0;  // position in the operation's memory
    uint64_t size = 0;
    uint64_t offset = 0;  // position in the file
  };
  struct Ended {
    Piece* piece = nullptr;
    Result<uint64_t> outcome;  // number of bytes
  };

  // EAGAIN if no thread can be created.
  static Result<std::unique_ptr<CufileThreads>> Create(size_t count);
  ~CufileThreads();
  CufileThreads(const CufileThreads&) = delete;
  CufileThreads& operator=(const CufileThreads&) = delete;

  void Start(Transfer transfer) EXCLUDES(mutex_);
  // Adds the transfers that have ended since the last call. If there are none, waits for one, for at most `wait`.
  void Collect(std::vector<Ended>* ended, std::chrono::microseconds wait) EXCLUDES(mutex_);
  // Number of transfers started but not collected.
  size_t under_way() const EXCLUDES(mutex_);

 private:
  CufileThreads() = default;
  void Run() EXCLUDES(mutex_);
  static Result<uint64_t> CarryOut(const Transfer& transfer);

  mutable Mutex mutex_;
  std::condition_variable started_;
  std::condition_variable done_;
  std::deque<Transfer> waiting_ GUARDED_BY(mutex_);
  std::vector<Ended> ended_ GUARDED_BY(mutex_);
  size_t under_way_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace weightfs::client
