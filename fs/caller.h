// SPDX-License-Identifier: Apache-2.0
// The credentials of the caller of a request, for decisions that the kernel leaves to a filesystem. Private to fs/.
#pragma once

#include "fs/reply.h"
#include "store/types.h"

namespace weightfs {

// The credentials of the thread whose request waits for `reply`: it cannot end or change them meanwhile, so its number
// names no other thread. Groups and capabilities come from /proc and cost some file reads: call it only where they
// decide something.
//
// Capabilities count where the thread is in the user namespace of this process. Of a thread that cannot be looked at
// (in another process-number namespace, or hidden from this user) there are no supplementary groups and no
// capabilities.
Credentials CallerOf(const Reply& reply);

// The same of any thread, by its number as this process sees it; 0 is none.
Credentials CredentialsOf(uint32_t uid, uint32_t gid, pid_t thread);

}  // namespace weightfs
