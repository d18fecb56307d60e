// SPDX-License-Identifier: Apache-2.0
// What a regular file holds in memory besides its attributes. Guarded by Inode::mutex throughout.
#pragma once

#include <chrono>
#include <condition_variable>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "store/file/checksum_table.h"
#include "store/file/dirty_map.h"
#include "store/file/extent_map.h"
#include "store/space/space_manager.h"

namespace weightfs {

// Frozen blocks whose checksums are not in the table yet; whoever owns the write computes them without the mutex.
struct UnsummedWrite {
  uint64_t write = 0;
  FileBlock first;
  std::span<const std::byte> data;  // of whole blocks; nobody changes it
};

class FileState {
 public:
  // Content. `loaded` becomes true when the extents were read from the catalog; nothing else is valid before.
  bool loaded = false;
  ExtentMap extents;
  ChecksumTable checksums;
  DirtyMap dirty;
  SpaceReservation reservation;  // for the unfrozen blocks of `dirty`
  std::vector<DeviceRun> freed;  // unmapped since the last seal: free once the next commit is durable

  // Device writes under way, by the side of the last seal they were submitted on. `drained` is notified when
  // either becomes 0, and at the end of each while somebody waits for a range of the file.
  uint64_t seals = 0;
  std::vector<UnsummedWrite> unsummed;  // a few at most; none of them is at the device yet
  uint64_t writes_since_seal = 0, writes_before_seal = 0;
  unsigned range_waiters = 0;
  std::condition_variable drained;

  // Commit state. `changed`: size, times or mapping differ from what was sealed last. `committing`: what was sealed is
  // not in the catalog yet. `queued`: the committer knows.
  bool changed = false;
  bool committing = false;
  bool queued = false;
  bool in_write_back_queue = false;
  bool reverted = false;  // its blocks were taken out of the space statistics until it is loaded
  // Truncated to nothing and not closed or synced since: the old content stays committed for a while.
  bool replacing = false;
  std::chrono::steady_clock::time_point replacing_since;
  uint64_t shrunk_to = UINT64_MAX;  // the smallest size since the last seal: checksum segments behind it go

  // Of failed device writes, until an fsync or rename has told it, or a close, and the last copy of that descriptor is
  // gone. `torn`: blocks of the mapping were not written. Until the cycle that a failure starts has put the file back
  // to its last commit, everybody gets the error and nothing is taken; `told` is for that cycle, which leaves the error
  // to later callers where nobody had it. `refused`: a change got the error, and the next may be made.
  std::optional<Error> error;
  bool torn = false, told = false, refused = false;
  uint64_t failures = 0;  // how often the file was torn

  // Where a sequential writer would go on, and how much it has written in sequence.
  uint64_t write_next = 0, write_run = 0;

  // The error, for a change that is refused with it. That alone tells nobody: of a long write(2) the kernel sends
  // pieces, and says how many bytes were taken where an earlier one was.
  std::optional<Error> RefuseChange() {
    if (!torn && refused) return std::nullopt;
    refused = error.has_value();
    told = false;
    return error;
  }

  // A handle is gone, one of whose closes has told of failure `number`.
  void NoteTold(uint64_t number) {
    if (number != failures) return;
    told = torn;
    if (!torn) ForgetError();
  }
  void ForgetError() {
    error.reset();
    told = refused = false;
  }
};

}  // namespace weightfs
