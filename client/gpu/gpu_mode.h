// SPDX-License-Identifier: Apache-2.0
// How a handle accesses GPU memory: the mode that a program requests, and the mode in use.
#pragma once

#include <cstdint>
#include <string>

namespace weightfs::client {

enum class GpuMode : unsigned char {
  kOnDemand,  // like kBounce, but GPUs are not initialized before the first GPU tensor is used
  kAuto,      // cuFile if it avoids a copy in host memory; otherwise bounce buffers
  kCufile,    // cuFile, even in its compatibility mode
  kBounce,    // our own page-locked bounce buffers, copied concurrently with other transfers
};

struct GpuFacts {
  int count = 0;
  std::string name;           // of the first GPU
  std::string cuda;           // CUDA version that the driver supports: "13.0"
  std::string cufile;         // version of cuFile; empty: not loaded, or not found
  GpuMode mode;               // the mode in use: kCufile or kBounce
  std::string why;            // the reason for the mode
  std::string refusal;        // mode kAuto: why the first operation that cuFile does not carry out goes another way
  uint64_t cufile_bytes = 0;  // bytes transferred so far by cuFile
  uint64_t bounce_bytes = 0;  // bytes transferred so far through bounce buffers; includes partial blocks in mode
                              // kCufile
};

}  // namespace weightfs::client
