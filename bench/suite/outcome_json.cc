// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/outcome_json.h"

#include <nlohmann/json.hpp>

#include "bench/suite/report_text.h"

namespace weightfs::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

Json Of(const Spread& spread) { return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}}; }

Json Of(const Check& check) {
  Json json = {{"against", check.against}, {"value", check.value}};
  if (check.target > 0) json[check.at_most ? "at_most" : "at_least"] = check.target;
  json["state"] = NameOf(check.state());
  return json;
}

Json Of(const Sample& sample) {
  Json json = {{"rate", sample.rate},
               {"seconds", sample.seconds},
               {"bytes", sample.bytes},
               {"client_cpu_seconds", sample.client_cpu},
               {"daemon_cpu_seconds", sample.daemon_cpu}};
  if (sample.device_read_bytes.has_value()) json["device_read_bytes"] = *sample.device_read_bytes;
  return json;
}

Json Of(const RowSpec& row) {
  Json targets = Json::object();
  const auto add = [&targets](const char* name, double least) {
    if (least > 0) targets[name] = least;
  };
  add("reference", row.target.reference);
  add("host", row.target.host);
  add("slow_host", row.target.slow_host);
  add("disk_host", row.target.disk_host);
  add("in_memory", row.target.in_memory);
  add("one_device", row.target.one_device);
  add("host_to_reference", row.target.host_to_reference);
  add("beside", row.target.beside);
  add("fio_in_memory", row.target.fio_in_memory);
  Json limits = Json::object();
  if (row.target.one_device > 0) limits["one_device"] = kMostOfOneDevice;
  return {{"id", row.id},
          {"group", row.group},
          {"title", row.title},
          {"unit", NameOf(row.unit)},
          {"at_least", std::move(targets)},
          {"at_most", std::move(limits)}};
}

Json Of(const RowOutcome& row);
Json Of(const Curve& curve);

template <typename List>
Json ListOf(const List& list) {
  Json json = Json::array();
  for (const auto& one : list) json.push_back(Of(one));
  return json;
}

Json Of(const RowOutcome& row) {
  Json ways = Json::object();
  for (const auto& [way, samples] : row.samples) {
    Json json = Of(row.Rate(way));
    if (const double cost = row.CpuPerGb(way); cost > 0) json["cpu_seconds_per_gb"] = cost;
    json["samples"] = ListOf(samples);
    ways[std::string(NameOf(way))] = std::move(json);
  }
  Json json = {{"id", row.spec->id},       {"group", row.spec->group},
               {"title", row.spec->title}, {"unit", NameOf(row.spec->unit)},
               {"ways", std::move(ways)},  {"checks", ListOf(row.checks)}};
  json["not_measured"] = Json::object();
  for (const auto& [way, why] : row.not_measured) json["not_measured"][std::string(NameOf(way))] = why;
  json["notes"] = row.notes;
  return json;
}

Json Of(const Curve& curve) {
  Json points = Json::array();
  for (const auto& point : curve.points) points.push_back({{"x", point.x}, {"values", point.values}});
  return {{"id", curve.id},
          {"title", curve.title},
          {"x_title", curve.x_title},
          {"unit", curve.unit},
          {"points", std::move(points)},
          {"limit", curve.limit},
          {"checks", ListOf(curve.checks)}};
}

}  // namespace

Json ToJson(const Outcome& outcome) {
  Json facts = Json::object();
  for (const auto& [name, value] : outcome.facts) facts[name] = value;
  return {{"version", kVersion},
          {"facts", std::move(facts)},
          {"seed", outcome.seed},
          {"size_bytes", outcome.size},
          {"rounds", outcome.rounds},
          {"in_memory", outcome.in_memory},
          {"noise",
           {{"read_reference", Of(outcome.noise.read_reference)},
            {"write_reference", Of(outcome.noise.write_reference)},
            {"widest", outcome.noise.widest},
            {"load_average", outcome.noise.load_average},
            {"steal", outcome.noise.steal}}},
          {"daemon",
           {{"idle_cpu", outcome.idle_cpu},
            {"memory_limit_bytes", outcome.memory.limit},
            {"memory_peak_bytes", outcome.memory.peak},
            {"memory_now_bytes", outcome.memory.now}}},
          {"rows", ListOf(outcome.rows)},
          {"curves", ListOf(outcome.curves)}};
}

Json ListAsJson() { return {{"version", kVersion}, {"rows", ListOf(Rows())}}; }

std::string ToHtml(const Outcome& outcome) {
  std::string json = ToJson(outcome).dump(-1, ' ', false, Json::error_handler_t::replace);
  // Inside a script element no text may look like its end.
  for (size_t at = 0; (at = json.find("</", at)) != std::string::npos; at += 3) json.insert(at + 1, 1, '\\');
  std::string page = kReportText;
  constexpr std::string_view kPlace = "@DATA@";
  page.replace(page.find(kPlace), kPlace.size(), json);
  return page;
}

}  // namespace weightfs::bench
