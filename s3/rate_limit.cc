// SPDX-License-Identifier: Apache-2.0
#include "s3/rate_limit.h"

#include <algorithm>

namespace weightfs::s3 {
namespace {

constexpr double kBurstSeconds = 0.1;
// A useful piece: fewer bytes in one system call would cost more than they carry. A low rate has smaller ones, a
// hundred a second, so that no sender waits so long for its next piece that the service ends its request.
constexpr double kMaxPiece = 16 << 10, kPieceSeconds = 0.01;

}  // namespace

void RateLimit::Wait(Sender* sender, size_t wanted) {
  sender->wanted = wanted;
  waiting_.push_back(sender);
}

void RateLimit::Leave(Sender* sender) { std::erase(waiting_, sender); }

void RateLimit::Distribute(Time now) {
  const double piece = std::clamp(rate_ * kPieceSeconds, 1.0, kMaxPiece);
  if (filled_ != Time()) available_ += rate_ * std::chrono::duration<double>(now - filled_).count();
  available_ = std::min(available_, std::max(rate_ * kBurstSeconds, piece));
  filled_ = now;
  while (!waiting_.empty()) {
    auto& sender = *waiting_.front();
    const double share = std::max(available_ / static_cast<double>(waiting_.size()), piece);
    const double granted = std::min(static_cast<double>(sender.wanted), share);
    if (available_ < granted) return;
    sender.granted = static_cast<size_t>(granted);
    available_ -= static_cast<double>(sender.granted);
    waiting_.pop_front();
  }
}

}  // namespace weightfs::s3
