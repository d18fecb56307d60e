// SPDX-License-Identifier: Apache-2.0
// The benchmark: measures a mount beside the raw disk and the host's filesystem, and compares them. It is a program of
// Python (the *.py here, which the binary carries), whose work is done by processes of their own: worker.h, clients.py
// and fio.
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

// The large file is a multiple of kSizeStep, and has at least kLeastSize.
inline constexpr uint64_t kSizeStep = 2 * kMiB, kLeastSize = 32 * kMiB;

struct SuiteOptions {
  std::string directory;      // in a mount of weightfs; in any other a store is made and removed
  std::string store;          // of the mount that `directory` lies in; empty: make one
  std::string host;           // directory for the host's files; empty: next to the store
  std::string mount_options;  // of a store that is made
  std::string program;        // the weightfs to run
  std::string python;         // of the rows of Python's libraries; empty: found by the environment
  std::vector<std::string> only;
  uint64_t size = 0;    // bytes of the large file; 0: chosen
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

// The curves of --scaling that the options select and allow, in their order: a mount that was there before has only the
// streams, and a large file needs its size.
std::vector<std::string> SelectedCurves(const SuiteOptions& options);

// Measures. The outcome is that of --json: complete, every sample, rates in the unit's own measure (bytes, reads, files
// a second); its version says when the form changes. An error when the run is not possible, something fails, bytes are
// wrong, or the user asked to stop; never because of a figure. Nothing that it made is left, also where this process is
// killed. Needs python3 in PATH.
Result<nlohmann::ordered_json> RunSuite(const SuiteOptions& options);

// One page with plots: everything in it, nothing fetched.
std::string ToHtml(const nlohmann::ordered_json& outcome);

}  // namespace weightfs::bench
