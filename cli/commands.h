// SPDX-License-Identifier: Apache-2.0
// The commands, one file each.
#pragma once

#include "cli/options.h"

namespace weightfs::cli {

Command FormatCommand();
Command MountCommand();
Command UmountCommand();
Command FsckCommand();
Command RecoverCommand();
Command ScrubCommand();
Command VerifyCommand();
Command InfoCommand();
Command PublishCommand();
Command UnpublishCommand();
Command PushCommand();
Command PullCommand();
Command VersionsCommand();
Command PruneCommand();
Command StatsCommand();
Command TopCommand();
Command DoctorCommand();
Command BenchCommand();
Command BenchWorkerCommand();  // a process of a run of bench

}  // namespace weightfs::cli
