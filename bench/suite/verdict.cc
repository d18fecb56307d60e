// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/verdict.h"

#include <fmt/format.h>

#include <algorithm>

namespace weightfs::bench {
namespace {

constexpr double kReadersMustRead = 0.99, kReadersMayRead = 1.1;  // of the file, by all eight together

std::vector<double> RatesOf(const std::vector<Sample>& samples) {
  std::vector<double> rates;
  for (const Sample& sample : samples) rates.push_back(sample.rate);
  return rates;
}

const std::vector<Sample>* Find(const SampleTable& samples, std::string_view row, Way way) {
  const auto found = samples.find({std::string(row), way});
  return found == samples.end() || found->second.empty() ? nullptr : &found->second;
}

void AddRatio(RowOutcome* row, Way against, double target) {
  const double ours = row->Rate(Way::kWeightfs).median, theirs = row->Rate(against).median;
  if (ours > 0 && theirs > 0) row->checks.push_back({std::string(NameOf(against)), ours / theirs, target});
}

double HostTarget(const RowOutcome& row) {
  const Target& target = row.spec->target;
  const double host = row.Rate(Way::kHost).median, reference = row.Rate(Way::kReference).median;
  const bool slow = target.slow_host > 0 && reference > 0 && host < kSlowHost * reference;
  return slow ? target.slow_host : std::max(target.host, target.disk_host);
}

// Of the row that it is beside, in the same run.
void AddBeside(const SampleTable& samples, RowOutcome* row) {
  for (const Way way : {Way::kWeightfs, Way::kHost}) {
    const auto* other = Find(samples, row->spec->beside, way);
    const double ours = row->Rate(way).median;
    if (other == nullptr || ours <= 0) continue;
    row->checks.push_back({fmt::format("{}{}", row->spec->beside, way == Way::kHost ? ", both on the host" : ""),
                           ours / SpreadOf(RatesOf(*other)).median, row->spec->target.beside});
  }
}

void AddHostToReference(RowOutcome* row) {
  const double host = row->Rate(Way::kHost).median, reference = row->Rate(Way::kReference).median;
  const double target = row->spec->target.host_to_reference;
  if (target > 0 && host > 0 && reference > 0)
    row->checks.push_back({"reference, on the host", host / reference, target});
}

// What a load needs beside the I/O: the same from memory.
void AddTimeOutside(RowOutcome* row) {
  const auto seconds = [row](Way way) {
    std::vector<double> all;
    const auto found = row->samples.find(way);
    if (found == row->samples.end()) return 0.0;
    for (const Sample& sample : found->second) all.push_back(sample.seconds);
    return SpreadOf(all).median;
  };
  const double outside = seconds(Way::kMemory), whole = seconds(Way::kWeightfs);
  if (outside <= 0 || whole <= 0) return;
  row->notes.push_back(
      fmt::format("from the mount in {:.2f} s, from the host in {:.2f} s, from memory, where I/O costs "
                  "next to nothing, in {:.2f} s",
                  whole, seconds(Way::kHost), outside));
}

void AddChecks(const Lab& lab, RowOutcome* row) {
  const Target& target = row->spec->target;
  if (lab.in_memory()) {
    AddRatio(row, Way::kReference, target.in_memory);
    AddRatio(row, Way::kHost, row->spec->unit == Unit::kFiles ? target.host : 0);
  } else {
    AddRatio(row, Way::kReference, target.reference);
    AddRatio(row, Way::kHost, HostTarget(*row));
    AddHostToReference(row);
  }
  if (lab.in_memory() && target.fio_in_memory > 0) AddRatio(row, Way::kFio, target.fio_in_memory);
  AddRatio(row, Way::kNoVerify, 0);
  if (row->spec->id == "readers-8" && row->samples.contains(Way::kWeightfs)) {
    std::vector<double> read;
    for (const Sample& sample : row->samples.at(Way::kWeightfs)) {
      if (sample.device_read_bytes.has_value()) {
        read.push_back(static_cast<double>(*sample.device_read_bytes) / static_cast<double>(lab.size()));
      }
    }
    if (!read.empty()) {
      // Less than the file once would mean that it was not cold.
      row->checks.push_back({"device reads", SpreadOf(read).median, kReadersMustRead});
      row->checks.push_back({"device reads", SpreadOf(read).median, kReadersMayRead, true});
    }
  }
}

RowOutcome JudgeRow(const Lab& lab, const RowSpec& spec, const SampleTable& samples) {
  RowOutcome row;
  row.spec = &spec;
  const std::string id(spec.id);
  for (const Way way : kWays) {
    if (const auto* own = Find(samples, id, way)) row.samples[way] = *own;
    for (const std::string& name : {id, std::string(spec.reference)}) {
      const auto reason = lab.not_measured().find({name, way});
      if (reason != lab.not_measured().end()) row.not_measured[way] = reason->second;
    }
  }
  if (const auto* shared = Find(samples, spec.reference, Way::kReference)) row.samples[Way::kReference] = *shared;
  const auto [first, last] = lab.notes().equal_range(id);
  for (auto note = first; note != last; ++note) row.notes.push_back(note->second);
  AddTimeOutside(&row);
  AddBeside(samples, &row);
  AddChecks(lab, &row);
  JudgeDevices(&row);
  return row;
}

}  // namespace

void JudgeDevices(RowOutcome* row) {
  if (row->spec->target.one_device <= 0) return;
  for (const auto& [way, devices] : {std::pair{Way::kOneDevice, 1U}, {Way::kWeightfs, kThrottledDevices}}) {
    const double rate = row->Rate(way).median, limit = static_cast<double>(devices * kThrottledRate);
    if (rate <= limit * (1 + kThrottleTolerance)) continue;
    row->samples.clear();
    row->not_measured[Way::kWeightfs] =
        fmt::format("the throttle did not hold: {} throttled device{} gave {:.0f} MB/s of {:.0f} at most", devices,
                    devices == 1 ? "" : "s", rate / 1e6, limit / 1e6);
    return;
  }
  const double ours = row->Rate(Way::kWeightfs).median, one = row->Rate(Way::kOneDevice).median;
  if (ours <= 0 || one <= 0) return;
  row->checks.push_back({std::string(NameOf(Way::kOneDevice)), ours / one, row->spec->target.one_device});
  row->checks.push_back({std::string(NameOf(Way::kOneDevice)), ours / one, kMostOfOneDevice, true});
}

Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back()};
}

Check::State Check::state() const {
  if (target <= 0) return State::kShown;
  return (at_most ? value <= target : value >= target) ? State::kOk : State::kShort;
}

std::string_view NameOf(Check::State state) {
  return state == Check::State::kOk ? "ok" : state == Check::State::kShort ? "short" : "shown";
}

Spread RowOutcome::Rate(Way way) const {
  const auto found = samples.find(way);
  return found == samples.end() ? Spread{} : SpreadOf(RatesOf(found->second));
}

double RowOutcome::CpuPerGb(Way way) const {
  const auto found = samples.find(way);
  if (found == samples.end()) return 0;
  std::vector<double> costs;
  for (const Sample& sample : found->second) {
    if (sample.bytes > 0)
      costs.push_back((sample.client_cpu + sample.daemon_cpu) / static_cast<double>(sample.bytes) * 1e9);
  }
  return SpreadOf(costs).median;
}

std::vector<RowOutcome> Judge(const Lab& lab, const SampleTable& samples) {
  std::vector<RowOutcome> rows;
  for (const RowSpec& spec : Rows()) {
    if (lab.IsSelected(spec.id)) rows.push_back(JudgeRow(lab, spec, samples));
  }
  return rows;
}

Noise NoiseOf(const SampleTable& samples) {
  Noise noise;
  const auto spread_of = [&samples](std::string_view reference, std::string_view other) {
    const auto* found = Find(samples, reference, Way::kReference);
    if (found == nullptr) found = Find(samples, other, Way::kReference);
    return found == nullptr ? Spread{} : SpreadOf(RatesOf(*found));
  };
  noise.read_reference = spread_of(kReadReference, kDirectReadReference);
  noise.write_reference = spread_of(kWriteReference, kDirectWriteReference);
  noise.widest = std::max(noise.read_reference.Width(), noise.write_reference.Width());
  return noise;
}

}  // namespace weightfs::bench
