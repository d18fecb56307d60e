// SPDX-License-Identifier: Apache-2.0
// Memory for transfers. Private to remote/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/error.h"

namespace weightfs::remote {

// Returns zeroed, page-aligned memory of at least `size` bytes. The pages are allocated when they are first used, as
// huge ones where the kernel has some. Fails with kNoMemory.
Result<std::shared_ptr<std::byte>> AllocatePages(uint64_t size);

}  // namespace weightfs::remote
