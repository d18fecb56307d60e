// SPDX-License-Identifier: Apache-2.0
// The catalogue: every row of the benchmark, what it is compared with, and what it should reach.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs::bench {

// By which way a row was measured.
enum class Way : unsigned char {
  kWeightfs,   // through the mount
  kReference,  // libaio, O_DIRECT, huge pages, on the host's filesystem; in memory: read() and write()
  kHost,       // the host's filesystem, as programs use it: buffered; handles by O_DIRECT
  kFio,        // fio on the same file as the reference, with its own (4 KiB) pages
  kNoVerify,   // a second mount that checks no checksums
  kMemory,     // a copy in /dev/shm: what the program needs where I/O costs next to nothing
  kOneDevice,  // of two: one device instead of two
};
inline constexpr Way kWays[] = {Way::kWeightfs, Way::kReference, Way::kHost,     Way::kFio,
                                Way::kNoVerify, Way::kMemory,    Way::kOneDevice};
std::string_view NameOf(Way way);

// What the rate of a row counts: bytes are shown in GB/s (10^9), the others a second.
enum class Unit : unsigned char { kBytes, kReads, kFiles };
std::string_view NameOf(Unit unit);

// What a ratio should reach at least; 0 is not asked for.
struct Target {
  double reference = 0;
  double host = 0;
  double slow_host = 0;          // instead of `host`, where the host stays under kSlowHost of the reference
  double disk_host = 0;          // of the host, where its filesystem is none in memory
  double in_memory = 0;          // of the reference, instead of all of these, where the host's filesystem is memory
  double one_device = 0;         // of kThrottledDevices; they give at most that number times as much
  double host_to_reference = 0;  // what the same program reaches on the host's files
  double beside = 0;             // of another row: RowSpec::beside
  double fio_in_memory = 0;
};
inline constexpr double kSlowHost = 0.75;

// The throttled devices: how many the larger store has, the bytes a second of each, and the part by which a measurement
// may exceed them.
inline constexpr unsigned kThrottledDevices = 2;
inline constexpr uint64_t kThrottledRate = 200'000'000;
inline constexpr double kThrottleTolerance = 0.05;
inline constexpr double kMostOfOneDevice = kThrottledDevices * (1 + kThrottleTolerance);

struct RowSpec {
  std::string_view id, group, title;
  Unit unit = Unit::kBytes;
  std::string_view reference = {};  // the row whose reference it is compared with; empty: none
  Target target = {};
  std::string_view beside = {};  // a row that differs from it in one thing alone
};

// Rows that are not shown, and only hold the samples of a reference that several rows share.
inline constexpr std::string_view kReadReference = "reference-read", kWriteReference = "reference-write",
                                  kDirectReadReference = "reference-direct-read",
                                  kDirectWriteReference = "reference-direct-write";

// In the order of the table.
std::span<const RowSpec> Rows();
const RowSpec* FindRow(std::string_view id);  // null when there is none

// Whether a row is among those asked for: its id, or its group, matches one of the shell patterns; none means all.
bool IsSelected(const RowSpec& row, const std::vector<std::string>& patterns);

// "≥ 0.95", "≥ 1.00 (1.30 where the host is slow)"; "shown" without one.
std::string ReferenceTargetText(const RowSpec& row);
std::string HostTargetText(const RowSpec& row);

}  // namespace weightfs::bench
