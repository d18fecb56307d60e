// SPDX-License-Identifier: Apache-2.0
// The operations on the objects of one bucket.
#pragma once

#include <atomic>

#include "s3/client.h"

namespace weightfs::s3 {

// Limits of S3.
inline constexpr unsigned kMaxParts = 10'000;     // numbered from 1
inline constexpr size_t kMaxKey = 1'024;          // bytes
inline constexpr size_t kMaxDeletedKeys = 1'000;  // of one request
// Our own limits of a list: entries, and bytes of their keys and ETags.
inline constexpr size_t kMaxListed = 1'000'000;
inline constexpr size_t kMaxListedBytes = size_t{2} << 30;

struct ObjectInfo {
  std::string key;
  uint64_t size = 0;  // in bytes
  std::string etag;   // with its quotes; may be empty
  std::chrono::system_clock::time_point modified = {};
};

struct PutOptions {
  bool if_none_match = false;      // fail with kExists if the object exists
  std::string if_match = {};       // an ETag: fail with kExists if the object has another; empty: any
  GuardPtr guard = {};             // Request::guard
  std::string storage_class = {};  // such as STANDARD_IA; empty: the bucket's
};

struct DeleteOptions {
  std::string if_match = {};  // as PutOptions::if_match
  GuardPtr guard = {};        // Request::guard
};

struct ObjectContent {
  std::string body;
  std::string etag;  // with its quotes; may be empty
};

struct ObjectRange {
  std::string key;
  uint64_t offset = 0;        // in the object, in bytes; the memory says how many
  std::string if_match = {};  // an ETag: fail with kStale if the object has another; empty: any
};

// The ETag and the size of the object of a range response.
struct RangeInfo {
  std::string etag;
  uint64_t object_size = 0;
};

struct PartInfo {
  unsigned number = 0;
  uint64_t size = 0;  // 0 if unknown; CompleteMultipartUpload does not need it
  std::string etag;
  std::string crc32c = {};  // in Base64; empty if its upload has none
  std::chrono::system_clock::time_point modified = {};
};

struct UploadInfo {
  std::string key;
  std::string upload_id;
  std::chrono::system_clock::time_point started = {};
  bool crc32c = false;  // the service verifies the CRC-32C of each part, and demands it
};

// The parts of an upload, ordered by number.
struct UploadedParts {
  std::vector<PartInfo> parts;
  bool crc32c = false;  // as UploadInfo::crc32c
};

// A version of an object in a bucket that keeps them. A delete marker is a version without content.
struct ObjectVersion {
  std::string key;
  std::string version_id = {};
  uint64_t size = 0;
  bool is_marker = false;
  std::chrono::system_clock::time_point modified = {};
};

struct ListOptions {
  std::string prefix = {};
  std::string delimiter = {};  // "/": do not descend; empty: list everything
  size_t limit = kMaxListed;   // fail with kTooLarge if there are more objects and prefixes, or too long ones
};

template <typename Entry>
struct Listing {
  std::vector<Entry> entries = {};         // in the order of the service: for S3 that of the bytes of the keys
  std::vector<std::string> prefixes = {};  // with the delimiter at their end
};

// Typed requests; see Client for retries, errors and threads. The client must outlive the Bucket. Thread-safe.
//
// The body of every object and part has a checksum that the service compares, so that a body which is changed on its
// way is not stored, and buckets with Object Lock accept it. The documents of CompleteMultipartUpload and DeleteObjects
// are protected by the signature, which covers their SHA-256; the latter has a checksum, too, because S3 demands it.
//
// A CRC-32C costs almost nothing; but only a service that knows it confirms it. The Content-MD5, which every service
// knows, costs a core for 0.8 GB/s, and is sent until a CRC-32C has been confirmed, and for parts of uploads for which
// the service did not confirm the algorithm (if OpenSSL has it: not in FIPS mode).
class Bucket {
 public:
  // `interrupted` ends the waits of all functions with kCancelled; it is called on the threads that wait.
  Bucket(Client& client, std::string name, Interrupted interrupted = {})
      : client_(client), name_(std::move(name)), interrupted_(std::move(interrupted)) {}
  // The same bucket, for functions that something else interrupts.
  Bucket(const Bucket& of, Interrupted interrupted)
      : client_(of.client_),
        name_(of.name_),
        interrupted_(std::move(interrupted)),
        crc32c_confirmed_(of.crc32c_confirmed_.load()) {}

  const std::string& name() const { return name_; }
  Client& client() const { return client_; }
  bool is_interrupted() const { return interrupted_ && interrupted_(); }

  // Returns a whole object of at most `limit` bytes; a larger one fails with kTooLarge. See Request::urgent.
  Result<ObjectContent> GetObject(const std::string& key, size_t limit, bool urgent = false) const;
  // Reads exactly memory.size() bytes; not for empty memory. A range that reaches past the end of the object fails with
  // kRange.
  Result<RangeInfo> GetRange(const ObjectRange& range, std::span<std::byte> memory) const;
  Result<ObjectInfo> HeadObject(const std::string& key) const;

  // Returns the ETag. See Client for kExists after a lost response.
  Result<std::string> PutObject(const std::string& key, std::span<const std::byte> body,
                                const PutOptions& options = {}) const;
  Result<std::string> PutObject(const std::string& key, std::string_view body, const PutOptions& options = {}) const;

  // Returns the upload. If a response was lost, the service may have one more upload of this key, without
  // parts.
  Result<UploadInfo> CreateMultipartUpload(const std::string& key, const PutOptions& options = {}) const;
  // Returns the part. A part with the same number is replaced.
  Result<PartInfo> UploadPart(const UploadInfo& upload, unsigned number, std::span<const std::byte> body) const;
  // kNotFound: there is no such upload.
  Result<UploadedParts> ListParts(const UploadInfo& upload) const;
  // Lists fail with kIo if the service names something whose key does not begin with the prefix: what they return may
  // be deleted.

  // Returns all unfinished uploads whose keys begin with `prefix`. Fails with kTooLarge if there are more than
  // kMaxListed.
  Result<std::vector<UploadInfo>> ListMultipartUploads(const std::string& prefix) const;
  // Returns the ETag of the object, which is empty with some services. Parts must be ordered by number. kNotFound:
  // there is no such upload, perhaps because an earlier attempt completed it: HeadObject tells.
  Result<std::string> CompleteMultipartUpload(const UploadInfo& upload, const std::vector<PartInfo>& parts,
                                              const GuardPtr& guard = {}) const;
  // kNotFound: there is no such upload any more.
  Result<void> AbortMultipartUpload(const UploadInfo& upload, const GuardPtr& guard = {}) const;
  // Aborts all of them. Those that have ended do not matter.
  Result<void> AbortMultipartUploads(std::span<const UploadInfo> uploads, const GuardPtr& guard = {}) const;

  // Returns all pages. Keys may hold any character.
  Result<Listing<ObjectInfo>> ListObjects(const ListOptions& options) const;

  // Returns all versions of objects, the youngest version of a key first. Keys may hold any character.
  Result<Listing<ObjectVersion>> ListVersions(const ListOptions& options) const;

  // Deleting an object that does not exist succeeds. Returns true if the bucket keeps the object as an old version.
  // kInvalid: the key is empty. Error::path has the key if the service refuses it.
  Result<bool> DeleteObject(const std::string& key, const DeleteOptions& options = {}) const;
  // Deletes any number of objects, or of their versions, 1,000 in a request. Only their keys and ids matter; without an
  // id the object itself is deleted. If the service refuses some, all others are deleted; the error names the first of
  // them, also in Error::path.
  Result<void> DeleteObjects(std::span<const ObjectVersion> objects, const GuardPtr& guard = {}) const;

 private:
  Result<Response> Send(Request request) const { return client_.Send(std::move(request), interrupted_); }
  Fields NewObjectHeaders(const PutOptions& options) const;
  // Adds to `failures` what the service refuses.
  Result<void> DeleteBatch(std::span<const ObjectVersion> objects, std::vector<Error>* failures,
                           const GuardPtr& guard) const;

  Client& client_;
  const std::string name_;
  const Interrupted interrupted_;
  mutable std::atomic<bool> crc32c_confirmed_ = false;  // by an answer to a PUT
};

}  // namespace weightfs::s3
