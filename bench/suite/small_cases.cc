// SPDX-License-Identifier: Apache-2.0
// Many small files: one case goes through their life and gives a sample for each part of it.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "bench/suite/groups.h"

namespace weightfs::bench {
namespace {

using Samples = Result<std::vector<Sample>>;

constexpr uint64_t kFileSize = 64 * kKiB;

// Names and attributes are cold only where the whole machine's caches may be dropped; what is measured otherwise is
// what the kernel leaves to the filesystem.
Result<void> DropNames(const Lab& lab) {
  if (!lab.options().drop_caches) return {};
  sync();
  ASSIGN_OR_RETURN(const File knob, File::Open("/proc/sys/vm/drop_caches", O_WRONLY));
  if (write(knob.get(), "3", 1) != 1) return SystemError("/proc/sys/vm/drop_caches", "cannot be written");
  return {};
}

Samples Life(Lab& lab, Place& place, const Turn& turn) {
  const SmallFiles files{place.Path("small"), lab.options().quick ? 200U : 2000U, lab.content(), kFileSize,
                         lab.cancel()};
  if (mkdir(files.directory.c_str(), 0755) != 0 && errno != EEXIST)
    return SystemError(files.directory, "cannot be made");
  std::vector<Sample> samples;
  const auto time = [&](Result<void> (*part)(const SmallFiles&), uint64_t bytes) -> Result<void> {
    const Stopwatch watch(place);
    RETURN_IF_ERROR(part(files));
    samples.push_back(watch.Stop(files.count, bytes));
    return {};
  };
  RETURN_IF_ERROR(time(CreateAll, files.count * kFileSize));
  RETURN_IF_ERROR(DropNames(lab));
  RETURN_IF_ERROR(time(StatAll, 0));
  RETURN_IF_ERROR(time(StatAll, 0));
  RETURN_IF_ERROR(DropNames(lab));
  RETURN_IF_ERROR(time(ListAll, 0));
  RETURN_IF_ERROR(time(ListAll, 0));
  if (turn.warm_up) RETURN_IF_ERROR(ReadAll(files));
  RETURN_IF_ERROR(time(RemoveAll, 0));
  ASSIGN_OR_RETURN(const File directory, File::Open(files.directory, O_RDONLY | O_DIRECTORY));
  if (fsync(directory.get()) != 0) return SystemError(files.directory, "fsync");
  return samples;
}

Result<std::vector<Case>> Prepare(Lab& lab) {
  const std::vector<std::string_view> rows = {"create", "stat", "stat-again", "list", "list-again", "unlink"};
  std::vector<Case> cases;
  for (const auto& [place, way] : {std::pair{&lab.weightfs(), Way::kWeightfs}, {&lab.host(), Way::kHost}}) {
    cases.push_back({way, rows, [&lab, place = place](const Turn& turn) { return Life(lab, *place, turn); }});
  }
  return cases;
}

}  // namespace

Group SmallGroup() { return {"small", Prepare}; }

}  // namespace weightfs::bench
