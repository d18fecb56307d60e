// SPDX-License-Identifier: Apache-2.0
#include "cli/man_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <ranges>
#include <sstream>
#include <string_view>

#include "fs/kernel_features.h"
#include "fs/mount_options.h"

namespace weightfs::cli {
namespace {

// Plain text as roff: '-' is the character of options, and no line is taken for a request.
std::string Escape(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    const bool begins_line = escaped.empty() || escaped.back() == '\n';
    if (begins_line && (letter == '.' || letter == '\'')) escaped += "\\&";
    if (letter == '\\' || letter == '-') escaped += '\\';
    escaped += letter == '\\' ? 'e' : letter;
  }
  return escaped;
}

// Escapes a paragraph and breaks it into short lines, which man(7) joins again.
std::string Fill(const std::string& text) {
  constexpr size_t kWidth = 72;
  std::string filled;
  size_t column = 0;
  std::istringstream words(text);
  for (std::string word; words >> word; column += word.size() + 1) {
    const bool breaks = column > 0 && column + 1 + word.size() > kWidth;
    if (column > 0) filled += breaks ? "\n" : " ";
    if (breaks) column = 0;
    // Escape protects the start of a line; elsewhere the mark is not needed, and harmless.
    word = Escape(word);
    filled += word;
  }
  return filled + "\n";
}

std::string Bold(std::string_view text) { return fmt::format("\\fB{}\\fR", Escape(text)); }
std::string Italic(std::string_view text) { return fmt::format("\\fI{}\\fR", Escape(text)); }

std::string Heading(std::string_view name, std::string_view date, std::string_view summary) {
  std::string upper(name);
  std::ranges::transform(upper, upper.begin(), [](unsigned char letter) { return std::toupper(letter); });
  return fmt::format(
      ".\\\" SPDX-License-Identifier: Apache-2.0\n.TH {} 1 {} \"weightfs {}\" weightfs\n.SH NAME\n{} \\- {}\n", upper,
      date, WEIGHTFS_VERSION, Escape(name), Escape(summary));
}

// "format" and "umount" are pages of section 1 for commands.
std::string PageOf(const Command& command) {
  return command.name.empty() ? "weightfs" : "weightfs-" + command.name;
}

std::string SynopsisOf(const Command& command) {
  std::string text = ".SH SYNOPSIS\n" + Bold(command.name.empty() ? "weightfs" : "weightfs " + command.name);
  if (command.name.empty()) return text + " " + Italic("COMMAND") + " [" + Italic("OPTIONS") + "]\n";
  for (const Option& option : std::views::filter(command.options, &Option::positional)) {
    const std::string name = Italic(option.value) + (option.repeated() ? " ..." : "");
    text += option.required ? " " + name : " [" + name + "]";
  }
  return text + " [" + Italic("OPTIONS") + "]\n";
}

// An entry of a list; the title is roff already.
std::string Entry(std::string_view title, std::string_view meaning) {
  return fmt::format(".TP\n{}\n{}", title, Fill(std::string(meaning)));
}

std::string OptionsOf(const Command& command, bool positional) {
  std::string text;
  for (const Option& option : command.options) {
    if (option.positional() != positional) continue;
    if (text.empty()) text = positional ? ".SH ARGUMENTS\n" : ".SH OPTIONS\n";
    std::string title;
    for (const std::string& name : option.names) title += (title.empty() ? "" : ", ") + Bold(name);
    const std::string value = option.value.empty() ? "" : Italic(option.value);
    if (!title.empty() && !value.empty()) title += " ";
    title += option.optional_value ? "[" + value + "]" : value;
    text += Entry(title, option.meaning);
    if (!option.fallback.empty()) text += Fill("Default: " + option.fallback + ".");
  }
  return text;
}

// The text below the options of --help: sections are separated by empty lines.
struct Footer {
  std::string paragraphs, exit_status, examples;
};

Footer TakeApart(std::string_view text) {
  Footer footer;
  while (!text.empty()) {
    const size_t end = text.find("\n\n");
    const std::string_view part = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 2);
    if (part.starts_with("Options of -o:")) continue;  // MountOptions prints the same table
    if (part.starts_with("Examples:") || part.starts_with("Start here:")) {
      const std::string_view lines = part.substr(part.find('\n') + 1);
      footer.examples = fmt::format(".SH EXAMPLES\n.nf\n{}\n.fi\n", Escape(lines));
    } else if (part.starts_with("Exit codes") || part.starts_with("Exits with")) {
      footer.exit_status = ".SH EXIT STATUS\n" + Fill(std::string(part));
    } else {
      footer.paragraphs += ".PP\n" + Fill(std::string(part));
    }
  }
  return footer;
}

std::string Sentence(const std::string& summary) {
  return summary + (summary.ends_with('.') || summary.ends_with('?') ? "" : ".");
}

std::string SeeAlso(const std::vector<std::pair<std::string, int>>& pages) {
  std::string text;
  for (const auto& [name, section] : pages)
    text += fmt::format("{}{}({})", text.empty() ? "" : ",\n", Bold(name), section);
  return ".SH SEE ALSO\n" + text + "\n";
}

std::string CommandPage(const Command& command, const std::string& date) {
  const Footer footer = TakeApart(command.footer);
  std::string text = Heading(PageOf(command), date, command.summary) + SynopsisOf(command);
  text += ".SH DESCRIPTION\n" + Fill(Sentence(command.summary)) + footer.paragraphs;
  text += OptionsOf(command, true) + OptionsOf(command, false);
  if (command.name == "mount") text += MountOptions();
  return text + footer.exit_status + footer.examples + SeeAlso({{"weightfs", 1}, {"weightfs", 5}});
}

std::string ProgramPage(const std::vector<Command>& commands, const std::string& date) {
  const Command& program = commands.front();
  const Footer footer = TakeApart(program.footer);
  const std::string summary = program.summary.substr(program.summary.find(": ") + 2);
  std::string text = Heading("weightfs", date, summary) + SynopsisOf(program);
  text += ".SH DESCRIPTION\n";
  text += Fill(
      "Programs use a mounted store of weightfs as a directory. It writes large files directly to the device, "
      "verifies every block that it reads, and never overwrites committed data.");
  text += footer.paragraphs + ".SH COMMANDS\n";
  std::vector<std::pair<std::string, int>> pages;
  for (const Command& command : commands | std::views::drop(1)) {
    text += Entry(Bold(command.name), Sentence(command.summary));
    pages.emplace_back(PageOf(command), 1);
  }
  pages.insert(pages.end(), {{"weightfs", 5}, {"mount.weightfs", 8}});
  text += OptionsOf(program, false) + footer.examples;
  text +=
      ".SH EXIT STATUS\n" + Fill("0 success, 1 failure, 2 wrong usage. The pages of fsck and umount list their own.");
  return text + SeeAlso(pages);
}

}  // namespace

std::string MountOptions() {
  std::string text =
      ".SH MOUNT OPTIONS\n"
      "Options are separated by commas; the default is in parentheses.\n"
      "Of several that contradict each other, the last one wins.\n";
  for (const MountOptionHelp& option : DescribeMountOptions()) {
    text += Entry(Bold(option.name) + (option.value.empty() ? "" : "=" + Italic(option.value)), option.meaning);
  }
  text += ".SS Options of the kernel\n" + Fill(fmt::format("{}", fmt::join(KernelMountOptions(), ", ")));
  return text + ".SS Features of without=\n" + Fill(fmt::format("{}", fmt::join(KnownFeatures(), ", ")));
}

std::vector<std::pair<std::string, std::string>> MakeManPages(const std::vector<Command>& commands,
                                                              const std::string& date) {
  std::vector<std::pair<std::string, std::string>> pages = {{"man1/weightfs.1", ProgramPage(commands, date)}};
  for (const Command& command : commands | std::views::drop(1)) {
    pages.emplace_back("man1/" + PageOf(command) + ".1", CommandPage(command, date));
  }
  for (const char* name : {"mount.fuse.weightfs", "umount.weightfs", "umount.fuse.weightfs", "fsck.weightfs"}) {
    pages.emplace_back(fmt::format("man8/{}.8", name), ".so man8/mount.weightfs.8\n");
  }
  return pages;
}

}  // namespace weightfs::cli
