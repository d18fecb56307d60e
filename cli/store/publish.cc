// SPDX-License-Identifier: Apache-2.0
// weightfs publish: makes a directory complete, durable and immutable, and reverts that with --undo.
#include <fcntl.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/help/usage.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "client/publication.h"
#include "common/printable.h"
#include "common/size_text.h"

namespace weightfs::cli {
namespace {

struct Arguments {
  std::string directory;
  std::optional<uint64_t> version;
  bool undo = false, json = false;
};

// A directory, and its name for messages. That of a symbolic link is the path of the directory that it leads to.
struct OpenedDirectory {
  UniqueFd descriptor;
  std::string name;
};

Result<OpenedDirectory> Open(const std::string& path) {
  OpenedDirectory out{UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), path};
  if (!out.descriptor) return AccessError(path, "cannot be opened");
  std::string link = path;
  while (link.size() > 1 && link.ends_with('/')) link.pop_back();
  std::error_code error;
  if (!std::filesystem::is_symlink(link, error)) return out;
  const auto real = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", out.descriptor.get()), error);
  if (!error) out.name = real.string();
  return out;
}

Result<int> Run(const Arguments& arguments) {
  if (arguments.undo && (arguments.version || arguments.json)) {
    return FailUsage("publish", "--undo takes neither --version nor --json");
  }
  ASSIGN_OR_RETURN(const OpenedDirectory directory, Open(arguments.directory));
  if (arguments.undo) {
    RETURN_IF_ERROR(client::Unpublish(directory.descriptor.get(), directory.name));
    Print(stdout, "{}: not published any more; its files may be changed\n", Printable(directory.name));
    return kSuccess;
  }
  ASSIGN_OR_RETURN(const auto published,
                   client::Publish(directory.descriptor.get(), directory.name, arguments.version));
  if (arguments.json) return ShowJson(PublicationJson(directory.name, published));
  Print(stdout, "{}: version {}: {} file{}, {}; durable, and immutable until 'weightfs publish --undo'\n",
        Printable(directory.name), published.version, published.files, published.files == 1 ? "" : "s",
        FormatSize(ByteCount{published.bytes}));
  return kSuccess;
}

}  // namespace

Command PublishCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("publish", "Make a directory complete, durable and immutable, in one commit");
  command.Add("DIR", &arguments->directory, "A directory of a mount, with all its files closed");
  command.AddNumber("--version N", &arguments->version,
                    "Version of the publication, such as the number of the step; default: the time as YYYYMMDDhhmmss",
                    "1000");
  command.Add("--undo", &arguments->undo, "Allow changes of a published directory again");
  command.Add("--json", &arguments->json, "Print the publication as JSON");
  command.footer =
      "Afterwards every change of the directory and of everything below it fails with EPERM, also for root, until\n"
      "--undo. A save loop calls it at the end: a directory is published completely or not at all, also after a\n"
      "crash. Publishing again changes nothing and prints the existing version.\n\n"
      "If DIR is a symbolic link, the command follows it, and the output names the directory that was published. A\n"
      "link below DIR is published as a link; what it leads to is not. After --undo copies of the version elsewhere\n"
      "(weightfs push) stay as they are.\n\n"
      "Examples:\n"
      "  weightfs publish /mnt/tensors/step-1000\n"
      "  weightfs publish /mnt/tensors/step-1000 --version 1000\n"
      "  weightfs publish --undo /mnt/tensors/step-1000";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli
