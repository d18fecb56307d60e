// SPDX-License-Identifier: Apache-2.0
#include "cli/transfer_progress.h"

#include <fmt/format.h>

#include <utility>

#include "cli/output.h"

namespace weightfs::cli {
namespace {

constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

TransferProgress::TransferProgress(std::string title, std::string step, bool lines) : step_(std::move(step)) {
  if (!lines) bar_.emplace(std::move(title));
}

void TransferProgress::Update(uint64_t done, uint64_t total) {
  if (bar_) {
    Progress progress;
    progress.step = step_;
    progress.done = done;
    progress.total = total;
    bar_->Update(progress);
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  const bool last = done == total && done != last_done_;
  if (written_ && now - *written_ < kInterval && !last) return;
  written_ = now;
  last_done_ = done;
  Print(stderr, fmt::format("{{\"done\": {}, \"total\": {}}}\n", done, total));
}

}  // namespace weightfs::cli
