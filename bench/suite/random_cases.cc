// SPDX-License-Identifier: Apache-2.0
// Random reads of the big file for a fixed time: through libaio and O_DIRECT, on the mount and on the raw file; on the
// host's filesystem through the page cache as well, one at a time.
#include "bench/suite/groups.h"

namespace weightfs::bench {
namespace {

using Samples = Result<std::vector<Sample>>;

struct Form {
  std::string_view row;
  uint64_t call;
  unsigned depth;
};
constexpr Form kForms[] = {{"random-4k-1", 4 * kKiB, 1},   {"random-4k-32", 4 * kKiB, 32},
                           {"random-16k-1", 16 * kKiB, 1}, {"random-16k-32", 16 * kKiB, 32},
                           {"random-64k-1", 64 * kKiB, 1}, {"random-64k-32", 64 * kKiB, 32}};

double Duration(const Lab& lab) { return lab.options().quick ? 0.1 : 1.0; }

Result<FileJob> FileOf(Lab& lab, Place& place, Way way, uint64_t call, const Turn& turn) {
  if (way == Way::kReference) return lab.RawRead(call, turn);
  ASSIGN_OR_RETURN(std::string path, lab.BigFile(place));
  return lab.Job(std::move(path), call, turn);
}

Case Reads(Lab& lab, Place& place, Way way, const Form& form) {
  return {way, {form.row}, [&lab, &place, way, form](const Turn& turn) -> Samples {
            ASSIGN_OR_RETURN(FileJob file, FileOf(lab, place, way, form.call, turn));
            if (way != Way::kReference) RETURN_IF_ERROR(place.MakeCold(file.path));
            const RandomJob work{std::move(file), form.depth, Duration(lab), turn.seed, way == Way::kHost};
            const Stopwatch watch(place);
            ASSIGN_OR_RETURN(const uint64_t done, ReadRandomly(work));
            return One(watch.Stop(done, done * form.call));
          }};
}

Result<std::vector<Case>> Prepare(Lab& lab) {
  std::vector<Case> cases;
  for (const Form& form : kForms) {
    cases.push_back(Reads(lab, lab.weightfs(), Way::kWeightfs, form));
    if (lab.no_raw_reads().empty()) {
      cases.push_back(Reads(lab, lab.host(), Way::kReference, form));
    } else {
      lab.NotMeasured(form.row, Way::kReference, lab.no_raw_reads());
    }
    if (form.depth == 1) cases.push_back(Reads(lab, lab.host(), Way::kHost, form));
    AddFio(lab, &cases, form.row, {"randread", form.call, form.depth, Duration(lab)});
  }
  return cases;
}

}  // namespace

Group RandomGroup() { return {"random", Prepare}; }

}  // namespace weightfs::bench
