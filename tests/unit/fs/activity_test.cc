// SPDX-License-Identifier: Apache-2.0
#include "fs/activity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace weightfs {
namespace {

// Larger than every process number of Linux, so that no process of this machine has it.
constexpr int32_t kNobody = 1 << 23;

RequestOrigin At(RequestKind kind, uint64_t inode, int32_t process) {
  return {kind, RequestOrigin::Clock::now(), inode, process};
}

TEST(Activity, CountsOnlyWhileSomebodyLooks) {
  Activity activity;
  activity.Record(At(RequestKind::kRead, 5, kNobody), 100);
  const uint64_t since = activity.Look(0).next;
  activity.Record(At(RequestKind::kRead, 5, kNobody), 1000);
  activity.Record(At(RequestKind::kWrite, 6, kNobody), 10);
  activity.RecordLease(At(RequestKind::kWrite, 6, kNobody + 1), 500);
  const weightfs_top found = activity.Look(since);
  ASSERT_EQ(found.processes, 2U);
  EXPECT_EQ(found.process[0].id, uint64_t{kNobody}) << "the busiest is first";
  EXPECT_EQ(found.process[0].read_bytes, 1000U);
  EXPECT_EQ(found.process[0].written_bytes, 10U);
  EXPECT_EQ(found.process[0].requests, 2U);
  EXPECT_EQ(found.process[1].leased_written_bytes, 500U);
  ASSERT_EQ(found.files, 2U);
  EXPECT_EQ(found.file[0].id, 5U);
  EXPECT_EQ(found.file[1].written_bytes, 10U);
  EXPECT_EQ(found.file[1].leased_written_bytes, 500U);
}

TEST(Activity, AnAnswerHasOnlyWhatHappenedSinceTheLookBefore) {
  Activity activity;
  const weightfs_top first = activity.Look(0);
  EXPECT_EQ(first.files, 0U);
  EXPECT_EQ(first.watched_ns, 0U);
  activity.Record(At(RequestKind::kRead, 5, kNobody), 1000);
  const weightfs_top second = activity.Look(first.next);
  activity.Record(At(RequestKind::kRead, 6, kNobody), 7);
  const weightfs_top third = activity.Look(second.next);
  ASSERT_EQ(third.files, 1U);
  EXPECT_EQ(third.file[0].id, 6U);
  EXPECT_EQ(third.process[0].read_bytes, 7U);
  const weightfs_top of_another = activity.Look(first.next);
  EXPECT_EQ(of_another.process[0].read_bytes, 1007U) << "each program has numbers of its own";
  EXPECT_GT(of_another.watched_ns, second.watched_ns);
}

TEST(Activity, ManyLooksLoseNothing) {
  Activity activity;
  const uint64_t since = activity.Look(0).next;
  for (int i = 0; i < 1000; ++i) {
    activity.Record(At(RequestKind::kRead, 5, kNobody), 1);
    activity.Look(0);
  }
  EXPECT_EQ(activity.Look(since).process[0].read_bytes, 1000U);
}

TEST(Activity, ABusyFileIsFoundAmongManyOldOnes) {
  Activity activity;
  uint64_t since = activity.Look(0).next;
  for (uint64_t i = 1; i <= 5000; ++i) activity.Record(At(RequestKind::kRead, i, kNobody), 1'000'000);
  since = activity.Look(since).next;
  activity.Record(At(RequestKind::kRead, 6000, kNobody), 10);
  const weightfs_top found = activity.Look(since);
  ASSERT_EQ(found.files, 1U);
  EXPECT_EQ(found.file[0].id, 6000U);
  EXPECT_EQ(found.file[0].read_bytes, 10U);
}

TEST(Activity, ItsMemoryIsBounded) {
  Activity activity;
  const uint64_t since = activity.Look(0).next;
  for (uint64_t i = 1; i <= 10'000; ++i) activity.Record(At(RequestKind::kWrite, i, kNobody), i < 9000 ? 1 : 5);
  const weightfs_top found = activity.Look(since);
  ASSERT_EQ(found.files, uint32_t{WEIGHTFS_TOP_MAX});
  EXPECT_EQ(found.file[0].id, WEIGHTFS_TOP_OTHERS) << "all that found no place";
  EXPECT_EQ(found.process[0].written_bytes, 8999U + 5 * 1001U);
}

TEST(Activity, ALookDoesNotCountTheRequestsOfTheOneWhoLooks) {
  Activity activity;
  const uint64_t since = activity.Look(0, kNobody).next;
  activity.Record(At(RequestKind::kOpen, 1, kNobody), 0);
  activity.Record(At(RequestKind::kRead, 5, kNobody + 1), 10);
  const weightfs_top found = activity.Look(since, kNobody);
  ASSERT_EQ(found.processes, 1U);
  EXPECT_EQ(found.process[0].id, uint64_t{kNobody} + 1);
  ASSERT_EQ(found.files, 1U);
  EXPECT_EQ(found.file[0].id, 5U);
}

TEST(Activity, ThreadsCountForTheirProcess) {
  Activity activity;
  const uint64_t since = activity.Look(0).next;
  activity.Record(At(RequestKind::kRead, 5, gettid()), 100);
  std::thread([&] { activity.Record(At(RequestKind::kRead, 5, gettid()), 10); }).join();
  const weightfs_top found = activity.Look(since);
  ASSERT_EQ(found.processes, 1U);
  EXPECT_EQ(found.process[0].id, static_cast<uint64_t>(getpid()));
  EXPECT_EQ(found.process[0].read_bytes, 110U);
  EXPECT_EQ(std::string(found.process[0].name), "unit_fs");
}

TEST(Activity, AProcessThatIsUnknownHasNoName) {
  ThreadOwners owners;
  EXPECT_EQ(owners.Of(0).process, 0U) << "the kernel";
  EXPECT_EQ(owners.Of(kNobody).process, uint64_t{kNobody});
  EXPECT_EQ(owners.Of(kNobody).name[0], 0);
}

}  // namespace
}  // namespace weightfs
