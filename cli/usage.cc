// SPDX-License-Identifier: Apache-2.0
#include "cli/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "cli/output.h"
#include "common/nearest_name.h"
#include "common/size_text.h"

namespace weightfs::cli {
namespace {

using Words = std::span<const std::string>;

constexpr std::pair<std::string_view, std::string_view> kExampleValues[] = {
    {"--size", "8G"},
    {"--device", "/dev/disk/by-id/nvme-A"},
    {"--fill", "data"},
    {"-o", "allow_other,commit=1"},
    {"--json", "out.json"},
    {"--timeout", "60"},
    {"--namespace", "4711"},
    {"--rate", "200M"},
    {"--interval", "2"},
    {"--count", "10"},
    {"--state", "/var/tmp/tensors.scrub"},
    {"--version", "1000"},
    {"--keep", "3"},
    {"--watch", "/mnt/tensors/runs"},
    {"pull --files", "'*.json'"},
    {"--slice", "'*.safetensors:model.layers.0.*'"},
    {"--unfinished-after", "1"},
    {"--endpoint-url", "http://gateway:7480"},
    {"--region", "eu-central-1"},
    {"--profile", "ceph"},
    {"--ca-bundle", "/etc/ssl/gateway.pem"},
    {"--connections", "32"},
    {"--storage-class", "STANDARD_IA"},
    {"--sse", "aws:kms"},
    {"--sse-kms-key-id", "alias/tensors"}};

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// Returns "--json" for "--json,-j", and "STORE" for a positional argument.
std::string NameOf(const CLI::Option& option) {
  if (!option.get_lnames().empty()) return "--" + option.get_lnames().front();
  return option.get_snames().empty() ? option.get_name(true) : "-" + option.get_snames().front();
}

// The names of the options, with their dashes.
std::vector<std::string> OptionNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    for (const auto& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

const CLI::Option* FindOption(const CLI::App& command, std::string_view name) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->nonpositional() && option->check_name(std::string(name))) return option;
  }
  return nullptr;
}

const CLI::App* FindCommand(const CLI::App& app, std::string_view name) {
  const auto found = app.get_subcommands([name](const CLI::App* one) { return one->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

std::string Guess(std::string_view word, const std::vector<std::string>& known) {
  const std::string_view meant = NearestName(word, known);
  return meant.empty() ? std::string() : fmt::format(" (did you mean '{}'?)", meant);
}

// The first example in the footer of a command's help.
std::string ExampleOf(const CLI::App& command) {
  const std::string footer = command.get_footer();
  const size_t begin = footer.find("  weightfs ");
  if (begin == std::string::npos) return {};
  return footer.substr(begin + 2, footer.find('\n', begin) - begin - 2);
}

// Parses the words after a subcommand the same way as CLI11.
class Scan {
 public:
  explicit Scan(const CLI::App& command) : command_(command) {}

  // Returns the first error, or nullopt if the words alone show none.
  std::optional<std::string> Find(Words words) {
    bool only_positionals = false;
    for (size_t at = 0; at < words.size(); ++at) {
      const std::string& word = words[at];
      if (!only_positionals && word == "--") {
        only_positionals = true;
      } else if (only_positionals || word.size() < 2 || word[0] != '-') {
        positionals_.push_back(word);
      } else if (auto wrong = TakeOption(word, words, &at)) {
        return wrong;
      }
    }
    if (auto wrong = CheckRepeated()) return wrong;
    return CheckPositionals();
  }

 private:
  std::optional<std::string> TakeOption(const std::string& word, Words words, size_t* at) {
    const bool is_long = word[1] == '-';
    const size_t equals = is_long ? word.find('=') : std::string::npos;
    const std::string name = is_long ? word.substr(0, equals) : word.substr(0, 2);
    const CLI::Option* option = FindOption(command_, name);
    if (option == nullptr) {
      return fmt::format("unknown option '{}'{}", name, Guess(name, OptionNames(command_)));
    }
    ++seen_[option];
    const bool has_rest = is_long ? equals != std::string::npos : word.size() > 2;
    if (!TakesValue(*option)) {
      if (!has_rest) return std::nullopt;
      if (!is_long) return TakeOption("-" + word.substr(2), words, at);  // "-rf"
      return fmt::format("{} takes no value: '{}'", name, word);
    }
    if (has_rest) return std::nullopt;
    const bool has_next = *at + 1 < words.size() && FindOption(command_, words[*at + 1]) == nullptr;
    if (has_next) {
      ++*at;
    } else if (option->get_items_expected_min() > 0) {
      return fmt::format("{} needs a value, e.g. {} {}", name, name, ExampleValue(command_, NameOf(*option)));
    }
    return std::nullopt;
  }

  std::optional<std::string> CheckRepeated() const {
    for (const auto& [option, times] : seen_) {
      const bool single = TakesValue(*option) && option->get_items_expected_max() == 1 &&
                          option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw;
      if (single && times > 1) return fmt::format("{} is given {} times; give it once", NameOf(*option), times);
    }
    return std::nullopt;
  }

  std::optional<std::string> CheckPositionals() const {
    std::vector<const CLI::Option*> known;
    for (const CLI::Option* option : command_.get_options()) {
      if (option->get_positional()) known.push_back(option);
    }
    for (size_t at = positionals_.size(); at < known.size(); ++at) {
      if (!known[at]->get_required()) continue;
      return fmt::format("{} is missing; write e.g. '{}'", NameOf(*known[at]), ExampleOf(command_));
    }
    if (positionals_.size() <= known.size()) return std::nullopt;
    std::string names;
    for (const CLI::Option* option : known) names += (names.empty() ? "" : " ") + NameOf(*option);
    return fmt::format("too many arguments: '{}'; it takes {}", positionals_[known.size()],
                       names.empty() ? "none" : names);
  }

  const CLI::App& command_;
  std::vector<std::string> positionals_;
  std::map<const CLI::Option*, unsigned> seen_;
};

}  // namespace

std::string UsageLine(std::string_view command, std::string_view what) {
  return fmt::format("weightfs: {}{}{}; see 'weightfs {}{}--help'", command, command.empty() ? "" : ": ", what, command,
                     command.empty() ? "" : " ");
}

int UsageExitCode(std::string_view command) { return command == "fsck" ? kFsckUsage : kUsage; }

int FailUsage(std::string_view command, std::string_view what) {
  Print(stderr, UsageLine(command, what) + "\n");
  return UsageExitCode(command);
}

std::string_view ExampleValue(const CLI::App& command, std::string_view option) {
  const std::string specific = fmt::format("{} {}", command.get_name(), option);
  std::string_view general;
  for (const auto& [name, value] : kExampleValues) {
    if (name == specific) return value;
    if (name == option) general = value;
  }
  return general;
}

UsageError DescribeUsageError(const CLI::App& app, const std::vector<std::string>& arguments,
                              const CLI::ParseError& error) {
  const std::string first = arguments.empty() ? "" : arguments[0];
  const CLI::App* command = FindCommand(app, first);
  if (command == nullptr) {
    if (first.size() > 1 && first[0] == '-') {
      if (auto wrong = Scan(app).Find(std::span(arguments).first(1))) return {"", *wrong};
      return {"", "a command must come first"};
    }
    return {"", fmt::format("no command '{}'{}", first, Guess(first, CommandNames(app)))};
  }
  if (auto wrong = Scan(*command).Find(std::span(arguments).subspan(1))) return {first, *wrong};
  // Value checks are ours, so their message can be shown.
  if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr) return {first, error.what()};
  return {first, "the arguments cannot be understood"};
}

std::string CheckSize(const std::string& text) {
  const auto size = ParseSize(text);
  return size.has_value() ? std::string() : Line(size.error());
}

std::function<std::string(const std::string&)> CheckNumber(uint64_t least, uint64_t most) {
  return [least, most](const std::string& text) -> std::string {
    uint64_t number = 0;
    const char* end = text.data() + text.size();
    const auto [at, failure] = std::from_chars(text.data(), end, number);
    // CLI11 takes a leading zero for an octal number.
    const bool octal = text.size() > 1 && text[0] == '0';
    if (failure == std::errc() && at == end && !octal && number >= least && number <= most) return {};
    if (most == std::numeric_limits<uint64_t>::max()) {
      return fmt::format("'{}' is not a whole number of at least {}", text, least);
    }
    return fmt::format("'{}' is not a whole number from {} to {}", text, least, most);
  };
}

std::function<std::string(const std::string&)> CheckDecimal(std::string unit, double most, double least) {
  return [unit = std::move(unit), most, least](const std::string& text) -> std::string {
    double number = 0;
    const char* end = text.data() + text.size();
    const auto [at, failure] = std::from_chars(text.data(), end, number);
    if (failure == std::errc() && at == end && number >= least && number <= most) return {};
    return fmt::format("'{}' is not a number of {} from {} to {}", text, unit, least, most);
  };
}

void RefuseOptionsAsValues(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    for (CLI::Option* option : command->get_options()) {
      if (!option->nonpositional() || !TakesValue(*option)) continue;
      const std::string name = NameOf(*option);
      option->check([command, name](const std::string& value) -> std::string {
        if (FindOption(*command, value) == nullptr) return {};
        return fmt::format("needs a value, e.g. {} {}", name, ExampleValue(*command, name));
      });
    }
  }
}

}  // namespace weightfs::cli
