// SPDX-License-Identifier: Apache-2.0
#include "cli/help/usage.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <optional>

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

// All commands except the program itself and the hidden ones, which only programs call.
std::vector<Command> Commands() {
  std::vector<Command> commands = MakeCommands();
  std::erase_if(commands, [](const Command& command) { return command.name.empty() || command.hidden; });
  return commands;
}

class UsageTest : public testing::TestWithParam<Refused> {};

TEST_P(UsageTest, IsOneLineOfOursWithTheNextStep) {
  const auto& [words, expected] = GetParam();
  const auto [line, code] = RunWith(words);
  const bool known = words[0].find_first_not_of("abcdefghijklmnopqrstuvwxyz") == std::string::npos &&
                     !line.starts_with("weightfs: no command");
  EXPECT_EQ(code, words[0] == "verify" ? 16 : 2);
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
                    Refused{{"-x", "format"}, "unknown option '-x'"}, Refused{{"xyzzy", "--help"}, "no command 'xyzzy';"},
                    Refused{{"-x", "--help"}, "unknown option '-x'"}, Refused{{"--"}, "a command must come first"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Format, UsageTest,
    testing::Values(
        Refused{{"format"}, "STORE is missing; write e.g. 'weightfs format /srv/tensors --size 200G'"},
        Refused{{"format", "--size", "8G"}, "STORE is missing"},
        Refused{{"format", "/proc/s", "--device", "/dev/sdx", "--index", "/i"}, "omit it or STORE"},
        Refused{{"format", "/proc/s"}, "--size or --device is missing; write e.g. --size 8G"},
        Refused{{"format", "/proc/s", "--size"}, "--size needs a value, e.g. --size 8G"},
        Refused{{"format", "/proc/s", "--size", "--force"}, "--size needs a value, e.g. --size 8G"},
        Refused{{"format", "/proc/s", "--size", "much"}, "--size: 'much' is not a size"},
        Refused{{"format", "/proc/s", "--size", ""}, "--size: '' is not a size"},
        Refused{{"format", "/proc/s", "--size=", "8G"}, "--size needs a value, e.g. --size 8G"},
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
        Refused{{"format", "/proc/s", "--force=true", "--size", "8G"}, "--force takes no value: '--force=true'"},
        Refused{{"format", "---force", "--size", "8G"}, "unknown option '---force' (did you mean '--force'?)"},
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
                    Refused{{"verify"}, "TARGET is missing; write e.g. 'weightfs verify /srv/tensors'"},
                    Refused{{"verify", "/s", "--repiar"}, "unknown option '--repiar' (did you mean '--repair'?)"},
                    Refused{{"verify", "/s", "--catalog=yess"}, "--catalog takes no value"},
                    Refused{{"verify", "s3://b/n/1", "--repair"}, "--repair cannot repair a version in a bucket"},
                    Refused{{"prune", "s3://b/n"}, "--keep is missing; write e.g. 'weightfs prune s3://models/llama"},
                    Refused{{"publish", "/d", "--undo", "--version", "1"}, "--undo takes neither --version nor --json"},
                    Refused{{"stats", "/a", "--by", "thread"}, "--by: 'thread' is not one of process, file and"},
                    Refused{{"stats", "/a", "--by", "file", "--interval", "6"}, "--interval is at most 5 with --by"},
                    Refused{{"info"}, "PATH is missing; write e.g. 'weightfs info /srv/tensors'"},
                    Refused{{"info", "/a", "mount"}, "too many arguments: 'mount'; it takes PATH"},
                    Refused{{"info", "/a", "--jsn"}, "(did you mean '--json'?)"},
                    Refused{{"doctor", "/s", "/t"}, "too many arguments: '/t'; it takes STORE"},
                    Refused{{"doctor", "-j"}, "unknown option '-j'"},
                    Refused{{"stats", "/a", "--count", "-1"}, "--count: '-1' is not a whole number from 0 to"},
                    Refused{{"stats", "/a", "--interval", "0"}, "--interval: '0' is not a number of seconds from 0.1"},
                    Refused{{"verify", "/a", "--rate", "much"}, "--rate: 'much' is not a size"},
                    Refused{{"verify", "/a", "--state=--json"}, "--state needs a value, e.g. --state /var/tmp"}),
    NameOf);

TEST(UsageOfEveryCommandTest, EveryCommandHasAnExampleAndSoHasEveryValue) {
  ASSERT_FALSE(Commands().empty());
  for (const Command& command : Commands()) {
    EXPECT_THAT(command.footer, HasSubstr("\n  weightfs " + command.name)) << command.name;
    for (const Option& option : command.options) {
      if (option.positional() || option.value.empty()) continue;
      EXPECT_NE(option.example, "") << command.name << " " << option.name();
    }
  }
}

TEST(UsageOfEveryCommandTest, EveryCommandReportsUnknownOptionsMissingValuesAndExtraArguments) {
  for (const Command& command : Commands()) {
    const std::string& name = command.name;
    if (command.run_words) continue;  // bench: its package parses the words: tests/unit/bench/verdict_test.py
    std::vector<std::vector<std::string>> lines = {{name, "--no-such-option"}, {name, "-?"}};
    const bool takes_many = std::any_of(command.options.begin(), command.options.end(), [](const Option& option) {
      return option.positional() && option.repeated();
    });
    if (!takes_many) lines.push_back({name, "a", "b", "c", "d"});
    for (const Option& option : command.options) {
      const bool needs_value = !option.positional() && !option.value.empty() && !option.optional_value;
      if (needs_value) lines.push_back({name, option.name()});
    }
    for (const auto& words : lines) {
      const auto [line, code] = RunWith(words);
      EXPECT_EQ(code, name == "verify" ? 16 : 2) << line;
      EXPECT_THAT(line, testing::ContainsRegex("unknown option|too many arguments|needs a value")) << words.back();
    }
  }
}

TEST(CommandTest, ReadsAnOptionFromItsSynopsis) {
  Command command("store", "Keeps things");
  std::string text;
  std::vector<std::string> texts;
  bool flag = false;
  const Option lazy = command.Add("-l,--lazy", &flag, "");
  EXPECT_THAT(lazy.names, testing::ElementsAre("-l", "--lazy"));
  EXPECT_EQ(lazy.kind, ValueKind::kNone);
  const Option files = command.Add("--device PATH", &texts, "");
  EXPECT_TRUE(files.value == "PATH" && files.kind == ValueKind::kFile && files.repeated() && !files.optional_value);
  EXPECT_TRUE(command.Add("--json [FILE]", &text, "").optional_value);
  const Option store = command.Add("STORE", &text, "");
  EXPECT_TRUE(store.positional() && store.required && store.name() == "STORE" && store.kind == ValueKind::kFile);
  EXPECT_FALSE(command.Add("[URL]", &text, "").required);
  ASSERT_NE(command.Find("-l"), nullptr);
  EXPECT_EQ(command.Find("-l")->name(), "--lazy");
  EXPECT_EQ(command.Find("--help"), &command.options.front());
  EXPECT_EQ(command.Find("STORE"), nullptr);
}

TEST(OptionTest, SetsVariablesOfEveryType) {
  bool flag = false;
  std::string text;
  std::optional<std::string> maybe;
  std::vector<std::string> many;
  uint64_t number = 0;
  std::optional<uint64_t> some;
  double fraction = 0;
  Command command("store", "Keeps things");
  command.Add("--flag", &flag, "").Set({"true"});
  command.Add("--text TEXT", &text, "").Set({"a"});
  command.Add("--maybe TEXT", &maybe, "").Set({""});
  command.Add("--many TEXT", &many, "").Set({"a", "b"});
  command.AddNumber("--number N", &number, "", "1").Set({"9223372036854775807"});
  command.AddNumber("--some N", &some, "", "1").Set({"7"});
  command.AddDecimal("--fraction SECONDS", &fraction, "", "1", 10).Set({"0.5"});
  EXPECT_TRUE(flag);
  EXPECT_EQ(text, "a");
  EXPECT_EQ(maybe, "");
  EXPECT_THAT(many, testing::ElementsAre("a", "b"));
  EXPECT_EQ(number, 9223372036854775807U);
  EXPECT_EQ(some, 7U);
  EXPECT_EQ(fraction, 0.5);
  EXPECT_EQ(command.Find("--fraction")->check("11"), "'11' is not a number of seconds from 0 to 10");
}

struct StoreWords {
  bool lazy = false, read_only = false;
  std::vector<std::string> options, files;
  std::string size;
  bool ran = false;

  // Returns the exit code.
  int Read(std::vector<std::string> words) {
    Command command("store", "Keeps things");
    command.Add("-l,--lazy", &lazy, "");
    command.Add("-r,--read-only", &read_only, "");
    command.Add("-o OPTIONS", &options, "", "ro");
    command.AddSize("--size SIZE", &size, "", "8G");
    command.Add("FILE", &files, "");
    command.run = [this] { return (ran = true) ? 7 : 0; };
    words.insert(words.begin(), "store");
    return ParseAndRun({Command("", ""), command}, words);
  }
};

TEST(ParseAndRunTest, ReadsValuesInEveryForm) {
  StoreWords read;
  EXPECT_EQ(read.Read({"-rloro", "/s", "--size=8G", "-o", "a,b=c", "-o=x", "[a,b]", "--", "-f", "--size"}), 7);
  EXPECT_TRUE(read.lazy && read.read_only);
  EXPECT_THAT(read.options, testing::ElementsAre("ro", "a,b=c", "=x"));
  EXPECT_EQ(read.size, "8G");
  EXPECT_THAT(read.files, testing::ElementsAre("/s", "[a,b]", "-f", "--size"));
}

TEST(ParseAndRunTest, RunsNothingAfterAnError) {
  StoreWords read;
  testing::internal::CaptureStderr();
  EXPECT_EQ(read.Read({"-l", "f", "--size", "much"}), 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), StartsWith("weightfs: store: --size: 'much' is not a size"));
  EXPECT_FALSE(read.ran);
}

TEST(HelpTest, ListsEachOptionInItsSectionWithinTheColumnsOfATerminal) {
  Command command("store", "Keeps things");
  std::string text;
  std::vector<std::string> files;
  bool secret = false;
  command.Add("FILE", &files, "Files");
  command.Add("--rate SIZE", &text, std::string(40, 'a') + " " + std::string(40, 'b'), "1G").fallback = "200M";
  command.group = "Service";
  command.Add("--an-option-with-a-long-name NAME", &text, "Named", "x");
  command.Add("--secret", &secret, "").hidden = true;
  testing::internal::CaptureStdout();
  EXPECT_EQ(ParseAndRun({Command("", ""), command}, {"store", "--help"}), 0);
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_THAT(help, StartsWith("Keeps things\nUsage: weightfs store [OPTIONS] FILE...\n"));
  EXPECT_THAT(help, HasSubstr(fmt::format("\nPositionals:\n  {:<32}Files\n", "FILE ... REQUIRED")));
  EXPECT_THAT(help, HasSubstr(fmt::format("\nOptions:\n  {0:<32}Print this help message and exit\n"
                                          "  {1:<32}{2}\n{4:34}{3}\n",
                                          "-h,--help", "--rate SIZE=200M", std::string(40, 'a'),
                                          std::string(40, 'b'), "")));
  EXPECT_THAT(help, HasSubstr(fmt::format("\nService:\n  --an-option-with-a-long-name NAME\n{:34}Named\n", "")));
  EXPECT_THAT(help, Not(HasSubstr("secret")));
}

TEST(HelpTest, IsPrintedAlsoBesideAnError) {
  for (const char* wrong : {"--size=much", "--bogus", "--help=no"}) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(RunProgram({"format", wrong, "--help"}), 0);
    EXPECT_THAT(testing::internal::GetCapturedStdout(), StartsWith("Create a store")) << wrong;
  }
}

TEST(HelpTest, OfMountNamesEachOptionOfTheListAndThoseForExpertsLast) {
  const std::vector<Command> commands = MakeCommands();
  const std::string help = std::ranges::find(commands, "mount", &Command::name)->footer;
  for (const char* name : {"ro", "commit=SECONDS", "noatime", "context=", "auto_unmount", "async_dio",
                           "parallel_direct_writes", "over_io_uring", "max_pages_limit"}) {
    EXPECT_THAT(help, HasSubstr(name));
  }
  const std::string experts = help.substr(help.find("Options for experts"));
  EXPECT_THAT(experts, AllOf(HasSubstr("threads=N"), HasSubstr("without=FEATURE")));
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
