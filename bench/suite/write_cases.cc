// SPDX-License-Identifier: Apache-2.0
// Writing a new file of the big file's size, with fsync; deleted outside the time.
#include "bench/suite/groups.h"

namespace weightfs::bench {
namespace {

using Samples = Result<std::vector<Sample>>;

constexpr const char* kName = "written";

struct Form {
  std::string_view row;
  bool whole, unaligned;
};
constexpr Form kForms[] = {{"write-1m", false, false},
                           {"write-whole", true, false},
                           {"write-unaligned", false, true},
                           {"write-whole-unaligned", true, true}};

Case NewFile(Lab& lab, Place& place, Way way, const Form& form) {
  return {way, {form.row}, [&lab, &place, form](const Turn& turn) -> Samples {
            FileJob work = lab.Job(place.Path(kName), form.whole ? lab.size() : kMiB, turn);
            if (form.unaligned) work.content = lab.unaligned();
            RETURN_IF_ERROR(place.Remove(work.path));
            const Stopwatch watch(place);
            RETURN_IF_ERROR(WriteFile(work));
            const Sample sample = watch.Stop(lab.size(), lab.size());
            if (turn.warm_up) {
              RETURN_IF_ERROR(place.MakeCold(work.path));
              work.call = kMiB;
              RETURN_IF_ERROR(ReadFile(work));
            }
            RETURN_IF_ERROR(place.Remove(work.path));
            return One(sample);
          }};
}

Result<std::vector<Case>> Prepare(Lab& lab) {
  std::vector<Case> cases;
  AddRawWrite(lab, &cases, kWriteReference);
  for (const Form& form : kForms) {
    cases.push_back(NewFile(lab, lab.weightfs(), Way::kWeightfs, form));
    cases.push_back(NewFile(lab, lab.host(), Way::kHost, form));
  }
  AddFio(lab, &cases, "write-1m", {.mode = "write", .call = kMiB});
  return cases;
}

}  // namespace

void AddRawWrite(Lab& lab, std::vector<Case>* cases, std::string_view reference) {
  if (!lab.no_raw_writes().empty()) return lab.NotMeasured(reference, Way::kReference, lab.no_raw_writes());
  cases->push_back({Way::kReference, {reference}, [&lab](const Turn& turn) -> Samples {
                      ASSIGN_OR_RETURN(const std::string path, lab.RawFile());
                      FileJob work = lab.Job(path, kMiB, turn);
                      work.over_existing = true;
                      const Stopwatch watch(lab.host());
                      RETURN_IF_ERROR(lab.in_memory() ? WriteFile(work) : WriteByAio(work, 32));
                      return One(watch.Stop(lab.size(), lab.size()));
                    }});
}

Group WriteGroup() { return {"write", Prepare}; }

}  // namespace weightfs::bench
