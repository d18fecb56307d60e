// SPDX-License-Identifier: Apache-2.0
// How a handle reaches the memory of GPUs: the mode that a program asks for, and the mode that it gets.
#pragma once

#include <cstdint>
#include <string>

namespace weightfs::client {

enum class GpuMode : unsigned char {
  kOnDemand,  // as kBounce, but a GPU is looked for only when the first tensor of one comes
  kAuto,      // cuFile where it spares the host's memory, bounce buffers where it would not
  kCufile,    // cuFile, in its compatibility mode too
  kBounce,    // page-locked bounce buffers of our own, copied while other transfers are under way
};

struct GpuFacts {
  int count = 0;
  std::string name;           // of the first
  std::string cuda;           // what the driver supports: "13.0"
  std::string cufile;         // its version; empty: it was not looked for, or is not there
  GpuMode mode;               // what runs: kCufile or kBounce
  std::string why;            // and why
  uint64_t cufile_bytes = 0;  // transferred so far by cuFile,
  uint64_t bounce_bytes = 0;  // and through bounce buffers: parts of blocks in mode kCufile, too
};

}  // namespace weightfs::client
