#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/suite/groups.h"
#include "bench/suite/process.h"

namespace weightfs::bench {

Result<double> RunFio(const FioJob& job) {
  Command command{{"fio", "--name=weightfs-bench", "--output-format=json", "--thread", "--group_reporting",
                   "--randrepeat=0", "--fallocate=none", "--allow_file_create=0"},
                  {},
                  job.cancel};
  const auto add = [&command](std::string word) { command.words.push_back(std::move(word)); };
  add("--filename=" + job.path);
  add("--rw=" + job.mode);
  add(fmt::format("--bs={}", job.call));
  add(fmt::format("--size={}", job.size));
  add(job.in_memory ? "--ioengine=psync" : "--ioengine=libaio");
  if (!job.in_memory) add("--direct=1"), add(fmt::format("--iodepth={}", job.depth));
  if (job.mode == "write") add("--end_fsync=1");
  if (job.seconds > 0)
    add("--time_based"), add(fmt::format("--runtime={}ms", static_cast<uint64_t>(job.seconds * 1000)));
  ASSIGN_OR_RETURN(const std::string text, RunCommand(command));
  const size_t begin = text.find('{');
  const auto json = nlohmann::json::parse(begin == std::string::npos ? "" : text.substr(begin), nullptr, false);
  const bool random = job.mode == "randread";
  const std::string pointer =
      fmt::format("/jobs/0/{}/{}", job.mode == "write" ? "write" : "read", random ? "iops" : "bw_bytes");
  const nlohmann::json::json_pointer place(pointer);
  if (json.is_discarded() || !json.contains(place) || !json.at(place).is_number()) {
    return Error{ErrorCode::kIo, fmt::format("fio gave no {} in its JSON", pointer)};
  }
  return json.at(place).get<double>();
}

}  // namespace weightfs::bench
