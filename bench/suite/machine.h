// SPDX-License-Identifier: Apache-2.0
// The machine that a result belongs to, and how quiet it was.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/suite/lab.h"

namespace weightfs::bench {

// Ticks since boot, of all processors together.
struct ProcessorTimes {
  uint64_t total = 0, steal = 0, idle = 0;  // idle: with waiting for I/O
};
ProcessorTimes ReadProcessorTimes();
// The part of the time that the hypervisor gave to others.
double StealBetween(const ProcessorTimes& before, const ProcessorTimes& after);
// The part of the time in which they worked.
double BusyBetween(const ProcessorTimes& before, const ProcessorTimes& after);
// Of the last minute.
double LoadAverage();

// Name and value, in the order to show.
std::vector<std::pair<std::string, std::string>> FactsOf(Lab& lab);

// From here on the kernel keeps a new peak of the process's memory, where we may ask for that.
void ResetPeakMemory(pid_t pid);
DaemonMemory MemoryOf(const Place& place);

}  // namespace weightfs::bench
