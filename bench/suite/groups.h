// SPDX-License-Identifier: Apache-2.0
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
Group DirectGroup();
Group HandlesGroup();
Group DeviceGroup();

// What several groups have in turn with their own. Where it cannot be measured the lab is told why, and nothing is
// added.

// The disk alone, as the hidden row `reference`: libaio on blocks that are there, read, or written over and synced.
void AddRawRead(Lab& lab, std::vector<Case>* cases, std::string_view reference);
void AddRawWrite(Lab& lab, std::vector<Case>* cases, std::string_view reference);

// fio on the reference's file.
struct FioJob {
  const char* mode = "";  // "read", "write", "randread"
  uint64_t call = 0;
  unsigned depth = 32;
  double seconds = 0;          // 0: once over the file
  bool aio_in_memory = false;  // libaio there too, instead of read() and write()
};
void AddFio(Lab& lab, std::vector<Case>* cases, std::string_view row, const FioJob& job);

}  // namespace weightfs::bench
