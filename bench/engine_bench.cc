// SPDX-License-Identifier: Apache-2.0
// Compares the engine with its reference: sequential 1 MiB transfers, queue depth 32, O_DIRECT, into huge-page buffers,
// once through FileDevice and once through plain libaio. Prints GB/s (medians of shuffled rounds) and the ratio.
//
//   engine_bench FILE [--size 2G] [--rounds 5]
//
// FILE is created and written once if it is missing or smaller than the size. It is kept for the next run.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "bench/suite/direct_loop.h"
#include "common/mutex.h"
#include "common/size_text.h"
#include "engine/file_device.h"
#include "io/buffer.h"

namespace weightfs {
namespace {

constexpr uint64_t kRequestSize = kMiB;
constexpr unsigned kDepth = 32;

using Operation = IoRequest::Operation;

struct Setup {
  std::string path;
  uint64_t size = 0;            // a multiple of kRequestSize
  std::vector<Buffer> buffers;  // kDepth buffers of kRequestSize, touched
};

// Reads or writes the file once in order with kDepth requests in flight. Each completion submits the next request.
class DevicePass {
 public:
  DevicePass(FileDevice& device, const Setup& setup, Operation operation) : device_(device), end_(setup.size) {
    for (const Buffer& buffer : setup.buffers) requests_.push_back({*this, operation, buffer.data()});
  }

  Result<void> Run() {
    std::vector<IoRequest*> first;
    {
      MutexLock lock(mutex_);
      for (auto& request : requests_) {
        if (TakeNextLocked(request)) first.push_back(&request);
      }
    }
    device_.Submit(first);
    MutexLock lock(mutex_);
    while (in_flight_ > 0) done_.wait(lock.native());
    return std::move(result_);
  }

 private:
  class Request final : public IoRequest {
   public:
    Request(DevicePass& pass, Operation what, std::byte* memory) : pass_(pass) {
      operation = what;
      data = memory;
      size = ByteCount{kRequestSize};
    }
    void OnComplete(Result<void> result) override { pass_.Done(*this, std::move(result)); }

   private:
    DevicePass& pass_;
  };

  bool TakeNextLocked(Request& request) REQUIRES(mutex_) {
    if (next_ == end_ || !result_.has_value()) return false;
    request.offset = ByteOffset{next_};
    next_ += kRequestSize;
    ++in_flight_;
    return true;
  }

  void Done(Request& request, Result<void> result) {
    bool more = false;
    {
      MutexLock lock(mutex_);
      if (!result.has_value()) result_ = std::move(result);
      --in_flight_;
      more = TakeNextLocked(request);
      if (in_flight_ == 0) done_.notify_one();
    }
    IoRequest* pointer = &request;
    if (more) device_.Submit({&pointer, 1});
  }

  FileDevice& device_;
  const uint64_t end_;
  std::vector<Request> requests_;
  Mutex mutex_;
  std::condition_variable done_;
  uint64_t next_ GUARDED_BY(mutex_) = 0;
  size_t in_flight_ GUARDED_BY(mutex_) = 0;
  Result<void> result_ GUARDED_BY(mutex_);
};

Result<void> ThroughDevice(const Setup& setup, Operation operation) {
  ASSIGN_OR_RETURN(const auto device, FileDevice::Open(setup.path, {.queue_depth = kDepth}));
  RETURN_IF_ERROR(DevicePass(*device, setup, operation).Run());
  if (operation == Operation::kWrite) RETURN_IF_ERROR(device->Flush());
  return {};
}

Result<void> ThroughLibaio(const Setup& setup, Operation operation) {
  const UniqueFd file(open(setup.path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  if (!file) return SystemError(setup.path, "cannot be opened");
  const bool write = operation == Operation::kWrite;
  bench::DirectLoop loop{.descriptor = file.get(), .write = write, .depth = kDepth, .request = kRequestSize};
  loop.next = [&setup, next = uint64_t{0}]() mutable -> std::optional<uint64_t> {
    if (next == setup.size) return std::nullopt;
    return std::exchange(next, next + kRequestSize);
  };
  loop.memory = [&setup](unsigned slot, uint64_t) { return setup.buffers[slot].data(); };
  RETURN_IF_ERROR(bench::Run(loop));
  if (write && fdatasync(file.get()) != 0) return SystemError(setup.path, "fdatasync");
  return {};
}

// Creates a file with all blocks written, because first writes to a new file measure the filesystem.
Result<void> Prepare(const Setup& setup) {
  std::error_code none;
  const bool there = std::filesystem::exists(setup.path, none);
  if (there && (!std::filesystem::is_regular_file(setup.path, none) ||
                std::filesystem::file_size(setup.path, none) >= setup.size)) {
    return {};
  }
  const UniqueFd file(open(setup.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return SystemError(setup.path, "cannot be made");
  const int failed = posix_fallocate(file.get(), 0, static_cast<off_t>(setup.size));
  if (failed != 0) return SystemError(setup.path, "has no space", failed);
  return ThroughLibaio(setup, Operation::kWrite);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Result<void> Measure(const Setup& setup, unsigned rounds) {
  struct Variant {
    const char* name;
    std::function<Result<void>()> run;
  };
  std::vector<Variant> variants = {
      {"libaio read", [&] { return ThroughLibaio(setup, Operation::kRead); }},
      {"FileDevice read", [&] { return ThroughDevice(setup, Operation::kRead); }},
      {"libaio write", [&] { return ThroughLibaio(setup, Operation::kWrite); }},
      {"FileDevice write", [&] { return ThroughDevice(setup, Operation::kWrite); }},
  };
  std::map<std::string, std::vector<double>> speeds;
  std::mt19937 random(1);
  for (unsigned round = 0; round < rounds; ++round) {
    std::shuffle(variants.begin(), variants.end(), random);
    for (const Variant& variant : variants) {
      const auto start = std::chrono::steady_clock::now();
      RETURN_IF_ERROR(variant.run());
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      speeds[variant.name].push_back(static_cast<double>(setup.size) / seconds.count() / 1e9);
    }
  }
  for (const std::string operation : {"read", "write"}) {
    const double reference = Median(speeds["libaio " + operation]);
    const double ours = Median(speeds["FileDevice " + operation]);
    fmt::print("{:<6} libaio {:6.2f} GB/s   FileDevice {:6.2f} GB/s   ratio {:.3f}\n", operation, reference, ours,
               ours / reference);
  }
  return {};
}

Result<void> Run(const std::string& path, const std::string& size_text, unsigned rounds) {
  ASSIGN_OR_RETURN(const ByteCount size, ParseSize(size_text));
  Setup setup;
  setup.path = path;
  setup.size = RoundDown(size.value, kRequestSize);
  if (setup.size == 0 || rounds == 0) return Error{ErrorCode::kInvalid, "size and rounds must not be 0"};
  ASSIGN_OR_RETURN(const auto pool, BufferPool::Create({.buffer_size = {kRequestSize}, .count = kDepth}));
  for (unsigned i = 0; i < kDepth; ++i) {
    setup.buffers.push_back(pool->Allocate());
    std::memset(setup.buffers.back().data(), 'w', kRequestSize);  // touch the memory before the measurement
  }
  Result<void> result = Prepare(setup);
  if (result.has_value()) result = Measure(setup, rounds);
  setup.buffers.clear();  // must be freed before the pool
  return result;
}

}  // namespace
}  // namespace weightfs

int main(int argc, char** argv) {
  CLI::App app("FileDevice against plain libaio");
  std::string path;
  std::string size = "2G";
  unsigned rounds = 5;
  app.add_option("file", path, "the file or device; ITS CONTENTS ARE OVERWRITTEN")->required();
  app.add_option("--size", size, "bytes a pass");
  app.add_option("--rounds", rounds, "passes of each variant");
  CLI11_PARSE(app, argc, argv);
  if (const auto result = weightfs::Run(path, size, rounds); !result.has_value()) {
    fmt::print(stderr, "engine_bench: {}\n", weightfs::ToString(result.error()));
    return 1;
  }
  return 0;
}
