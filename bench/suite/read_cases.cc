// SPDX-License-Identifier: Apache-2.0
// Sequential reads of one big file, cold unless the row says otherwise.
#include <fmt/format.h>

#include <algorithm>

#include "bench/suite/groups.h"
#include "bench/suite/process.h"

namespace weightfs::bench {
namespace {

using Samples = Result<std::vector<Sample>>;
using Job = std::function<Result<void>(const FileJob&)>;

constexpr unsigned kReaders = 8;

// A whole pass over the place's big file by `job`, cold.
Case ColdPass(Lab& lab, Place& place, Way way, std::string_view row, uint64_t call, const Job& job) {
  return {way, {row}, [&lab, &place, call, job](const Turn& turn) -> Samples {
            ASSIGN_OR_RETURN(const std::string path, lab.BigFile(place));
            RETURN_IF_ERROR(place.MakeCold(path));
            const FileJob work = lab.Job(path, call, turn);
            const Stopwatch watch(place);
            RETURN_IF_ERROR(job(work));
            return One(watch.Stop(lab.size(), lab.size()));
          }};
}

// Three passes without making the file cold in between; the third counts.
Case Reread(Lab& lab, Place& place, Way way) {
  return {way, {"reread"}, [&lab, &place](const Turn& turn) -> Samples {
            ASSIGN_OR_RETURN(const std::string path, lab.BigFile(place));
            const FileJob work = lab.Job(path, kMiB, turn);
            RETURN_IF_ERROR(place.MakeCold(path));
            RETURN_IF_ERROR(ReadFile(work));
            RETURN_IF_ERROR(ReadFile(work));
            const Stopwatch watch(place);
            RETURN_IF_ERROR(ReadFile(work));
            return One(watch.Stop(lab.size(), lab.size()));
          }};
}

// Each reader has a piece of the sink, touched long ago; they share nothing else.
Case Readers(Lab& lab, Place& place, Way way) {
  return {way, {"readers-8"}, [&lab, &place](const Turn& turn) -> Samples {
            ASSIGN_OR_RETURN(const std::string path, lab.BigFile(place));
            RETURN_IF_ERROR(place.MakeCold(path));
            FileJob work = lab.Job(path, kMiB, turn);
            const auto prepare = [&](unsigned index) -> Result<void> {
              work.into += index * kMiB;
              std::fill_n(work.into, kMiB, std::byte{0});  // the child's own copy of these pages
              return {};
            };
            const Stopwatch watch(place);
            ASSIGN_OR_RETURN(const double seconds,
                             RunTogether(kReaders, prepare, [&](unsigned) { return ReadFile(work); }));
            Sample sample = watch.Stop(0, kReaders * lab.size());
            sample.seconds = seconds;
            sample.rate = static_cast<double>(sample.bytes) / seconds;
            return One(sample);
          }};
}

void AddBoth(Lab& lab, std::vector<Case>* cases, std::string_view row, uint64_t call, const Job& job) {
  cases->push_back(ColdPass(lab, lab.weightfs(), Way::kWeightfs, row, call, job));
  cases->push_back(ColdPass(lab, lab.host(), Way::kHost, row, call, job));
}

Result<void> AddNoVerify(Lab& lab, std::vector<Case>* cases) {
  if (!lab.IsSelected("read-1m") && !lab.IsSelected("read-whole")) return {};
  ASSIGN_OR_RETURN(Place* const place, lab.NoVerify());
  if (place == nullptr) {
    lab.NotMeasured("read-1m", Way::kNoVerify,
                    "the mount was there before; in another directory the benchmark makes its own");
    return {};
  }
  cases->push_back(ColdPass(lab, *place, Way::kNoVerify, "read-1m", kMiB, ReadFile));
  cases->push_back(ColdPass(lab, *place, Way::kNoVerify, "read-whole", lab.size(), ReadFile));
  return {};
}

Result<std::vector<Case>> Prepare(Lab& lab) {
  std::vector<Case> cases;
  AddRawRead(lab, &cases, kReadReference);
  AddBoth(lab, &cases, "read-1m", kMiB, ReadFile);
  AddBoth(lab, &cases, "read-whole", lab.size(), ReadFile);
  AddBoth(lab, &cases, "mmap", kMiB, MapFile);
  for (const auto& [row, depth] : {std::pair{"aio-1", 1U}, {"aio-32", 32U}, {"aio-128", 128U}}) {
    const auto job = [depth = depth](const FileJob& work) { return ReadByAio(work, depth); };
    cases.push_back(ColdPass(lab, lab.weightfs(), Way::kWeightfs, row, kMiB, job));
  }
  for (const auto& [place, way] : {std::pair{&lab.weightfs(), Way::kWeightfs}, {&lab.host(), Way::kHost}}) {
    cases.push_back(Reread(lab, *place, way));
    cases.push_back(Readers(lab, *place, way));
  }
  RETURN_IF_ERROR(AddNoVerify(lab, &cases));
  AddFio(lab, &cases, "read-1m", {.mode = "read", .call = kMiB});
  return cases;
}

}  // namespace

void AddRawRead(Lab& lab, std::vector<Case>* cases, std::string_view reference) {
  if (!lab.no_raw_reads().empty()) return lab.NotMeasured(reference, Way::kReference, lab.no_raw_reads());
  cases->push_back({Way::kReference, {reference}, [&lab](const Turn& turn) -> Samples {
                      ASSIGN_OR_RETURN(const FileJob work, lab.RawRead(kMiB, turn));
                      const Stopwatch watch(lab.host());
                      RETURN_IF_ERROR(lab.in_memory() ? ReadFile(work) : ReadByAio(work, 32));
                      return One(watch.Stop(lab.size(), lab.size()));
                    }});
}

Group ReadGroup() { return {"read", Prepare}; }

}  // namespace weightfs::bench
