// SPDX-License-Identifier: Apache-2.0
// A Reply answers its request exactly once, whatever its owner does.
#include "fs/reply.h"

#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/thread_state.h"

namespace weightfs {
namespace {

// A libfuse session without a kernel: the test passes requests in and collects the answers.
class ReplyTest : public testing::Test {
 protected:
  struct Answer {
    fuse_out_header header{};
    std::string body;
  };

  ReplyTest() {
    operations_.statfs = [](fuse_req_t request, fuse_ino_t) {
      auto* self = static_cast<ReplyTest*>(fuse_req_userdata(request));
      self->handle_(Reply(request, self->counter_, self->metrics_, self->activity_));
    };
    char program[] = "test";
    char* arguments[] = {program, nullptr};
    fuse_args args = FUSE_ARGS_INIT(1, arguments);
    session_ = fuse_session_new(&args, &operations_, sizeof(operations_), this);
    fuse_opt_free_args(&args);
    fuse_custom_io io{};
    io.read = [](int, void*, size_t, void*) -> ssize_t { return 0; };
    io.writev = Capture;
    EXPECT_EQ(fuse_session_custom_io(session_, &io, eventfd(0, 0)), 0);
    fuse_init_in init{};
    init.major = 7;
    init.minor = 38;
    Process(FUSE_INIT, {reinterpret_cast<const char*>(&init), sizeof(init)});
    answers_.clear();
  }
  ~ReplyTest() override { fuse_session_destroy(session_); }

  static ssize_t Capture(int, iovec* iov, int count, void* userdata) {
    auto* self = static_cast<ReplyTest*>(userdata);
    Answer answer;
    std::memcpy(&answer.header, iov[0].iov_base, sizeof(answer.header));
    size_t size = iov[0].iov_len;
    for (int i = 1; i < count; ++i) {
      answer.body.append(static_cast<const char*>(iov[i].iov_base), iov[i].iov_len);
      size += iov[i].iov_len;
    }
    self->answers_.push_back(std::move(answer));
    if (self->interrupted_) {
      errno = ENOENT;
      return -1;
    }
    return static_cast<ssize_t>(size);
  }

  void Process(uint32_t opcode, std::string_view body) {
    fuse_in_header header{};
    header.len = static_cast<uint32_t>(sizeof(header) + body.size());
    header.opcode = opcode;
    header.unique = 2 * ++unique_;
    header.nodeid = 1;
    std::string packet(reinterpret_cast<const char*>(&header), sizeof(header));
    packet.append(body);
    fuse_buf buffer{};
    buffer.mem = packet.data();
    buffer.size = packet.size();
    fuse_session_process_buf(session_, &buffer);
  }

  // The answers to one request if `handle` gets its Reply.
  std::vector<Answer> AnswersOf(std::function<void(Reply)> handle) {
    handle_ = std::move(handle);
    answers_.clear();
    Process(FUSE_STATFS, {});
    return std::exchange(answers_, {});
  }

  fuse_lowlevel_ops operations_{};
  fuse_session* session_ = nullptr;
  RequestCounter counter_;
  RequestMetrics metrics_;
  Activity activity_;
  std::function<void(Reply)> handle_;
  std::vector<Answer> answers_;
  uint64_t unique_ = 0;
  bool interrupted_ = false;
};

TEST_F(ReplyTest, DroppedReplyAnswersEio) {
  const auto answers = AnswersOf([](const Reply&) {});
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].header.error, -EIO);
  counter_.WaitForNone();
}

TEST_F(ReplyTest, MovedReplyAnswersOnce) {
  const auto answers = AnswersOf([](Reply first) {
    Reply second(std::move(first));
    second.Fail(Error{ErrorCode::kNoSpace});
  });
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].header.error, -ENOSPC);
  counter_.WaitForNone();
}

TEST_F(ReplyTest, DamageIsLoggedWithItsText) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  for (const ErrorCode code : {ErrorCode::kIo, ErrorCode::kCorrupt, ErrorCode::kVersion}) {
    log.str("");
    const auto answers = AnswersOf([code](Reply reply) { reply.Fail({code, "reading the catalog failed"}); });
    EXPECT_EQ(answers.at(0).header.error, -EIO);
    EXPECT_NE(log.str().find("reading the catalog failed"), std::string::npos);
  }
  log.str("");
  (void)AnswersOf([](Reply reply) { reply.Fail({ErrorCode::kInvalid, "no such option"}); });
  (void)AnswersOf([](Reply reply) { reply.Fail(Error{ErrorCode::kIo}); });
  EXPECT_EQ(log.str(), "");
  spdlog::set_default_logger(before);
}

TEST_F(ReplyTest, SecondAnswerIsIgnored) {
  const auto answers = AnswersOf([](Reply reply) {
    reply.Ok();
    reply.Errno(EACCES);
  });
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].header.error, 0);
  counter_.WaitForNone();
}

TEST_F(ReplyTest, CounterWaitsForAReplyThatIsKept) {
  std::optional<Reply> kept;
  EXPECT_TRUE(AnswersOf([&kept](Reply reply) { kept.emplace(std::move(reply)); }).empty());
  EXPECT_EQ(counter_.begun(), 1U);
  auto waited = StartUntilBlocked([this] { counter_.WaitForNone(); });
  EXPECT_FALSE(HasEnded(waited));
  kept->Written(7);
  waited.get();
  ASSERT_EQ(answers_.size(), 1U);
}

TEST_F(ReplyTest, SendsPiecesOfAViewInOrderHoweverMany) {
  const std::string text = "0123456789";
  for (const size_t pieces : {size_t{0}, size_t{1}, size_t{3}, size_t{5000}}) {
    ReadView view;
    std::string expected;
    for (size_t i = 0; i < pieces; ++i) {
      view.pieces.push_back({const_cast<char*>(text.data()) + i % 7, 3});
      expected += text.substr(i % 7, 3);
    }
    view.size = ByteCount{expected.size()};
    const auto answers = AnswersOf([&view](Reply reply) { reply.Data(view); });
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_EQ(answers[0].header.error, 0);
    EXPECT_EQ(answers[0].body, expected);
  }
}

TEST_F(ReplyTest, ExtendedAttributeAnswersSizeValueOrRange) {
  const auto ask = [this](size_t capacity) {
    return AnswersOf([capacity](Reply reply) { reply.ExtendedAttribute("value", capacity); });
  };
  const auto size = ask(0);
  ASSERT_EQ(size.size(), 1U);
  fuse_getxattr_out out{};
  ASSERT_EQ(size[0].body.size(), sizeof(out));
  std::memcpy(&out, size[0].body.data(), sizeof(out));
  EXPECT_EQ(out.size, 5U);
  EXPECT_EQ(ask(5)[0].body, "value");
  EXPECT_EQ(ask(4)[0].header.error, -ERANGE);
}

TEST_F(ReplyTest, InterruptedCallerIsReported) {
  interrupted_ = true;
  bool wanted = true;
  (void)AnswersOf([&wanted](Reply reply) { wanted = reply.Entry(Attributes{}, 1.0); });
  EXPECT_FALSE(wanted);
  (void)AnswersOf([&wanted](Reply reply) {
    fuse_file_info file{};
    wanted = reply.Open(file, {});
  });
  EXPECT_FALSE(wanted);
  counter_.WaitForNone();
}

}  // namespace
}  // namespace weightfs
