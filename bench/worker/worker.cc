// SPDX-License-Identifier: Apache-2.0
#include "bench/worker/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/worker/handles.h"
#include "common/units.h"
#include "lease/ioctl.h"

namespace weightfs::bench {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

const std::map<std::string, Amount (*)(const FileJob&)> kFileJobs = {
    {"read", ReadFile}, {"write", WriteFile}, {"map", MapFile}};
const std::map<std::string, Amount (*)(const SmallFiles&)> kSmallFileJobs = {
    {"create", CreateAll}, {"stat", StatAll}, {"list", ListAll}, {"read-all", ReadAll}, {"unlink", RemoveAll}};

// Of all threads of this process.
double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Writes a file's dirty data and drops its pages from the kernel's and the daemon's caches.
Result<void> MakeCold(const std::string& path, bool on_mount) {
  ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_RDONLY));
  RETURN_IF_ERROR(Sync(file, path));
  posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (!on_mount || ioctl(file.get(), WEIGHTFS_IOC_DROP_CACHE) == 0) return {};
  return SystemError(path, "its cache cannot be dropped");
}

class Worker {
 public:
  Json Answer(const Json& job) {
    Json answer = Json::object();
    const double cpu = CpuSeconds();
    const auto begin = Clock::now();
    const Amount amount = Do(job, &answer);
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    if (!amount.has_value()) return {{"error", amount.error().what}};
    answer["amount"] = *amount;
    answer["cpu"] = CpuSeconds() - cpu;
    if (!answer.contains("seconds")) answer["seconds"] = std::max(seconds.count(), 1e-9);
    return answer;
  }

 private:
  Amount Do(const Json& job, Json* answer) {
    const auto name = job.at("do").get<std::string>();
    if (name == "prepare") return Prepare(job);
    if (name == "cold") return MakeAllCold(job);
    if (name == "counters") return ReadCounters(job, answer);
    if (const auto found = kFileJobs.find(name); found != kFileJobs.end()) return found->second(FileJobOf(job));
    if (const auto found = kSmallFileJobs.find(name); found != kSmallFileJobs.end()) {
      return found->second(SmallFilesOf(job));
    }
    return DoWithTensors(name, job, answer);
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

  // {"paths", "on_mount"}
  static Amount MakeAllCold(const Json& job) {
    const auto paths = job.at("paths").get<std::vector<std::string>>();
    for (const auto& path : paths) RETURN_IF_ERROR(MakeCold(path, job.at("on_mount").get<bool>()));
    return paths.size();
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

  // Handles are created on first use.
  Amount DoWithTensors(const std::string& name, const Json& job, Json* answer) {
    if (tensors_ == nullptr) {
      ASSIGN_OR_RETURN(tensors_, Tensors::Create(content_, into_.get()));
    }
    if (name == "save-many") return tensors_->SaveMany(SmallFilesOf(job));
    if (name == "load-many") return tensors_->LoadMany(SmallFilesOf(job));
    const auto path = job.at("path").get<std::string>();
    const bool check = job.value("check", false);
    if (name == "reader") {
      double seconds = job.at("duration");
      const Amount rows = tensors_->ReadRows(path, job.at("call"), job.at("depth"), job.value("seed", uint64_t{0}),
                                             check, &seconds);
      (*answer)["seconds"] = seconds;
      return rows;
    }
    const auto alignment = static_cast<Alignment>(job.value("alignment", 0));
    const bool direct = job.at("direct").get<bool>();
    if (name == "tensor-read") return tensors_->Read(path, alignment, direct, check);
    if (name == "tensor-write") return tensors_->Write(path, alignment, direct);
    return Error{ErrorCode::kInvalid, fmt::format("no such job: {}", name)};
  }

  // {"path", "size", "call", "unaligned", "check", "sync"}
  FileJob FileJobOf(const Json& job) const {
    FileJob file{job.at("path"), job.value("size", content_.period), job.value("call", kMiB), content_, into_.get(),
                 job.value("check", false), job.value("sync", true)};
    if (job.value("unaligned", false)) file.content.data += kUnalignment;
    return file;
  }

  // {"path", "count", "size", "durable", "check"}
  SmallFiles SmallFilesOf(const Json& job) const {
    return {job.at("path").get<std::string>(), job.at("count").get<unsigned>(), content_,
            job.at("size").get<uint64_t>(),    job.value("durable", false),     job.value("check", false)};
  }

  Content content_;
  Memory source_, into_;
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
