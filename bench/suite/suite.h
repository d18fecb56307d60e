// SPDX-License-Identifier: Apache-2.0
// The benchmark: measures a mount beside the raw disk and the host's filesystem, and says how they compare.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/suite/rows.h"
#include "common/progress.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs::bench {

// The big file is a multiple of kSizeStep, and has at least kLeastSize.
inline constexpr uint64_t kSizeStep = 2 * kMiB, kLeastSize = 32 * kMiB;

struct SuiteOptions {
  std::string directory;      // in a mount of weightfs, or anywhere: then a store is made in it, and removed
  std::string store;          // of the mount that `directory` lies in; empty: make one
  std::string host;           // where the host's files go; empty: next to the store
  std::string mount_options;  // of a store that is made
  std::string program;        // the weightfs to run
  std::string python;         // empty: looked for
  std::vector<std::string> only;
  uint64_t size = 0;    // bytes of the big file; 0: chosen
  unsigned rounds = 0;  // that count; at least 1
  uint64_t seed = 0;    // 0: chosen
  bool quick = false;   // small amounts, for a look
  bool drop_caches = false;
  bool scaling = false;
  uint64_t large_size = 0;  // of the scaling's one large file, whole MiB, at least `size`; 0: none
  unsigned many_files = 0;  // of the scaling's many files; 0: none
  const std::atomic<bool>* cancel = nullptr;
  ProgressFunction progress;  // of the whole run, in parts
};

// One measurement: what was done in the time, and what it cost.
struct Sample {
  double rate = 0;  // bytes, reads or files a second
  double seconds = 0;
  uint64_t bytes = 0;                         // moved; 0 where that means nothing
  double client_cpu = 0, daemon_cpu = 0;      // seconds
  std::optional<uint64_t> device_read_bytes;  // by the daemon
};

struct Spread {
  double median = 0, min = 0, max = 0;
  double Width() const { return median > 0 ? (max - min) / median : 0; }
};
Spread SpreadOf(std::vector<double> values);

// A ratio or figure beside what it should reach.
struct Check {
  enum class State : unsigned char { kShown, kOk, kShort };
  std::string against;  // "reference", "host", …
  double value = 0;
  double target = 0;  // 0: shown
  bool at_most = false;
  State state() const;
};
std::string_view NameOf(Check::State state);

struct RowOutcome {
  const RowSpec* spec = nullptr;
  std::map<Way, std::vector<Sample>> samples;  // in the order of the rounds
  std::map<Way, std::string> not_measured;     // and why
  std::vector<Check> checks;
  std::vector<std::string> notes;

  Spread Rate(Way way) const;      // of zeros where there is none
  double CpuPerGb(Way way) const;  // client and daemon, median; 0 where bytes mean nothing
};

// How something grows: one line each way.
struct Curve {
  struct Point {
    double x = 0;
    std::map<std::string, double> values;  // by the line's name
  };
  std::string id, title, x_title, unit;
  std::vector<Point> points;
  std::string limit;  // what limits it
  std::vector<Check> checks;
};

struct Noise {
  Spread read_reference, write_reference;  // bytes a second
  double load_average = 0, steal = 0;      // steal: part of the processors' time
  double widest = 0;                       // (max - min) / median of the references
};

struct DaemonMemory {
  uint64_t limit = 0;  // what the buffers may take, and 64 MiB
  uint64_t peak = 0, now = 0;
};

struct Outcome {
  std::vector<RowOutcome> rows;
  std::vector<Curve> curves;
  Noise noise;
  DaemonMemory memory;
  double idle_cpu = 0;                                     // seconds a second
  bool in_memory = false;                                  // the host's filesystem is memory
  std::vector<std::pair<std::string, std::string>> facts;  // of the machine and the run, in the order to show
  uint64_t seed = 0, size = 0;
  unsigned rounds = 0;
};

// What `only` knows beside rows and groups: "scaling", and its curves.
std::span<const std::string_view> CurveNames();

// Measures. An error when the run is not possible, something fails, bytes are wrong, or the user asked to stop; never
// because of a figure. Nothing that it made is left.
Result<Outcome> RunSuite(const SuiteOptions& options);

}  // namespace weightfs::bench
