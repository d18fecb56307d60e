// SPDX-License-Identifier: Apache-2.0
// The commands, one file each.
#pragma once

#include <filesystem>

#include "cli/options.h"

namespace weightfs::cli {

Command FormatCommand();
Command MountCommand();
Command UmountCommand();
Command InfoCommand();
Command PublishCommand();
Command VerifyCommand();
Command RecoverCommand();
Command DoctorCommand();
Command StatsCommand();
Command PushCommand();
Command PullCommand();
Command VersionsCommand();
Command PruneCommand();
Command BenchCommand();
// Bench with the options of its package, which describes them in JSON (bench/options.py, describe): in the installed
// file, or in another one. Without that file it has none.
Command DescribeBench(std::filesystem::path description = {});
Command CompleteCommand();     // answers shells
Command BenchWorkerCommand();  // a process of a run of bench

}  // namespace weightfs::cli
