// SPDX-License-Identifier: Apache-2.0
// A tool of the build: `weightfs-documents DIRECTORY DATE BENCH.json PAGE...` writes the man pages, in the language of
// man(7): weightfs(1), one page for each command, and the other names of mount.weightfs(8). DATE is YYYY-MM-DD.
// BENCH.json is the description of `weightfs bench` by its package. A PAGE is written by hand, except for the table of
// mount options.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <ranges>
#include <utility>

#include "cli/commands.h"
#include "cli/help/usage.h"
#include "cli/program.h"
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

// A paragraph in short lines, which man(7) joins again.
std::string Fill(const std::string& text) { return Escape(Wrap(text, 72)) + "\n"; }

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

// The section on mount options.
std::string MountOptions() {
  std::string text =
      ".SH MOUNT OPTIONS\n"
      "Options are separated by commas; the default is in parentheses.\n"
      "Of several that contradict each other, the last one wins.\n";
  for (const bool expert : {false, true}) {
    if (expert) text += ".SS Options for experts\n" + Fill("Measure before and after a change of these.");
    for (const MountOptionHelp& option : DescribeMountOptions()) {
      if (option.expert != expert) continue;
      text += Entry(Bold(option.name) + (option.value.empty() ? "" : "=" + Italic(option.value)), option.meaning);
    }
  }
  text += ".SS Options of the kernel\n" + Fill(fmt::format("{}", fmt::join(KernelMountOptions(), ", ")));
  return text + ".SS Features of without=\n" + Fill(fmt::format("{}", fmt::join(KnownFeatures(), ", ")));
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
      ".SH EXIT STATUS\n" + Fill("0 success, 1 failure, 2 wrong usage. The pages of verify and umount list their own.");
  return text + SeeAlso(pages);
}

bool Write(const std::filesystem::path& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) std::fprintf(stderr, "weightfs-documents: %s: cannot be written\n", path.c_str());
  return static_cast<bool>(file);
}

std::string AddMountOptions(const std::filesystem::path& page) {
  constexpr std::string_view kMark = ".\\\" MOUNT OPTIONS\n";
  std::ifstream file(page);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.replace(text.find(kMark), kMark.size(), MountOptions());
}

int WriteDocuments(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "Usage: weightfs-documents DIRECTORY DATE BENCH.json PAGE...\n");
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  auto commands = MakeCommands();
  auto& bench = *std::ranges::find(commands, "bench", &Command::name);
  bench = DescribeBench(argv[3]);
  if (bench.options.empty()) {
    std::fprintf(stderr, "weightfs-documents: %s: not the description of weightfs bench\n", argv[3]);
    return 1;
  }
  std::erase_if(commands, [](const auto& command) { return command.hidden; });
  for (auto& command : commands) std::erase_if(command.options, [](const auto& option) { return option.hidden; });
  bool written = true;
  const auto write = [&](const std::filesystem::path& page, const std::string& text) {
    written = Write(directory / "man" / page, text) && written;
  };
  write("man1/weightfs.1", ProgramPage(commands, argv[2]));
  for (const Command& command : commands | std::views::drop(1)) {
    write("man1/" + PageOf(command) + ".1", CommandPage(command, argv[2]));
  }
  for (const char* name : {"mount.fuse.weightfs", "umount.weightfs", "umount.fuse.weightfs", "fsck.weightfs"}) {
    write(fmt::format("man8/{}.8", name), ".so man8/mount.weightfs.8\n");
  }
  for (const std::filesystem::path page : std::span(argv + 4, argv + argc)) {
    write(("man" + page.extension().string().substr(1)) / page.filename(), AddMountOptions(page));
  }
  return written ? 0 : 1;
}

}  // namespace
}  // namespace weightfs::cli

int main(int argc, char** argv) { return weightfs::cli::WriteDocuments(argc, argv); }
