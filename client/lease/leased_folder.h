// SPDX-License-Identifier: Apache-2.0
// Reads or writes many files of one directory of a weightfs mount in one operation, through one lease
// (lease/protocol.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "client/handle.h"
#include "client/lease/lease_connection.h"
#include "client/memory_view.h"
#include "client/target.h"
#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::client {

// The errors of the files of a batch, by index in the batch. Thread-safe.
class FileErrors {
 public:
  // Records an error. Only the first error of a file counts.
  void Add(size_t index, Error error) EXCLUDES(mutex_);
  // Removes and returns the errors of files from index `first` on.
  std::map<size_t, Error> TakeFrom(size_t first) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::map<size_t, Error> errors_ GUARDED_BY(mutex_);
};

// Immutable. Its operations keep it alive.
class LeasedFolder : public std::enable_shared_from_this<LeasedFolder> {
 public:
  // If there are no leases for this directory, the error says why.
  static Result<std::shared_ptr<const LeasedFolder>> Open(const std::string& path,
                                                          std::shared_ptr<LeaseConnections> connections);

  // One operation, from offset 0, on all files at once. Each file has its own blocks, one file after the other.
  struct Batch {
    std::unique_ptr<Access> access;
    MemoryView memory;
  };
  struct SaveOptions {
    bool durable = false;
    std::optional<uint32_t> mode = std::nullopt;  // see SaveManyOptions
  };
  // If the operation succeeds, all files exist; otherwise none is created.
  Result<Batch> Save(std::span<const NamedMemory> files, const SaveOptions& options) const;
  // Reads the files in the order of their location on the device. The error of a single file goes to `errors`, at
  // `first` plus its index, and the operation continues. `files` and their names must stay valid until the operation is
  // done.
  Result<Batch> Load(std::span<const NamedMemory> files, size_t first, std::shared_ptr<FileErrors> errors) const;

  const std::string& path() const { return path_; }
  const LeaseTicket& ticket() const { return ticket_; }
  // Lets the mount's kernel check that the directory may be changed through its descriptor, before each request of a
  // lease that changes it. EROFS on a read-only mount.
  Result<void> PermitChange() const;

 private:
  LeasedFolder(std::string path, UniqueFd descriptor, LeaseTicket ticket, std::shared_ptr<LeaseConnections> connections)
      : path_(std::move(path)),
        descriptor_(std::move(descriptor)),
        ticket_(std::move(ticket)),
        connections_(std::move(connections)) {}

  const std::string path_;
  const UniqueFd descriptor_;  // the ticket is valid while this is open
  const LeaseTicket ticket_;
  const std::shared_ptr<LeaseConnections> connections_;
};

// ENODATA or EINVAL: the size of the file differs from that of the memory.
Error OtherSize(const std::string& path, uint64_t memory, uint64_t file);

}  // namespace weightfs::client
