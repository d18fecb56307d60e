// SPDX-License-Identifier: Apache-2.0
// Sends the files of one version, and their checksums. Private to remote/.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "client/random_reader.h"
#include "common/mutex.h"
#include "remote/local_tree.h"
#include "remote/series.h"

namespace weightfs::remote {

inline constexpr uint64_t kPartSize = 16 << 20;         // of files up to 140 GiB

// The size of the parts of a file: a multiple of kBlockSize that needs at most 9,000 of them.
uint64_t PartSizeOf(uint64_t file_size);

struct SentObject {
  uint64_t size = 0;
  std::string etag = {};  // as the service writes it; may be empty
  // `of`: the ETag that it should have; empty: unknown. Not every response quotes it.
  bool Is(uint64_t wanted, std::string_view of) const;
};

// What an earlier attempt of the same push has left in the bucket.
struct Leftovers {
  std::map<std::string, SentObject> objects;                // by key
  std::map<std::string, std::vector<std::string>> uploads;  // key → ids of unfinished uploads
};

// Used by one thread, which reads the files; the client's thread sends, and a third one completes uploads.
class Uploader {
 public:
  struct Options {
    std::function<void(uint64_t done)> progress;
    std::function<Result<void>()> check = {};  // called now and then; its error ends Run
    s3::GuardPtr guard = {};         // of the requests that write an object
    std::string storage_class = {};  // of the files; empty: the bucket's
  };
  Uploader(const Series& series, uint64_t version, const LocalTree& tree, Leftovers leftovers, Options options);
  // Waits for the requests in progress.
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // Sends everything. Returns the SHA-256 of each slice of checksums.
  Result<std::vector<Sha256>> Run();
  uint64_t sent_bytes() const { return sent_bytes_.load(); }
  // After Run: the ETags of the objects that are there, by their keys, as far as the service has named them.
  std::map<std::string, std::string> etags();
  // Ids of uploads that the service does not complete. Run has failed with kAgain then: without them it may succeed.
  std::set<std::string> abandoned();

 private:
  struct Upload;
  using UploadPtr = std::shared_ptr<Upload>;

  Result<void> SendFiles();
  Result<void> SendWhole(const FileEntry& file, const std::string& key);
  Result<void> SendParts(const FileEntry& file, const std::string& key);
  Result<UploadPtr> BeginParts(const FileEntry& file, const std::string& key);
  // Reads the bytes, and adds their checksums to the slices.
  template <typename Source>
  Result<void> Read(Source& source, uint64_t offset, std::span<std::byte> to);
  Result<void> AddSums(std::span<const std::byte> data);
  Result<void> SendSlice();

  Result<std::shared_ptr<std::byte>> TakeBuffer(uint64_t size);
  // Counts a request. Returns its number, which is not that of the client.
  uint64_t BeginRequest();
  void NoteId(uint64_t request, s3::RequestId id);
  template <typename T>
  void EndRequest(uint64_t request, const Result<T>& result);
  void NoteEtag(const std::string& key, const std::string& etag);
  Result<void> CheckFailure();
  void Complete(UploadPtr upload);
  void CompleteUploads();
  Result<void> CompleteUpload(const Upload& upload);
  Result<void> WaitForAll();
  // Keeps the first error, and cancels the requests in progress.
  void Fail(Error error);

  const Series& series_;
  const uint64_t version_;
  const LocalTree& tree_;
  const Leftovers leftovers_;
  const uint64_t transfer_memory_;
  const Options options_;

  std::unique_ptr<client::RandomReader> reader_;  // of one file after the other; null before the first
  std::string slice_;                             // checksums that are not sent yet
  std::vector<Sha256> slices_;
  std::atomic<uint64_t> done_bytes_{0}, sent_bytes_{0};

  Mutex mutex_;
  std::condition_variable changed_;
  uint64_t last_request_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::optional<s3::RequestId>> requests_ GUARDED_BY(mutex_);  // in progress
  uint64_t memory_ GUARDED_BY(mutex_) = 0;                                        // bytes of buffers in use
  std::vector<std::shared_ptr<std::byte>> spare_ GUARDED_BY(mutex_);              // of kPartSize each
  std::optional<Error> failure_ GUARDED_BY(mutex_);
  std::deque<UploadPtr> complete_ GUARDED_BY(mutex_);
  size_t completing_ GUARDED_BY(mutex_) = 0;
  std::set<std::string> abandoned_ GUARDED_BY(mutex_);
  std::map<std::string, std::string> etags_ GUARDED_BY(mutex_);
  bool ends_ GUARDED_BY(mutex_) = false;
  std::thread completer_;
};

}  // namespace weightfs::remote
