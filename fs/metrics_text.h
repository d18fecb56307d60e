// SPDX-License-Identifier: Apache-2.0
// The metrics of a mount as text for Prometheus. Private to fs/.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "fs/request_metrics.h"
#include "lease/ioctl.h"

namespace weightfs {

// The exposition formats: of Prometheus (0.0.4), and OpenMetrics 1.0.
// https://prometheus.io/docs/instrumenting/exposition_formats/,
// https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
enum class MetricsFormat : unsigned char { kPrometheus, kOpenMetrics };

struct MetricsSource {
  weightfs_stats stats{};
  std::array<RequestTotals, kRequestKinds> requests{};
  std::string store;             // its directory
  double processor_seconds = 0;  // of the mount's process
  uint64_t resident_bytes = 0;   // likewise
};

std::string MetricsText(const MetricsSource& source, MetricsFormat format);

}  // namespace weightfs
