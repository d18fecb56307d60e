// SPDX-License-Identifier: Apache-2.0
// Times in UTC for people and programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace weightfs {

// The nanoseconds since the epoch.
inline int64_t UtcNowNs() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Args: time_ns: since the epoch. Returns the full seconds as in "2026-11-23T22:13:04Z" (ISO 8601).
std::string FormatUtc(int64_t time_ns);

// The same as the decimal number YYYYMMDDhhmmss. It is the version of what has none of its own: it grows with time, and
// people can read it.
uint64_t UtcVersion(int64_t time_ns);

}  // namespace weightfs
