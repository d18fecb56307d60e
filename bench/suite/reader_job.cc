// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/reader_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "bench/suite/system.h"
#include "client/random_reader.h"

namespace weightfs::bench {
namespace {

constexpr size_t kBatch = 1024;  // reads per call

Result<void> Compare(const FileJob& job, std::span<const uint64_t> offsets) {
  for (size_t i = 0; job.check && i < offsets.size(); ++i) {
    if (std::memcmp(job.into + i * job.call, job.content.At(offsets[i]), job.call) == 0) continue;
    return Error{ErrorCode::kCorrupt, fmt::format("{}: wrong bytes at {}: the benchmark measures nothing that is not "
                                                  "right",
                                                  job.path, offsets[i])};
  }
  return {};
}

}  // namespace

Amount ReadByReader(const FileJob& job, Timed* timed) {
  auto reader = client::RandomReader::Open(job.path, {.queue_depth = job.depth, .direct = client::Direct::kRequire});
  if (!reader.has_value()) return Error{ErrorCode::kIo, reader.error().what};
  std::mt19937_64 random(job.seed);
  std::vector<uint64_t> offsets(job.depth == 1 ? 1 : kBatch);
  const client::MemoryView memory(std::span(job.into, offsets.size() * job.call));
  const double cpu = OwnCpuSeconds(), begin = Now();
  uint64_t done = 0;
  for (const double end = begin + job.seconds; Now() < end; done += offsets.size()) {
    for (uint64_t& offset : offsets) offset = random() % (job.size / job.call) * job.call;
    const auto read = (*reader)->ReadRows(offsets, job.call, memory);
    if (!read.has_value()) return Error{ErrorCode::kIo, read.error().what};
    RETURN_IF_ERROR(Compare(job, offsets));
  }
  timed->seconds = std::max(Now() - begin, 1e-9);
  timed->cpu = OwnCpuSeconds() - cpu;
  return done;
}

}  // namespace weightfs::bench
