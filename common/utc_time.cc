// SPDX-License-Identifier: Apache-2.0
#include "common/utc_time.h"

#include <fmt/chrono.h>

#include <ctime>

namespace weightfs {
namespace {

// 64 bits of nanoseconds are the years 1677 to 2262, which tm can hold.
tm Utc(int64_t time_ns) { return fmt::gmtime(static_cast<std::time_t>(time_ns / 1'000'000'000)); }

}  // namespace

std::string FormatUtc(int64_t time_ns) { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", Utc(time_ns)); }

uint64_t UtcVersion(int64_t time_ns) {
  const tm utc = Utc(time_ns);
  uint64_t version = static_cast<uint64_t>(utc.tm_year) + 1900;
  for (const int part : {utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec}) {
    version = version * 100 + static_cast<uint64_t>(part);
  }
  return version;
}

}  // namespace weightfs
