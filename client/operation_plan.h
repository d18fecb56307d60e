// SPDX-License-Identifier: Apache-2.0
// The parts that an Operation is made of. Users of a Handle need only operation.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/handle.h"
#include "client/memory_view.h"
#include "client/operation.h"
#include "client/target.h"
#include "client/workers.h"
#include "common/file_owner.h"

namespace weightfs::client {

// The threads of a handle that do what may block. Its operations keep them.
struct Threads {
  // Run callbacks of the program.
  Workers calls{"weightfs-call", kMostCallbacks, std::chrono::milliseconds(10)};
  // Open files at the turn of their operations, transfer bytes through the page cache, and end operations. Most of that
  // is short, so that one thread does it.
  Workers work{"weightfs-work", 64, std::chrono::milliseconds(1)};

  // Runs a task on a worker, as this user and group.
  void Work(const FileIdentity& identity, std::function<void()> task) {
    work.Run([identity, task = std::move(task)] {
      identity.Adopt();
      task();
    });
  }
};

struct Operation::Plan {
  Direction direction;
  std::string path = {};  // of the file, for messages; empty: that of the target
  Target target = {};     // empty: none before Operation::Adopt
  MemoryView memory;
  std::shared_ptr<DeviceMemory> device = {};                         // set for GPU memory
  uint64_t offset = 0;                                               // in the file
  bool held = false;                                                 // wait until Operation::Begin
  bool stable = false;                                               // nobody changes the memory of a write
  std::function<void(uint64_t done, uint64_t total)> progress = {};  // counts bytes; may be empty
  std::shared_ptr<Threads> threads = {};  // null: the thread that ends the operation does everything
  FileIdentity identity = FileIdentity::OfThisThread();
  // Notifies the handle's tracker. Called once, under the operation's lock. A null error means success.
  std::function<void(const Error* error)> finished = {};
  std::shared_ptr<void> registration = {};  // in PendingRanges; released once done, with no lock held
  std::vector<uint64_t> turns = {};         // of the registration
};

}  // namespace weightfs::client
