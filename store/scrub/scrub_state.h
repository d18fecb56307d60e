// SPDX-License-Identifier: Apache-2.0
// The options, the state, the rate and the report of scrubs. A scrub reads everything that a store keeps and compares
// it with its checksums. The state is a fact of the catalog: docs/FORMAT.md section 4; this header and that section
// change together.
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
std::string EncodeScrubState(ScrubState state);
// nullopt when the bytes are not a state of this version. A scrub then begins anew.
std::optional<ScrubState> DecodeScrubState(std::string_view bytes);

struct ScrubReport {
  std::chrono::milliseconds period{0};  // 0: scrubs are off
  ScrubState state;
  int64_t next_ns = 0;       // when the next scrub begins; 0: one is running, or scrubs are off
  ByteCount rate;            // per second, planned for the scrub in progress
  int64_t remaining_ns = 0;  // of the scrub in progress, estimated
};

// Bytes per second.
struct ScrubRates {
  ByteCount quiet;  // without other I/O: the scrub ends in a quarter of its period
  ByteCount busy;   // beside much other I/O: it ends in four fifths of its period
};

// The rates for a scrub of `total` bytes. `most` bounds both, also if the scrub then takes longer than its period; the
// rates are not below a minimum, so that a small store does not take days.
ScrubRates ChooseScrubRates(ByteCount total, std::chrono::milliseconds period, ByteCount most);

// Says how long to wait between reads: pure arithmetic on given times. Not thread-safe.
class ScrubPace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // A read counts as at least this much, because small reads load a device too.
  static constexpr ByteCount kLeastRead{64 * kKiB};
  // More than this per second by others is much I/O.
  static constexpr ByteCount kBusy{32 * kMiB};

  explicit ScrubPace(const ScrubRates& rates) : rates_(rates) {}

  // Call this after a read of `size` bytes. `others` counts the bytes that other users of the devices have transferred
  // so far. Returns the time of the next read.
  Time NextRead(ByteCount size, uint64_t others, Time now);

  ByteCount rate() const { return busy_ ? rates_.busy : rates_.quiet; }

 private:
  // Reads do not catch up for more than this after a delay.
  static constexpr std::chrono::milliseconds kLongestBurst{100};
  // The interval over which the I/O of others is measured.
  static constexpr std::chrono::milliseconds kInterval{250};

  void NoteOthers(uint64_t others, Time now);

  const ScrubRates rates_;
  Time next_{};
  Time measured_at_{};
  uint64_t measured_ = 0;
  bool busy_ = false;
};

}  // namespace weightfs
