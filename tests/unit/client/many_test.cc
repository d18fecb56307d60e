// SPDX-License-Identifier: Apache-2.0
// Many files at once, and checksums stored with files, on ordinary filesystems.
#include <gtest/gtest.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "client/checksum_attribute.h"
#include "client/handle.h"
#include "common/syncfs.h"
#include "tests/unit/client/files.h"
#include "tests/unit/client/operations.h"

namespace {

std::atomic<size_t> file_syncs{0};

}  // namespace

// Replaces that of the C library in this program.
extern "C" int fsync(int descriptor) {
  ++file_syncs;
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

namespace weightfs::client {
namespace {

std::unique_ptr<Handle> Make(const HandleOptions& options = {}) { return std::move(Handle::Create(options).value()); }
struct Many {
  explicit Many(size_t count) {
    for (size_t i = 0; i < count; ++i) contents.push_back(RandomBytes(i * 7919 % 150'000, static_cast<unsigned>(i)));
    for (size_t i = 0; i < count; ++i) files.push_back({fmt::format("tensor.{}", i), View(contents[i])});
  }
  std::vector<Bytes> contents;
  std::vector<NamedMemory> files;
};

TEST(ManyTest, FilesAreSavedAndLoadedByName) {
  const Folder folder;
  const auto handle = Make({.intra_op_parallelism = 2});
  Many saved(150);
  WriteFile(folder / "tensor.7", RandomBytes(500'000));
  std::vector<uint64_t> seen;
  ASSERT_TRUE(handle
                  ->SaveMany(folder / ".", saved.files,
                             {.mode = 0640, .progress = [&](uint64_t done, uint64_t) { seen.push_back(done); }})
                  .has_value());
  EXPECT_EQ(folder.entries(), 150U);
  for (size_t i = 0; i < 150; ++i) ASSERT_EQ(ReadFile(folder / saved.files[i].name), saved.contents[i]);
  EXPECT_EQ(std::filesystem::status(folder / "tensor.7").permissions(), std::filesystem::perms(0640));
  EXPECT_EQ(seen.size(), 150U);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  Many loaded(150);
  for (auto& content : loaded.contents) std::fill(content.begin(), content.end(), std::byte{0});
  const auto errors = handle->LoadMany(folder / ".", loaded.files).value();
  EXPECT_TRUE(errors.empty());
  EXPECT_EQ(loaded.contents, saved.contents);
  // They do not count as separate operations.
  EXPECT_EQ(handle->Wait().count, 0U);
}

TEST(ManyTest, LaterOperationsOnItsFilesBeginAfterASave) {
  const Folder folder;
  const auto handle = Make();
  Many saved(3);
  Bytes later = RandomBytes(5'000, 77), read(5'000);
  std::shared_ptr<Operation> write;
  const auto begin = [&](uint64_t, uint64_t) {
    if (write != nullptr) return;
    write = handle->StartWrite(folder / "tensor.1", View(later), {}).value();
    EXPECT_FALSE(write->begun());
  };
  ASSERT_TRUE(handle->SaveMany(folder / ".", saved.files, {.progress = begin}).has_value());
  write->Wait();
  EXPECT_FALSE(write->error());
  EXPECT_EQ(ReadFile(folder / "tensor.1"), later);
}

// Before Linux 5.8, syncfs(2) reports no error, so each file is fsynced instead.
TEST(ManyTest, OldKernelsSyncEachFile) {
  const Folder folder;
  const auto handle = Make();
  Many saved(3);
  EXPECT_TRUE(SyncfsReportsErrors());
  const auto before = static_cast<unsigned>(personality(0xffffffff));
  ASSERT_NE(personality(before | UNAME26), -1);  // uname(2) now says 2.6
  EXPECT_FALSE(SyncfsReportsErrors());
  const size_t syncs = file_syncs;
  EXPECT_TRUE(handle->SaveMany(folder / ".", saved.files).has_value());
  EXPECT_EQ(file_syncs - syncs, saved.files.size() + 1) << "and the folder";
  personality(before);
  EXPECT_EQ(ReadFile(folder / "tensor.1"), saved.contents[1]);
}

TEST(ManyTest, FilesThatCannotBeLoadedAreNamedAndTheRestIsLoaded) {
  const Folder folder;
  const auto handle = Make();
  Many saved(20);
  ASSERT_TRUE(handle->SaveMany(folder / ".", saved.files, {.durable = false}).has_value());
  std::filesystem::remove(folder / "tensor.3");
  std::filesystem::resize_file(folder / "tensor.5", 10);
  std::filesystem::resize_file(folder / "tensor.6", 200'000);
  std::filesystem::remove(folder / "tensor.9");
  std::filesystem::create_directory(folder / "tensor.9");
  Many loaded(20);
  for (auto& content : loaded.contents) std::fill(content.begin(), content.end(), std::byte{0});
  const auto errors = handle->LoadMany(folder / ".", loaded.files).value();
  std::vector<std::pair<std::string, int>> found;
  for (const auto& [name, error] : errors) found.emplace_back(name, error.error_number());
  EXPECT_EQ(found, (std::vector<std::pair<std::string, int>>{
                       {"tensor.3", ENOENT}, {"tensor.5", ENODATA}, {"tensor.6", EINVAL}, {"tensor.9", EISDIR}}));
  EXPECT_EQ(errors[1].error.what, fmt::format("read of {} bytes at offset 0 of {}: the file has 10 bytes, not the "
                                              "buffer's size",
                                              saved.contents[5].size(), folder / "./tensor.5"));
  for (const size_t i : {0U, 1U, 2U, 4U, 7U, 8U, 19U}) EXPECT_EQ(loaded.contents[i], saved.contents[i]) << i;
}

TEST(ManyTest, AFailureBeforeTheNamesAppearLeavesEverythingAsItWas) {
  const Folder folder;
  const auto handle = Make();
  Many saved(3);
  for (const std::string name : {"", ".", "..", "a/b", "tensor.1"}) {
    auto files = saved.files;
    files.push_back({name, files[0].memory});
    EXPECT_EQ(handle->SaveMany(folder / ".", files).error().error_number(), EINVAL) << name;
    EXPECT_EQ(handle->LoadMany(folder / ".", files).error().error_number(), EINVAL) << name;
  }
  auto files = saved.files;
  files.push_back({std::string("nul\0nul", 7), files[0].memory});
  EXPECT_EQ(handle->SaveMany(folder / ".", files).error().error_number(), EINVAL);
  EXPECT_EQ(handle->SaveMany(folder / "missing", saved.files).error().error_number(), ENOENT);
  EXPECT_EQ(folder.entries(), 0U);
  const auto required = Make({.direct = Direct::kRequire});
  EXPECT_EQ(required->SaveMany(folder / ".", saved.files).error().error_number(), ENOTTY);
  EXPECT_EQ(required->LoadMany(folder / ".", saved.files).error().error_number(), ENOTTY);
  EXPECT_TRUE(required->SaveMany(folder / ".", {}).has_value());
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(ManyTest, ATargetThatCannotBeReplacedIsFoundBeforeTheFirstRename) {
  const Folder folder;
  const auto handle = Make();
  Many saved(3);
  const Bytes old = RandomBytes(100, 9);
  WriteFile(folder / "tensor.0", old);
  std::filesystem::create_directory(folder / "tensor.1");
  const auto refused = handle->SaveMany(folder / ".", saved.files);
  EXPECT_EQ(refused.error().error_number(), EISDIR);
  EXPECT_EQ(refused.error().path, folder / "./tensor.1");
  EXPECT_EQ(ReadFile(folder / "tensor.0"), old);
  EXPECT_EQ(folder.entries(), 2U);
  // Also if it appears while the files are written.
  std::filesystem::remove(folder / "tensor.1");
  const Progress interfere = [&](uint64_t, uint64_t) { std::filesystem::create_directory(folder / "tensor.1"); };
  EXPECT_EQ(handle->SaveMany(folder / ".", saved.files, {.progress = interfere}).error().error_number(), EISDIR);
  EXPECT_EQ(ReadFile(folder / "tensor.0"), old);
  EXPECT_EQ(folder.entries(), 2U);
}

TEST(ManyTest, ARelativeDirectoryIsResolvedAtTheStart) {
  const Folder folder;
  const Folder elsewhere;
  const auto handle = Make();
  const auto before = std::filesystem::current_path();
  for (const Folder* each : {&folder, &elsewhere}) std::filesystem::create_directory(*each / "many");
  const auto absolute = std::filesystem::absolute(elsewhere / ".");
  const auto moves = [&] { std::filesystem::current_path(absolute); };
  Many saved(5);
  Many loaded(5);
  for (size_t i = 0; i < 5; ++i) {
    WriteFile(elsewhere / ("many/" + saved.files[i].name), Bytes(saved.contents[i].size()));
    std::fill(loaded.contents[i].begin(), loaded.contents[i].end(), std::byte{1});
  }
  std::filesystem::current_path(folder / ".");
  const auto done = handle->SaveMany("many", saved.files, {.progress = [&](uint64_t, uint64_t) { moves(); }});
  std::filesystem::current_path(before);
  EXPECT_TRUE(done.has_value()) << done.error().what;
  EXPECT_EQ(folder.entries(), 1U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "many"), {}), 5);
  for (size_t i = 0; i < 5; ++i) WriteFile(folder / ("many/" + saved.files[i].name), saved.contents[i]);
  std::filesystem::current_path(folder / ".");
  const auto errors = handle->LoadMany("many", loaded.files, {.interrupted = [&] { return moves(), false; }});
  std::filesystem::current_path(before);
  ASSERT_TRUE(errors.has_value());
  EXPECT_TRUE(errors->empty());
  EXPECT_EQ(loaded.contents, saved.contents);
}

TEST(ManyTest, TheReasonForAMissingLeaseIsReported) {
  const Folder folder;
  Many saved(2);
  std::vector<int> told;
  const SaveManyOptions options{.on_fallback = [&](const Error& why) { told.push_back(why.error_number()); }};
  ASSERT_TRUE(Make({.direct = Direct::kNever})->SaveMany(folder / ".", saved.files, options).has_value());
  EXPECT_TRUE(told.empty());
  ASSERT_TRUE(Make()->SaveMany(folder / ".", saved.files, options).has_value());
  EXPECT_EQ(told, std::vector<int>{ENOTTY});
}

// Sets the soft limit of file sizes, and restores it in the destructor.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(ManyTest, ExceedingTheFileSizeLimitIsAnErrorAndNoSignal) {
  const Folder folder;
  const auto handle = Make();
  Bytes bytes = RandomBytes(200'000);
  const std::vector<NamedMemory> files{{"a", MemoryView(std::span(bytes).first(1000))}, {"b", View(bytes)}};
  std::vector<int> found;
  bool fitted = false;
  {
    const FileLimit limit(100'000);
    fitted = handle->Write(folder / "fits", MemoryView(std::span(bytes).first(100'000))).has_value();
    for (const std::optional<uint64_t> offset : {std::optional<uint64_t>(), std::optional<uint64_t>(99'000)}) {
      const auto view = MemoryView(std::span(bytes).first(offset ? 2'000 : 100'001));
      found.push_back(handle->Write(folder / "file", view, {.offset = offset}).error().error_number());
    }
    found.push_back(handle->Write(folder / "atomic", View(bytes), {.atomic = true}).error().error_number());
    found.push_back(handle->SaveMany(folder / ".", files).error().error_number());
  }
  EXPECT_TRUE(fitted);
  EXPECT_EQ(found, std::vector<int>(4, EFBIG));
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  EXPECT_FALSE(std::filesystem::exists(folder / "atomic"));
}

TEST(ManyTest, ACallbackMayNotCallSaveMany) {
  const Folder folder;
  const auto handle = Make();
  Many saved(2);
  Bytes bytes = RandomBytes(100);
  int error_number = 0;
  const auto operation = handle->StartWrite(folder / "file", View(bytes)).value();
  std::atomic<bool> done = false;
  operation->OnDone([&] {
    const Operation::CallbackScope scope;
    error_number = handle->SaveMany(folder / ".", saved.files).error().error_number();
    done = true;
  });
  operation->Wait();
  while (!done) std::this_thread::yield();
  EXPECT_EQ(error_number, EDEADLK);
}

class VerifyTest : public testing::Test {
 protected:
  void SetUp() override {
    WriteFile(folder_ / "probe", RandomBytes(10));
    if (setxattr((folder_ / "probe").c_str(), "user.probe", "1", 1, 0) != 0) GTEST_SKIP() << "no user attributes here";
    std::filesystem::remove(folder_ / "probe");
  }
  int Verify(const std::string& name, size_t size, uint64_t offset = 0) {
    Bytes target(size);
    const auto done = handle_->Read(folder_ / name, View(target), {.offset = offset, .verify = true});
    return done.has_value() ? 0 : done.error().error_number();
  }

  Folder folder_;
  std::unique_ptr<Handle> handle_ = Make({.intra_op_parallelism = 2});
};

TEST(ManyTotalTest, ATotalBeyondTheLargestFileIsRefused) {
  const Folder folder;
  const auto handle = std::move(Handle::Create({}).value());
  std::byte one{};
  const MemoryView huge =
      MemoryView::Strided(&one, 1, std::vector<int64_t>{int64_t{1} << 62}, std::vector<int64_t>{0}).value();
  const std::vector<NamedMemory> files{{"a", huge}, {"b", huge}, {"c", huge}, {"d", huge}};
  for (const size_t count : {size_t{2}, size_t{4}}) {  // 2^63 bytes, and 2^64, which would wrap to 0
    const auto saved = handle->SaveMany(folder / ".", std::span(files).first(count));
    ASSERT_FALSE(saved.has_value());
    EXPECT_EQ(saved.error().error_number(), EINVAL);
    EXPECT_NE(saved.error().what.find("more than 2^63 - 1 bytes together"), std::string::npos) << saved.error().what;
  }
  EXPECT_EQ(folder.entries(), 0U);
}

TEST_F(VerifyTest, FilesWrittenWithChecksumsAreVerified) {
  for (const bool atomic : {false, true}) {
    Bytes bytes = RandomBytes(3'500'000, 2);
    const WriteOptions options{.durable = true, .atomic = atomic, .checksum = true};
    WriteFile(folder_ / "file", RandomBytes(5'000'000));
    ASSERT_TRUE(handle_->Write(folder_ / "file", View(bytes), options).has_value());
    EXPECT_EQ(Verify("file", bytes.size()), 0);
    // Only whole files can be verified.
    EXPECT_EQ(Verify("file", 1000), EINVAL);
    EXPECT_EQ(Verify("file", bytes.size() - 10, 10), EINVAL);

    // A hidden change: the modification time is restored.
    struct stat before {};
    ASSERT_EQ(stat((folder_ / "file").c_str(), &before), 0);
    const int descriptor = open((folder_ / "file").c_str(), O_RDWR);
    const char flipped = static_cast<char>(static_cast<char>(bytes[2'500'000]) ^ 1);
    ASSERT_EQ(pwrite(descriptor, &flipped, 1, 2'500'000), 1);
    const timespec times[] = {before.st_atim, before.st_mtim};
    ASSERT_EQ(futimens(descriptor, times), 0);
    Bytes target(bytes.size());
    const auto damaged = handle_->Read(folder_ / "file", View(target), {.verify = true});
    ASSERT_FALSE(damaged.has_value());
    EXPECT_EQ(damaged.error().error_number(), EIO);
    EXPECT_EQ(damaged.error().offset, 2U << 20);
    EXPECT_NE(damaged.error().what.find("the 1048576 bytes from offset 2097152 on are not what was written"),
              std::string::npos)
        << damaged.error().what;
    // A visible change: the checksums belong to the old content.
    ASSERT_EQ(pwrite(descriptor, &flipped, 1, 0), 1);
    close(descriptor);
    EXPECT_EQ(Verify("file", bytes.size()), ENODATA);
  }
  EXPECT_EQ(folder_.entries(), 1U);
}

TEST_F(VerifyTest, WithoutChecksumsThereIsNothingToVerify) {
  Bytes bytes = RandomBytes(100'000, 2);
  ASSERT_TRUE(handle_->Write(folder_ / "file", View(bytes)).has_value());
  EXPECT_EQ(Verify("file", bytes.size()), ENODATA);
  EXPECT_EQ(handle_->Write(folder_ / "file", View(bytes), {.offset = 0, .checksum = true}).error().error_number(),
            EINVAL);
  ASSERT_TRUE(handle_->Write(folder_ / "file", View(bytes), {.checksum = true}).has_value());
  EXPECT_EQ(Verify("file", bytes.size()), 0);
  ASSERT_EQ(setxattr((folder_ / "file").c_str(), ChecksumAttribute::kName, "nonsense", 8, 0), 0);
  EXPECT_EQ(Verify("file", bytes.size()), ENODATA);
  Bytes nothing;
  ASSERT_TRUE(handle_->Write(folder_ / "empty", View(nothing), {.checksum = true}).has_value());
  EXPECT_EQ(Verify("empty", 0), 0);
}

// The example of docs/FORMAT.md.
TEST_F(VerifyTest, TheAttributeHasTheDocumentedFormat) {
  const std::string path = folder_ / "file";
  const std::string text = "123456789";
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  const std::vector<unsigned char> example = {1, 0,    0,    0,    0x14, 0,    0,    0,    9,    0,    0,    0,
                                              0, 0,    0,    0,    0,    0xca, 0x9a, 0x3b, 0,    0,    0,    0,
                                              0, 0x65, 0xcd, 0x1d, 0,    0,    0,    0,    0x83, 0x92, 0x06, 0xe3};
  const timespec times[] = {{1'000'000'000, 500'000'000}, {1'000'000'000, 500'000'000}};
  WriteFile(path, bytes);
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  ASSERT_EQ(setxattr(path.c_str(), ChecksumAttribute::kName, example.data(), example.size(), 0), 0);
  EXPECT_EQ(Verify("file", bytes.size()), 0);

  // The written attribute differs only in the time.
  ASSERT_TRUE(handle_->Write(path, View(bytes), {.checksum = true}).has_value());
  std::vector<unsigned char> written(100);
  written.resize(static_cast<size_t>(getxattr(path.c_str(), ChecksumAttribute::kName, written.data(), 100)));
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  auto expected = example;
  for (size_t i = 0; i < 8; ++i) {
    expected[16 + i] = static_cast<unsigned char>(static_cast<uint64_t>(status.st_mtim.tv_sec) >> (8 * i));
    expected[24 + i] = static_cast<unsigned char>(static_cast<uint64_t>(status.st_mtim.tv_nsec) >> (8 * i));
  }
  EXPECT_EQ(written, expected);

  written[0] = 2;
  ASSERT_EQ(setxattr(path.c_str(), ChecksumAttribute::kName, written.data(), written.size(), 0), 0);
  const auto unknown = handle_->Read(path, View(bytes), {.verify = true});
  EXPECT_EQ(unknown.error().error_number(), ENODATA);
  EXPECT_NE(unknown.error().what.find("is of version 2, which this library does not know"), std::string::npos)
      << unknown.error().what;
}

TEST_F(VerifyTest, StridedTensorsAndManyFilesHaveChecksumsToo) {
  Bytes matrix = RandomBytes(700 * 900 * 4, 11);
  const std::vector<int64_t> shape{900, 700};
  const std::vector<int64_t> strides{4, 900 * 4};
  const auto transposed = MemoryView::Strided(matrix.data(), 4, shape, strides).value();
  ASSERT_TRUE(handle_->Write(folder_ / "file", transposed, {.checksum = true}).has_value());
  EXPECT_EQ(Verify("file", matrix.size()), 0);

  Many saved(10);
  ASSERT_TRUE(handle_->SaveMany(folder_ / ".", saved.files, {.checksum = true}).has_value());
  EXPECT_TRUE(handle_->LoadMany(folder_ / ".", saved.files, {.verify = true}).value().empty());
  ASSERT_EQ(removexattr((folder_ / "tensor.4").c_str(), ChecksumAttribute::kName), 0);
  const auto errors = handle_->LoadMany(folder_ / ".", saved.files, {.verify = true}).value();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].name, "tensor.4");
  EXPECT_EQ(errors[0].error.error_number(), ENODATA);
}

}  // namespace
}  // namespace weightfs::client
