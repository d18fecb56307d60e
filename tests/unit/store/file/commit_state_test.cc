// SPDX-License-Identifier: Apache-2.0
// Every transition of the two state machines, as in the tables of the header.
#include "store/file/commit_state.h"

#include <gtest/gtest.h>

namespace weightfs {
namespace {

using Commit = CommitState::Phase;
using Failure = WriteErrorState::Phase;

const CommitState::Clock::time_point kNow = CommitState::Clock::time_point(std::chrono::seconds(5));

CommitState CommitIn(Commit phase) {
  CommitState state;
  if (phase == Commit::kDirty) state.Change();
  if (phase == Commit::kReplacing) state.Replace(kNow);
  if (phase >= Commit::kCommitting) {
    state.Change();
    state.Seal();
  }
  if (phase == Commit::kCommittingDirty) state.Change();
  if (phase == Commit::kCommittingReplace) state.Replace(kNow);
  EXPECT_EQ(state.phase(), phase);
  return state;
}

TEST(CommitState, ChangeReturnsWhetherTheCommitterMustBeNotified) {
  struct Case {
    Commit from, to;
    bool first;
  };
  for (const Case& c : {Case{Commit::kClean, Commit::kDirty, true},
                        {Commit::kDirty, Commit::kDirty, false},
                        {Commit::kReplacing, Commit::kReplacing, false},
                        {Commit::kCommitting, Commit::kCommittingDirty, true},
                        {Commit::kCommittingDirty, Commit::kCommittingDirty, false},
                        {Commit::kCommittingReplace, Commit::kCommittingReplace, false}}) {
    CommitState state = CommitIn(c.from);
    EXPECT_EQ(state.Change(), c.first);
    EXPECT_EQ(state.phase(), c.to);
    EXPECT_TRUE(state.changed());
  }
}

TEST(CommitState, AReplacementBeginsAfterTheLastOneHasSettled) {
  const auto later = kNow + std::chrono::seconds(9);
  CommitState state = CommitIn(Commit::kReplacing);
  state.Settle();
  state.Replace(later);
  EXPECT_EQ(state.replacing_since(), later);
  EXPECT_EQ(state.first_replaced(), kNow);
  state.Seal();
  EXPECT_FALSE(state.WasReplaced());
}

TEST(CommitState, ReplaceKeepsTheTimeOfTheFirst) {
  for (const Commit from : {Commit::kClean, Commit::kDirty, Commit::kReplacing}) {
    CommitState state = CommitIn(from);
    EXPECT_EQ(state.Replace(from == Commit::kReplacing ? kNow + std::chrono::seconds(9) : kNow),
              from == Commit::kClean);
    EXPECT_EQ(state.phase(), Commit::kReplacing);
    EXPECT_EQ(state.replacing_since(), kNow);
  }
  for (const Commit from : {Commit::kCommitting, Commit::kCommittingDirty, Commit::kCommittingReplace}) {
    CommitState state = CommitIn(from);
    EXPECT_EQ(state.Replace(kNow), from == Commit::kCommitting);
    EXPECT_EQ(state.phase(), Commit::kCommittingReplace);
  }
}

TEST(CommitState, ACommitKeepsChangesMadeAfterItsSeal) {
  struct Case {
    Commit from, to;
  };
  for (const Case& c : {Case{Commit::kCommitting, Commit::kClean},
                        {Commit::kCommittingDirty, Commit::kDirty},
                        {Commit::kCommittingReplace, Commit::kReplacing}}) {
    CommitState state = CommitIn(c.from);
    state.Committed();
    EXPECT_EQ(state.phase(), c.to);
    EXPECT_FALSE(state.committing());
  }
  for (const Commit from : {Commit::kDirty, Commit::kReplacing}) {
    CommitState state = CommitIn(from);
    state.Seal();
    EXPECT_EQ(state.phase(), Commit::kCommitting);
    EXPECT_TRUE(state.uncommitted());
    EXPECT_FALSE(state.changed());
  }
}

TEST(CommitState, TheLastCloseSettlesAReplacement) {
  struct Case {
    Commit from, to;
  };
  for (const Case& c : {Case{Commit::kClean, Commit::kClean},
                        {Commit::kDirty, Commit::kDirty},
                        {Commit::kReplacing, Commit::kDirty},
                        {Commit::kCommitting, Commit::kCommitting},
                        {Commit::kCommittingDirty, Commit::kCommittingDirty},
                        {Commit::kCommittingReplace, Commit::kCommittingDirty}}) {
    CommitState state = CommitIn(c.from);
    state.Settle();
    EXPECT_EQ(state.phase(), c.to);
  }
}

TEST(CommitState, ARevertMakesItClean) {
  for (const Commit from : {Commit::kClean, Commit::kDirty, Commit::kReplacing, Commit::kCommitting,
                            Commit::kCommittingDirty, Commit::kCommittingReplace}) {
    CommitState state = CommitIn(from);
    state.Revert();
    EXPECT_EQ(state.phase(), Commit::kClean);
    EXPECT_FALSE(state.uncommitted());
  }
}

TEST(CommitStateDeathTest, ImpossibleTransitionsAreCaught) {
  for (const Commit from :
       {Commit::kClean, Commit::kCommitting, Commit::kCommittingDirty, Commit::kCommittingReplace}) {
    CommitState state = CommitIn(from);
    EXPECT_DEATH(state.Seal(), "assertion failed");
  }
  for (const Commit from : {Commit::kClean, Commit::kDirty, Commit::kReplacing}) {
    CommitState state = CommitIn(from);
    EXPECT_DEATH(state.Committed(), "assertion failed");
  }
}

WriteErrorState ErrorIn(Failure phase) {
  WriteErrorState state;
  if (phase == Failure::kNone) return state;
  EXPECT_TRUE(state.WriteFailed(Error{ErrorCode::kIo}));
  if (phase == Failure::kFailedReturned || phase == Failure::kPendingReturned) {
    EXPECT_TRUE(state.RefuseChange());
  }
  if (phase == Failure::kFailedReported) state.Report(1);
  if (phase == Failure::kPending || phase == Failure::kPendingReturned) state.Revert();
  EXPECT_EQ(state.phase(), phase);
  return state;
}

TEST(WriteErrorState, AFailureOfAnIntactFileIsCountedAndLaterOnesAreNot) {
  for (const Failure from : {Failure::kNone, Failure::kPending, Failure::kPendingReturned}) {
    WriteErrorState state = ErrorIn(from);
    const uint64_t failures = state.failures();
    EXPECT_TRUE(state.WriteFailed(Error{ErrorCode::kIo}));
    EXPECT_EQ(state.phase(), Failure::kFailed);
    EXPECT_EQ(state.failures(), failures + 1);
  }
  for (const Failure from : {Failure::kFailed, Failure::kFailedReturned, Failure::kFailedReported}) {
    WriteErrorState state = ErrorIn(from);
    EXPECT_FALSE(state.WriteFailed(Error{ErrorCode::kIo}));
    EXPECT_EQ(state.phase(), from);
    EXPECT_EQ(state.failures(), 1U);
  }
}

TEST(WriteErrorState, ChangesAreRefusedWhileItFailsAndOnceAfterwards) {
  for (const Failure from : {Failure::kFailed, Failure::kFailedReturned, Failure::kFailedReported}) {
    WriteErrorState state = ErrorIn(from);
    EXPECT_TRUE(state.RefuseChange());
    EXPECT_TRUE(state.RefuseChange());
    EXPECT_EQ(state.phase(), Failure::kFailedReturned);
  }
  WriteErrorState pending = ErrorIn(Failure::kPending);
  EXPECT_EQ(pending.RefuseChange()->code, ErrorCode::kIo);
  EXPECT_FALSE(pending.RefuseChange());
  EXPECT_EQ(pending.phase(), Failure::kPendingReturned);
  EXPECT_TRUE(pending.error()) << "a refused change does not report";
  WriteErrorState none;
  EXPECT_FALSE(none.RefuseChange());
}

TEST(WriteErrorState, AReportEndsTheErrorOnceTheFileIsBack) {
  for (const Failure from : {Failure::kPending, Failure::kPendingReturned}) {
    WriteErrorState state = ErrorIn(from);
    state.Report(1);
    EXPECT_EQ(state.phase(), Failure::kNone);
    EXPECT_FALSE(state.error());
  }
  WriteErrorState reported = ErrorIn(Failure::kFailedReported);
  EXPECT_TRUE(reported.error());
  reported.Revert();
  EXPECT_EQ(reported.phase(), Failure::kNone);
  WriteErrorState refused = ErrorIn(Failure::kFailedReported);
  EXPECT_TRUE(refused.RefuseChange());
  refused.Revert();
  EXPECT_EQ(refused.phase(), Failure::kPendingReturned) << "the refused one may not have been heard of";
}

TEST(WriteErrorState, AReportOfAnEarlierFailureChangesNothing) {
  WriteErrorState state = ErrorIn(Failure::kPending);
  EXPECT_TRUE(state.WriteFailed(Error{ErrorCode::kIo}));
  state.Report(1);
  EXPECT_EQ(state.phase(), Failure::kFailed);
  state.Revert();
  state.Report(1);
  EXPECT_EQ(state.phase(), Failure::kPending);
  state.Report(2);
  EXPECT_EQ(state.phase(), Failure::kNone);
}

}  // namespace
}  // namespace weightfs
