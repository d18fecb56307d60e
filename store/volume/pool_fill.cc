// SPDX-License-Identifier: Apache-2.0
#include "store/volume/pool_fill.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <string_view>

#include "common/log.h"
#include "common/size_text.h"
#include "engine/superblock.h"
#include "io/buffer.h"

namespace weightfs {
namespace {

using Time = std::chrono::steady_clock::time_point;

constexpr uint64_t kChunk = 8 * kMiB;
// The probe writes to two areas of kProbeWrites writes each, at the end of the device, where an earlier store is the
// least likely to have written.
constexpr uint64_t kProbeWrite = 4 * kMiB;
constexpr size_t kProbeWrites = 8, kFewestProbeWrites = 3;
constexpr std::chrono::seconds kProbeLimit{2};
static_assert(kSmallestProbed >= 2 * kDataOffset + (2 * kProbeWrites + 1) * kProbeWrite);

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double Seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Random bytes. Each block begins with a number that no other block has had, so a disk that stores equal blocks once
// stores all of them.
class RandomData {
 public:
  explicit RandomData(Buffer buffer) : buffer_(std::move(buffer)) {
    auto* words = reinterpret_cast<uint64_t*>(buffer_.data());
    std::generate_n(words, buffer_.size().value / sizeof(uint64_t), std::ref(random_));
  }

  // The next `size` bytes, valid until the next call; at most the buffer's size.
  std::span<const std::byte> Next(uint64_t size) {
    for (uint64_t at = 0; at < size; at += kBlockSize) {
      ++number_;
      std::memcpy(buffer_.data() + at, &number_, sizeof(number_));
    }
    return buffer_.bytes().first(size);
  }

 private:
  const Buffer buffer_;
  std::mt19937_64 random_{std::random_device()()};
  uint64_t number_ = random_();
};

// One run of FillPool.
class PoolFiller {
 public:
  PoolFiller(std::span<const FillTarget> targets, const FillOptions& options, Buffer zeros, Buffer data)
      : targets_(targets), options_(options), zeros_(std::move(zeros)), data_(std::move(data)) {
    std::memset(zeros_.data(), 0, zeros_.size().value);
  }

  Result<FillReport> Run() {
    const Time start = options_.now();
    FillReport report;
    for (const FillTarget& target : targets_) {
      ASSIGN_OR_RETURN(const auto device, Choose(target));
      report.devices.push_back(device);
      total_ += device.content == PoolFill::kNone ? 2 * kDataOffset : target.size.value;
    }
    for (size_t index = 0; index < targets_.size(); ++index) {
      RETURN_IF_ERROR(Fill(targets_[index], report.devices[index].content));
    }
    report.seconds = Seconds(options_.now() - start);
    return report;
  }

 private:
  Result<FillReport::Device> Choose(const FillTarget& target) {
    if (target.fill != PoolFill::kAuto) return FillReport::Device{target.fill, std::nullopt};
    ProbeTimes times;
    if (target.size.value >= kSmallestProbed) RETURN_IF_ERROR(Probe(target, &times));
    const auto slowdown = FirstWriteSlowdown(times);
    return FillReport::Device{ChooseFill(slowdown), slowdown};
  }

  // The writes of both kinds alternate, so that other load affects both.
  Result<void> Probe(const FillTarget& target, ProbeTimes* times) {
    constexpr uint64_t kArea = kProbeWrites * kProbeWrite;
    const Time end = options_.now() + kProbeLimit;
    const uint64_t zeros = RoundDown(target.size.value - kDataOffset, kProbeWrite) - 2 * kArea, data = zeros + kArea;
    for (uint64_t at = 0; at < kArea && options_.now() < end; at += kProbeWrite) {
      RETURN_IF_ERROR(Write(*target.device, zeros + at, zeros_.bytes().first(kProbeWrite)));
      RETURN_IF_ERROR(Write(*target.device, data + at, data_.Next(kProbeWrite)));
    }
    RETURN_IF_ERROR(target.device->Flush());
    for (uint64_t at = 0; at < kArea && options_.now() < end; at += kProbeWrite) {
      RETURN_IF_ERROR(AddTime(*target.device, zeros + at, &times->first));
      RETURN_IF_ERROR(AddTime(*target.device, data + at, &times->later));
    }
    return {};
  }

  Result<void> AddTime(BlockDevice& device, uint64_t offset, std::vector<double>* times) {
    const auto bytes = data_.Next(kProbeWrite);
    const Time start = options_.now();
    RETURN_IF_ERROR(Write(device, offset, bytes));
    RETURN_IF_ERROR(device.Flush());
    times->push_back(Seconds(options_.now() - start));
    return {};
  }

  Result<void> Fill(const FillTarget& target, PoolFill content) {
    const uint64_t tail = target.size.value - kDataOffset;
    step_ = content == PoolFill::kData ? "writing data" : "writing zeros";
    RETURN_IF_ERROR(WriteRange(*target.device, PoolFill::kZeros, 0, kDataOffset));
    if (content != PoolFill::kNone) RETURN_IF_ERROR(WriteRange(*target.device, content, kDataOffset, tail));
    RETURN_IF_ERROR(WriteRange(*target.device, PoolFill::kZeros, tail, target.size.value));
    return target.device->Flush();
  }

  Result<void> WriteRange(BlockDevice& device, PoolFill content, uint64_t first, uint64_t end) {
    for (uint64_t at = first; at < end;) {
      const uint64_t step = std::min(kChunk, end - at);
      RETURN_IF_ERROR(Write(device, at, content == PoolFill::kData ? data_.Next(step) : zeros_.bytes().first(step)));
      at += step;
      done_ += step;
      if (options_.progress) options_.progress({.step = step_, .done = done_, .total = total_});
    }
    return {};
  }

  Result<void> Write(BlockDevice& device, uint64_t offset, std::span<const std::byte> bytes) {
    if (options_.cancel != nullptr && options_.cancel->load()) {
      return Error{ErrorCode::kShutdown, "format was interrupted; the incomplete store is removed"};
    }
    const auto written = device.Write(ByteOffset{offset}, bytes);
    if (written.has_value()) return {};
    return Error{written.error().code, fmt::format("{}: cannot be written at byte {}: {}; check the device and the "
                                                   "space of its filesystem",
                                                   device.path(), offset, ToString(written.error()))};
  }

  const std::span<const FillTarget> targets_;
  const FillOptions& options_;
  const Buffer zeros_;
  RandomData data_;
  std::string_view step_;  // for the progress
  uint64_t done_ = 0, total_ = 0;
};

Error DoesNotFit(const std::string& path, int descriptor, ByteCount size) {
  struct statvfs space = {};
  const std::string free_space = fstatvfs(descriptor, &space) == 0
                               ? FormatSize(ByteCount{uint64_t{space.f_bavail} * space.f_frsize})
                               : std::string("too little");
  return {ErrorCode::kNoSpace, fmt::format("{}: {} does not fit: its filesystem has {} free; choose a smaller "
                                           "--size or another directory",
                                           path, FormatSize(size), free_space)};
}

Result<void> Reserve(int descriptor, const std::string& path, ByteCount size, bool preallocate) {
  struct stat before = {};
  if (fstat(descriptor, &before) != 0) return SystemError(path, "cannot be accessed");
  const auto wanted = static_cast<off_t>(size.value);
  // A filesystem without fallocate allocates blocks when the zeros are written.
  if (preallocate && fallocate(descriptor, FALLOC_FL_KEEP_SIZE, 0, wanted) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS) {
    const int error = errno;
    // Frees what a partial reservation left beyond the end.
    if (ftruncate(descriptor, before.st_size) != 0) spdlog::warn("{}: {}", path, std::strerror(errno));
    if (error == ENOSPC || error == EFBIG || error == EDQUOT) return DoesNotFit(path, descriptor, size);
    return SystemError(path, "cannot be preallocated", error);
  }
  if (before.st_size < wanted && ftruncate(descriptor, wanted) != 0) {
    return SystemError(path, fmt::format("cannot be resized to {}", FormatSize(size)));
  }
  return {};
}

}  // namespace

std::optional<double> FirstWriteSlowdown(const ProbeTimes& times) {
  if (std::min(times.first.size(), times.later.size()) < kFewestProbeWrites) return std::nullopt;
  const double later = Median(times.later);
  if (later <= 0) return std::nullopt;
  return Median(times.first) / later;
}

PoolFill ChooseFill(std::optional<double> slowdown) {
  return slowdown.value_or(0) >= kSlowFirstWrite ? PoolFill::kData : PoolFill::kZeros;
}

Result<FillReport> FillPool(std::span<const FillTarget> targets, const FillOptions& options) {
  ASSIGN_OR_RETURN(const auto pool, BufferPool::Create({.buffer_size = ByteCount{kChunk}, .count = 2}));
  return PoolFiller(targets, options, pool->Allocate(), pool->Allocate()).Run();
}

Result<void> ReservePoolFile(const GuardedDirectory& store, const std::string& name, ByteCount size, bool preallocate,
                             bool* made) {
  const auto found = store.CheckFile(name);
  *made = !found.has_value() && found.error().code == ErrorCode::kNotFound;
  ASSIGN_OR_RETURN(const UniqueFd file, store.OpenFile(name, O_RDWR | O_CREAT));
  auto reserved = Reserve(file.get(), store.PathOf(name), size, preallocate);
  if (!reserved.has_value() && *made) unlink(store.PathOf(name).c_str());
  return reserved;
}

Result<void> ReserveGivenFile(const std::string& path, ByteCount size) {
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file) return SystemError(path, "cannot be opened for writing");
  return Reserve(file.get(), path, size, true);
}

}  // namespace weightfs
