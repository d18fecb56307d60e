// SPDX-License-Identifier: Apache-2.0
#include "cli/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "fs/kernel_features.h"
#include "fs/mount_options.h"

namespace weightfs::cli {
namespace {

constexpr std::string_view kLicense = "# SPDX-License-Identifier: Apache-2.0\n";

// A mount option for completion: "cache=" with the values "auto" and "never".
struct MountOption {
  std::string name;  // ends with '=' if it takes a value
  std::string meaning;
  std::vector<std::string> values;
};

// "auto|never" lists two values; in "DAYS|off" only "off" is one, and the word in capitals is a description.
std::vector<std::string> ValuesOf(std::string_view text) {
  std::vector<std::string> values;
  if (text.find('|') == std::string_view::npos) return values;
  while (!text.empty()) {
    const size_t end = std::min(text.find('|'), text.size());
    const std::string_view word = text.substr(0, end);
    if (std::islower(static_cast<unsigned char>(word.front())) != 0) values.emplace_back(word);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return values;
}

std::vector<MountOption> MountOptionList() {
  std::vector<MountOption> options;
  for (const MountOptionHelp& option : DescribeMountOptions()) {
    MountOption entry{std::string(option.name) + (option.value.empty() ? "" : "="), std::string(option.meaning),
                      ValuesOf(option.value)};
    if (option.name == "without") {
      for (const std::string_view feature : KnownFeatures()) entry.values.emplace_back(feature);
    }
    options.push_back(std::move(entry));
  }
  for (const std::string_view name : KernelMountOptions()) {
    options.push_back({std::string(name), "option of the kernel", {}});
  }
  return options;
}

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Single quotes protect everything but themselves, in all three shells if they are left and entered again.
std::string Quote(std::string_view text) {
  std::string quoted = "'";
  for (const char letter : text) quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return quoted + "'";
}

std::string_view KindName(ValueKind kind) {
  switch (kind) {
    case ValueKind::kNone: return "none";
    case ValueKind::kText: return "text";
    case ValueKind::kFile: return "file";
    case ValueKind::kDirectory: return "directory";
    case ValueKind::kMountOptions: return "mount_options";
  }
  return "";
}

// What does not depend on the commands.
constexpr std::string_view kBashFunctions = R"sh(
# Completes a list of mount options, $1, which is separated by commas.
_weightfs_mount_options() {
  local before='' item=$1 value
  [[ $1 == *,* ]] && before=${1%,*}, item=${1##*,}
  if [[ $item == *=* ]]; then
    for value in $(_weightfs_mount_option_values "${item%%=*}"); do
      [[ $value == "${item#*=}"* ]] && printf '%s\n' "$before${item%%=*}=$value"
    done
  else
    for value in $_weightfs_mount_option_names; do
      [[ $value == "$item"* ]] && printf '%s\n' "$before$value"
    done
  fi
}

# Prints the completions of the value $2 of the kind $1.
_weightfs_values() {
  case $1 in
    file) compgen -f -- "$2" ;;
    directory) compgen -d -- "$2" ;;
    mount_options) _weightfs_mount_options "$2" ;;
  esac
}

_weightfs() {
  # Bash splits words at '=' and ':'.
  local words=() word glue='' typed=${COMP_WORDS[COMP_CWORD]}
  for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    if [[ -n $glue || ( $word == [=:] && ${#words[@]} -gt 1 ) ]]; then
      words[${#words[@]}-1]+=$word
      [[ $word == [=:] ]] && glue=1 || glue=''
    else
      words+=("$word")
    fi
  done
  local count=${#words[@]} kind=none given='' position=0 index
  local current=${words[count-1]} command=${words[1]}
  COMPREPLY=()
  if (( count <= 2 )); then
    mapfile -t COMPREPLY < <(compgen -W "$_weightfs_commands $(_weightfs_options '')" -- "$current")
    return
  fi
  for (( index = 2; index < count - 1; ++index )); do
    if [[ ${words[index]} != -* ]]; then
      [[ $kind == none ]] && (( ++position ))
      kind=none
    elif [[ ${words[index]} == *=* ]]; then
      kind=none
    else
      kind=$(_weightfs_option_kind "$command" "${words[index]}")
    fi
  done
  if [[ $kind == none && $current == --*=* ]]; then
    kind=$(_weightfs_option_kind "$command" "${current%%=*}")
    given=${current%%=*}=
  elif [[ $kind == none && $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_weightfs_options "$command")" -- "$current")
    return
  elif [[ $kind == none ]]; then
    kind=$(_weightfs_argument_kind "$command" "$position")
  fi
  mapfile -t COMPREPLY < <(_weightfs_values "$kind" "${current#"$given"}")
  case $kind in
    file | directory) compopt -o filenames 2>/dev/null ;;
    mount_options) compopt -o nospace 2>/dev/null ;;
  esac
  # Readline replaces only the part after the last '=' or ':'.
  [[ $typed == [=:] ]] && typed=''
  local replaced=${current%"$typed"}
  replaced=${replaced#"$given"}
  COMPREPLY=("${COMPREPLY[@]#"$replaced"}")
}
complete -F _weightfs weightfs
)sh";

constexpr std::string_view kFishFunctions = R"sh(
function __weightfs_no_command
    not __fish_seen_subcommand_from $__weightfs_commands
end

function __weightfs_command
    __fish_seen_subcommand_from $argv
end
)sh";

// `name() { case PATTERN in ...; esac; }` with the lines of `cases`.
std::string BashCase(std::string_view name, std::string_view word, std::string_view cases) {
  return fmt::format("{}() {{\n  case {} in\n{}  esac\n}}\n", name, word, cases);
}

std::string BashTables(const std::vector<Command>& commands) {
  std::string options, kinds, arguments;
  for (const Command& command : commands) {
    std::vector<std::string> names;
    int position = 0;
    for (const Option& option : command.options) {
      names.insert(names.end(), option.names.begin(), option.names.end());
      if (option.positional()) {
        const std::string at = option.repeated() ? "*" : fmt::format("{}", position++);
        arguments += fmt::format("    '{} '{}) echo {} ;;\n", command.name, at, KindName(option.kind));
      } else if (option.kind != ValueKind::kNone && !option.optional_value) {
        for (const std::string& name : option.names) {
          kinds += fmt::format("    '{} {}') echo {} ;;\n", command.name, name, KindName(option.kind));
        }
      }
    }
    options += fmt::format("    '{}') echo {} ;;\n", command.name, Quote(Join(names)));
  }
  return BashCase("_weightfs_options", "$1", options) +
         BashCase("_weightfs_option_kind", "\"$1 $2\"", kinds + "    *) echo none ;;\n") +
         BashCase("_weightfs_argument_kind", "\"$1 $2\"", arguments);
}

// In a specification of zsh's _arguments, a bracket or colon ends the description.
std::string ZshText(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '[' || letter == ']' || letter == ':' || letter == '\\') escaped += '\\';
    escaped += letter;
  }
  return escaped;
}

std::string ZshAction(const Option& option) {
  switch (option.kind) {
    case ValueKind::kNone: return "";
    case ValueKind::kText: return " ";
    case ValueKind::kFile: return "_files";
    case ValueKind::kDirectory: return "_files -/";
    case ValueKind::kMountOptions: return "_weightfs_mount_options";
  }
  return "";
}

std::string ZshOption(const Option& option) {
  const std::string value = ZshText(option.value);
  if (option.positional()) {
    const std::string_view place = option.repeated() ? "*" : option.required ? "" : ":";
    return Quote(fmt::format("{}:{}:{}", place, value, ZshAction(option)));
  }
  const std::string repeat = option.repeated() ? "*" : fmt::format("({})", Join(option.names));
  std::string text;
  for (const std::string& name : option.names) {
    std::string spec = fmt::format("{}{}", repeat, name);
    const bool is_long = name.starts_with("--");
    if (option.kind != ValueKind::kNone && is_long) spec += option.optional_value ? "=-" : "=";
    spec += fmt::format("[{}]", ZshText(option.meaning));
    if (option.kind != ValueKind::kNone) {
      spec += fmt::format("{}{}:{}", option.optional_value ? "::" : ":", value, ZshAction(option));
    }
    text += (text.empty() ? "" : " \\\n        ") + Quote(spec);
  }
  return text;
}

std::string ZshOptions(const Command& command) {
  std::string text;
  for (const Option& option : command.options) text += " \\\n        " + ZshOption(option);
  return text;
}

std::string ZshMountOptions() {
  std::string text = "_weightfs_mount_options() {\n  _values -s , 'mount option'";
  for (const MountOption& option : MountOptionList()) {
    const bool has_value = option.name.ends_with('=');
    const std::string name = has_value ? option.name.substr(0, option.name.size() - 1) : option.name;
    std::string spec = fmt::format("{}[{}]", name, ZshText(option.meaning));
    if (has_value) spec += fmt::format(":value:({})", Join(option.values));
    text += " \\\n    " + Quote(spec);
  }
  return text + "\n}\n";
}

// fish escapes a quote inside single quotes by a backslash.
std::string FishQuote(std::string_view text) {
  std::string quoted = "'";
  for (const char letter : text) {
    if (letter == '\'' || letter == '\\') quoted += '\\';
    quoted += letter;
  }
  return quoted + "'";
}

std::string FishAction(const Option& option) {
  const std::string_view exclusive = option.positional() ? "" : option.optional_value ? "" : " -x";
  switch (option.kind) {
    case ValueKind::kNone: return "";
    case ValueKind::kText: return std::string(exclusive);
    case ValueKind::kFile: return option.positional() ? " -F" : option.optional_value ? " -F" : " -rF";
    case ValueKind::kDirectory: return std::string(exclusive) + " -a '(__fish_complete_directories)'";
    case ValueKind::kMountOptions:
      return std::string(exclusive) + " -a '(__fish_complete_list , __weightfs_mount_options)'";
  }
  return "";
}

std::string FishCommand(const Command& command) {
  const std::string condition =
      command.name.empty() ? "__weightfs_no_command" : FishQuote("__weightfs_command " + command.name);
  std::string text;
  for (const Option& option : command.options) {
    text += "complete -c weightfs -n " + condition;
    for (const std::string& name : option.names) {
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    text += FishAction(option);
    text += fmt::format(" -d {}\n", FishQuote(option.meaning));
  }
  return text;
}

}  // namespace

std::string BashCompletion(const std::vector<Command>& commands) {
  std::vector<std::string> names, mount_options;
  for (const Command& command : commands) {
    if (!command.name.empty()) names.push_back(command.name);
  }
  std::string values;
  for (const MountOption& option : MountOptionList()) {
    mount_options.push_back(option.name);
    if (option.values.empty()) continue;
    values +=
        fmt::format("    {}) echo {} ;;\n", option.name.substr(0, option.name.size() - 1), Quote(Join(option.values)));
  }
  return fmt::format("# Completion of weightfs for bash.\n{}_weightfs_commands={}\n_weightfs_mount_option_names={}\n",
                     kLicense, Quote(Join(names)), Quote(Join(mount_options))) +
         BashTables(commands) + BashCase("_weightfs_mount_option_values", "$1", values) + std::string(kBashFunctions);
}

std::string ZshCompletion(const std::vector<Command>& commands) {
  std::string names, cases;
  for (const Command& command : commands) {
    if (command.name.empty()) continue;
    std::string summary = command.summary;
    names += fmt::format("    {}\n", Quote(command.name + ":" + summary));
    cases += fmt::format("    {})\n      _arguments -s{}\n      ;;\n", command.name, ZshOptions(command));
  }
  return fmt::format("#compdef weightfs\n{}# Completion of weightfs for zsh.\n", kLicense) + ZshMountOptions() +
         fmt::format(
             "_weightfs() {{\n  local -a commands line\n  local state\n  commands=(\n{}  )\n"
             "  _arguments -C{} \\\n        ':command:->command' \\\n        '*::argument:->argument'\n"
             "  case $state in\n  command)\n    _describe -t commands command commands\n    return\n    ;;\n"
             "  argument)\n    ;;\n  *)\n    return\n    ;;\n  esac\n  case $line[1] in\n{}  esac\n}}\n_weightfs "
             "\"$@\"\n",
             names, ZshOptions(commands.front()), cases);
}

std::string FishCompletion(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  std::string text;
  for (const Command& command : commands) {
    if (!command.name.empty()) {
      names.push_back(command.name);
      text += fmt::format("complete -c weightfs -n __weightfs_no_command -a {} -d {}\n", command.name,
                          FishQuote(command.summary));
    }
    text += FishCommand(command);
  }
  std::string options = "function __weightfs_mount_options\n    printf '%s\\t%s\\n'";
  for (const MountOption& option : MountOptionList()) {
    if (option.values.empty()) options += fmt::format(" \\\n        {} {}", option.name, FishQuote(option.meaning));
    for (const std::string& value : option.values) {
      options += fmt::format(" \\\n        {}{} {}", option.name, value, FishQuote(option.meaning));
    }
  }
  return fmt::format("{}# Completion of weightfs for fish.\nset -g __weightfs_commands {}\n", kLicense, Join(names)) +
         std::string(kFishFunctions) + "\n" + options + "\nend\n\ncomplete -c weightfs -f\n" + text;
}

}  // namespace weightfs::cli
