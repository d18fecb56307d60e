// SPDX-License-Identifier: Apache-2.0
#include "cli/usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "cli/program.h"

namespace weightfs::cli {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct Refused {
  std::vector<std::string> words;
  std::string expected;  // part of the error line
};

// Returns the program's output and exit code.
std::pair<std::string, int> RunWith(const std::vector<std::string>& words) {
  testing::internal::CaptureStderr();
  const int code = RunProgram(words);
  return {testing::internal::GetCapturedStderr(), code};
}

// All commands except the hidden ones, which only programs call.
std::vector<const CLI::App*> Commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

struct NamedOption {
  std::string name;  // as users write it: the long name if there is one
  const CLI::Option* option;
};

std::vector<NamedOption> NamedOptions(const CLI::App& command) {
  std::vector<NamedOption> named;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->nonpositional()) continue;
    const auto& longer = option->get_lnames();
    named.push_back({longer.empty() ? "-" + option->get_snames()[0] : "--" + longer[0], option});
  }
  return named;
}

class UsageTest : public testing::TestWithParam<Refused> {};

TEST_P(UsageTest, IsOneLineOfOursWithTheNextStep) {
  const auto& [words, expected] = GetParam();
  const auto [line, code] = RunWith(words);
  const bool known = words[0].find_first_not_of("abcdefghijklmnopqrstuvwxyz") == std::string::npos &&
                     !line.starts_with("weightfs: no command");
  EXPECT_EQ(code, words[0] == "fsck" ? 16 : 2);
  EXPECT_THAT(line, HasSubstr(expected));
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  if (known) {
    EXPECT_THAT(line, AllOf(StartsWith("weightfs: " + words[0] + ": "),
                            EndsWith("; see 'weightfs " + words[0] + " --help'\n")));
  } else {
    EXPECT_THAT(line, AllOf(StartsWith("weightfs: "), EndsWith("; see 'weightfs --help'\n")));
  }
  // Words that CLI11 uses in its messages.
  for (const char* raw : {"required", "not expected", "Could not convert", "TEXT", "Required", "missing SIZE",
                          "The following argument", "Subcommand", "subcommand", "INVALID", "ArgumentMismatch"}) {
    EXPECT_THAT(line, Not(HasSubstr(raw)));
  }
}

std::string NameOf(const testing::TestParamInfo<Refused>& info) {
  std::string name = std::to_string(info.index);
  for (const auto& word : info.param.words) name += "_" + word;
  for (char& letter : name) letter = std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Program, UsageTest,
    testing::Values(Refused{{"formt"}, "no command 'formt' (did you mean 'format'?)"},
                    Refused{{"xyzzy"}, "no command 'xyzzy';"},
                    Refused{{"unmout"}, "no command 'unmout' (did you mean 'umount'?)"},
                    Refused{{"--verison"}, "unknown option '--verison' (did you mean '--version'?)"},
                    Refused{{"-x", "format"}, "unknown option '-x'"}, Refused{{"--"}, "a command must come first"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Format, UsageTest,
    testing::Values(
        Refused{{"format"}, "STORE is missing; write e.g. 'weightfs format /srv/tensors --size 200G'"},
        Refused{{"format", "/proc/s"}, "--size or --device is missing; write e.g. --size 8G"},
        Refused{{"format", "/proc/s", "--size"}, "--size needs a value, e.g. --size 8G"},
        Refused{{"format", "/proc/s", "--size", "--force"}, "--size needs a value, e.g. --size 8G"},
        Refused{{"format", "/proc/s", "--size", "much"}, "--size: 'much' is not a size"},
        Refused{{"format", "/proc/s", "--size", ""}, "--size: '' is not a size"},
        Refused{{"format", "/proc/s", "--size=8Q"}, "--size: '8Q' is not a size (unknown unit)"},
        Refused{{"format", "/proc/s", "--size", "1G", "--size", "2G"}, "--size is given 2 times; give it once"},
        Refused{{"format", "/proc/s", "--device"}, "--device needs a value, e.g. --device /dev/disk/by-id/nvme-A"},
        Refused{{"format", "/proc/s", "--device", "--sparse"}, "--device needs a value"},
        Refused{{"format", "/proc/s", "--size", "8G", "--fill", "ones"},
                "--fill: 'ones' is not one of auto, zeros and"},
        Refused{{"format", "/proc/s", "--size", "8G", "--fill"}, "--fill needs a value, e.g. --fill data"},
        Refused{{"format", "/proc/s", "--size", "8G", "--fill", "data", "--sparse"}, "omit one of them"},
        Refused{{"format", "/proc/s", "--sise", "8G"}, "unknown option '--sise' (did you mean '--size'?)"},
        Refused{{"format", "/proc/s", "--dev=/x"}, "unknown option '--dev' (did you mean '--device'?)"},
        Refused{{"format", "/proc/s", "--force=much", "--size", "8G"}, "--force takes no value: '--force=much'"},
        Refused{{"format", "/proc/s", "/t", "--size", "8G"}, "too many arguments: '/t'; it takes STORE"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Mount, UsageTest,
    testing::Values(Refused{{"mount"}, "STORE is missing; write e.g. 'weightfs mount /srv/tensors /mnt/tensors'"},
                    Refused{{"mount", "/s"}, "DIR is missing; write e.g. 'weightfs mount /srv/tensors /mnt/tensors'"},
                    Refused{{"mount", "/s", "/d", "/e"}, "too many arguments: '/e'; it takes STORE DIR"},
                    Refused{{"mount", "/s", "/d", "-o"}, "-o needs a value, e.g. -o allow_other,commit=1"},
                    Refused{{"mount", "/s", "/d", "-rx"}, "unknown option '-x'"},
                    Refused{{"mount", "/s", "/d", "--foregruond"}, "(did you mean '--foreground'?)"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Others, UsageTest,
    testing::Values(Refused{{"umount"}, "DIR is missing; write e.g. 'weightfs umount /mnt/tensors'"},
                    Refused{{"umount", "/a", "/b"}, "too many arguments: '/b'; it takes DIR"},
                    Refused{{"umount", "/a", "--wat"}, "unknown option '--wat'"},
                    Refused{{"fsck"}, "STORE is missing; write e.g. 'weightfs fsck /srv/tensors'"},
                    Refused{{"fsck", "/s", "--repiar"}, "unknown option '--repiar' (did you mean '--repair'?)"},
                    Refused{{"fsck", "/s", "/t"}, "too many arguments: '/t'; it takes STORE"},
                    Refused{{"fsck", "/s", "--data=yess"}, "--data takes no value"},
                    Refused{{"info"}, "PATH is missing; write e.g. 'weightfs info /srv/tensors'"},
                    Refused{{"info", "/a", "mount"}, "too many arguments: 'mount'; it takes PATH"},
                    Refused{{"info", "/a", "--jsn"}, "(did you mean '--json'?)"},
                    Refused{{"doctor", "/s", "/t"}, "too many arguments: '/t'; it takes STORE"},
                    Refused{{"doctor", "-j"}, "unknown option '-j'"}),
    NameOf);

TEST(UsageOfEveryCommandTest, EveryCommandHasAnExampleAndSoHasEveryValue) {
  int exit_code = 0;
  const auto app = MakeApp(&exit_code);
  ASSERT_FALSE(Commands(*app).empty());
  for (const CLI::App* command : Commands(*app)) {
    EXPECT_THAT(command->get_footer(), HasSubstr("\n  weightfs " + command->get_name())) << command->get_name();
    for (const auto& [name, option] : NamedOptions(*command)) {
      if (option->get_items_expected_max() == 0 || option->get_group().empty()) continue;  // the latter: for tests
      EXPECT_NE(ExampleValue(*command, name), "") << command->get_name() << " " << name;
    }
  }
}

// Every subcommand reports an unknown option, a missing value and an extra argument in our own words.
TEST(UsageOfEveryCommandTest, NoCommandShowsTheMessagesOfTheParser) {
  int exit_code = 0;
  const auto app = MakeApp(&exit_code);
  for (const CLI::App* command : Commands(*app)) {
    const std::string name = command->get_name();
    if (name == "bench") continue;  // its package parses the words: tests/unit/bench/verdict_test.py
    std::vector<std::vector<std::string>> lines = {{name, "--no-such-option"}, {name, "-?"}};
    const auto options = command->get_options();
    const bool takes_many = std::any_of(options.begin(), options.end(), [](const CLI::Option* option) {
      return option->get_positional() && option->get_items_expected_max() > 4;
    });
    if (!takes_many) lines.push_back({name, "a", "b", "c", "d"});
    for (const auto& [option_name, option] : NamedOptions(*command)) {
      if (option->get_items_expected_min() > 0) lines.push_back({name, option_name});
    }
    for (const auto& words : lines) {
      const auto [line, code] = RunWith(words);
      EXPECT_EQ(code, name == "fsck" ? 16 : 2) << line;
      EXPECT_THAT(line, testing::ContainsRegex("unknown option|too many arguments|needs a value")) << words.back();
    }
  }
}

TEST(CheckDecimalTest, TakesFractionsAndNothingBelowZero) {
  const auto check = CheckDecimal("seconds", 60);
  for (const char* right : {"0", "0.5", "60"}) EXPECT_EQ(check(right), "") << right;
  for (const char* wrong : {"-1", "60.1", "", "nan", "ten", "5s"}) EXPECT_NE(check(wrong), "") << wrong;
}

TEST(CheckNumberTest, TakesWholeNumbersWithinItsBounds) {
  const auto check = CheckNumber(2, 10);
  EXPECT_EQ(check("2"), "");
  EXPECT_EQ(check("10"), "");
  for (const char* wrong : {"1", "11", "", "2.5", "0x2", " 2", "-2", "two", "010"})
    EXPECT_NE(check(wrong), "") << wrong;
}

}  // namespace
}  // namespace weightfs::cli
