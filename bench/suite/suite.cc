// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "bench/suite/groups.h"
#include "bench/suite/lab.h"
#include "bench/suite/machine.h"
#include "bench/suite/scaling.h"
#include "bench/suite/verdict.h"

namespace weightfs::bench {
namespace {

bool IsHidden(std::string_view row) { return FindRow(row) == nullptr; }

// Whether a case is needed: for a row that was asked for, or as the reference of one.
bool IsNeeded(const Lab& lab, const Case& one) {
  return std::any_of(one.rows.begin(), one.rows.end(), [&](std::string_view row) {
    if (!IsHidden(row)) return lab.IsSelected(row);
    const auto rows = Rows();
    return std::any_of(rows.begin(), rows.end(),
                       [&](const RowSpec& spec) { return spec.reference == row && lab.IsSelected(spec.id); });
  });
}

// The share of a group in the progress of the run: its selected rows, once a round and once to warm up.
uint64_t PartsOf(const Lab& lab, std::string_view group) {
  const auto rows = Rows();
  const auto selected = std::count_if(rows.begin(), rows.end(),
                                      [&](const RowSpec& row) { return row.group == group && lab.IsSelected(row.id); });
  return static_cast<uint64_t>(selected) * Lab::kPartsOfRow * (lab.options().rounds + 1);
}

class Runner {
 public:
  explicit Runner(Lab& lab) : lab_(lab), random_(lab.options().seed) {}

  Result<void> Run(const Group& group) {
    const uint64_t parts = PartsOf(lab_, group.name);
    if (parts == 0) return {};
    lab_.StartPhase(parts);
    lab_.ShowProgress(fmt::format("{}: preparing", group.name));
    ASSIGN_OR_RETURN(std::vector<Case> cases, group.prepare(lab_));
    std::erase_if(cases, [this](const Case& one) { return !IsNeeded(lab_, one); });
    const unsigned rounds = lab_.options().rounds;
    for (unsigned round = 0; round <= rounds; ++round) {
      std::shuffle(cases.begin(), cases.end(), random_);
      for (size_t at = 0; at < cases.size(); ++at) {
        lab_.ShowProgress(
            fmt::format("{}: {}, {}", group.name,
                        round == 0 ? std::string("warming up") : fmt::format("round {} of {}", round, rounds),
                        cases[at].rows.front()),
            round * cases.size() + at, (rounds + 1) * cases.size());
        RETURN_IF_ERROR(RunCase(cases[at], round == 0));
      }
    }
    if (group.finish) RETURN_IF_ERROR(group.finish(lab_));
    return {};
  }

  SampleTable& samples() { return samples_; }

 private:
  Result<void> RunCase(const Case& one, bool warm_up) {
    if (IsSet(lab_.cancel())) return Interrupted();
    auto samples = one.run({warm_up, random_()});
    if (!samples.has_value()) {
      if (samples.error().code == ErrorCode::kShutdown) return samples.error();
      return Error{samples.error().code,
                   fmt::format("{}, {}: {}", one.rows.front(), NameOf(one.way), ToString(samples.error()))};
    }
    if (warm_up) return {};
    for (size_t row = 0; row < one.rows.size(); ++row) {
      samples_[{std::string(one.rows[row]), one.way}].push_back(std::move((*samples)[row]));
    }
    return {};
  }

  Lab& lab_;
  std::mt19937_64 random_;
  SampleTable samples_;
};

// What the daemon costs while nobody asks it anything: seconds a second.
double IdleCpu(const Place& place, bool quick) {
  // Commits that are still due end first.
  constexpr unsigned kSettleUs = 1'500'000, kWatchUs = 2'000'000, kQuickUs = 200'000;
  usleep(quick ? kQuickUs : kSettleUs);
  const double before = place.CpuSeconds(), begin = Now();
  usleep(quick ? kQuickUs : kWatchUs);
  return (place.CpuSeconds() - before) / (Now() - begin);
}

}  // namespace

Result<Outcome> RunSuite(const SuiteOptions& asked) {
  SuiteOptions options = asked;
  if (options.seed == 0) options.seed = std::random_device()();
  const ProcessorTimes before = ReadProcessorTimes();
  ASSIGN_OR_RETURN(const auto lab, Lab::Create(options));
  ResetPeakMemory(lab->weightfs().daemon());
  Runner runner(*lab);
  const Group groups[] = {ReadGroup(),  RandomGroup(), WriteGroup(),  TorchGroup(),   SafetensorsGroup(),
                          NumpyGroup(), SmallGroup(),  DirectGroup(), HandlesGroup(), DeviceGroup()};
  uint64_t parts = ScalingParts(*lab);
  for (const Group& group : groups) parts += PartsOf(*lab, group.name);
  lab->PlanProgress(parts);
  for (const Group& group : groups) RETURN_IF_ERROR(runner.Run(group));
  Outcome outcome;
  ASSIGN_OR_RETURN(outcome.curves, MeasureScaling(*lab));
  lab->ShowProgress("idle");
  outcome.idle_cpu = IdleCpu(lab->weightfs(), options.quick);
  outcome.memory = MemoryOf(lab->weightfs());
  outcome.seed = options.seed;
  outcome.size = lab->size();
  outcome.rounds = options.rounds;
  outcome.in_memory = lab->in_memory();
  outcome.facts = FactsOf(*lab);
  outcome.rows = Judge(*lab, runner.samples());
  outcome.noise = NoiseOf(runner.samples());
  outcome.noise.steal = StealBetween(before, ReadProcessorTimes());
  outcome.noise.load_average = LoadAverage();
  lab->ShowProgress("cleaning up");
  RETURN_IF_ERROR(lab->Close());
  return outcome;
}

}  // namespace weightfs::bench
