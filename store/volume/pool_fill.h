// SPDX-License-Identifier: Apache-2.0
// The space of a pool before its first use: the reservation of its files, what format writes to its blocks, and the
// probe that chooses it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/guarded_directory.h"
#include "common/progress.h"
#include "common/result.h"
#include "common/units.h"
#include "engine/block_device.h"

namespace weightfs {

enum class PoolFill : unsigned char {
  kAuto,   // of a file kZeros, or kData if the probe finds that the disk keeps no zeros; of a block device kNone
  kZeros,  // zeros
  kData,   // random bytes, which no disk can compress, with no two blocks alike
  kNone,   // nothing; the space of a file is not reserved either
};

// The durations of the probe's writes, in seconds. All writes have the same size and are durable.
struct ProbeTimes {
  std::vector<double> first;  // the first data over zeros
  std::vector<double> later;  // over data
};

// Compares the medians: how many times as long a first write takes as a later one. Returns nullopt if there are too few
// times of either kind.
std::optional<double> FirstWriteSlowdown(const ProbeTimes& times);

// The content for a file of that slowdown: kData from kSlowFirstWrite on, otherwise kZeros.
inline constexpr double kSlowFirstWrite = 1.3;
PoolFill ChooseFill(std::optional<double> slowdown);

// The smallest file that is probed. A smaller one is filled with zeros, because its first writes take little time.
inline constexpr uint64_t kSmallestProbed = kGiB;

struct FillTarget {
  BlockDevice* device = nullptr;
  ByteCount size;                   // of the device, a multiple of kBlockSize
  PoolFill fill = PoolFill::kAuto;  // kAuto: as of a file
};

struct FillOptions {
  ProgressFunction progress = {};             // of the writes after the probes; may be empty
  const std::atomic<bool>* cancel = nullptr;  // when true, FillPool returns kShutdown; may be null
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

// What FillPool has done.
struct FillReport {
  struct Device {
    PoolFill content = PoolFill::kNone;          // never kAuto
    std::optional<double> first_write_slowdown;  // nullopt: not probed, or without a result
  };
  std::vector<Device> devices;  // of each target
  double seconds = 0;           // with the probes
};

// Overwrites the head and the tail of each device (kDataOffset bytes each) with zeros, so that neither an old
// superblock nor another signature survives, and everything between them with the target's fill. Flushes the devices.
// The probe of a device takes at most about two seconds. Errors are full lines.
Result<FillReport> FillPool(std::span<const FillTarget> targets, const FillOptions& options);

// Makes the pool file `name` of `store` at least `size` bytes long and, with `preallocate`, reserves all of its blocks.
// Existing bytes are kept. Creates the file if it is missing; `made` tells whether it did. Errors have full messages;
// kNoSpace when the filesystem is full. On an error the file has its old length, or is removed if this call created it.
Result<void> ReservePoolFile(const GuardedDirectory& store, const std::string& name, ByteCount size, bool preallocate,
                             bool* made);

// Same for an existing file at any path, with its current size.
Result<void> ReserveGivenFile(const std::string& path, ByteCount size);

}  // namespace weightfs
