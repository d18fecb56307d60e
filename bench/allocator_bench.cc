// SPDX-License-Identifier: Apache-2.0
// Measures the extent allocator with a million free extents, and the fragmentation of large tensors after ten turnovers
// of the store. Prints the figures next to their goals; checks nothing.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/extent_allocator.h"

namespace weightfs {
namespace {

using Clock = std::chrono::steady_clock;
using Random = std::mt19937_64;

constexpr uint64_t kBlocksPerMiB = kMiB / kBlockSize;
constexpr uint64_t kExtents = 1'000'000;
constexpr uint64_t kPitch = 1024;  // one used and one free extent per 4 MiB

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// CPU time of all threads, which other programs on the machine affect less than elapsed time.
double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

[[noreturn]] void Die(const Error& error) {
  fmt::print(stderr, "allocator_bench: {}\n", ToString(error));
  std::exit(1);
}

std::unique_ptr<ExtentAllocator> MakeAllocator(BlockCount size) {
  auto allocator = ExtentAllocator::Create({.space = {{512}, size}});
  if (!allocator) Die(allocator.error());
  return std::move(*allocator);
}

// Marks a million used extents, either in random order, the worst case for a scan by inode, or by address.
std::unique_ptr<ExtentAllocator> Rebuild(bool sorted) {
  auto allocator = MakeAllocator({kExtents * kPitch});
  Random random(1);
  std::vector<BlockRun> used;
  used.reserve(kExtents);
  for (uint64_t i = 0; i < kExtents; ++i) used.push_back({{512 + i * kPitch}, {1 + random() % (kPitch - 1)}});
  std::shuffle(used.begin(), used.end(), random);
  const auto start = Clock::now();
  const double cpu_before = CpuSeconds();
  if (sorted) std::sort(used.begin(), used.end(), [](BlockRun a, BlockRun b) { return a.start < b.start; });
  for (const BlockRun run : used)
    if (auto marked = allocator->MarkUsed(run); !marked) Die(marked.error());
  fmt::print("rebuild: {} extents {} in {:.3f} s, CPU {:.3f} s (goal: under 1 s)\n", kExtents,
             sorted ? "sorted first" : "in random order", SecondsSince(start), CpuSeconds() - cpu_before);
  return allocator;
}

void PrintMemory(const ExtentAllocator& allocator) {
  const auto statistics = allocator.statistics();
  fmt::print("memory: {} free extents, {:.1f} bytes each (goal: at most 40)\n", statistics.free_extents,
             static_cast<double>(statistics.memory.value) / static_cast<double>(statistics.free_extents));
}

// Allocates and frees `pairs` times with up to 64 runs held. If `latencies` is not null, appends the nanoseconds of
// each call.
void Churn(ExtentAllocator& allocator, unsigned thread, uint64_t pairs, std::vector<uint32_t>* latencies) {
  Random random(thread + 2);
  std::vector<BlockRun> held(64, BlockRun{{0}, {0}});
  const auto timed = [&](auto&& call) {
    if (latencies == nullptr) return call();
    const auto start = Clock::now();
    call();
    latencies->push_back(static_cast<uint32_t>((Clock::now() - start).count()));
  };
  for (uint64_t i = 0; i < pairs; ++i) {
    const uint64_t dice = random();
    const bool aligned = dice % 4 == 0;
    const ExtentAllocator::Request request{.count = {aligned ? 512 : 1 + (dice >> 8) % 64},
                                           .aligned = aligned,
                                           .group_hint = static_cast<unsigned>(dice >> 32)};
    BlockRun& slot = held[i % held.size()];
    if (slot.count.value != 0) timed([&] { (void)allocator.Free(slot); });
    timed([&] {
      const auto run = allocator.Allocate(request);
      slot = run ? *run : BlockRun{{0}, {0}};
    });
  }
  for (const BlockRun run : held) (void)allocator.Free(run);
}

void MeasureRate(ExtentAllocator& allocator, unsigned threads) {
  constexpr uint64_t kPairs = 2'000'000;
  std::vector<std::thread> workers;
  const auto start = Clock::now();
  const double cpu_before = CpuSeconds();
  for (unsigned t = 0; t < threads; ++t)
    workers.emplace_back([&, t] { Churn(allocator, t, kPairs / threads, nullptr); });
  for (auto& worker : workers) worker.join();
  fmt::print("rate: {} threads on {} CPUs, {:.2f} M alloc+free/s, CPU {:.2f} µs each (goal: 1 M with 8 threads)\n",
             threads, std::thread::hardware_concurrency(), kPairs / SecondsSince(start) / 1e6,
             (CpuSeconds() - cpu_before) * 1e6 / kPairs);
}

void MeasureLatency(ExtentAllocator& allocator, unsigned threads) {
  constexpr uint64_t kPairs = 1'000'000;
  std::vector<std::vector<uint32_t>> latencies(threads);
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads; ++t)
    workers.emplace_back([&, t] {
      latencies[t].reserve(2 * kPairs / threads);
      Churn(allocator, t, kPairs / threads, &latencies[t]);
    });
  for (auto& worker : workers) worker.join();
  std::vector<uint32_t> all;
  for (const auto& part : latencies) all.insert(all.end(), part.begin(), part.end());
  std::sort(all.begin(), all.end());
  const auto at = [&](double share) {
    return all[static_cast<size_t>(share * static_cast<double>(all.size() - 1))] / 1e3;
  };
  fmt::print(
      "latency: {} threads, p50 {:.2f} µs, p99 {:.2f} µs, p99.9 {:.2f} µs, longest {:.0f} µs "
      "(goal: p99.9 under 50 µs)\n",
      threads, at(0.5), at(0.99), at(0.999), at(1));
}

struct Tensor {
  uint64_t size;  // blocks
  uint64_t allocated = 0;
  unsigned group_hint;
  std::vector<BlockRun> extents;  // adjacent runs are merged
};

// A store kept 85 % full by streams that write tensors concurrently while random tensors are deleted.
class Turnover {
 public:
  Turnover(BlockCount device, unsigned streams, bool sizes_known)
      : device_(device.value), sizes_known_(sizes_known), allocator_(MakeAllocator(device)) {
    while (streams_.size() < streams) streams_.push_back(NewTensor());
  }

  void Run(double turnovers) {
    const auto target = static_cast<uint64_t>(turnovers * static_cast<double>(device_));
    while (written_ < target) {
      const size_t index = random_() % streams_.size();
      if (!Grow(streams_[index])) continue;
      Finish(index);
    }
  }

  void Print() const {
    uint64_t blocks = 0, extents = 0, tensors = 0, small_extents = 0, small = 0;
    for (const Tensor& tensor : stored_) {
      if (tensor.size < 64 * kBlocksPerMiB) {
        small_extents += tensor.extents.size();
        ++small;
        continue;
      }
      blocks += tensor.size;
      extents += tensor.extents.size();
      ++tensors;
    }
    const auto statistics = allocator_->statistics();
    fmt::print(
        "turnover: {} GiB, {} streams, sizes {}: {} tensors of 64 MiB and more, mean extent {:.0f} MiB, "
        "{:.1f} extents a tensor (goal: mean at least 32 MiB)\n",
        device_ / 1024 / kBlocksPerMiB, streams_.size(), sizes_known_ ? "known" : "unknown", tensors,
        static_cast<double>(blocks) / static_cast<double>(extents * kBlocksPerMiB),
        static_cast<double>(extents) / static_cast<double>(tensors));
    fmt::print("  {} smaller tensors of {:.2f} extents; {} free extents, the longest {} MiB\n", small,
               static_cast<double>(small_extents) / static_cast<double>(small), statistics.free_extents,
               statistics.largest_free.value / kBlocksPerMiB);
  }

 private:
  // Sizes from 1 MiB to 4 GiB; the logarithm of the size is uniformly distributed.
  Tensor NewTensor() {
    const double exponent = std::uniform_real_distribution<double>(0, 12)(random_);
    return {.size = static_cast<uint64_t>(std::exp2(exponent) * kBlocksPerMiB),
            .group_hint = static_cast<unsigned>(random_() >> 32)};
  }

  // Allocates the next preallocation; returns true if the tensor is complete.
  bool Grow(Tensor& tensor) {
    const uint64_t doubled = std::clamp<uint64_t>(tensor.allocated, 2 * kBlocksPerMiB, 256 * kBlocksPerMiB);
    const bool large = tensor.size >= 2 * kBlocksPerMiB;
    const uint64_t window = large && !sizes_known_ ? std::bit_floor(doubled) : tensor.size - tensor.allocated;
    while (used_ + window > device_ / 100 * 85 && !stored_.empty()) DeleteOne();
    ExtentAllocator::Request request{.count = {window}, .aligned = large, .group_hint = tensor.group_hint};
    if (!tensor.extents.empty()) request.after = tensor.extents.back().end();
    auto run = allocator_->Allocate(request);
    if (!run) Die(run.error());
    if (!tensor.extents.empty() && tensor.extents.back().end() == run->start)
      tensor.extents.back().count += run->count;
    else
      tensor.extents.push_back(*run);
    tensor.allocated += run->count.value;
    used_ += run->count.value;
    return tensor.allocated >= tensor.size;
  }

  void Finish(size_t index) {
    Tensor tensor = std::exchange(streams_[index], NewTensor());
    const BlockCount unused{tensor.allocated - tensor.size};
    BlockRun& last = tensor.extents.back();
    last.count -= unused;
    Give({last.end(), unused});
    written_ += tensor.size;
    stored_.push_back(std::move(tensor));
  }

  void DeleteOne() {
    std::swap(stored_[random_() % stored_.size()], stored_.back());
    for (const BlockRun run : stored_.back().extents) Give(run);
    stored_.pop_back();
  }

  void Give(BlockRun run) {
    if (auto freed = allocator_->Free(run); !freed) Die(freed.error());
    used_ -= run.count.value;
  }

  const uint64_t device_;
  const bool sizes_known_;
  std::unique_ptr<ExtentAllocator> allocator_;
  Random random_{7};
  std::vector<Tensor> streams_;
  std::vector<Tensor> stored_;
  uint64_t written_ = 0;
  uint64_t used_ = 0;
};

void Main() {
  Rebuild(true);
  const auto allocator = Rebuild(false);
  PrintMemory(*allocator);
  for (const unsigned threads : {1u, 8u}) MeasureRate(*allocator, threads);
  for (const unsigned threads : {1u, 2u, 8u}) MeasureLatency(*allocator, threads);
  for (const uint64_t gib : {64u, 1024u})
    for (const unsigned streams : {1u, 16u})
      for (const bool sizes_known : {false, true}) {
        Turnover turnover({gib * 1024 * kBlocksPerMiB}, streams, sizes_known);
        turnover.Run(10);
        turnover.Print();
      }
}

}  // namespace
}  // namespace weightfs

int main() { weightfs::Main(); }
