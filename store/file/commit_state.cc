// SPDX-License-Identifier: Apache-2.0
#include "store/file/commit_state.h"

#include <utility>

#include "common/assert.h"

namespace weightfs {

bool CommitState::Change() {
  switch (phase_) {
    case Phase::kClean: phase_ = Phase::kDirty; return true;
    case Phase::kCommitting: phase_ = Phase::kCommittingDirty; return true;
    case Phase::kDirty:
    case Phase::kReplacing:
    case Phase::kCommittingDirty:
    case Phase::kCommittingReplace: return false;
  }
  return false;
}

bool CommitState::Replace(Clock::time_point now) {
  const bool first = Change();
  if (!replacing()) replacing_since_ = now;
  if (!first_replaced_) first_replaced_ = now;
  phase_ = committing() ? Phase::kCommittingReplace : Phase::kReplacing;
  return first;
}

void CommitState::Settle() {
  if (replacing()) phase_ = committing() ? Phase::kCommittingDirty : Phase::kDirty;
}

void CommitState::Seal() {
  WEIGHTFS_ASSERT(phase_ == Phase::kDirty || phase_ == Phase::kReplacing);
  first_replaced_.reset();
  phase_ = Phase::kCommitting;
}

void CommitState::Committed() {
  switch (phase_) {
    case Phase::kCommitting: phase_ = Phase::kClean; return;
    case Phase::kCommittingDirty: phase_ = Phase::kDirty; return;
    case Phase::kCommittingReplace: phase_ = Phase::kReplacing; return;
    case Phase::kClean:
    case Phase::kDirty:
    case Phase::kReplacing: break;
  }
  WEIGHTFS_ASSERT(committing());
}

void CommitState::Revert() {
  phase_ = Phase::kClean;
  first_replaced_.reset();
}

bool WriteErrorState::WriteFailed(const Error& error) {
  if (failed()) return false;
  if (!error_) error_ = error;
  phase_ = Phase::kFailed;
  ++failures_;
  return true;
}

std::optional<Error> WriteErrorState::RefuseChange() {
  switch (phase_) {
    case Phase::kNone:
    case Phase::kPendingReturned: return std::nullopt;
    case Phase::kPending: phase_ = Phase::kPendingReturned; break;
    case Phase::kFailed:
    case Phase::kFailedReturned:
    case Phase::kFailedReported: phase_ = Phase::kFailedReturned; break;
  }
  return error_;
}

void WriteErrorState::Report(uint64_t failure) {
  if (failure != failures_ || phase_ == Phase::kNone) return;
  if (failed()) {
    phase_ = Phase::kFailedReported;
    return;
  }
  phase_ = Phase::kNone;
  error_.reset();
}

void WriteErrorState::Revert() {
  WEIGHTFS_ASSERT(failed());
  if (phase_ == Phase::kFailed) {
    phase_ = Phase::kPending;
  } else if (phase_ == Phase::kFailedReturned) {
    phase_ = Phase::kPendingReturned;
  } else {
    phase_ = Phase::kNone;
    error_.reset();
  }
}

}  // namespace weightfs
