// SPDX-License-Identifier: Apache-2.0
#include "fs/reply.h"

#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>
#include <vector>

#include "common/log.h"
#include "fs/kernel_features.h"

namespace weightfs {
namespace {

// The preferred I/O size for programs. llama.cpp also aligns its direct I/O to it.
constexpr blksize_t kPreferredIo = 64 * kKiB;

// One writev takes IOV_MAX pieces including the header.
constexpr size_t kMaximumPieces = IOV_MAX - 1;

timespec ToTimespec(const Timestamp& time) { return {.tv_sec = time.seconds, .tv_nsec = time.nanoseconds}; }

// Calls a libfuse reply function with what libfuse itself may not know.
template <typename Function>
int Completed(fuse_file_info file, const OpenCompletion& open, Function reply) {
#if WEIGHTFS_COMPLETE_REPLIES
  if (open.flags == 0 && open.backing_id == 0) return reply(file);
  ReplyCompletion completion(open);
#else
  file.parallel_direct_writes = (open.flags & kOpenParallelDirectWrites) != 0;
  file.backing_id = open.backing_id;
#endif
  return reply(file);
}

}  // namespace

struct stat ToStat(const Attributes& attributes) {
  struct stat out = {};
  out.st_ino = attributes.ino.value;
  out.st_mode = attributes.mode;
  out.st_nlink = attributes.links;
  out.st_uid = attributes.uid;
  out.st_gid = attributes.gid;
  out.st_rdev = makedev(attributes.device_major, attributes.device_minor);
  out.st_size = static_cast<off_t>(attributes.size);
  out.st_blksize = kPreferredIo;
  out.st_blocks = static_cast<blkcnt_t>(attributes.blocks_512);
  out.st_atim = ToTimespec(attributes.accessed);
  out.st_mtim = ToTimespec(attributes.modified);
  out.st_ctim = ToTimespec(attributes.changed);
  return out;
}

fuse_entry_param ToEntry(const Attributes& attributes, double valid_seconds) {
  fuse_entry_param entry{};
  entry.ino = attributes.ino.value;
  entry.generation = attributes.generation;
  entry.attr = ToStat(attributes);
  entry.attr_timeout = valid_seconds;
  entry.entry_timeout = valid_seconds;
  return entry;
}

Reply::Reply(fuse_req_t request, RequestCounter& counter, RequestMetrics& metrics, Activity& activity)
    : request_(request), counter_(counter), metrics_(metrics), activity_(activity), origin_(CurrentRequest()) {
  counter_.Begin();
}

Reply::Reply(Reply&& other) noexcept
    : request_(std::exchange(other.request_, nullptr)),
      counter_(other.counter_),
      metrics_(other.metrics_),
      activity_(other.activity_),
      origin_(other.origin_) {}

Reply::~Reply() {
  if (request_ == nullptr) return;
  spdlog::error("a FUSE request was dropped without an answer; its caller gets EIO");
  Errno(EIO);
}

fuse_req_t Reply::Take() {
  if (request_ == nullptr) spdlog::critical("a FUSE request was answered twice");
  return std::exchange(request_, nullptr);
}

bool Reply::Ended(int status, uint64_t bytes, bool failed) {
  metrics_.Record(origin_, bytes, failed);
  activity_.Record(origin_, bytes);
  counter_.End();
  // libfuse has logged every other error. The request ends in any case.
  return status == 0;
}

template <typename Send>
bool Reply::Answer(const Send& send, uint64_t bytes) {
  fuse_req_t request = Take();
  return request != nullptr && Ended(send(request), bytes);
}

void Reply::Ok() { Errno(0); }

void Reply::Errno(int error) {
  if (fuse_req_t request = Take()) Ended(fuse_reply_err(request, error), 0, error != 0);
}

void Reply::Fail(const Error& error) {
  const bool damage =
      error.code == ErrorCode::kIo || error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kVersion;
  // The program gets only the errno, so log the text.
  if (damage && !error.what.empty()) spdlog::error("{}", error.what);
  Errno(ToErrno(error.code));
}

void Reply::Finish(const Result<void>& result) {
  if (!result.has_value()) return Fail(result.error());
  Ok();
}

bool Reply::Entry(const Attributes& attributes, double valid_seconds) {
  const fuse_entry_param entry = ToEntry(attributes, valid_seconds);
  return Answer([&](fuse_req_t request) { return fuse_reply_entry(request, &entry); });
}

void Reply::NoEntry(double valid_seconds) {
  fuse_entry_param entry{};  // inode 0: a negative entry
  entry.entry_timeout = valid_seconds;
  Answer([&](fuse_req_t request) { return fuse_reply_entry(request, &entry); });
}

void Reply::Attribute(const Result<Attributes>& attributes, double valid_seconds) {
  if (!attributes.has_value()) return Fail(attributes.error());
  const struct stat out = ToStat(*attributes);
  Answer([&](fuse_req_t request) { return fuse_reply_attr(request, &out, valid_seconds); });
}

bool Reply::Open(const fuse_file_info& file, const OpenCompletion& open) {
  return Answer([&](fuse_req_t request) {
    return Completed(file, open, [&](const fuse_file_info& info) { return fuse_reply_open(request, &info); });
  });
}

bool Reply::Create(const Attributes& attributes, double valid_seconds, const fuse_file_info& file,
                   const OpenCompletion& open) {
  const fuse_entry_param entry = ToEntry(attributes, valid_seconds);
  return Answer([&](fuse_req_t request) {
    return Completed(file, open,
                     [&](const fuse_file_info& info) { return fuse_reply_create(request, &entry, &info); });
  });
}

void Reply::Link(const Result<std::string>& target) {
  if (!target.has_value()) return Fail(target.error());
  Answer([&](fuse_req_t request) { return fuse_reply_readlink(request, target->c_str()); });
}

void Reply::Data(const Result<ReadView>& view) {
  if (!view.has_value()) return Fail(view.error());
  const auto send = [&pieces = view->pieces, size = view->size.value](fuse_req_t request) {
    if (pieces.size() <= kMaximumPieces) return fuse_reply_iov(request, pieces.data(), static_cast<int>(pieces.size()));
    std::vector<char> whole;
    whole.reserve(size);
    for (const iovec& piece : pieces) {
      const char* bytes = static_cast<const char*>(piece.iov_base);
      whole.insert(whole.end(), bytes, bytes + piece.iov_len);
    }
    return fuse_reply_buf(request, whole.data(), whole.size());
  };
  Answer(send, view->size.value);
}

bool Reply::Bytes(std::string_view bytes) {
  return Answer([&](fuse_req_t request) { return fuse_reply_buf(request, bytes.data(), bytes.size()); });
}

void Reply::Written(const Result<size_t>& size) {
  if (!size.has_value()) return Fail(size.error());
  Answer([&](fuse_req_t request) { return fuse_reply_write(request, *size); }, *size);
}

void Reply::Statistics(const struct statvfs& statistics) {
  Answer([&](fuse_req_t request) { return fuse_reply_statfs(request, &statistics); });
}

void Reply::ExtendedAttribute(const Result<std::string>& value, size_t capacity) {
  if (!value.has_value()) return Fail(value.error());
  if (capacity != 0 && value->size() > capacity) return Errno(ERANGE);
  Answer([&](fuse_req_t request) {
    return capacity == 0 ? fuse_reply_xattr(request, value->size())
                         : fuse_reply_buf(request, value->data(), value->size());
  });
}

void Reply::Offset(const Result<uint64_t>& offset) {
  if (!offset.has_value()) return Fail(offset.error());
  Answer([&](fuse_req_t request) { return fuse_reply_lseek(request, static_cast<off_t>(*offset)); });
}

void Reply::Ioctl(const void* out, size_t size) {
  Answer([&](fuse_req_t request) { return fuse_reply_ioctl(request, 0, out, size); });
}

}  // namespace weightfs
