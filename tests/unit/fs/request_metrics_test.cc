// SPDX-License-Identifier: Apache-2.0
#include "fs/request_metrics.h"

#include <gtest/gtest.h>
#include <linux/fuse.h>

#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/printable.h"
#include "fs/metrics_server.h"
#include "fs/metrics_text.h"
#include "tests/unit/fs/fake_kernel.h"

namespace weightfs {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

RequestOrigin At(RequestKind kind, uint64_t inode = 1, int32_t process = 1) {
  return {kind, RequestOrigin::Clock::now(), inode, process};
}

TEST(RequestMetrics, EveryLatencyIsAtMostTheBoundOfItsBucketAndAboveTheOneBefore) {
  for (int64_t value = 2; value < 11'000'000; value += 1 + value / 7) {
    const size_t bucket = RequestMetrics::BucketOf(microseconds(value));
    ASSERT_LT(bucket, size_t{WEIGHTFS_METRICS_BUCKETS} - 1) << value;
    EXPECT_LE(microseconds(value), RequestMetrics::BoundOf(bucket) + nanoseconds(1)) << value;
    EXPECT_GT(microseconds(value), RequestMetrics::BoundOf(bucket - 1) - nanoseconds(1)) << value;
  }
  EXPECT_EQ(RequestMetrics::BucketOf(nanoseconds(-5)), 0U);
  EXPECT_EQ(RequestMetrics::BucketOf(nanoseconds(900)), 0U);
  EXPECT_EQ(RequestMetrics::BucketOf(microseconds(4)), 2U * WEIGHTFS_METRICS_STEPS) << "a bound belongs to its bucket";
  EXPECT_EQ(RequestMetrics::BucketOf(std::chrono::hours(1)), size_t{WEIGHTFS_METRICS_BUCKETS} - 1);
}

TEST(RequestMetrics, CountsByKind) {
  RequestMetrics metrics;
  metrics.Record(At(RequestKind::kRead), 4096, false);
  metrics.Record(At(RequestKind::kRead), 1, false);
  metrics.Record(At(RequestKind::kLookup), 0, true);
  const weightfs_metrics found = metrics.Snapshot();
  EXPECT_EQ(found.count, kRequestKinds);
  const auto& read = found.kinds[static_cast<size_t>(RequestKind::kRead)];
  EXPECT_EQ(read.count, 2U);
  EXPECT_EQ(read.bytes, 4097U);
  EXPECT_EQ(read.errors, 0U);
  EXPECT_EQ(std::accumulate(std::begin(read.buckets), std::end(read.buckets), 0U), 2U);
  EXPECT_EQ(found.kinds[static_cast<size_t>(RequestKind::kLookup)].errors, 1U);
}

TEST(RequestMetrics, RequestsOfAllThreadsAreCounted) {
  constexpr int kThreads = 9, kRequests = 1000;
  RequestMetrics metrics;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kRequests; ++j) metrics.Record(At(RequestKind::kWrite), 3, j % 10 == 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const RequestTotals found = metrics.Totals()[static_cast<size_t>(RequestKind::kWrite)];
  EXPECT_EQ(found.count, uint64_t{kThreads} * kRequests);
  EXPECT_EQ(found.bytes, uint64_t{kThreads} * kRequests * 3);
  EXPECT_EQ(found.errors, uint64_t{kThreads} * kRequests / 10);
  EXPECT_EQ(metrics.Snapshot().kinds[static_cast<size_t>(RequestKind::kWrite)].count, found.count);
}

TEST(RequestMetrics, KindsHaveDifferentNames) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kRequestKinds; ++i) names.insert(RequestKindName(static_cast<RequestKind>(i)));
  EXPECT_EQ(names.size(), kRequestKinds);
}

TEST(RequestMetrics, ARequestIsReadFromItsHeader) {
  fuse_in_header header{};
  header.opcode = FUSE_WRITE;
  header.nodeid = 77;
  header.pid = 4321;
  const RequestOrigin origin = OriginOf(&header);
  EXPECT_EQ(origin.kind, RequestKind::kWrite);
  EXPECT_EQ(origin.inode, 77U);
  EXPECT_EQ(origin.process, 4321);
}

TEST(RequestMetrics, RequestsOfAMountAreCounted) {
  FakeKernel kernel({}, {});
  ASSERT_TRUE(kernel.negotiated().has_value());
  const KernelReply created = kernel.Create("a", O_RDWR);
  ASSERT_EQ(created.error, 0);
  kernel.Lookup(FUSE_ROOT_ID, "none");
  kernel.Ask(FUSE_UNLINK, FUSE_ROOT_ID, std::string("none").append(1, '\0'));
  weightfs_metrics found{};
  const auto count = [&](RequestKind kind) { return found.kinds[static_cast<size_t>(kind)].count; };
  // A request is counted just after its answer.
  do {
    found = kernel.filesystem().metrics().Snapshot();
  } while (count(RequestKind::kCreate) < 1 || count(RequestKind::kLookup) < 1 || count(RequestKind::kRemove) < 1);
  EXPECT_EQ(found.kinds[static_cast<size_t>(RequestKind::kRemove)].errors, 1U);
  EXPECT_EQ(count(RequestKind::kRead), 0U);
}

MetricsSource Example() {
  MetricsSource source;
  source.store = "/srv/a \"b\"\\c\nd";
  source.stats.read_bytes = 12345;
  RequestMetrics metrics;
  RequestOrigin origin = At(RequestKind::kRead);
  origin.begin -= microseconds(100);
  metrics.Record(origin, 10, false);
  origin.begin -= std::chrono::seconds(60);
  metrics.Record(origin, 10, false);
  source.requests = metrics.Totals();
  return source;
}

TEST(MetricsText, HistogramsAreCumulativeAndEndWithAll) {
  const std::string text = MetricsText(Example(), MetricsFormat::kPrometheus);
  EXPECT_NE(text.find("weightfs_read_bytes_total 12345\n"), std::string::npos);
  EXPECT_NE(text.find("store=\"/srv/a \\\"b\\\"\\\\c\\nd\""), std::string::npos) << text.substr(0, 300);
  EXPECT_NE(text.find("duration_seconds_bucket{kind=\"read\",le=\"6.4e-05\"} 0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("duration_seconds_bucket{kind=\"read\",le=\"8.388608\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("duration_seconds_bucket{kind=\"read\",le=\"+Inf\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find("duration_seconds_count{kind=\"read\"} 2\n"), std::string::npos);
  EXPECT_EQ(text.find("# EOF"), std::string::npos);
}

TEST(MetricsText, HasTheScrubsTheCatalogAndTheLog) {
  MetricsSource source;
  source.scrub.period = std::chrono::hours(1);
  source.scrub.state.phase = ScrubPhase::kData;
  source.scrub.state.last_completed_ns = 1'700'000'000'500'000'000;
  source.scrub.state.checked_bytes = 10;
  source.scrub.state.total_bytes = 20;
  source.scrub.state.found.blocks = 3;
  source.scrub.state.last_found.catalog = true;
  source.log_age = std::chrono::milliseconds(1500);
  source.start_seconds = 1'700'000'000.25;
  const std::string without = MetricsText(source, MetricsFormat::kPrometheus);
  EXPECT_EQ(without.find("weightfs_catalog_free_bytes"), std::string::npos) << "unknown";
  EXPECT_EQ(without.find("weightfs_kernel_requests"), std::string::npos) << "unknown";
  source.catalog_free = 0;
  source.kernel_requests = 4;
  const std::string text = MetricsText(source, MetricsFormat::kPrometheus);
  for (const char* line :
       {"weightfs_scrub_period_seconds 3600", "weightfs_scrub_last_completion_timestamp_seconds 1700000000.5",
        "weightfs_scrub_running 1", "weightfs_scrub_checked_bytes 10", "weightfs_scrub_total_bytes 20",
        "weightfs_scrub_damaged_blocks{scrub=\"running\"} 3", "weightfs_scrub_damaged_blocks{scrub=\"last\"} 0",
        "weightfs_scrub_catalog_damaged{scrub=\"last\"} 1", "weightfs_catalog_free_bytes 0",
        "weightfs_log_age_seconds 1.5", "weightfs_kernel_requests 4", "process_start_time_seconds 1700000000.25"}) {
    EXPECT_NE(text.find(std::string("\n") + line + "\n"), std::string::npos) << line;
  }
}

TEST(MetricsText, CountersDoNotWrapAround) {
  MetricsSource source;
  RequestTotals& reads = source.requests[static_cast<size_t>(RequestKind::kRead)];
  reads.count = reads.buckets[30] = uint64_t{5} << 32;
  const std::string text = MetricsText(source, MetricsFormat::kPrometheus);
  EXPECT_NE(text.find("duration_seconds_bucket{kind=\"read\",le=\"+Inf\"} 21474836480\n"), std::string::npos);
  EXPECT_NE(text.find("duration_seconds_bucket{kind=\"read\",le=\"8.388608\"} 21474836480\n"), std::string::npos);
}

TEST(MetricsText, LabelsAreAlwaysUtf8) {
  MetricsSource source;
  source.store = "/srv/\xff\n\"";
  const std::string text = MetricsText(source, MetricsFormat::kPrometheus);
  EXPECT_NE(text.find("store=\"/srv/\\\\xff\\\\x0a\\\"\""), std::string::npos) << text.substr(0, 300);
  EXPECT_TRUE(IsUtf8(text));
}

TEST(MetricsText, OpenMetricsDeclaresFamiliesAndEnds) {
  const std::string text = MetricsText(Example(), MetricsFormat::kOpenMetrics);
  EXPECT_NE(text.find("# TYPE weightfs_read_bytes counter\n"), std::string::npos);
  EXPECT_TRUE(text.ends_with("# EOF\n"));
}

TEST(MetricsServer, AnswersHttp) {
  const auto ask = [](const std::string& request) {
    return AnswerHttp(request, [](MetricsFormat format) {
      return std::string(format == MetricsFormat::kOpenMetrics ? "open" : "text");
    });
  };
  EXPECT_TRUE(ask("GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(ask("GET /metrics HTTP/1.0\n\n").starts_with("HTTP/1.1 200 OK\r\n")) << "as people type it";
  EXPECT_TRUE(ask("GET /metrics?x=1 HTTP/1.1\r\n\r\n").ends_with("\r\n\r\ntext"));
  EXPECT_TRUE(ask("GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n").ends_with("\r\n\r\nopen"));
  EXPECT_TRUE(ask("HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
  EXPECT_TRUE(ask("GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
  for (const char* wrong :
       {"\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n", "GET /\r\nx HTTP/1.1\r\n\r\n", "GET /\nx HTTP/1.1\n\n"}) {
    EXPECT_TRUE(ask(wrong).starts_with("HTTP/1.1 400 ")) << wrong;
  }
}

}  // namespace
}  // namespace weightfs
