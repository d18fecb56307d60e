// SPDX-License-Identifier: Apache-2.0
#include "cli/signals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace weightfs::cli {
namespace {

using testing::ElementsAre;

class InterruptTest : public testing::Test {
 protected:
  ~InterruptTest() override {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  InterruptTest() { pthread_sigmask(SIG_SETMASK, nullptr, &before_); }

 private:
  sigset_t before_{};
};

TEST_F(InterruptTest, AnIgnoredSignalStaysIgnored) {
  signal(SIGHUP, SIG_IGN);
  EXPECT_THAT(EndSignals(), ElementsAre(SIGINT, SIGTERM));
  const std::atomic<bool>& interrupted = CatchInterrupts();
  raise(SIGHUP);
  EXPECT_FALSE(interrupted);
  raise(SIGINT);
  EXPECT_TRUE(interrupted);
}

TEST_F(InterruptTest, AMountIgnoresWhatItsCallerIgnoresButSigterm) {
  signal(SIGHUP, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  BlockEndSignals(/*hangup_ends=*/true);
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_FALSE(sigismember(&blocked, SIGHUP));
  EXPECT_TRUE(sigismember(&blocked, SIGINT));
  EXPECT_TRUE(sigismember(&blocked, SIGTERM));
}

TEST_F(InterruptTest, AMountThatReopensItsLogOnSighupNeverIgnoresIt) {
  signal(SIGHUP, SIG_IGN);
  BlockEndSignals(/*hangup_ends=*/false);
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_TRUE(sigismember(&blocked, SIGHUP));
}

}  // namespace
}  // namespace weightfs::cli
