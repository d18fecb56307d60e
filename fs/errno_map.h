// SPDX-License-Identifier: Apache-2.0
// The one place where an ErrorCode becomes an errno.
#pragma once

#include "common/result.h"

namespace weightfs {

// The positive errno that a system call shows for `code`.
int ToErrno(ErrorCode code);

}  // namespace weightfs
