// SPDX-License-Identifier: Apache-2.0
// The metrics of a mount as text for Prometheus. Private to fs/.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "fs/request_metrics.h"
#include "lease/ioctl.h"
#include "store/scrub/scrub_state.h"
#include "store/store.h"

namespace weightfs {

// The exposition formats: of Prometheus (0.0.4), and OpenMetrics 1.0.
// https://prometheus.io/docs/instrumenting/exposition_formats/,
// https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
enum class MetricsFormat : unsigned char { kPrometheus, kOpenMetrics };

struct MetricsSource {
  weightfs_stats stats{};
  std::array<RequestTotals, kRequestKinds> requests{};
  ScrubReport scrub;
  HotStatistics hot;
  std::optional<uint64_t> catalog_free;     // Store::CatalogFreeSpace
  std::chrono::nanoseconds log_age{0};      // Store::LogAge
  std::optional<uint64_t> kernel_requests;  // queued and in progress, as the kernel counts them; nullopt: unknown
  std::string store;                        // its directory
  // Of the mount's process. The start is in seconds since the epoch.
  double processor_seconds = 0, start_seconds = 0;
  uint64_t resident_bytes = 0;
};

std::string MetricsText(const MetricsSource& source, MetricsFormat format);

}  // namespace weightfs
