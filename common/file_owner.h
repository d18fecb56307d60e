// SPDX-License-Identifier: Apache-2.0
// Lets root create files that belong to another user from the start.
#pragma once

#include <sys/fsuid.h>
#include <unistd.h>

namespace weightfs {

// Calls `create`, which returns true when it has created its file or directory, so that the new file belongs to `user`
// and `group`: the thread has the file permissions of that user meanwhile. If that fails, calls it again without them,
// because root may write where the user may not; the new file then belongs to root. Returns the result of the last
// call. Only calls `create` unless the process is root's and `user` is not root.
template <typename Create>
bool CreateAsOwner(uid_t user, gid_t group, const Create& create) {
  if (geteuid() == 0 && user != 0) {
    setfsgid(group);
    setfsuid(user);
    const bool created = create();
    setfsuid(geteuid());
    setfsgid(getegid());
    if (created) return true;
  }
  return create();
}

}  // namespace weightfs
