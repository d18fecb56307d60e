// SPDX-License-Identifier: Apache-2.0
#include "cli/options.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include "cli/output.h"
#include "common/parse_number.h"
#include "common/size_text.h"

namespace weightfs::cli {
namespace {

// A shell completes files and directories for FILE and PATH.
ValueKind KindOf(std::string_view value) {
  if (value.empty()) return ValueKind::kNone;
  if (value == "DIR") return ValueKind::kDirectory;
  // A store is a directory or a device.
  if (value == "STORE" || value == "FILE" || value == "FILE.html" || value == "PATH") return ValueKind::kFile;
  return value == "OPTIONS" ? ValueKind::kMountOptions : ValueKind::kText;
}

std::string CheckSize(const std::string& text) {
  const auto size = ParseSize(text);
  return size.has_value() ? std::string() : Line(size.error());
}

struct Setter {
  const std::vector<std::string>& values;

  void operator()(bool* variable) const { *variable = true; }
  void operator()(std::string* variable) const { *variable = values.back(); }
  void operator()(std::optional<std::string>* variable) const { *variable = values.back(); }
  void operator()(std::vector<std::string>* variable) const { *variable = values; }
  void operator()(uint64_t* variable) const { *variable = ParseNumber<uint64_t>(values.back()).value(); }
  void operator()(std::optional<uint64_t>* variable) const { *variable = ParseNumber<uint64_t>(values.back()); }
  void operator()(double* variable) const { *variable = ParseNumber<double>(values.back()).value(); }
};

}  // namespace

void Option::Set(const std::vector<std::string>& values) const { std::visit(Setter{values}, target); }

Command::Command(std::string of_name, std::string of_summary)
    : name(std::move(of_name)), summary(std::move(of_summary)) {
  Add("-h,--help", {}, "Print this help message and exit");
}

Option& Command::Add(std::string_view synopsis, Target target, std::string meaning, std::string example) {
  Option option{.meaning = std::move(meaning), .example = std::move(example), .group = group, .target = target};
  while (synopsis.starts_with('-')) {
    const size_t end = std::min(synopsis.find_first_of(", "), synopsis.size());
    option.names.emplace_back(synopsis.substr(0, end));
    synopsis.remove_prefix(std::min(end + 1, synopsis.size()));
  }
  const bool may_be_missing = synopsis.starts_with('[');
  option.value = may_be_missing ? synopsis.substr(1, synopsis.size() - 2) : synopsis;
  option.kind = KindOf(option.value);
  option.optional_value = may_be_missing && !option.positional();
  option.required = !may_be_missing && option.positional();
  return options.emplace_back(std::move(option));
}

Option& Command::AddSize(std::string_view synopsis, std::string* target, std::string meaning, std::string example) {
  Option& option = Add(synopsis, target, std::move(meaning), std::move(example));
  option.check = CheckSize;
  return option;
}

Option& Command::AddNumber(std::string_view synopsis, Target target, std::string meaning, std::string example,
                           uint64_t least, uint64_t most) {
  Option& option = Add(synopsis, target, std::move(meaning), std::move(example));
  option.check = CheckNumber(least, most);
  return option;
}

Option& Command::AddDecimal(std::string_view synopsis, double* target, std::string meaning, std::string example,
                            double most, double least) {
  Option& option = Add(synopsis, target, std::move(meaning), std::move(example));
  std::string unit = option.value;
  std::ranges::transform(unit, unit.begin(), [](unsigned char letter) { return std::tolower(letter); });
  option.check = CheckDecimal(std::move(unit), most, least);
  return option;
}

const Option* Command::Find(std::string_view wanted) const {
  const auto found = std::ranges::find_if(
      options, [wanted](const Option& option) { return std::ranges::count(option.names, wanted) > 0; });
  return found == options.end() ? nullptr : &*found;
}

ValueCheck CheckNumber(uint64_t least, uint64_t most) {
  return [least, most](const std::string& text) -> std::string {
    const auto number = ParseNumber<uint64_t>(text);
    const bool octal = text.size() > 1 && text[0] == '0';  // in C, so it could be meant
    if (number && !octal && *number >= least && *number <= most) return {};
    if (most == std::numeric_limits<uint64_t>::max()) {
      return fmt::format("'{}' is not a whole number of at least {}", text, least);
    }
    return fmt::format("'{}' is not a whole number from {} to {}", text, least, most);
  };
}

ValueCheck CheckDecimal(std::string unit, double most, double least) {
  return [unit = std::move(unit), most, least](const std::string& text) -> std::string {
    const auto number = ParseNumber<double>(text);
    if (number && *number >= least && *number <= most) return {};
    return fmt::format("'{}' is not a number of {} from {} to {}", text, unit, least, most);
  };
}

}  // namespace weightfs::cli
