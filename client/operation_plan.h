// SPDX-License-Identifier: Apache-2.0
// The parts that an Operation is made of. Users of a Handle need only operation.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "client/memory_view.h"
#include "client/operation.h"
#include "client/target.h"

namespace weightfs::client {

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
  // Notifies the handle's tracker. Called once, under the operation's lock. A null error means success.
  std::function<void(const Error* error)> finished = {};
  std::shared_ptr<void> registration = {};  // in PendingRanges; released once done, with no lock held
  std::vector<uint64_t> turns = {};         // of the registration
};

}  // namespace weightfs::client
