// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/scaling.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <random>

#include "bench/suite/machine.h"
#include "bench/suite/process.h"
#include "common/size_text.h"

namespace weightfs::bench {
namespace {

constexpr double kAgedOfFresh = 0.9;
constexpr unsigned kAgeRounds = 50, kAgeStep = 10;
constexpr double kFull = 0.9;

// How busy the processors are while something is measured: what limits it, or not.
class Utilisation {
 public:
  double Busy() const { return BusyBetween(before_, ReadProcessorTimes()); }

 private:
  const ProcessorTimes before_ = ReadProcessorTimes();
};

// "the disk: 0.97 of the reference", from the best of what was measured.
std::string LimitText(double rate, double reference, double busy) {
  const std::string processors = fmt::format("the processors are {:.0f} % busy", busy * 100);
  if (reference <= 0) return processors;
  const double part = rate / reference;
  const char* what = part >= 0.85   ? "limited by the disk"
                     : busy >= 0.85 ? "limited by the processors"
                                    : "limited by waiting";
  return fmt::format("{}: at its best {:.2f} of the reference, {}", what, part, processors);
}

Result<double> Timed(uint64_t bytes, const std::function<Result<void>()>& work) {
  const double begin = Now();
  RETURN_IF_ERROR(work());
  return static_cast<double>(bytes) / 1e9 / std::max(Now() - begin, 1e-9);
}

Result<double> ReadCold(Lab& lab, Place& place, FileJob job) {
  if (IsSet(lab.cancel())) return Interrupted();
  RETURN_IF_ERROR(place.MakeCold(job.path));
  return Timed(job.size, [&] { return ReadFile(job); });
}

Result<double> ReadReference(Lab& lab) {
  if (!lab.no_raw_reads().empty()) return 0.0;
  ASSIGN_OR_RETURN(const FileJob job, lab.RawRead(kMiB, {}));
  std::vector<double> rates;
  for (int pass = 0; pass < 3; ++pass) {
    ASSIGN_OR_RETURN(const double rate,
                     Timed(job.size, [&] { return lab.in_memory() ? ReadFile(job) : ReadByAio(job, 32); }));
    rates.push_back(rate);
  }
  return SpreadOf(rates).median;
}

// --- Streams: as many files at once, one process each.

Result<double> Streams(Lab& lab, Place& place, unsigned count, bool write, uint64_t size) {
  std::vector<FileJob> jobs;
  for (unsigned index = 0; index < count; ++index) {
    FileJob job = lab.Job(place.Path(fmt::format("stream-{}", index)), kMiB, {});
    job.size = size;
    job.into += index * kMiB;
    RETURN_IF_ERROR(write ? place.Remove(job.path) : place.MakeCold(job.path));
    jobs.push_back(std::move(job));
  }
  const auto prepare = [&](unsigned index) -> Result<void> {
    std::fill_n(jobs[index].into, kMiB, std::byte{0});
    return {};
  };
  ASSIGN_OR_RETURN(const double seconds, RunTogether(count, prepare, [&](unsigned index) {
                     return write ? WriteFile(jobs[index]) : ReadFile(jobs[index]);
                   }));
  return static_cast<double>(count * size) / 1e9 / seconds;
}

Result<Curve> StreamsCurve(Lab& lab, double reference) {
  Curve curve{.id = "streams", .title = "Files at once", .x_title = "files read or written at once", .unit = "GB/s"};
  const uint64_t size = std::max(RoundDown(lab.size() / 8, kMiB), kMiB);
  double best = 0, busy = 0;
  unsigned turn = 0;
  for (const unsigned count : {1U, 2U, 4U, 8U}) {
    Curve::Point point{static_cast<double>(count), {}};
    std::map<std::string, std::vector<double>> rates;
    for (unsigned round = 0; round <= lab.options().rounds; ++round) {
      lab.ShowProgress(fmt::format("scaling: {} files at once", count), turn++, 4 * (lab.options().rounds + 1));
      for (const auto& [place, way] : {std::pair{&lab.weightfs(), Way::kWeightfs}, {&lab.host(), Way::kHost}}) {
        for (const bool write : {true, false}) {
          const Utilisation utilisation;
          ASSIGN_OR_RETURN(const double rate, Streams(lab, *place, count, write, size));
          if (round == 0) continue;
          rates[fmt::format("{}, {}", NameOf(way), write ? "write" : "read")].push_back(rate);
          if (way == Way::kWeightfs && !write && rate > best) best = rate, busy = utilisation.Busy();
        }
      }
    }
    for (auto& [name, all] : rates) point.values[name] = SpreadOf(std::move(all)).median;
    curve.points.push_back(std::move(point));
  }
  for (Place* place : {&lab.weightfs(), &lab.host()}) {
    for (unsigned index = 0; index < 8; ++index) {
      RETURN_IF_ERROR(place->Remove(place->Path(fmt::format("stream-{}", index))));
    }
  }
  curve.limit = LimitText(best, reference, busy) + " (reads)";
  return curve;
}

// --- One large file.

Result<Curve> LargeCurve(Lab& lab, double reference) {
  Curve curve{.id = "large", .title = "One large file", .x_title = "GiB in the file", .unit = "GB/s"};
  const uint64_t large = lab.options().large_size;
  const std::string directory = lab.base() + "/large";
  lab.ShowProgress("scaling: making a store for the large file");
  ASSIGN_OR_RETURN(Place place,
                   lab.scratch().Mount({directory, large + large / 50 + kGiB, {}, lab.options().mount_options, {}}));
  double best = 0, busy = 0;
  uint64_t moved = 0;
  const uint64_t sizes[] = {lab.size(), std::max(RoundDown(large / 4, lab.size()), lab.size()), large};
  for (const uint64_t size : sizes) {
    lab.ShowProgress(fmt::format("scaling: one file of {}", FormatSize(ByteCount{size})), moved,
                     sizes[0] + sizes[1] + sizes[2]);
    moved += size;
    FileJob job = lab.Job(place.Path("large"), kMiB, {});
    job.size = size;
    job.check = false;
    ASSIGN_OR_RETURN(const double written, Timed(size, [&] { return WriteFile(job); }));
    const Utilisation utilisation;
    ASSIGN_OR_RETURN(const double read, ReadCold(lab, place, job));
    if (read > best) best = read, busy = utilisation.Busy();
    curve.points.push_back({static_cast<double>(size) / static_cast<double>(kGiB),
                            {{"weightfs, read", read}, {"weightfs, write", written}}});
    RETURN_IF_ERROR(place.Remove(job.path));
  }
  curve.limit = LimitText(best, reference, busy) + " (reads)";
  const std::string mount = place.directory();
  place = Place();
  RETURN_IF_ERROR(lab.scratch().Unmount(mount));
  return curve;
}

// --- A store that ages: kept full while files of all sizes come and go.

class AgingStore {
 public:
  AgingStore(Lab& lab, Place& place, uint64_t space)
      : lab_(lab), place_(place), pool_(space), random_(lab.options().seed) {}

  Result<void> Fill() {
    while (used_ < static_cast<uint64_t>(kFull * static_cast<double>(pool_))) {
      FileJob job = lab_.Job(place_.Path(fmt::format("aged-{}", next_++)), kMiB, {});
      // As many small as large ones: 64 KiB to 64 MiB, or a hundredth of the pool.
      const uint64_t most = std::clamp<uint64_t>(pool_ / 100, kMiB, 64 * kMiB);
      const double exponent = std::uniform_real_distribution(16.0, std::log2(static_cast<double>(most)))(random_);
      job.size = RoundUp(static_cast<uint64_t>(std::exp2(exponent)), kBlockSize);
      RETURN_IF_ERROR(WriteFile(job));
      used_ += job.size;
      files_.emplace_back(job.path, job.size);
    }
    return {};
  }

  // A tenth of the files go, others come.
  Result<void> Round() {
    std::shuffle(files_.begin(), files_.end(), random_);
    for (size_t left = files_.size() - files_.size() / 10; files_.size() > left; files_.pop_back()) {
      if (IsSet(lab_.cancel())) return Interrupted();
      RETURN_IF_ERROR(place_.Remove(files_.back().first));
      used_ -= files_.back().second;
    }
    return Fill();
  }

  // A new file in what is free, read cold.
  Result<Curve::Point> Measure(unsigned round) {
    FileJob job = lab_.Job(place_.Path("new"), kMiB, {});
    job.size = std::min(RoundDown(pool_ / 20, kMiB), lab_.size());
    ASSIGN_OR_RETURN(const double written, Timed(job.size, [&] { return WriteFile(job); }));
    std::vector<double> rates;
    for (int pass = 0; pass < 3; ++pass) {
      ASSIGN_OR_RETURN(const double rate, ReadCold(lab_, place_, job));
      rates.push_back(rate);
    }
    RETURN_IF_ERROR(place_.Remove(job.path));
    return Curve::Point{static_cast<double>(round),
                        {{"weightfs, read", SpreadOf(rates).median}, {"weightfs, write", written}}};
  }

 private:
  Lab& lab_;
  Place& place_;
  const uint64_t pool_;
  std::mt19937_64 random_;
  std::vector<std::pair<std::string, uint64_t>> files_;
  uint64_t used_ = 0;
  unsigned next_ = 0;
};

Result<Curve> AgingCurve(Lab& lab, double reference) {
  Curve curve{.id = "aging",
              .title = "A store that ages",
              .x_title = "rounds of deletes and creates, 90 % full",
              .unit = "GB/s"};
  const uint64_t pool = std::max(2 * lab.size(), 512 * kMiB);
  ASSIGN_OR_RETURN(Place place,
                   lab.scratch().Mount({lab.base() + "/aging", pool, {}, lab.options().mount_options, {}}));
  struct statvfs status = {};
  if (statvfs(place.directory().c_str(), &status) != 0) return SystemError(place.directory(), "statvfs");
  AgingStore store(lab, place, uint64_t{status.f_bavail} * status.f_frsize);
  ASSIGN_OR_RETURN(auto fresh, store.Measure(0));
  curve.points.push_back(fresh);
  RETURN_IF_ERROR(store.Fill());
  for (unsigned round = 1; round <= kAgeRounds; ++round) {
    lab.ShowProgress("scaling: ageing a store", round, kAgeRounds);
    RETURN_IF_ERROR(store.Round());
    if (round % kAgeStep != 0) continue;
    ASSIGN_OR_RETURN(auto point, store.Measure(round));
    curve.points.push_back(std::move(point));
  }
  const double before = fresh.values["weightfs, read"], after = curve.points.back().values["weightfs, read"];
  curve.checks.push_back({"aged to fresh", after / std::max(before, 1e-9), kAgedOfFresh});
  if (reference > 0) {
    curve.limit = fmt::format("a fresh store reads at {:.2f} of the reference, the aged one at {:.2f}",
                              before / reference, after / reference);
  }
  const std::string mount = place.directory();
  place = Place();
  RETURN_IF_ERROR(lab.scratch().Unmount(mount));
  return curve;
}

// --- Many files.

Result<std::vector<Curve>> ManyFilesCurves(Lab& lab) {
  Curve rate{.id = "files-create", .title = "Creating files", .x_title = "files in the store", .unit = "files/s"};
  Curve memory{.id = "files-memory", .title = "The daemon's memory", .x_title = "files in the store", .unit = "MiB"};
  Curve mount{.id = "files-mount", .title = "Mounting", .x_title = "files in the store", .unit = "s"};
  constexpr uint64_t kFileSize = 4 * kKiB;
  constexpr unsigned kInDirectory = 1000;
  const unsigned many = lab.options().many_files;
  const std::string directory = lab.base() + "/files";
  ASSIGN_OR_RETURN(Place place,
                   lab.scratch().Mount({directory,
                                        uint64_t{many} * kFileSize + uint64_t{many} * kFileSize / 20 + 512 * kMiB,
                                        {},
                                        lab.options().mount_options,
                                        {}}));
  unsigned made = 0, directories = 0;
  double busy = 0;
  for (const unsigned quarter : {1U, 2U, 3U, 4U}) {
    const auto goal = static_cast<unsigned>(uint64_t{many} * quarter / 4);
    const double begin = Now();
    const unsigned first = made;
    const Utilisation utilisation;
    for (; made < goal; made += std::min(kInDirectory, goal - made)) {
      lab.ShowProgress("scaling: making files", made, many);
      RETURN_IF_ERROR(CreateAll({place.Path(fmt::format("d{:05}", directories++)), std::min(kInDirectory, goal - made),
                                 lab.content(), kFileSize, lab.cancel()}));
    }
    const auto x = static_cast<double>(made);
    rate.points.push_back({x, {{"weightfs", (made - first) / (Now() - begin)}}});
    busy = utilisation.Busy();
    memory.points.push_back({x, {{"weightfs", static_cast<double>(KernelFigure(place.daemon(), "VmRSS")) / kMiB}}});
    place = Place();
    ASSIGN_OR_RETURN(const double seconds, lab.scratch().Remount(directory, lab.options().mount_options, &place));
    mount.points.push_back({x, {{"weightfs", seconds}}});
  }
  rate.limit = LimitText(0, 0, busy);
  memory.limit = "before it was unmounted, with what it keeps of names and buffers";
  mount.limit = "after a clean unmount, until the mount answers";
  const std::string path = place.directory();
  place = Place();
  RETURN_IF_ERROR(lab.scratch().Unmount(path));
  return std::vector<Curve>{std::move(rate), std::move(memory), std::move(mount)};
}

// The selected ones in their order; a mount that was there before has only the streams.
std::vector<std::string_view> SelectedCurves(const Lab& lab) {
  std::vector<std::string_view> selected;
  const SuiteOptions& options = lab.options();
  const auto is_selected = [&options](const char* name) {
    return options.only.empty() || std::any_of(options.only.begin(), options.only.end(), [&](const auto& pattern) {
             return pattern == "scaling" || fnmatch(pattern.c_str(), name, 0) == 0;
           });
  };
  if (!options.scaling) return selected;
  if (is_selected("streams")) selected.emplace_back("streams");
  if (!lab.has_own_store()) return selected;
  if (is_selected("large") && options.large_size > 0) selected.emplace_back("large");
  if (is_selected("aging")) selected.emplace_back("aging");
  if (is_selected("files") && options.many_files > 0) selected.emplace_back("files");
  return selected;
}

// A curve takes about as long as so many rows.
uint64_t PartsOfCurve(const Lab& lab) { return 5 * Lab::kPartsOfRow * (lab.options().rounds + 1); }

}  // namespace

std::span<const std::string_view> CurveNames() {
  static constexpr std::string_view kNames[] = {"scaling", "streams", "large", "aging", "files"};
  return kNames;
}

Result<std::vector<Curve>> MeasureScaling(Lab& lab) {
  std::vector<Curve> curves;
  const auto selected = SelectedCurves(lab);
  if (selected.empty()) return curves;
  ASSIGN_OR_RETURN(const double reference, ReadReference(lab));
  for (const std::string_view name : selected) {
    lab.StartPhase(PartsOfCurve(lab));
    if (name == "files") {
      ASSIGN_OR_RETURN(auto made, ManyFilesCurves(lab));
      std::move(made.begin(), made.end(), std::back_inserter(curves));
      continue;
    }
    ASSIGN_OR_RETURN(auto curve, name == "streams" ? StreamsCurve(lab, reference)
                                 : name == "large" ? LargeCurve(lab, reference)
                                                   : AgingCurve(lab, reference));
    curves.push_back(std::move(curve));
  }
  return curves;
}

uint64_t ScalingParts(const Lab& lab) { return SelectedCurves(lab).size() * PartsOfCurve(lab); }

}  // namespace weightfs::bench
