// SPDX-License-Identifier: Apache-2.0
#include "store/volume/store_session.h"

#include <fmt/format.h>

#include "common/log.h"

namespace weightfs {

Result<std::unique_ptr<StoreSession>> StoreSession::Open(const StoreLocation& location, const OpenOptions& open,
                                                         const StoreOptions& options) {
  std::unique_ptr<StoreSession> session(new StoreSession);
  StoreParts& parts = session->parts_;
  ASSIGN_OR_RETURN(parts, OpenStoreParts(location, open));
  session->devices_ = Borrow(parts.devices);
  session->read_only_ = open.read_only || options.read_only;
  StoreOptions effective = options;
  effective.log = std::move(parts.log);
  effective.read_only = session->read_only_;
  effective.device_sizes = DeviceSizes(parts.superblocks);
  // From then on no older version may open the store, because it would not see the log.
  effective.log->started = [raw = session.get()] { return MarkLogged(raw->devices_, raw->parts_.superblocks); };
  if (parts.guard != nullptr) effective.log->still_owned = [guard = parts.guard.get()] { return guard->Verify(); };
  auto store = Store::Open(std::move(parts.catalog), std::move(parts.devices), effective);
  if (!store.has_value()) {
    parts.guard.reset();  // it has the locks of the devices, which are opened again
    auto unmarked = Result<void>();
    if (parts.was_clean && !session->read_only_) unmarked = MarkCleanAgain(location.directory, parts.description);
    if (!unmarked.has_value()) spdlog::warn("{}", ToString(unmarked.error()));
    return store.error();
  }
  session->store_ = std::move(*store);
  return session;
}

StoreSession::~StoreSession() {
  if (store_ == nullptr) return;
  if (auto closed = Close(); !closed.has_value()) spdlog::error("closing the store: {}", ToString(closed.error()));
}

Result<void> StoreSession::CloseStore() {
  // If the store stopped writing while it ran, the next mount must recover it, so its superblocks stay in use.
  const bool gave_up = store_->read_only();
  RETURN_IF_ERROR(store_->Close());
  if (read_only_ || gave_up) return {};
  const wal::Version stored = store_->StoredVersion();
  for (Superblock& superblock : parts_.superblocks) {
    superblock.catalog_sequence = stored.sequence;
    superblock.catalog_chain = stored.chain;
  }
  return MarkClean(devices_, parts_.superblocks);
}

void StoreSession::NoteClosing() {
  if (!IsLost()) parts_.lock.NoteClosing();
}

Result<void> StoreSession::Close() {
  if (closed_) return {};
  closed_ = true;
  auto result = CloseStore();
  if (IsLost()) {
    // The text in the lock file is that of the new holder.
    parts_.lock.Disown();
    return Error{ErrorCode::kReadOnly, "another process has taken over the store; what was not synced before is lost"};
  }
  parts_.lock.Clear(result.has_value() ? std::string() : ToString(result.error()));
  return result;
}

Result<void> WriteLog(const StoreLocation& location) {
  const auto write = [&]() -> Result<void> {
    ASSIGN_OR_RETURN(const auto session, StoreSession::Open(location, {}, {.memory = kLeastMemory}));
    if (session->store().read_only()) return Error{ErrorCode::kReadOnly, "the store cannot be written"};
    return session->Close();
  };
  const auto written = write();
  if (written) return written;
  return Error{written.error().code,
               fmt::format("{}: the log of the catalog was not written to the devices: {}; the index in {} has what "
                           "they lack, and must not be removed; the next mount with it writes the log",
                           location.name, ToString(written.error()), location.directory)};
}

}  // namespace weightfs
