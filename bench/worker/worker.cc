// SPDX-License-Identifier: Apache-2.0
#include "bench/worker/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <barrier>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "bench/worker/handles.h"
#include "lease/ioctl.h"

namespace weightfs::bench {
namespace {

using Json = nlohmann::json;

const std::map<std::string, Amount (*)(const FileJob&)> kFileJobs = {
    {"read", ReadFile},           {"write", WriteFile},           {"map", MapFile},
    {"aio-read", ReadByAio},      {"aio-write", WriteByAio},      {"random", ReadRandomly},
    {"raw-file", PrepareRawFile}, {"random-write", WriteRandomly}};
const std::map<std::string, Amount (*)(const SmallFiles&)> kSmallFileJobs = {
    {"create", CreateAll}, {"stat", StatAll}, {"list", ListAll}, {"read-all", ReadAll}, {"unlink", RemoveAll}};

// Writes a file's dirty data and drops its pages from the kernel's and the daemon's caches.
Result<void> MakeCold(const std::string& path, bool on_mount) {
  ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_RDONLY));
  RETURN_IF_ERROR(Sync(file, path));
  posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (!on_mount || ioctl(file.get(), WEIGHTFS_IOC_DROP_CACHE) == 0) return {};
  return SystemError(path, "its cache cannot be dropped");
}

// Returns the location of each MiB of a file on the only device of its store, in bytes from the device's start.
// kNotSupported if a MiB is not contiguous.
Result<std::vector<uint64_t>> DeviceOffsetsOf(const std::string& path, uint64_t size) {
  ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_RDONLY));
  RETURN_IF_ERROR(Sync(file, path));
  std::vector<uint64_t> offsets(size / kMiB, 0);  // 0 means unknown: no data is at 0, where a superblock is
  weightfs_extents answer{};
  answer.version = WEIGHTFS_IOC_VERSION;
  do {
    if (ioctl(file.get(), WEIGHTFS_IOC_EXTENTS, &answer) != 0) {
      return SystemError(path, "its extents cannot be asked for");
    }
    for (uint32_t index = 0; index < answer.count; ++index) {
      const weightfs_extent& extent = answer.extents[index];
      const uint64_t end = std::min<uint64_t>(extent.first + extent.length, size);
      for (uint64_t at = RoundUp(extent.first, kMiB); at + kMiB <= end; at += kMiB) {
        offsets[at / kMiB] = extent.physical + (at - extent.first);
      }
    }
  } while (answer.count == WEIGHTFS_EXTENTS_MAX);
  if (std::count(offsets.begin(), offsets.end(), uint64_t{0}) == 0) return offsets;
  return Error{ErrorCode::kNotSupported, "the file lies in pieces too small for the reference"};
}

class Worker {
 public:
  Json Answer(const Json& job) {
    Json answer = Json::object();
    const double cpu = OwnCpuSeconds(), begin = Now();
    const Amount amount = Do(job, &answer);
    const double end = Now();
    if (!amount.has_value()) return {{"error", amount.error().what}};
    answer["amount"] = *amount;
    if (!answer.contains("cpu")) answer["cpu"] = OwnCpuSeconds() - cpu;
    if (!answer.contains("seconds")) answer["seconds"] = std::max(end - begin, 1e-9);
    return answer;
  }

 private:
  Amount Do(const Json& job, Json* answer) {
    const auto name = job.at("do").get<std::string>();
    if (name == "prepare") return Prepare(job);
    if (name == "cold") return MakeAllCold(job);
    if (name == "locate") return Locate(job);
    if (name == "counters") return ReadCounters(job, answer);
    if (name == "together") return DoTogether(job, answer);
    if (name == "reader") return DoWithReader(job, answer);
    if (const auto found = kFileJobs.find(name); found != kFileJobs.end()) return found->second(FileJobOf(job));
    if (const auto found = kSmallFileJobs.find(name); found != kSmallFileJobs.end()) {
      return found->second(SmallFilesOf(job));
    }
    return DoWithTensors(name, job);
  }

  // {"bytes", "warm"}: the size of the large file.
  Amount Prepare(const Json& job) {
    const auto size = job.at("bytes").get<uint64_t>();
    struct sysinfo machine = {};
    if (job.at("warm").get<bool>() && sysinfo(&machine) == 0) {  // so that the hypervisor has allocated it
      (void)AllocateTouched(std::min(machine.freeram * machine.mem_unit / 2, 6 * kGiB));
    }
    ASSIGN_OR_RETURN(source_, AllocateTouched(size + kMiB));
    ASSIGN_OR_RETURN(into_, AllocateTouched(std::max(size + kMiB, 128 * kMiB)));
    // Random words, which no device or hypervisor can compress or deduplicate.
    std::mt19937_64 random(1);
    std::generate_n(reinterpret_cast<uint64_t*>(source_.get()), (size + kMiB) / sizeof(uint64_t), std::ref(random));
    content_ = {source_.get(), size};
    return size;
  }

  // {"path" or "paths", "on_mount"}
  static Amount MakeAllCold(const Json& job) {
    const auto paths = job.at("paths").get<std::vector<std::string>>();
    for (const auto& path : paths) RETURN_IF_ERROR(MakeCold(path, job.at("on_mount").get<bool>()));
    return paths.size();
  }

  // {"path"}: later jobs with "located" read the blocks of this file.
  Amount Locate(const Json& job) {
    ASSIGN_OR_RETURN(device_offsets_, DeviceOffsetsOf(job.at("path").get<std::string>(), content_.period));
    return content_.period;
  }

  // {"path"}: the counters of its mount; nothing if the mount does not provide them.
  static Amount ReadCounters(const Json& job, Json* answer) {
    ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(job.at("path").get<std::string>(), O_RDONLY));
    weightfs_stats stats{};
    stats.version = WEIGHTFS_IOC_VERSION;
    if (ioctl(file.get(), WEIGHTFS_IOC_STATS, &stats) != 0) return 0;
    (*answer)["device_read_bytes"] = stats.device_read_bytes;
    (*answer)["buffer_capacity"] = stats.buffer_capacity;
    return 2;
  }

  // {"jobs"}: jobs on files in threads that start at once. Each thread reads into 1 MiB of memory of its own.
  Amount DoTogether(const Json& job, Json* answer) {
    const Json& jobs = job.at("jobs");
    std::vector<Amount> amounts(jobs.size());
    std::vector<std::jthread> threads;
    std::barrier start(static_cast<std::ptrdiff_t>(jobs.size() + 1));
    for (size_t index = 0; index < jobs.size(); ++index) {
      FileJob own = FileJobOf(jobs[index]);
      own.into += index * kMiB;
      const auto work = kFileJobs.at(jobs[index].at("do").get<std::string>());
      threads.emplace_back([&start, work, own = std::move(own), amount = &amounts[index]] {
        start.arrive_and_wait();
        *amount = work(own);
      });
    }
    start.arrive_and_wait();
    const double begin = Now();
    threads.clear();  // joins them
    (*answer)["seconds"] = std::max(Now() - begin, 1e-9);
    uint64_t sum = 0;
    for (const Amount& amount : amounts) {
      if (!amount.has_value()) return amount;
      sum += *amount;
    }
    return sum;
  }

  Amount DoWithReader(const Json& job, Json* answer) {
    Tensors::Timed timed;
    ASSIGN_OR_RETURN(const uint64_t reads, Tensors::ReadRows(FileJobOf(job), &timed));
    (*answer)["seconds"] = timed.seconds;
    (*answer)["cpu"] = timed.cpu;
    return reads;
  }

  // Handles are created on first use.
  Amount DoWithTensors(const std::string& name, const Json& job) {
    if (tensors_ == nullptr) {
      ASSIGN_OR_RETURN(tensors_, Tensors::Create(content_, into_.get()));
    }
    if (name == "save-many") return tensors_->SaveMany(SmallFilesOf(job));
    if (name == "load-many") return tensors_->LoadMany(SmallFilesOf(job));
    const auto path = job.at("path").get<std::string>();
    const auto alignment = static_cast<Alignment>(job.value("alignment", 0));
    const bool direct = job.at("direct").get<bool>();
    if (name == "tensor-read") return tensors_->Read(path, alignment, direct, job.value("check", false));
    if (name == "tensor-write") return tensors_->Write(path, alignment, direct);
    return Error{ErrorCode::kInvalid, fmt::format("no such job: {}", name)};
  }

  // {"path", "size", "call", …}: the fields of FileJob.
  FileJob FileJobOf(const Json& job) const {
    FileJob file;
    file.path = job.at("path").get<std::string>();
    file.size = job.value("size", content_.period);
    file.call = job.value("call", kMiB);
    file.content = content_;
    if (job.value("unaligned", false)) file.content.data += kUnalignment;
    file.into = into_.get();
    if (job.value("located", false)) file.device_offsets = device_offsets_;
    file.check = job.value("check", false);
    file.over_existing = job.value("over_existing", false);
    file.sync = job.value("sync", true);
    file.depth = job.value("depth", 32U);
    file.seconds = job.value("duration", 0.0);
    file.seed = job.value("seed", uint64_t{0});
    file.buffered = job.value("buffered", false);
    return file;
  }

  // {"path", "count", "size", "durable", "check"}
  SmallFiles SmallFilesOf(const Json& job) const {
    return {job.at("path").get<std::string>(), job.at("count").get<unsigned>(), content_,
            job.at("size").get<uint64_t>(),    job.value("durable", false),     job.value("check", false)};
  }

  Content content_;
  Memory source_, into_;
  std::vector<uint64_t> device_offsets_;
  std::unique_ptr<Tensors> tensors_;
};

}  // namespace

int RunWorker() {
  Worker worker;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << worker.Answer(Json::parse(line)).dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}

}  // namespace weightfs::bench
