// SPDX-License-Identifier: Apache-2.0
#include "cli/gpu_check.h"

#include <fmt/format.h>

#include "client/gpu/gpu.h"

namespace weightfs::cli {

using State = Check::State;

std::vector<Check> CheckGpus() {
  const auto gpu = client::Gpu::Open({.mode = client::GpuMode::kAuto});
  if (!gpu.has_value()) return {{"GPU", gpu.error().what, State::kNotUsed, ""}};
  const client::GpuFacts facts = (*gpu)->facts();
  const std::string found =
      fmt::format("{}{}, CUDA {}", facts.count > 1 ? fmt::format("{} x ", facts.count) : "", facts.name, facts.cuda);
  const bool direct = facts.mode == client::GpuMode::kCufile;
  return {{"GPU", found, State::kUsed, ""},
          {"GPUDirect Storage",
           direct ? fmt::format("cuFile {}: {}", facts.cufile, facts.why) : "bounce buffers: " + facts.why,
           direct ? State::kUsed : State::kWouldHelp,
           direct ? ""
                  : "cuFile with the nvidia-fs module or PCI P2PDMA avoids host memory; WEIGHTFS_CUFILE_LIBRARY names "
                    "the library of a Python package"}};
}

}  // namespace weightfs::cli
