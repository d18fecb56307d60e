// SPDX-License-Identifier: Apache-2.0
// Many files of one directory of a weightfs mount as one operation, by one lease (lease/protocol.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
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

// The errors of the files of a batch, by their index in it. Thread-safe.
class FileErrors {
 public:
  // The first error of a file counts.
  void Add(size_t index, Error error) EXCLUDES(mutex_);
  // Those of files from `first` on; they are forgotten here.
  std::map<size_t, Error> TakeFrom(size_t first) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::map<size_t, Error> errors_ GUARDED_BY(mutex_);
};

// Immutable. Its operations keep it alive.
class LeasedFolder : public std::enable_shared_from_this<LeasedFolder> {
 public:
  // An error says why there are no leases for it.
  static Result<std::shared_ptr<const LeasedFolder>> Open(const std::string& path,
                                                          std::shared_ptr<LeaseConnections> connections);

  // One operation on all files at once, each on blocks of its own, one behind the other; from offset 0 on.
  struct Batch {
    std::unique_ptr<Target> target;
    MemoryView memory;
  };
  struct SaveOptions {
    bool durable = false;
    uint32_t mode = 0600;
  };
  // When the operation succeeds all of them are there, and otherwise none.
  Result<Batch> Save(std::span<const NamedMemory> files, const SaveOptions& options) const;
  // In the order of the device. What is wrong with one file goes to `errors` as `first` + its index; the operation goes
  // on. The files and their names must live until then.
  Result<Batch> Load(std::span<const NamedMemory> files, size_t first, std::shared_ptr<FileErrors> errors) const;

  const std::string& path() const { return path_; }
  const LeaseTicket& ticket() const { return ticket_; }

 private:
  LeasedFolder(std::string path, UniqueFd descriptor, LeaseTicket ticket, std::shared_ptr<LeaseConnections> connections)
      : path_(std::move(path)),
        descriptor_(std::move(descriptor)),
        ticket_(std::move(ticket)),
        connections_(std::move(connections)) {}

  const std::string path_;
  const UniqueFd descriptor_;  // while it is open the ticket is good
  const LeaseTicket ticket_;
  const std::shared_ptr<LeaseConnections> connections_;
};

// ENODATA or EINVAL: the file is not as large as the memory.
Error OtherSize(const std::string& path, uint64_t memory, uint64_t file);

}  // namespace weightfs::client
