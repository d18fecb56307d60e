// The groups of the benchmark, in the order of a run.
#pragma once

#include <vector>

#include "bench/suite/lab.h"

namespace weightfs::bench {

Group ReadGroup();
Group RandomGroup();
Group WriteGroup();
Group TorchGroup();
Group SafetensorsGroup();
Group NumpyGroup();
Group SmallGroup();
Group DeviceGroup();

// fio's rate in a row's unit; `arguments` beside those that every run of it has.
struct FioJob {
  std::string path;
  std::string mode;  // "read", "write", "randread"
  uint64_t call = 0;
  unsigned depth = 32;
  uint64_t size = 0;
  double seconds = 0;      // 0: once over the file
  bool in_memory = false;  // no O_DIRECT
  const std::atomic<bool>* cancel = nullptr;
};
// `requests` a second for random modes, bytes a second otherwise.
Result<double> RunFio(const FioJob& job);

}  // namespace weightfs::bench
