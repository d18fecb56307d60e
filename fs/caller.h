// SPDX-License-Identifier: Apache-2.0
// The credentials of the caller of a request, for decisions that the kernel leaves to a filesystem. Private to fs/.
#pragma once

#include <sys/types.h>

#include "fs/reply.h"
#include "store/types.h"

namespace weightfs {

struct Caller : Credentials {
  pid_t process = 0;  // that the thread belongs to; 0: unknown
};

// Returns the credentials of the thread whose request waits for `reply`. The thread cannot exit or change them
// meanwhile, so its id cannot be reused. Groups and capabilities come from /proc and cost a few file reads; call this
// only where they matter.
//
// Capabilities count only if the thread is in the user namespace of this process. A thread that cannot be inspected
// (because it is in another PID namespace or hidden from this user) has no supplementary groups and no capabilities.
// Returns an error, with a line in the log, when /proc cannot be read for another reason, such as a lack of
// descriptors.
Result<Caller> CallerOf(const Reply& reply);

// Same for any thread, by its id in this process's PID namespace; 0: none.
Result<Caller> CredentialsOf(uint32_t uid, uint32_t gid, pid_t thread);

}  // namespace weightfs
