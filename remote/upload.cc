// SPDX-License-Identifier: Apache-2.0
#include "remote/upload.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>

#include "client/random_reader.h"
#include "common/bytes.h"
#include "common/checksum.h"
#include "common/mutex.h"
#include "common/printable.h"
#include "common/start_thread.h"
#include "common/system_calls.h"
#include "remote/pages.h"

namespace weightfs::remote {
namespace {

constexpr uint64_t kPartSize = 16 << 20;         // of files up to 140 GiB
constexpr uint64_t kMostPartsWanted = 9000;      // of 10,000
constexpr uint64_t kReaderFrom = 1 << 20;        // smaller files are read by read(2)
constexpr uint64_t kRateSeconds = 2;             // of the parts in flight
constexpr size_t kMostTasks = 64;                // of small files, in progress and waiting for a thread
constexpr std::chrono::milliseconds kLook{100};  // between two looks for an interruption

// Bytes that are read or sent at once. Parts share a rate, so few of them are in flight then: each is complete soon,
// and a push that is killed again and again makes progress. 0: no rate.
uint64_t TransferMemoryOf(uint64_t rate) {
  if (rate == 0 || rate > kTransferMemory / kRateSeconds) return kTransferMemory;
  return std::max(rate * kRateSeconds, kPartSize);
}

// The size of the parts of a file, a multiple of kBlockSize. A file that is not larger is sent as a whole.
uint64_t PartSizeOf(uint64_t file_size) {
  const uint64_t needed = (file_size + kMostPartsWanted - 1) / kMostPartsWanted;
  return std::max(kPartSize, RoundUp(needed, kMiB));
}

// A multipart upload. The thread that sends the last part completes it.
struct Multipart {
  s3::UploadInfo info;
  uint64_t size = 0;
  std::vector<s3::PartInfo> parts;  // by number; written by one thread each
  std::atomic<size_t> missing{1};   // parts, and 1 until all are posted
};
using MultipartPtr = std::shared_ptr<Multipart>;

class Uploader {
 public:
  Uploader(const Series& series, uint64_t version, const LocalTree& tree, const Leftovers& leftovers,
           const UploadOptions& options, Uploaded* uploaded)
      : series_(series),
        version_(version),
        tree_(tree),
        leftovers_(leftovers),
        transfer_memory_(TransferMemoryOf(series.bucket().client().settings().upload_rate)),
        options_(options),
        uploaded_(*uploaded),
        bucket_(series.bucket(), [this] { return stopped_ || series_.bucket().is_interrupted(); }) {}

  // Waits for the requests in progress.
  ~Uploader() {
    {
      MutexLock lock(mutex_);
      ends_ = true;
      posted_.notify_all();
    }
    for (std::thread& sender : senders_) sender.join();
  }

  Result<void> Run() {
    const size_t connections = bucket_.client().settings().connections;
    while (senders_.size() < std::min(connections, kMostTasks)) {
      auto sender = StartThread("wfs-upload", [this] { Work(); });
      if (!sender && senders_.empty()) return sender.error();
      if (!sender) break;
      senders_.push_back(std::move(*sender));
    }
    if (auto sent = SendFiles(); !sent) Fail(sent.error());
    return WaitForAll();
  }

 private:
  // A slice is sent only if it is whole: another push of the same source may have completed the version.
  Result<void> SendFiles() {
    for (const FileEntry& file : tree_.manifest.files) RETURN_IF_ERROR(SendFile(file));
    return slice_.empty() ? Result<void>() : SendSlice();
  }

  // Also reads what is in the bucket already, for its checksums.
  Result<void> SendFile(const FileEntry& file) {
    const std::string key = series_.Key(version_, file.path);
    const auto found = leftovers_.objects.find(key);
    const bool present = found != leftovers_.objects.end() && found->second.size == file.size;
    if (present) NoteEtag(key, found->second.etag);
    const uint64_t part_size = PartSizeOf(file.size);
    MultipartPtr upload;  // null: the file is sent as a whole
    if (!present && file.size > part_size) {
      ASSIGN_OR_RETURN(upload, BeginParts(file, key, part_size));
    }
    if (file.size >= kReaderFrom) RETURN_IF_ERROR(OpenReader(file));
    uint64_t begin = 0;
    do {  // an empty file is an object, too
      ASSIGN_OR_RETURN(auto buffer, TakeBuffer(std::clamp<uint64_t>(file.size, 1, part_size)));
      const std::span data(buffer.get(), std::min(part_size, file.size - begin));
      if (!data.empty()) RETURN_IF_ERROR(Read(file, begin, data));
      if (present || (upload && !upload->parts[begin / part_size].etag.empty())) {
        done_bytes_ += data.size();
      } else if (upload) {
        RETURN_IF_ERROR(SendPart(upload, static_cast<unsigned>(begin / part_size + 1), data, std::move(buffer)));
      } else {
        RETURN_IF_ERROR(SendWhole(key, data, std::move(buffer)));
      }
      begin += part_size;
    } while (begin < file.size);
    if (!upload) return {};
    return Post([this, upload] { return EndPart(*upload); });
  }

  // Lets the reader read this file, through a lease where there is one: one state of the file, with verified blocks.
  Result<void> OpenReader(const FileEntry& file) {
    ASSIGN_OR_RETURN(const UniqueFd descriptor, tree_.Open(file, /*direct=*/true));
    client::FileName name(descriptor.get());
    name.path = tree_.PathOf(file);
    Result<void> opened;
    if (reader_) {
      opened = reader_->Reopen(name);
    } else if (auto made = client::RandomReader::Open(name)) {
      reader_ = std::move(*made);
    } else {
      opened = made.error();
    }
    RETURN_IF_ERROR(Named(file, opened));
    return reader_->file_size() == file.size ? Result<void>() : ChangedDuringPush(name.path);
  }

  // Reads the bytes, and adds their checksums to the slices.
  Result<void> Read(const FileEntry& file, uint64_t offset, std::span<std::byte> to) {
    RETURN_IF_ERROR(file.size < kReaderFrom ? ReadSmall(file, to)
                                            : Named(file, reader_->Read(offset, client::MemoryView(to))));
    return AddSums(to);
  }

  Result<void> Named(const FileEntry& file, const Result<void>& done) const {
    if (done) return done;
    const Error& error = done.error();
    const bool is_change = error.code == ErrorCode{ENODATA} || error.code == ErrorCode::kStale;  // it is shorter now
    if (is_change) return ChangedDuringPush(tree_.PathOf(file));
    return Error{error.code, Printable(tree_.PathOf(file)) + ": " + ToString(error)};
  }

  Result<void> ReadSmall(const FileEntry& file, std::span<std::byte> to) const {
    ASSIGN_OR_RETURN(const UniqueFd opened, tree_.Open(file, /*direct=*/false));
    const ssize_t got = ReadFully(opened.get(), to, 0);
    if (got < 0) return SystemError(tree_.PathOf(file), "cannot be read");
    if (got < std::ssize(to)) return ChangedDuringPush(tree_.PathOf(file));
    return {};
  }

  // The buffers have whole pages, so the last block can be filled up in place.
  Result<void> AddSums(std::span<std::byte> data) {
    std::vector<uint32_t> sums((data.size() + kBlockSize - 1) / kBlockSize);
    const size_t rest = data.size() % kBlockSize;
    if (rest != 0) std::memset(data.data() + data.size(), 0, kBlockSize - rest);
    Crc32cBlocks({data.data(), sums.size() * kBlockSize}, sums.data());
    for (const uint32_t sum : sums) {
      AppendLittle(slice_, sum);
      if (slice_.size() == kSliceBytes) RETURN_IF_ERROR(SendSlice());
    }
    return {};
  }

  Result<void> SendSlice() {
    const std::string key = series_.SliceKey(version_, uploaded_.slices.size());
    uploaded_.slices.push_back(Sha256Of(slice_));
    return Post([this, key, body = std::exchange(slice_, {})]() -> Result<void> {
      ASSIGN_OR_RETURN(const auto etag, bucket_.PutObject(key, body, {.guard = options_.guard}));
      NoteEtag(key, etag);
      return {};
    });
  }

  // The tasks keep the memory of the data.
  Result<void> SendWhole(const std::string& key, std::span<const std::byte> data, std::shared_ptr<std::byte> buffer) {
    return Post([this, key, data, buffer = std::move(buffer)]() -> Result<void> {
      ASSIGN_OR_RETURN(const auto etag, bucket_.PutObject(key, data, FileOptions()));
      NoteSent(data.size());
      NoteEtag(key, etag);
      return {};
    });
  }

  Result<void> SendPart(const MultipartPtr& upload, unsigned number, std::span<const std::byte> data,
                        std::shared_ptr<std::byte> buffer) {
    ++upload->missing;
    return Post([this, upload, number, data, buffer = std::move(buffer)]() mutable -> Result<void> {
      ASSIGN_OR_RETURN(upload->parts[number - 1], bucket_.UploadPart(upload->info, number, data));
      buffer.reset();
      NoteSent(data.size());
      return EndPart(*upload);
    });
  }

  Result<void> EndPart(Multipart& upload) { return --upload.missing == 0 ? CompleteUpload(upload) : Result<void>(); }

  s3::PutOptions FileOptions() const { return {.guard = options_.guard, .storage_class = options_.storage_class}; }

  // Continues the upload that has the most parts. There may be empty ones: the answer to the request that began them
  // was lost. Others may be those of a second push of the same source, so they stay.
  Result<MultipartPtr> BeginParts(const FileEntry& file, const std::string& key, uint64_t part_size) const {
    auto upload = std::make_shared<Multipart>();
    upload->info.key = key;
    upload->size = file.size;
    std::vector<s3::PartInfo> sent;
    const auto found = leftovers_.uploads.find(key);
    for (const std::string& id : found == leftovers_.uploads.end() ? std::vector<std::string>() : found->second) {
      auto parts = bucket_.ListParts({.key = key, .upload_id = id});
      if (!parts && parts.error().code == ErrorCode::kNotFound) continue;
      if (!parts) return parts.error();
      if (!upload->info.upload_id.empty() && parts->parts.size() <= sent.size()) continue;
      upload->info.upload_id = id;
      upload->info.crc32c = parts->crc32c;
      sent = std::move(parts->parts);
    }
    upload->parts.resize((file.size + part_size - 1) / part_size);
    for (const s3::PartInfo& part : sent) {
      if (part.number == 0 || part.number > upload->parts.size()) continue;
      const uint64_t begin = (part.number - 1) * part_size;
      const bool complete = part.size == std::min(part_size, file.size - begin);
      if (complete && part.crc32c.empty() != upload->info.crc32c) upload->parts[part.number - 1] = part;
    }
    if (upload->info.upload_id.empty()) {
      ASSIGN_OR_RETURN(upload->info, bucket_.CreateMultipartUpload(key, FileOptions()));
    }
    return upload;
  }

  // The answer to an attempt may have been lost, so that the next one finds no upload. A service that answers, but does
  // not complete an upload, will complete another one: for ten minutes, Ceph keeps the lock of a gateway that was
  // killed in the middle.
  Result<void> CompleteUpload(const Multipart& upload) {
    const auto completed = bucket_.CompleteMultipartUpload(upload.info, upload.parts, options_.guard);
    if (completed) {
      NoteEtag(upload.info.key, *completed);
      return {};
    }
    const ErrorCode code = completed.error().code;
    if (code != ErrorCode::kNotFound && code != ErrorCode::kIo) return completed.error();
    const auto object = bucket_.HeadObject(upload.info.key);
    if (object && object->size == upload.size) {
      NoteEtag(upload.info.key, object->etag);
      return {};
    }
    if (code == ErrorCode::kNotFound || object || object.error().code != ErrorCode::kNotFound) return completed.error();
    {
      MutexLock lock(mutex_);
      uploaded_.abandoned.insert(upload.info.upload_id);
    }
    // If this fails, too, `weightfs prune` removes it with the version.
    static_cast<void>(bucket_.AbortMultipartUpload(upload.info).has_value());
    return Error{ErrorCode::kAgain, completed.error().what};
  }

  void NoteEtag(const std::string& key, const std::string& etag) {
    MutexLock lock(mutex_);
    if (!etag.empty()) uploaded_.etags[key] = etag;
  }

  void NoteSent(uint64_t size) {
    done_bytes_ += size;
    MutexLock lock(mutex_);
    uploaded_.sent_bytes += size;
  }

  // Lets another thread carry out the task, unless something has failed by then.
  Result<void> Post(std::function<Result<void>()> task) {
    {
      MutexLock lock(mutex_);
      tasks_.push_back(std::move(task));
      ++unfinished_;
      posted_.notify_one();
    }
    return CheckFailure();
  }

  void Work() {
    MutexLock lock(mutex_);
    for (;;) {
      while (tasks_.empty() && !ends_) posted_.wait(lock.native());
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.Unlock();
      auto done = stopped_ ? Result<void>() : task();
      task = {};  // gives its memory back
      if (!done) Fail(std::move(done).error());
      lock.Lock();
      --unfinished_;
      changed_.notify_all();
    }
  }

  // Waits until there is memory, and until few enough tasks wait. Spare buffers count as memory.
  Result<std::shared_ptr<std::byte>> TakeBuffer(uint64_t size) {
    size = RoundUp(size, kBlockSize);
    MutexLock lock(mutex_);
    while (!failure_ && (unfinished_ >= kMostTasks || (memory_ > 0 && memory_ + size > transfer_memory_))) {
      changed_.wait_for(lock.native(), kLook);
      lock.Unlock();
      RETURN_IF_ERROR(CheckFailure());
      lock.Lock();
    }
    if (failure_) return *failure_;
    std::shared_ptr<std::byte> memory;
    memory_ += size;
    if (size == kPartSize && !spare_.empty()) {
      memory = std::move(spare_.back());
      spare_.pop_back();
    }
    while (!spare_.empty() && memory_ + spare_.size() * kPartSize > transfer_memory_) spare_.pop_back();
    lock.Unlock();
    if (memory == nullptr) {
      auto fresh = AllocatePages(size);
      if (!fresh) {
        lock.Lock();
        memory_ -= size;
        return fresh.error();
      }
      memory = std::move(*fresh);
    }
    return std::shared_ptr<std::byte>(memory.get(), [this, memory, size](std::byte*) {
      MutexLock again(mutex_);
      memory_ -= size;
      if (size == kPartSize) spare_.push_back(memory);
      changed_.notify_all();
    });
  }

  Result<void> CheckFailure() {
    if (options_.progress) options_.progress(done_bytes_.load());
    {
      MutexLock lock(mutex_);
      if (failure_) return *failure_;
    }
    if (series_.bucket().is_interrupted()) return ErrorCode::kCancelled;
    return options_.check ? options_.check() : Result<void>();
  }

  // Keeps the first error, and ends the requests in progress.
  void Fail(Error error) {
    MutexLock lock(mutex_);
    if (!failure_) failure_ = std::move(error);
    stopped_ = true;
  }

  // After a failure only the requests in progress are waited for.
  Result<void> WaitForAll() {
    if (auto failed = CheckFailure(); !failed) Fail(failed.error());
    MutexLock lock(mutex_);
    while (unfinished_ > 0) {
      changed_.wait_for(lock.native(), kLook);
      lock.Unlock();
      if (auto failed = CheckFailure(); !failed) Fail(failed.error());
      lock.Lock();
    }
    if (failure_) return *failure_;
    return {};
  }

  const Series& series_;
  const uint64_t version_;
  const LocalTree& tree_;
  const Leftovers& leftovers_;
  const uint64_t transfer_memory_;
  const UploadOptions& options_;
  Uploaded& uploaded_;  // guarded by the mutex, except the slices, which are of the calling thread
  std::atomic<bool> stopped_ = false;
  const s3::Bucket bucket_;  // interrupted also by a failure

  std::unique_ptr<client::RandomReader> reader_;  // of one file after the other; null before the first
  std::string slice_;                             // checksums that are not sent yet
  std::atomic<uint64_t> done_bytes_{0};
  std::vector<std::thread> senders_;

  Mutex mutex_;
  std::condition_variable posted_;   // for the senders
  std::condition_variable changed_;  // for the calling thread
  std::deque<std::function<Result<void>()>> tasks_ GUARDED_BY(mutex_);
  size_t unfinished_ GUARDED_BY(mutex_) = 0;                          // tasks
  uint64_t memory_ GUARDED_BY(mutex_) = 0;                            // bytes of buffers in use
  std::vector<std::shared_ptr<std::byte>> spare_ GUARDED_BY(mutex_);  // of kPartSize each
  std::optional<Error> failure_ GUARDED_BY(mutex_);
  bool ends_ GUARDED_BY(mutex_) = false;
};

}  // namespace

bool SentObject::Is(uint64_t wanted, std::string_view of) const {
  const auto bare = [](std::string_view text) {
    if (text.starts_with('"')) text.remove_prefix(1);
    if (text.ends_with('"')) text.remove_suffix(1);
    return text;
  };
  return size == wanted && (etag.empty() || of.empty() || bare(etag) == bare(of));
}

Result<void> Upload(const Series& series, uint64_t version, const LocalTree& tree, const Leftovers& leftovers,
                    const UploadOptions& options, Uploaded* uploaded) {
  return Uploader(series, version, tree, leftovers, options, uploaded).Run();
}

}  // namespace weightfs::remote
