// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/lab.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <bit>
#include <filesystem>

#include "bench/suite/pool_device.h"
#include "bench/suite/process.h"

namespace weightfs::bench {
namespace {

// Beside three times the big file: what the small files, the evictor and the store itself take.
uint64_t RoomBeside(const SuiteOptions& options) { return options.quick ? 576 * kMiB : kGiB; }

Result<uint64_t> FreeSpace(const std::string& directory) {
  struct statvfs status = {};
  if (statvfs(directory.c_str(), &status) != 0) return SystemError(directory, "statvfs");
  return uint64_t{status.f_bavail} * status.f_frsize;
}

}  // namespace

Stopwatch::Stopwatch(const Place& place)
    : place_(place),
      counters_(place.Counters()),
      daemon_cpu_(place.CpuSeconds()),
      client_cpu_(OwnCpuSeconds()),
      begin_(Now()) {}

Sample Stopwatch::Stop(uint64_t amount, uint64_t bytes) const {
  Sample sample;
  sample.seconds = Now() - begin_;
  sample.client_cpu = OwnCpuSeconds() - client_cpu_;
  sample.daemon_cpu = place_.CpuSeconds() - daemon_cpu_;
  sample.bytes = bytes;
  sample.rate = static_cast<double>(amount) / std::max(sample.seconds, 1e-9);
  if (const auto counters = place_.Counters(); counters.has_value() && counters_.has_value()) {
    sample.device_read_bytes = counters->device_read_bytes - counters_->device_read_bytes;
  }
  return sample;
}

Lab::Lab(const SuiteOptions& options)
    : options_(options), scratch_({options.program, options.drop_caches, options.cancel}) {}

Result<std::unique_ptr<Lab>> Lab::Create(const SuiteOptions& options) {
  std::unique_ptr<Lab> lab(new Lab(options));
  RETURN_IF_ERROR(lab->ChooseSize());
  RETURN_IF_ERROR(lab->MakeMemory());
  RETURN_IF_ERROR(lab->MakePlaces());
  RETURN_IF_ERROR(lab->LookAtPool());
  return lab;
}

Result<void> Lab::ChooseSize() {
  std::string where = options_.host;
  if (where.empty()) {
    where = has_own_store() ? options_.directory : std::filesystem::path(options_.store).parent_path().string();
  }
  options_.host = where;
  ASSIGN_OR_RETURN(const Place host, Place::Open({where}));
  ASSIGN_OR_RETURN(uint64_t free, FreeSpace(where));
  const uint64_t memory = KernelFigure(0, "MemAvailable");
  if (host.is_tmpfs()) free = std::min(free, memory);
  // The pool, two files of the host's, the store of the second mount; and in memory our own buffers beside them.
  const auto need = [&](uint64_t size) { return (host.is_tmpfs() ? 15 : 9) * size + 2 * RoomBeside(options_); };
  if (options_.size == 0) {
    const uint64_t most =
        std::min({2 * kGiB, memory / 6, free > 3 * RoomBeside(options_) ? (free - 2 * RoomBeside(options_)) / 15 : 0});
    options_.size = std::max(options_.quick ? std::min(most, 256 * kMiB) : most, 64 * kMiB);
    options_.size = std::bit_floor(options_.size);
  }
  if (options_.large_size > 0 && options_.large_size < options_.size) {
    return Error{ErrorCode::kInvalid, fmt::format("--large-size {}M: smaller than the big file, which has {} MiB here; "
                                                  "give a larger one, or a smaller --size",
                                                  options_.large_size / kMiB, size() / kMiB)};
  }
  if (free < need(options_.size)) {
    return Error{ErrorCode::kNoSpace, fmt::format("{}: {} MiB free, and a run with --size {}M needs about {}; give a "
                                                  "smaller --size, or another directory",
                                                  where, free / kMiB, size() / kMiB, need(size()) / kMiB)};
  }
  return {};
}

Result<void> Lab::MakeMemory() {
  if (!options_.quick) {
    ShowProgress("warming the memory");
    WarmMemory();
  }
  ASSIGN_OR_RETURN(source_, Pages::Create(size() + kMiB));
  ASSIGN_OR_RETURN(sink_, Pages::Create(std::max(size() + kMiB, 128 * kMiB)));
  FillPattern(source_.data(), source_.size(), 1);
  content_ = {source_.data(), size()};
  unaligned_ = {source_.data() + kUnalignment, size()};
  return {};
}

Result<void> Lab::MakePlaces() {
  ASSIGN_OR_RETURN(base_, scratch_.MakeDirectory(options_.host));
  const std::string files = base_ + "/host";
  std::error_code error;
  std::filesystem::create_directory(files, error);
  ASSIGN_OR_RETURN(host_, Place::Open({files, 0, options_.drop_caches}));
  if (has_own_store()) {
    ShowProgress("making a store");
    store_ = base_ + "/main/store";
    ASSIGN_OR_RETURN(
        weightfs_,
        scratch_.Mount({base_ + "/main", 3 * size() + RoomBeside(options_), {}, options_.mount_options, {}}));
    return options_.quick ? Result<void>() : WriteOverPool();
  }
  store_ = options_.store;
  ASSIGN_OR_RETURN(const pid_t daemon, DaemonOf(store_));
  ASSIGN_OR_RETURN(const std::string directory, scratch_.MakeDirectory(options_.directory));
  ASSIGN_OR_RETURN(weightfs_, Place::Open({directory, daemon, options_.drop_caches}));
  return {};
}

Result<void> Lab::WriteOverPool() {
  ShowProgress("writing over the store once");
  constexpr uint64_t kLeft = 64 * kMiB;  // for what a full store still needs
  std::vector<std::string> paths;
  while (true) {
    ASSIGN_OR_RETURN(const uint64_t free, FreeSpace(weightfs_.directory()));
    if (free <= kLeft + kMiB) break;
    FileJob job;
    job.path = paths.emplace_back(weightfs_.Path(fmt::format("over-{}", paths.size())));
    job.size = RoundDown(std::min(size(), free - kLeft), kMiB);
    job.call = kMiB;
    job.content = content_;
    job.cancel = options_.cancel;
    RETURN_IF_ERROR(WriteFile(job));
  }
  for (const auto& path : paths) RETURN_IF_ERROR(weightfs_.Remove(path));
  return {};
}

Result<void> Lab::Close() {
  // A mount with an open directory cannot be unmounted.
  weightfs_ = Place();
  no_verify_.reset();
  return scratch_.Close();
}

Result<Place*> Lab::NoVerify() {
  if (no_verify_ == nullptr && has_own_store()) {
    ShowProgress("making a second store, mounted without verification");
    std::string mount_options = options_.mount_options;
    mount_options += mount_options.empty() ? "noverify" : ",noverify";
    ASSIGN_OR_RETURN(Place place,
                     scratch_.Mount({base_ + "/noverify", size() + RoomBeside(options_), {}, mount_options, {}}));
    no_verify_ = std::make_unique<Place>(std::move(place));
  }
  return no_verify_.get();
}

Result<std::string> Lab::BigFile(Place& place) {
  std::string path = place.Path("big");
  std::error_code error;
  if (std::filesystem::file_size(path, error) != size()) {
    ShowProgress("writing the big file");
    RETURN_IF_ERROR(WriteFile(Job(path, kMiB, {})));
  }
  return path;
}

Result<std::string> Lab::RawFile() {
  std::string path = host_.Path("raw");
  if (!raw_ready_) {
    ShowProgress("writing the reference's file");
    RETURN_IF_ERROR(PrepareRawFile(Job(path, kMiB, {})));
    raw_ready_ = true;
  }
  return path;
}

Result<std::string> Lab::MemoryDirectory() {
  if (memory_directory_.empty()) {
    ASSIGN_OR_RETURN(memory_directory_, scratch_.MakeDirectory("/dev/shm", "weightfs-bench-memory"));
  }
  return memory_directory_;
}

Result<void> Lab::EmptyMemoryDirectory() {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(memory_directory_, error), end; !error && entry != end;
       entry.increment(error)) {
    std::filesystem::remove(entry->path(), error);
  }
  return {};
}

Result<void> Lab::LookAtPool() {
  ASSIGN_OR_RETURN(const PoolDevices devices, ReadPoolDevices(store_));
  if (!devices.any_block_device) return {};
  no_raw_writes_ = "the pool is a block device, and writing to it would destroy the store";
  if (devices.paths.size() > 1) {
    no_raw_reads_ = "the pool has several devices; the reference knows one";
  } else if (access(devices.paths[0].c_str(), R_OK) != 0) {
    no_raw_reads_ = SystemError(devices.paths[0], "may not be read").what;
  } else {
    pool_device_ = devices.paths[0];
  }
  return {};
}

std::string Lab::WhyNoFio() const {
  if (FindProgram("fio").empty()) return "fio is not installed";
  return no_raw_writes_.empty() ? "" : "the pool is a block device, and fio knows nothing of where its file lies";
}

Result<FileJob> Lab::RawRead(uint64_t call, const Turn& turn) {
  if (pool_device_.empty()) {
    ASSIGN_OR_RETURN(std::string path, RawFile());
    return Job(std::move(path), call, turn);
  }
  if (places_.empty()) {
    ASSIGN_OR_RETURN(const std::string big, BigFile(weightfs_));
    ASSIGN_OR_RETURN(places_, PlacesOf(big, size()));
  }
  FileJob job = Job(pool_device_, call, turn);
  job.places = &places_;
  return job;
}

FileJob Lab::Job(std::string path, uint64_t call, const Turn& turn) const {
  FileJob job{std::move(path), size(), call, content_, sink_.data()};
  job.check = turn.warm_up;
  job.cancel = options_.cancel;
  return job;
}

bool Lab::IsSelected(std::string_view row) const {
  const RowSpec* spec = FindRow(row);
  return spec != nullptr && bench::IsSelected(*spec, options_.only);
}

void Lab::StartPhase(uint64_t parts) {
  phase_begin_ += phase_parts_;
  phase_parts_ = parts;
  parts_done_ = phase_begin_;
}

void Lab::ShowProgress(std::string_view step, uint64_t done, uint64_t total) {
  parts_done_ = phase_begin_ + phase_parts_ * std::min(done, total) / std::max<uint64_t>(total, 1);
  ShowProgress(step);
}

void Lab::ShowProgress(std::string_view step) const {
  if (!options_.progress) return;
  options_.progress({.step = step,
                     .done = parts_done_,
                     .total = parts_,
                     .unit = Progress::Unit::kParts,
                     // The preparations have no total, and no part in the rate of what follows.
                     .pass = parts_ == 0 ? 1U : 2U});
}

}  // namespace weightfs::bench
