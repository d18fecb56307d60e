// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "bench/suite/groups.h"
#include "bench/suite/process.h"

namespace weightfs::bench {
namespace {

// Reads a second for random modes, bytes a second otherwise.
Result<double> RunFio(const Lab& lab, const std::string& path, const FioJob& job) {
  Command command{{"fio", "--name=weightfs-bench", "--output-format=json", "--thread", "--group_reporting",
                   "--randrepeat=0", "--fallocate=none", "--allow_file_create=0"},
                  {},
                  lab.cancel()};
  const auto add = [&command](std::string word) { command.words.push_back(std::move(word)); };
  const bool write = std::strcmp(job.mode, "write") == 0;
  const bool by_aio = !lab.in_memory() || job.aio_in_memory;
  add("--filename=" + path);
  add(fmt::format("--rw={}", job.mode));
  add(fmt::format("--bs={}", job.call));
  add(fmt::format("--size={}", lab.size()));
  add(by_aio ? "--ioengine=libaio" : "--ioengine=psync");
  if (by_aio) add(fmt::format("--iodepth={}", job.depth));
  if (!lab.in_memory()) add("--direct=1");
  if (write) add("--end_fsync=1");
  if (job.seconds > 0)
    add("--time_based"), add(fmt::format("--runtime={}ms", static_cast<uint64_t>(job.seconds * 1000)));
  ASSIGN_OR_RETURN(const std::string text, RunCommand(command));
  const size_t begin = text.find('{');
  const auto json = nlohmann::json::parse(begin == std::string::npos ? "" : text.substr(begin), nullptr, false);
  const bool random = std::strcmp(job.mode, "randread") == 0;
  const std::string pointer = fmt::format("/jobs/0/{}/{}", write ? "write" : "read", random ? "iops" : "bw_bytes");
  const nlohmann::json::json_pointer place(pointer);
  if (json.is_discarded() || !json.contains(place) || !json.at(place).is_number()) {
    return Error{ErrorCode::kIo, fmt::format("fio gave no {} in its JSON", pointer)};
  }
  return json.at(place).get<double>();
}

}  // namespace

void AddFio(Lab& lab, std::vector<Case>* cases, std::string_view row, const FioJob& job) {
  if (const std::string why = lab.WhyNoFio(); !why.empty()) return lab.NotMeasured(row, Way::kFio, why);
  cases->push_back({Way::kFio, {row}, [&lab, job](const Turn&) -> Result<std::vector<Sample>> {
                      ASSIGN_OR_RETURN(const std::string path, lab.RawFile());
                      const Stopwatch watch(lab.host());
                      ASSIGN_OR_RETURN(const double rate, RunFio(lab, path, job));
                      // What a timed run starts and ends with is not reading, so its costs are of no meaning.
                      Sample sample = watch.Stop(0, job.seconds > 0 ? 0 : lab.size());
                      sample.rate = rate;
                      // It leaves bytes of its own.
                      if (std::strcmp(job.mode, "write") == 0) lab.ForgetRawFile();
                      return One(sample);
                    }});
}

}  // namespace weightfs::bench
