// SPDX-License-Identifier: Apache-2.0
#include "fs/lease_tickets.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace weightfs {
namespace {

TEST(LeaseTickets, AreOneForEachHandleAndUser) {
  LeaseTickets tickets;
  const auto file = std::make_shared<FileHandle>(), other = std::make_shared<FileHandle>();
  std::atomic<uint64_t> listing_memory{0};
  const auto directory = std::make_shared<DirectoryHandle>(nullptr, listing_memory);
  const auto first = tickets.Issue({file, nullptr}, 1).value();
  EXPECT_EQ(tickets.Issue({file, nullptr}, 1).value(), first);
  EXPECT_NE(tickets.Issue({file, nullptr}, 2).value(), first);
  EXPECT_NE(tickets.Issue({other, nullptr}, 1).value(), first);
  EXPECT_EQ(tickets.Find(first, 1).file, file);
  EXPECT_EQ(tickets.Find(tickets.Issue({nullptr, directory}, 1).value(), 1).directory, directory);
}

TEST(LeaseTickets, AreValidForTheirUserOnly) {
  LeaseTickets tickets;
  const auto file = std::make_shared<FileHandle>();
  const auto token = tickets.Issue({file, nullptr}, 1).value();
  EXPECT_EQ(tickets.Find(token, 0).file, nullptr);
  EXPECT_EQ(tickets.Find({}, 1).file, nullptr);
}

TEST(LeaseTickets, AreOneForEachProcess) {
  LeaseTickets tickets;
  ProcessTable processes;
  const ProcessPtr own = processes.Of(getpid()).value(), parent = processes.Of(getppid()).value();
  const auto file = std::make_shared<FileHandle>();
  const auto first = tickets.Issue({file, nullptr, 0, own}, 0).value(),
             second = tickets.Issue({file, nullptr, 0, parent}, 0).value();
  EXPECT_NE(first, second);
  EXPECT_EQ(tickets.Issue({file, nullptr, 0, processes.Of(getpid()).value()}, 0).value(), first);
  EXPECT_EQ(tickets.Find(first, 0).process, own);
  EXPECT_EQ(tickets.Find(second, 0).process, parent);
}

TEST(LeaseTickets, MakeRoomWhenTheirProcessesHaveEnded) {
  LeaseTickets tickets;
  ProcessTable processes;
  const auto file = std::make_shared<FileHandle>();
  for (size_t round = 0; round < 2 * LeaseTickets::kMostOfHandle; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    const ProcessPtr process = processes.Of(child).value();
    EXPECT_TRUE(process->Is(child));
    EXPECT_FALSE(process->Is(getpid()));
    ASSERT_TRUE(tickets.Issue({file, nullptr, 0, process}, 0).has_value());
    kill(child, SIGKILL);
    siginfo_t ended{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
    EXPECT_TRUE(process->HasEnded()) << "although it still has its ID";
    EXPECT_FALSE(process->Is(child));
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
  }
}

TEST(LeaseTickets, ProcessesThatHaveEndedMakeRoomForOthers) {
  constexpr size_t kMost = 4;
  LeaseTickets tickets;
  ProcessTable processes(kMost);
  std::vector<std::shared_ptr<FileHandle>> files;
  for (size_t i = 0; i < kMost; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    files.push_back(std::make_shared<FileHandle>());
    ASSERT_TRUE(tickets.Issue({files.back(), nullptr, 0, processes.Of(child).value()}, 0).has_value());
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
  }
  EXPECT_EQ(processes.Of(getpid()).error().code, ErrorCode::kAgain);
  tickets.ForgetEnded();
  const auto own = processes.Of(getpid());
  ASSERT_TRUE(own.has_value());
  const auto token = tickets.Issue({files[0], nullptr, 0, *own}, 0).value();
  tickets.ForgetEnded();
  EXPECT_EQ(tickets.Find(token, 0).file, files[0]);
}

TEST(LeaseTickets, CarryTheCapabilitiesOfTheCaller) {
  LeaseTickets tickets;
  const auto file = std::make_shared<FileHandle>();
  const auto without = tickets.Issue({file, nullptr, 0}, 0).value(),
             with = tickets.Issue({file, nullptr, 2}, 0).value();
  EXPECT_NE(without, with) << "whoever has less must not find the ticket of whoever had more";
  EXPECT_EQ(tickets.Find(without, 0).capabilities, 0U);
  EXPECT_EQ(tickets.Find(with, 0).capabilities, 2U);
  EXPECT_EQ(tickets.Issue({file, nullptr, 2}, 0).value(), with);
}

TEST(LeaseTickets, AreFewOfOneHandle) {
  LeaseTickets tickets;
  const auto file = std::make_shared<FileHandle>(), other = std::make_shared<FileHandle>();
  for (uint64_t capabilities = 0; capabilities < LeaseTickets::kMostOfHandle; ++capabilities) {
    ASSERT_TRUE(tickets.Issue({file, nullptr, capabilities}, 0).has_value());
  }
  EXPECT_EQ(tickets.Issue({file, nullptr, 1000}, 0).error().code, ErrorCode::kAgain);
  EXPECT_TRUE(tickets.Issue({file, nullptr, 5}, 0).has_value()) << "it has this one";
  EXPECT_TRUE(tickets.Issue({other, nullptr, 1000}, 0).has_value());
}

TEST(LeaseTickets, EndWithTheirHandle) {
  LeaseTickets tickets;
  auto file = std::make_shared<FileHandle>();
  const auto token = tickets.Issue({file, nullptr}, 1).value(), second = tickets.Issue({file, nullptr}, 2).value();
  tickets.Forget(file.get());
  EXPECT_EQ(tickets.Find(token, 1).file, nullptr) << "although a request may still keep the handle";
  EXPECT_EQ(tickets.Find(second, 2).file, nullptr);
  EXPECT_NE(tickets.Issue({file, nullptr}, 1).value(), token);
  const auto third = tickets.Issue({file, nullptr}, 1).value();
  file.reset();
  EXPECT_EQ(tickets.Find(third, 1).file, nullptr) << "a ticket keeps nothing open";
}

}  // namespace
}  // namespace weightfs
