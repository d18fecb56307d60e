// SPDX-License-Identifier: Apache-2.0
#include "store/file/commit_state.h"

#include "common/assert.h"

namespace weightfs {

bool CommitState::Change() {
  if (changed()) return false;
  phase_ = committing() ? Phase::kCommittingDirty : Phase::kDirty;
  return true;
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
  WEIGHTFS_ASSERT(committing());
  phase_ = replacing() ? Phase::kReplacing : changed() ? Phase::kDirty : Phase::kClean;
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
  if (phase_ == Phase::kNone || phase_ == Phase::kPendingReturned) return std::nullopt;
  phase_ = failed() ? Phase::kFailedReturned : Phase::kPendingReturned;
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
