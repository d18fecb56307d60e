// SPDX-License-Identifier: Apache-2.0
#include "s3/rate_limit.h"

#include <algorithm>

namespace weightfs::s3 {
namespace {

constexpr double kBurstSeconds = 0.1;
constexpr double kLeastBytes = 16 << 10;  // fewer in one system call would cost more than they carry

}  // namespace

size_t RateLimit::Take(size_t wanted, Time now) {
  if (rate_ == 0) return wanted;
  const double most = std::max(rate_ * kBurstSeconds, kLeastBytes);
  if (filled_ != Time()) available_ += rate_ * std::chrono::duration<double>(now - filled_).count();
  available_ = std::min(available_, most);
  filled_ = now;
  const auto least = static_cast<double>(wanted) < kLeastBytes ? static_cast<double>(wanted) : kLeastBytes;
  if (available_ < least) return 0;
  const auto taken = std::min(wanted, static_cast<size_t>(available_));
  available_ -= static_cast<double>(taken);
  return taken;
}

}  // namespace weightfs::s3
