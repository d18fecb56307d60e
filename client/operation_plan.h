// SPDX-License-Identifier: Apache-2.0
// The parts of an Operation. Users of a Handle need operation.h only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "client/memory_view.h"
#include "client/operation.h"
#include "client/target.h"

namespace weightfs::client {

struct Operation::Plan {
  Direction direction;
  std::unique_ptr<Target> target;
  MemoryView memory;
  std::shared_ptr<DeviceMemory> device = {};                         // for memory of a GPU
  uint64_t offset = 0;                                               // in the file
  bool held = false;                                                 // until Operation::Adopt
  std::function<void(uint64_t done, uint64_t total)> progress = {};  // bytes; may be empty
  // The handle's tracker; called once, under the operation's lock. Null: success.
  std::function<void(const Error* error)> finished = {};
  std::shared_ptr<void> registration = {};  // among the handle's operations; given up once done, with no lock held
};

}  // namespace weightfs::client
