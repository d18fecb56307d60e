// SPDX-License-Identifier: Apache-2.0
// The behavior of RocksKvStore with failing disks, damaged files and killed processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <thread>

#include "meta/keys.h"
#include "meta/rocks_kv_store.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/meta/rocks_older_log.h"
#include "tests/unit/meta/sync_faults.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWriterDirectory = "WEIGHTFS_TEST_WRITER_DIRECTORY";
constexpr const char* kWriterPipe = "WEIGHTFS_TEST_WRITER_PIPE";
const std::string kCountKey = keys::Store("count");

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteFile(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  ASSERT_TRUE(out.flush().good()) << path;
}

std::vector<fs::path> FilesLike(const fs::path& directory, std::string_view part) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename().string().find(part) != std::string::npos) found.push_back(entry.path());
  }
  return found;
}

// Batch `number` of a history: a key with its number, and the count of batches so far.
KvBatch Numbered(uint64_t number, size_t value_size = 100) {
  KvBatch batch;
  batch.Put(keys::Extent(InodeId{1}, FileBlock{number}), std::string(value_size, 'x'));
  batch.Put(kCountKey, std::to_string(number));
  return batch;
}
Result<void> WriteNumbered(KvStore& store, uint64_t number, size_t value_size = 100) {
  return store.Write(Numbered(number, value_size));
}

// Checks that the content is a prefix of what was written, and returns its number of batches.
uint64_t CountNumbered(KvStore& store) {
  const auto stored = store.Get(kCountKey);
  EXPECT_TRUE(stored.has_value());
  const uint64_t count = stored.has_value() && *stored ? std::stoull(**stored) : 0;
  uint64_t next = 1;
  const auto iterator = store.NewIterator(keys::ExtentPrefix(InodeId{1}));
  for (; iterator->Valid(); iterator->Next(), ++next) {
    EXPECT_EQ(keys::ParseIndexed(iterator->key())->index, next);
  }
  EXPECT_TRUE(iterator->status().has_value());
  EXPECT_EQ(next - 1, count);
  return count;
}

class RocksFailureTest : public testing::Test {
 protected:
  fs::path directory() const { return temporary_.path() / "meta"; }

  static std::unique_ptr<RocksKvStore> OpenAt(const fs::path& where, RocksKvStore::Options options = {}) {
    auto store = RocksKvStore::Open(where.string(), options);
    if (!store.has_value()) {
      ADD_FAILURE() << ToString(store.error());
      return nullptr;
    }
    return std::move(*store);
  }
  std::unique_ptr<RocksKvStore> Open(RocksKvStore::Options options = {}) { return OpenAt(directory(), options); }
  std::unique_ptr<RocksKvStore> Create() { return Open({.create = true}); }

  std::optional<Error> OpenError(RocksKvStore::Options options = {}) {
    auto store = RocksKvStore::Open(directory().string(), options);
    return store.has_value() ? std::optional<Error>() : std::move(store).error();
  }

  // Creates a catalog with the batches 1 to `batches` in the log of an older version.
  void MakeOlder(uint64_t batches) {
    std::vector<KvBatch> history;
    for (uint64_t number = 1; number <= batches; ++number) history.push_back(Numbered(number));
    WriteOlderLog(directory(), history);
  }

  // Creates a closed database with batches in one table file.
  void MakeTables(uint64_t batches) {
    auto store = Create();
    for (uint64_t number = 1; number <= batches; ++number) ASSERT_TRUE(WriteNumbered(*store, number).has_value());
    ASSERT_TRUE(store->Sync().has_value());
    ASSERT_EQ(FilesLike(directory(), ".sst").size(), 1U);
  }

  TemporaryDirectory temporary_;
};

TEST_F(RocksFailureTest, ADamagedManifestIsCorrupt) {
  MakeTables(10);
  const auto manifest = FilesLike(directory(), "MANIFEST-").at(0);
  std::string bytes = ReadFile(manifest);
  bytes[bytes.size() / 2] ^= 1;
  WriteFile(manifest, bytes);
  EXPECT_EQ(OpenError()->code, ErrorCode::kCorrupt);
  EXPECT_EQ(OpenError({.read_only = true})->code, ErrorCode::kCorrupt);
}

TEST_F(RocksFailureTest, MissingFilesAreCorruptAndNamed) {
  for (const std::string part : {"CURRENT", "MANIFEST-", ".sst"}) {
    MakeTables(10);
    const auto files = FilesLike(directory(), part);
    ASSERT_EQ(files.size(), 1U) << part;
    fs::remove(files[0]);
    const auto error = OpenError();
    ASSERT_TRUE(error.has_value()) << part;
    EXPECT_EQ(error->code, ErrorCode::kCorrupt) << error->what;
    // Compared without the extension, because RocksDB also looks for a table under an older extension and reports that
    // name.
    EXPECT_NE(error->what.find(files[0].stem().string()), std::string::npos) << error->what;
    fs::remove_all(directory());
  }
}

TEST_F(RocksFailureTest, ATruncatedTableIsCorrupt) {
  MakeTables(1000);
  const auto table = FilesLike(directory(), ".sst").at(0);
  fs::resize_file(table, fs::file_size(table) / 2);
  EXPECT_EQ(OpenError()->code, ErrorCode::kCorrupt);
}

TEST_F(RocksFailureTest, ADamagedBlockOfATableIsCorruptAndNeverWrong) {
  MakeTables(1000);
  const auto table = FilesLike(directory(), ".sst").at(0);
  std::string bytes = ReadFile(table);
  for (size_t at = 50'000; at < 50'100; ++at) bytes[at] ^= 1;
  WriteFile(table, bytes);
  auto store = Open();
  ASSERT_NE(store, nullptr);
  uint64_t corrupt = 0;
  for (uint64_t number = 1; number <= 1000; ++number) {
    const auto value = store->Get(keys::Extent(InodeId{1}, FileBlock{number}));
    if (value.has_value()) {
      EXPECT_EQ(*value, std::string(100, 'x'));
    } else {
      EXPECT_EQ(value.error().code, ErrorCode::kCorrupt);
      ++corrupt;
    }
  }
  EXPECT_GT(corrupt, 0U);
  EXPECT_LT(corrupt, 200U);
  const auto iterator = store->NewIterator(keys::KindPrefix(keys::kExtent));
  uint64_t seen = 0;
  for (; iterator->Valid(); iterator->Next()) ++seen;
  EXPECT_LT(seen, 1000U);
  ASSERT_FALSE(iterator->status().has_value());
  EXPECT_EQ(iterator->status().error().code, ErrorCode::kCorrupt);
}

TEST_F(RocksFailureTest, TheLogOfAnOlderVersionIsStoredByTheFirstOpen) {
  MakeOlder(100);
  auto store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(CountNumbered(*store), 100U);
  ASSERT_TRUE(WriteNumbered(*store, 101).has_value());
  ASSERT_TRUE(store->Sync().has_value());
  const fs::path image = temporary_.path() / "image";
  fs::copy(directory(), image);
  EXPECT_EQ(CountNumbered(*OpenAt(image)), 101U);
}

TEST_F(RocksFailureTest, ATornLogOfAnOlderVersionGivesBackAPrefix) {
  constexpr uint64_t kBatches = 100;
  MakeOlder(kBatches);
  const fs::path image = temporary_.path() / "image";
  const auto log_size = fs::file_size(FilesLike(directory(), ".log").at(0));
  uint64_t last_count = 0;
  for (uint64_t cut = 0; cut <= 20; ++cut) {
    fs::copy(directory(), image);
    fs::resize_file(FilesLike(image, ".log").at(0), log_size * cut / 20);
    auto recovered = OpenAt(image);
    ASSERT_NE(recovered, nullptr);
    const uint64_t count = CountNumbered(*recovered);
    EXPECT_GE(count, last_count);
    last_count = count;
    recovered.reset();
    fs::remove_all(image);
  }
  EXPECT_EQ(last_count, kBatches);
}

TEST_F(RocksFailureTest, DamageInsideTheLogOfAnOlderVersionEndsThePrefixThere) {
  MakeOlder(100);
  const fs::path image = temporary_.path() / "image";
  fs::copy(directory(), image);
  const auto log = FilesLike(image, ".log").at(0);
  std::string bytes = ReadFile(log);
  bytes[bytes.size() / 2] ^= 1;
  WriteFile(log, bytes);
  const auto recovered = OpenAt(image);
  ASSERT_NE(recovered, nullptr);
  const uint64_t count = CountNumbered(*recovered);
  EXPECT_GT(count, 40U);
  EXPECT_LT(count, 60U);
}

TEST_F(RocksFailureTest, AReadOnlyOpenShowsWhatIsStoredAndChangesNothing) {
  std::unique_ptr<RocksKvStore> store;
  const auto look = [&] {
    std::map<std::string, std::pair<std::string, fs::file_time_type>> files;
    for (const auto& path : FilesLike(directory(), "")) {
      files[path.filename()] = {ReadFile(path), fs::last_write_time(path)};
    }
    return files;
  };
  for (const bool older : {true, false}) {
    if (older) MakeOlder(10);
    if (!older) {
      store = Open();
      ASSERT_TRUE(WriteNumbered(*store, 10).has_value());
      ASSERT_TRUE(store->Sync().has_value());
      ASSERT_TRUE(WriteNumbered(*store, 11).has_value());
    }
    const auto before = look();
    {
      const auto reader = Open({.read_only = true});
      ASSERT_NE(reader, nullptr);
      EXPECT_EQ(CountNumbered(*reader), 10U);
      EXPECT_EQ(WriteNumbered(*reader, 11).error().code, ErrorCode::kReadOnly);
      EXPECT_TRUE(reader->Sync().has_value());
    }
    EXPECT_EQ(look(), before);
  }
}

TEST_F(RocksFailureTest, AFailedSyncEndsAllWriting) {
  for (const auto& [error, code] : {std::pair(EIO, ErrorCode::kIo), std::pair(ENOSPC, ErrorCode::kNoSpace)}) {
    auto store = Create();
    ASSERT_TRUE(WriteNumbered(*store, 1).has_value());
    ASSERT_TRUE(store->Sync().has_value());
    ASSERT_TRUE(WriteNumbered(*store, 2).has_value());
    {
      const ScopedSyncFault fault(".sst", error);
      const auto failed = store->Sync();
      ASSERT_FALSE(failed.has_value());
      EXPECT_EQ(failed.error().code, code);
      EXPECT_NE(failed.error().what.find(directory().string()), std::string::npos) << failed.error().what;
    }
    const uint64_t calls = SyncCalls();
    EXPECT_TRUE(store->failed());
    EXPECT_EQ(store->Sync().error().code, ErrorCode::kReadOnly);
    EXPECT_EQ(WriteNumbered(*store, 3).error().code, ErrorCode::kReadOnly);
    EXPECT_EQ(SyncCalls(), calls) << "a failed sync was tried again";
    EXPECT_EQ(CountNumbered(*store), 2U) << "reading goes on";
    store.reset();
    fs::remove_all(directory());
  }
}

TEST_F(RocksFailureTest, AFailedWriteEndsAllWriting) {
  auto store = Create();
  ASSERT_TRUE(WriteNumbered(*store, 1).has_value());
  ASSERT_TRUE(store->Sync().has_value());
  ASSERT_TRUE(WriteNumbered(*store, 2, 256 * kKiB).has_value());
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{64 * kKiB, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto failed = store->Sync();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  EXPECT_EQ(WriteNumbered(*store, 2).error().code, ErrorCode::kReadOnly);
  EXPECT_EQ(store->Sync().error().code, ErrorCode::kReadOnly);
  store.reset();
  store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(CountNumbered(*store), 1U);
  EXPECT_TRUE(WriteNumbered(*store, 2).has_value());
}

TEST_F(RocksFailureTest, AFailedFlushInTheBackgroundEndsAllWriting) {
  auto store = Open({.create = true, .write_buffer = ByteCount{64 * kKiB}});
  std::optional<Error> error;
  uint64_t accepted = 0;
  {
    const ScopedSyncFault fault(".sst", EIO);
    // RocksDB blocks writers once two memtables wait for a flush, so this loop ends.
    while (!error) {
      if (auto written = WriteNumbered(*store, accepted + 1, 1000); written.has_value()) {
        ++accepted;
      } else {
        error = std::move(written).error();
      }
    }
  }
  EXPECT_TRUE(error->code == ErrorCode::kIo || error->code == ErrorCode::kReadOnly);
  EXPECT_EQ(WriteNumbered(*store, accepted + 1).error().code, ErrorCode::kReadOnly);
  EXPECT_EQ(store->Sync().error().code, ErrorCode::kReadOnly);
  store.reset();
  store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_LE(CountNumbered(*store), accepted);
}

// A separate process for the tests below: it writes batches in order, syncs after some of them, and then writes a byte
// to the pipe for each. Threads do not survive a fork, so the executable is started again.
TEST(RocksWriterProcess, DISABLED_WritesUntilKilled) {
  const char* directory = std::getenv(kWriterDirectory);
  const char* pipe = std::getenv(kWriterPipe);
  ASSERT_TRUE(directory != nullptr && pipe != nullptr) << "started by the tests below only";
  auto opened = RocksKvStore::Open(directory, {.create = !fs::exists(directory), .write_buffer = ByteCount{64 * kKiB}});
  if (!opened.has_value()) _exit(opened.error().code == ErrorCode::kBusy ? 2 : 1);
  KvStore& store = **opened;
  const std::string written(50, 'w');
  for (uint64_t number = CountNumbered(store) + 1;;) {
    for (size_t batch = 0; batch < written.size(); ++batch, ++number) {
      if (!WriteNumbered(store, number, 300).has_value()) _exit(1);
    }
    if (!store.Sync().has_value()) _exit(1);
    if (write(std::stoi(pipe), written.data(), written.size()) != static_cast<ssize_t>(written.size())) _exit(1);
  }
}

class WriterProcess {
 public:
  explicit WriterProcess(const fs::path& directory) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    read_end_ = ends[0];
    fcntl(read_end_, F_SETFD, FD_CLOEXEC);
    setenv(kWriterDirectory, directory.c_str(), 1);
    setenv(kWriterPipe, std::to_string(ends[1]).c_str(), 1);
    pid_ = fork();
    if (pid_ == 0) {
      execl("/proc/self/exe", "unit_meta", "--gtest_also_run_disabled_tests", "--gtest_filter=RocksWriterProcess.*",
            "--gtest_brief=1", static_cast<char*>(nullptr));
      _exit(127);
    }
    close(ends[1]);
  }
  ~WriterProcess() {
    if (pid_ > 0) Kill();
    close(read_end_);
  }
  WriterProcess(const WriterProcess&) = delete;
  WriterProcess& operator=(const WriterProcess&) = delete;

  // Waits for `count` more synced batches, or for the end of the process.
  uint64_t Await(uint64_t count) {
    char bytes[256];
    while (count > 0) {
      const ssize_t got = read(read_end_, bytes, std::min<uint64_t>(count, sizeof(bytes)));
      if (got <= 0) break;
      accepted_ += static_cast<uint64_t>(got);
      count -= static_cast<uint64_t>(got);
    }
    return accepted_;
  }
  // Returns the number of all batches synced before the end.
  uint64_t Kill() {
    kill(pid_, SIGKILL);
    WaitForEnd();
    return Await(std::numeric_limits<uint64_t>::max());
  }
  int WaitForEnd() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  int read_end_ = -1;
  pid_t pid_ = -1;
  uint64_t accepted_ = 0;
};

TEST_F(RocksFailureTest, EverySyncedBatchSurvivesAKill) {
  uint64_t count = 0;
  for (const uint64_t batches : {1U, 50U, 700U, 1300U, 400U}) {
    WriterProcess writer(directory());
    ASSERT_EQ(writer.Await(batches), batches);
    const uint64_t accepted = count + writer.Kill();
    const auto store = Open();
    ASSERT_NE(store, nullptr);
    count = CountNumbered(*store);
    EXPECT_GE(count, accepted);
  }
}

TEST_F(RocksFailureTest, AStoreOfAnotherProcessIsBusy) {
  WriterProcess writer(directory());
  ASSERT_EQ(writer.Await(1), 1U);
  const auto error = OpenError();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code, ErrorCode::kBusy) << error->what;
  EXPECT_NE(Open({.read_only = true}), nullptr);
  WriterProcess second(directory());
  const int status = second.WaitForEnd();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

}  // namespace
}  // namespace weightfs
