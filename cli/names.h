// SPDX-License-Identifier: Apache-2.0
// Other names: those by which mount(8), umount(8) and fsck(8) call this program, and the old ones of commands.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weightfs::cli {

// Translates the command line `arguments` of a program called as `program`. The names mount.weightfs,
// mount.fuse.weightfs, umount.weightfs, umount.fuse.weightfs, fsck.weightfs and weightfs-bench become their subcommand;
// any other name changes nothing. mount(8) passes `nodev` and `nosuid` to helpers, but never `dev` and `suid`. So if the
// former are absent and `is_root` is true, device files and set-ID bits are enabled, as mount(8) promises.
std::vector<std::string> TranslateHelperName(std::string_view program, const std::vector<std::string>& arguments,
                                             bool is_root = false);

// Replaces the name that a command had until version 0.2, and says the new one on standard error, but not with --json.
std::vector<std::string> TranslateOldName(std::vector<std::string> words);

}  // namespace weightfs::cli
