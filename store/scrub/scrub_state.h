// SPDX-License-Identifier: Apache-2.0
// The options, the state and the report of scrubs. A scrub reads everything that a store keeps and compares it with
// its checksums. The state is a fact of the catalog: docs/FORMAT.md section 4; this header and that section change
// together.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/units.h"

namespace weightfs {

struct ScrubOptions {
  std::chrono::milliseconds period{0};  // from the start of one scrub to the start of the next; 0: none is started
  ByteCount rate{256 * kMiB};           // maximum, per second
  bool own_thread = true;               // false: the caller calls Scrubber::Step (tests)
};

// The first damaged blocks of one file.
struct DamagedFile {
  InodeId ino;
  uint64_t offset = 0;  // of its first damaged block, in bytes
  uint64_t blocks = 0;  // damaged blocks
  std::string path;     // from the root, without a leading slash; empty: unknown. Not part of the state
};

// What one scrub has found.
struct ScrubFindings {
  static constexpr size_t kListed = 32;
  uint64_t blocks = 0;  // damaged blocks of files
  uint64_t files = 0;   // with damaged blocks
  bool catalog = false;
  bool replica = false;             // the log of the catalog, on the devices
  std::vector<DamagedFile> listed;  // the first kListed files

  bool clean() const { return blocks == 0 && !catalog && !replica; }
};

// A position in the data of all files, in the order of inode numbers and file blocks.
struct ScrubPosition {
  InodeId ino;
  FileBlock block;
  auto operator<=>(const ScrubPosition&) const = default;
};

// The step of a scrub. An interrupted scrub repeats its step, except kData, which continues at the position.
enum class ScrubPhase : uint8_t { kIdle, kCatalog, kReplica, kData };

// Times are in nanoseconds since the epoch; 0: never.
struct ScrubState {
  // The scrub in progress.
  ScrubPhase phase = ScrubPhase::kIdle;
  int64_t started_ns = 0;
  ScrubPosition position;
  uint64_t checked_bytes = 0;
  uint64_t total_bytes = 0;  // estimated when it began
  ScrubFindings found;
  // The last complete one.
  int64_t last_started_ns = 0;
  int64_t last_completed_ns = 0;
  ScrubFindings last_found;

  bool running() const { return phase != ScrubPhase::kIdle; }
};

// The fact under keys::Store.
inline constexpr const char* kScrubFact = "scrub";
std::string EncodeScrubState(const ScrubState& state);
// nullopt when the bytes are not a state of this version. A scrub then begins anew.
std::optional<ScrubState> DecodeScrubState(std::string_view bytes);

struct ScrubReport {
  std::chrono::milliseconds period{0};  // 0: scrubs are off
  ScrubState state;
  int64_t next_ns = 0;       // when the next scrub begins; 0: one is running, or scrubs are off
  ByteCount rate;            // per second, planned for the scrub in progress
  int64_t remaining_ns = 0;  // of the scrub in progress, estimated
};

}  // namespace weightfs
