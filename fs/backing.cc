// SPDX-License-Identifier: Apache-2.0
#include "fs/backing.h"

#include <linux/fuse.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>

#include "common/log.h"
#include "common/unique_fd.h"

namespace weightfs {
namespace {

// As in linux/fuse.h since Linux 6.9.
struct BackingMap {
  int32_t fd = -1;
  uint32_t flags = 0;
  uint64_t padding = 0;
};
constexpr unsigned long kBackingOpen = _IOW(FUSE_DEV_IOC_MAGIC, 1, BackingMap);
constexpr unsigned long kBackingClose = _IOW(FUSE_DEV_IOC_MAGIC, 2, uint32_t);

}  // namespace

std::shared_ptr<Backing> Backing::Make(Store& store, const InodePtr& inode, int connection) {
  const auto passed = store.files().Pass(inode);
  if (!passed) spdlog::warn("inode {}: no passthrough: {}", inode->id.value, ToString(passed.error()));
  if (!passed || !passed->memory) return nullptr;
  const BackingMap map{.fd = passed->memory.get()};
  const int id = ioctl(connection, kBackingOpen, &map);
  if (id > 0) return std::shared_ptr<Backing>(new Backing(connection, id));
  const int error = errno;
  store.files().PassRefused(*passed);  // while the descriptor keeps the content
  spdlog::info("no passthrough of hot files: {}", std::strerror(error));
  if (error != EMFILE && error != ENFILE && error != ENOMEM) store.UsePassthrough(false);
  return nullptr;
}

Backing::~Backing() {
  const auto id = static_cast<uint32_t>(id_);
  // Fails only if the connection has ended, and then the kernel has dropped it.
  [[maybe_unused]] const int closed = ioctl(connection_, kBackingClose, &id);
}

}  // namespace weightfs
