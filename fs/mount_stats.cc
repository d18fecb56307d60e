// SPDX-License-Identifier: Apache-2.0
#include "fs/mount_stats.h"

#include "fs/filesystem.h"
#include "fs/lease_server.h"
#include "fs/receive_buffer.h"

namespace weightfs {

weightfs_stats StatsOf(Filesystem& filesystem) {
  const StoreStatistics store = filesystem.store().statistics();
  const SpaceStatistics space = filesystem.store().Space();
  weightfs_stats out{};
  out.version = WEIGHTFS_IOC_VERSION;
  out.read_only = filesystem.read_only() ? 1 : 0;
  out.read_bytes = store.read_bytes;
  out.written_bytes = store.written_bytes;
  out.device_read_bytes = store.device_read_bytes;
  out.device_written_bytes = store.device_written_bytes;
  out.commits = store.commits;
  out.flushes = store.flushes;
  out.checksum_errors = store.checksum_errors;
  out.buffer_capacity = store.buffer_capacity;
  out.buffer_in_use = store.buffer_in_use;
  out.dirty_bytes = store.dirty_bytes;
  out.resident_inodes = store.resident_inodes;
  out.total_bytes = ToBytes(space.total).value;
  out.free_bytes = ToBytes(space.free).value;
  out.available_bytes = ToBytes(space.available).value;
  if (filesystem.leases() != nullptr) out.leases = filesystem.leases()->leases();
  out.pinned_bytes = store.pinned_bytes;
  out.granted_bytes = store.granted_bytes;
  out.leased_read_bytes = store.leased_read_bytes;
  out.leased_written_bytes = store.leased_written_bytes;
  out.device_requests = store.device_requests;
  out.replica_bytes = store.log.bytes;
  out.replica_current = store.log.intact ? 1 : 0;
  out.requests = filesystem.requests().begun();
  if (filesystem.buffers != nullptr) {
    const BufferPool& pool = filesystem.buffers->shared();
    out.write_buffers = pool.capacity() * pool.buffer_size().value;
    out.write_buffers_in_use = pool.in_use() * pool.buffer_size().value;
  }
  return out;
}

}  // namespace weightfs
