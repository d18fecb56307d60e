// SPDX-License-Identifier: Apache-2.0
// The two state machines of a regular file: how far the catalog has its content, and the handling of a failed write.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "common/result.h"

namespace weightfs {

// The difference between a file and its record in the catalog.
//
//   state               Change              Replace             Settle            Seal         Committed  Revert
//   kClean              kDirty              kReplacing          unchanged         -            -          kClean
//   kDirty              kDirty              kReplacing          unchanged         kCommitting  -          kClean
//   kReplacing          kReplacing          kReplacing          kDirty            kCommitting  -          kClean
//   kCommitting         kCommittingDirty    kCommittingReplace  unchanged         -            kClean     kClean
//   kCommittingDirty    kCommittingDirty    kCommittingReplace  unchanged         -            kDirty     kClean
//   kCommittingReplace  kCommittingReplace  kCommittingReplace  kCommittingDirty  -            kReplacing kClean
//
// A dash marks a transition that never happens; it fails an assertion. In the replacing states a writer has truncated
// the file to zero, and the writers have not closed or synced it since; its old content stays committed for a while.
// Externally synchronized (Inode::mutex).
class CommitState {
 public:
  enum class Phase : unsigned char { kClean, kDirty, kReplacing, kCommitting, kCommittingDirty, kCommittingReplace };
  using Clock = std::chrono::steady_clock;

  Phase phase() const { return phase_; }
  // True when the size, times or mapping differ from the last seal.
  bool changed() const { return phase_ != Phase::kClean && phase_ != Phase::kCommitting; }
  // True when the catalog does not have the current state of the file.
  bool uncommitted() const { return phase_ != Phase::kClean; }
  bool committing() const { return phase_ >= Phase::kCommitting; }
  bool replacing() const { return phase_ == Phase::kReplacing || phase_ == Phase::kCommittingReplace; }
  // The beginning of the replacement; meaningful while the file is in a replacing state.
  Clock::time_point replacing_since() const { return replacing_since_; }
  // True if a replacement has begun since the last seal; the time of the first one.
  bool WasReplaced() const { return first_replaced_.has_value(); }
  Clock::time_point first_replaced() const { return *first_replaced_; }

  // Records that the file differs from the last seal. Returns true when it did not differ before; then notify the
  // committer.
  bool Change();
  // Records a truncation to zero before new content is written. Returns the same as Change.
  bool Replace(Clock::time_point now);
  // Records that the last writer has closed the file, so that its content is complete.
  void Settle();
  // Starts a commit of the current content.
  void Seal();
  // Records that the sealed content is in the catalog.
  void Committed();
  // Records that the file was reverted to its last commit, or deleted.
  void Revert();

 private:
  Phase phase_ = Phase::kClean;
  Clock::time_point replacing_since_;
  std::optional<Clock::time_point> first_replaced_;
};

// The states of a failed device write of a file.
//
//   state                  WriteFailed  RefuseChange                     Report            Revert
//   kNone                  kFailed      kNone, accepts the change        kNone             -
//   kFailed                kFailed      kFailedReturned, refuses         kFailedReported   kPending
//   kFailedReturned        unchanged    kFailedReturned, refuses         kFailedReported   kPendingReturned
//   kFailedReported        unchanged    kFailedReturned, refuses         kFailedReported   kNone
//   kPending               kFailed      kPendingReturned, refuses        kNone             -
//   kPendingReturned       kFailed      kPendingReturned, accepts it     kNone             -
//
// In the failed states some mapped blocks were not written. The file refuses changes until a commit cycle has reverted
// it to its last commit (Revert). After that the error stays pending until an fsync, a rename or a close reports it
// (Report). A refused write does not count as a report: the kernel splits a long write(2), and returns a short count
// when it has accepted an earlier part. Therefore the next change is accepted, and the next fsync reports the error
// once more. Externally synchronized (Inode::mutex).
class WriteErrorState {
 public:
  enum class Phase : unsigned char {
    kNone,
    kFailed,
    kFailedReturned,
    kFailedReported,
    kPending,
    kPendingReturned,
  };

  Phase phase() const { return phase_; }
  // True while some mapped blocks were not written and the file has not been reverted to its last commit.
  bool failed() const {
    return phase_ == Phase::kFailed || phase_ == Phase::kFailedReturned || phase_ == Phase::kFailedReported;
  }
  // The error that a later fsync or close has to report; nullopt in kNone.
  const std::optional<Error>& error() const { return error_; }
  // The number of failures so far. A report names its failure by this number.
  uint64_t failures() const { return failures_; }

  // Records a failed device write. Returns true when it puts the file into a failed state; a commit cycle must then
  // revert the file.
  bool WriteFailed(const Error& error);
  // Call this before a change. Returns the error with which to refuse the change, or nullopt to accept it.
  std::optional<Error> RefuseChange();
  // Records that a caller received failure number `failure`. Does nothing when the file has failed again since.
  void Report(uint64_t failure);
  // Records that the file was reverted to its last commit.
  void Revert();

 private:
  Phase phase_ = Phase::kNone;
  std::optional<Error> error_;
  uint64_t failures_ = 0;
};

}  // namespace weightfs
