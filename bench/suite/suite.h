// SPDX-License-Identifier: Apache-2.0
// The benchmark: measures a mount, the raw disk and the host's filesystem, and compares them. It is a Python program
// (the *.py files here, which are embedded in the binary). Separate processes do its work: worker.h, clients.py and
// fio.
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/progress.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs::bench {

// The size of the large file is a multiple of kSizeStep and at least kLeastSize.
inline constexpr uint64_t kSizeStep = 2 * kMiB, kLeastSize = 32 * kMiB;

struct SuiteOptions {
  std::string directory;      // in a weightfs mount; elsewhere a store is created and removed
  std::string store;          // store of the mount that contains `directory`; empty: create one
  std::string host;           // directory for the host's files; empty: next to the store
  std::string mount_options;  // for the created store
  std::string program;        // the weightfs binary to run
  std::string python;         // interpreter for the rows of Python's libraries; empty: found through the environment
  std::vector<std::string> only;
  uint64_t size = 0;    // bytes of the large file; 0: chosen automatically
  unsigned rounds = 0;  // number of rounds that count; at least 1
  uint64_t seed = 0;    // 0: chosen automatically
  bool quick = false;   // small amounts, for a quick look
  bool drop_caches = false;
  bool scaling = false;
  uint64_t large_size = 0;  // size of the large file of --scaling, whole MiB, at least `size`; 0: none
  unsigned many_files = 0;  // number of files of --scaling; 0: none
  const std::atomic<bool>* cancel = nullptr;
  ProgressFunction progress;  // progress of the whole run, in parts
};

// The curves of --scaling that the options select and allow, in order. An existing mount supports only the streams
// curve, and the large-file curve needs its size.
std::vector<std::string> SelectedCurves(const SuiteOptions& options);

// Runs the benchmark. Returns the complete outcome for --json: every sample, and rates in the unit's base measure
// (bytes, reads or files per second). Its version changes with the format. Returns an error if the run is not possible,
// if something fails, if bytes are wrong, or if the user interrupts it; never because of a result. Removes everything
// it created, even if this process is killed. Needs python3 in PATH.
Result<nlohmann::ordered_json> RunSuite(const SuiteOptions& options);

// Returns a self-contained page with plots, which loads nothing.
std::string ToHtml(const nlohmann::ordered_json& outcome);

}  // namespace weightfs::bench
