// SPDX-License-Identifier: Apache-2.0
// The two state machines in the life of a regular file: how far the catalog knows its content, and what becomes of a
// failed write.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "common/result.h"

namespace weightfs {

// How far the catalog knows a file.
//
//   state               Change              Replace             Seal         Committed  Revert
//   kClean              kDirty              kReplacing          -            -          kClean
//   kDirty              kDirty              kReplacing          kCommitting  -          kClean
//   kReplacing          kReplacing          kReplacing          kCommitting  -          kClean
//   kCommitting         kCommittingDirty    kCommittingReplace  -            kClean     kClean
//   kCommittingDirty    kCommittingDirty    kCommittingReplace  -            kDirty     kClean
//   kCommittingReplace  kCommittingReplace  kCommittingReplace  -            kReplacing kClean
//
// A dash is a transition that never happens: it fails an assertion. In the replacing states the file was truncated to
// nothing and has not been closed or synced since: its old content stays committed for a while. Externally synchronized
// (Inode::mutex).
class CommitState {
 public:
  enum class Phase : unsigned char { kClean, kDirty, kReplacing, kCommitting, kCommittingDirty, kCommittingReplace };
  using Clock = std::chrono::steady_clock;

  Phase phase() const { return phase_; }
  // True when size, times or mapping differ from what was sealed last.
  bool changed() const { return phase_ != Phase::kClean && phase_ != Phase::kCommitting; }
  // True when the catalog does not have the file as it is.
  bool uncommitted() const { return phase_ != Phase::kClean; }
  bool committing() const { return phase_ >= Phase::kCommitting; }
  bool replacing() const { return phase_ == Phase::kReplacing || phase_ == Phase::kCommittingReplace; }
  // When the file became replacing; meaningful while it is.
  Clock::time_point replacing_since() const { return replacing_since_; }

  // The file differs from what was sealed last. Returns true when it did not before: the committer must hear of it.
  bool Change();
  // The file was truncated to nothing, and new content will follow. Returns what Change would.
  bool Replace(Clock::time_point now);
  // The content is taken as it is for a commit.
  void Seal();
  // What was sealed is in the catalog.
  void Committed();
  // The file is what its last commit says, or has been deleted.
  void Revert();

 private:
  Phase phase_ = Phase::kClean;
  Clock::time_point replacing_since_;
};

// What becomes of a failed device write of a file.
//
//   state                  WriteFailed  RefuseChange                     Report            Revert
//   kNone                  kFailed      kNone, takes the change          kNone             -
//   kFailed                kFailed      kFailedReturned, refuses         kFailedReported   kPending
//   kFailedReturned        unchanged    kFailedReturned, refuses         kFailedReported   kPendingReturned
//   kFailedReported        unchanged    kFailedReturned, refuses         kFailedReported   kNone
//   kPending               kFailed      kPendingReturned, refuses        kNone             -
//   kPendingReturned       kFailed      kPendingReturned, takes it       kNone             -
//
// In the failed states blocks of the mapping were not written: the file takes no change until a commit cycle has put it
// back to its last commit (Revert). The error stays pending after that until an fsync, a rename or a close has reported
// it (Report). A refused write does not count as reported: of a long write(2) the kernel sends pieces, and answers with
// a number of bytes where an earlier piece was taken; so the next change is taken, and the next fsync reports the error
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
  // True while blocks of the mapping were not written and the file has not been put back to its last commit.
  bool failed() const {
    return phase_ == Phase::kFailed || phase_ == Phase::kFailedReturned || phase_ == Phase::kFailedReported;
  }
  // The error that a later fsync or close has to report; nullopt in kNone.
  const std::optional<Error>& error() const { return error_; }
  // How often the file has failed: a report names the failure that it is about.
  uint64_t failures() const { return failures_; }

  // A device write failed. Returns true when the file was whole before: a commit cycle must put it back.
  bool WriteFailed(const Error& error);
  // A change is about to be made. Returns the error to refuse it with; nullopt takes it.
  std::optional<Error> RefuseChange();
  // A caller received failure number `failure`. Does nothing when the file has failed again since.
  void Report(uint64_t failure);
  // The file is what its last commit says.
  void Revert();

 private:
  Phase phase_ = Phase::kNone;
  std::optional<Error> error_;
  uint64_t failures_ = 0;
};

}  // namespace weightfs
