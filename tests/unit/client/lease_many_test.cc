// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <set>

#include "client/handle.h"
#include "client/lease/leased_folder.h"
#include "common/units.h"
#include "tests/support/kernel_hooks.h"
#include "tests/unit/client/fake_lease_mount.h"

namespace weightfs::client {
namespace {

using lease::Kind;

class LeaseManyTest : public KernelHooksTest {
 protected:
  static std::unique_ptr<Handle> Make(HandleOptions options = {}) {
    options.direct = Direct::kRequire;
    return std::move(Handle::Create(options).value());
  }

  void Fill(size_t count, size_t step) {
    contents_.clear();
    for (size_t i = 0; i < count; ++i) contents_.push_back(RandomBytes(i * step % 150'000, static_cast<unsigned>(i)));
  }
  std::vector<NamedMemory> Files(std::vector<Bytes>& contents) {
    std::vector<NamedMemory> files;
    for (size_t i = 0; i < contents.size(); ++i) {
      files.push_back({fmt::format("tensor.{}", i), MemoryView(std::span<std::byte>(contents[i]))});
    }
    return files;
  }

  FakeLeaseMount mount_;
  std::vector<Bytes> contents_;
};

TEST_F(LeaseManyTest, MemoryThatChangesDuringASaveReadsBack) {
  contents_.assign(3, Bytes(1'300'000, std::byte{1}));
  const auto fill = [&](std::byte value) {
    for (auto& content : contents_) std::fill(content.begin(), content.end(), value);
  };
  OnSubmit([&](Controls controls) -> long {
    fill(std::byte{2});
    return static_cast<long>(controls.size());
  });
  OnEvent([&](KernelEvent&) { fill(std::byte{1}); });
  const auto handle = Make({.block_size = 65536});
  const auto saved = handle->SaveMany(mount_.folder(), Files(contents_));
  ASSERT_TRUE(saved.has_value()) << saved.error().what;
  for (size_t i = 0; i < contents_.size(); ++i) {
    const Bytes bytes = ReadFile(mount_ / fmt::format("tensor.{}", i));
    ASSERT_EQ(bytes.size(), contents_[i].size());
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(),
                            [](std::byte byte) { return byte == std::byte{1} || byte == std::byte{2}; }));
  }
}

TEST_F(LeaseManyTest, OneLeaseAndOneCommitSaveAllFiles) {
  for (const uint64_t extent : {uint64_t{1'000'000}, uint64_t{13}}) {
    mount_.extent_blocks = extent;
    const auto handle = Make({.intra_op_parallelism = 2});
    Fill(200, 7919);
    size_t transfers = 0;
    OnSubmit([&](Controls controls) -> long {
      transfers += controls.size();
      return static_cast<long>(controls.size());
    });
    const size_t before = mount_.requests(Kind::kCommitMany);
    ASSERT_TRUE(handle->SaveMany(mount_.folder(), Files(contents_), {.mode = 0640}).has_value());
    EXPECT_EQ(mount_.requests(Kind::kCommitMany), before + 1);
    EXPECT_EQ(mount_.entries(), contents_.size());
    // Small adjacent files are transferred together.
    if (extent > 13) {
      EXPECT_LT(transfers, 20U);
    }
    for (size_t i = 0; i < contents_.size(); ++i) {
      ASSERT_EQ(ReadFile(mount_ / fmt::format("tensor.{}", i)), contents_[i]) << i;
    }
    std::vector<Bytes> loaded;
    for (const auto& content : contents_) loaded.emplace_back(content.size());
    transfers = 0;
    ASSERT_TRUE(handle->LoadMany(mount_.folder(), Files(loaded)).value().empty());
    EXPECT_EQ(loaded, contents_);
    EXPECT_EQ(handle->direct_operations(), 2U);
    EXPECT_EQ(handle->Wait().count, 0U);
  }
  EXPECT_EQ(std::filesystem::status(mount_ / "tensor.7").permissions(), std::filesystem::perms(0640));
  mount_.WaitForNoLease();
}

TEST_F(LeaseManyTest, TheCommitIsDurableUnlessTheCallerDeclinesIt) {
  const auto handle = Make();
  Fill(2, 7919);
  ASSERT_TRUE(handle->SaveMany(mount_.folder(), Files(contents_)).has_value());
  EXPECT_TRUE(mount_.durable);
  ASSERT_TRUE(handle->SaveMany(mount_.folder(), Files(contents_), {.durable = false}).has_value());
  EXPECT_FALSE(mount_.durable);
}

TEST_F(LeaseManyTest, EmptyFilesAreSavedAndLoaded) {
  const auto handle = Make();
  contents_.resize(3);
  ASSERT_TRUE(handle->SaveMany(mount_.folder(), Files(contents_)).has_value());
  EXPECT_EQ(mount_.entries(), 3U);
  EXPECT_TRUE(handle->LoadMany(mount_.folder(), Files(contents_)).value().empty());
  mount_.WaitForNoLease();
}

TEST_F(LeaseManyTest, ManyNamesAreLoadedInBatches) {
  const auto handle = Make();
  contents_.assign(5000, RandomBytes(100, 3));
  ASSERT_TRUE(handle->SaveMany(mount_.folder(), Files(contents_)).has_value());
  std::vector<Bytes> loaded(5000, Bytes(100));
  uint64_t reported = 0;
  const LoadManyOptions options{.progress = [&](uint64_t done, uint64_t total) {
    reported = done;
    EXPECT_EQ(total, 500'000U);
  }};
  ASSERT_TRUE(handle->LoadMany(mount_.folder(), Files(loaded), options).value().empty());
  EXPECT_EQ(loaded, contents_);
  EXPECT_EQ(mount_.requests(Kind::kReadMany), 2U);
  EXPECT_EQ(reported, 500'000U);
}

TEST_F(LeaseManyTest, DamagedMissingAndOtherFilesAreNamedAndTheRestIsLoaded) {
  mount_.extent_blocks = 11;
  Fill(40, 7919);
  const auto handle = Make({.block_size = 262144});
  ASSERT_TRUE(handle->SaveMany(mount_.folder(), Files(contents_)).has_value());
  std::filesystem::remove(mount_ / "tensor.3");
  std::filesystem::resize_file(mount_ / "tensor.5", 10);
  std::filesystem::resize_file(mount_ / "tensor.6", 200'000);
  // This block of one of the files, and another one.
  std::vector<uint64_t> offsets;
  mount_.on_laid_out = [&](const std::vector<lease::Extent>& extents) {
    if (extents.size() < 3) return;
    if (offsets.size() < 2) offsets.push_back((extents[1].device_block + 2) * kBlockSize + 7);
    const UniqueFd device(open(mount_.device().c_str(), O_RDWR));
    for (const uint64_t offset : offsets) {
      const char value = 17;
      if (pwrite(device.get(), &value, 1, static_cast<off_t>(offset)) != 1) std::abort();
    }
    if (fdatasync(device.get()) != 0) std::abort();
  };
  std::vector<Bytes> loaded;
  for (const auto& content : contents_) loaded.emplace_back(content.size());
  const auto errors = handle->LoadMany(mount_.folder(), Files(loaded)).value();
  std::multiset<int> numbers;
  std::set<std::string> names;
  for (const auto& [name, error] : errors) {
    numbers.insert(error.error_number());
    names.insert(name);
    if (error.error_number() == EIO) {
      EXPECT_EQ(error.offset, 13U * kBlockSize);
      EXPECT_EQ(error.path, mount_.folder() + "/" + name);
    }
  }
  EXPECT_EQ(numbers, (std::multiset<int>{ENOENT, EIO, EIO, EINVAL, ENODATA}));
  for (size_t i = 0; i < contents_.size(); ++i) {
    if (!names.contains(fmt::format("tensor.{}", i))) {
      EXPECT_EQ(loaded[i], contents_[i]) << i;
    }
  }
  mount_.WaitForNoLease();
}

TEST_F(LeaseManyTest, ALoadThatOutlivesItsMountReportsNoDamage) {
  Fill(20, 7919);
  const auto handle = Make();
  ASSERT_TRUE(handle->SaveMany(mount_.folder(), Files(contents_)).has_value());
  bool stopped = false;
  OnEvent([&](KernelEvent& event) {
    if (!std::exchange(stopped, true)) mount_.Stop();
    reinterpret_cast<std::byte*>(event.control->buffer)[99] ^= std::byte{1};
  });
  std::vector<Bytes> loaded;
  for (const auto& content : contents_) loaded.emplace_back(content.size());
  const auto errors = handle->LoadMany(mount_.folder(), Files(loaded));
  OnEvent(nullptr);
  ASSERT_FALSE(errors.has_value());
  EXPECT_EQ(errors.error().error_number(), EPIPE) << errors.error().what;
}

TEST_F(LeaseManyTest, AFailedSaveLeavesNothing) {
  Fill(20, 7919);
  const auto handle = Make();
  OnEvent([](KernelEvent& event) { event.result = -EIO; });
  EXPECT_EQ(handle->SaveMany(mount_.folder(), Files(contents_)).error().error_number(), EIO);
  OnEvent(nullptr);
  EXPECT_EQ(mount_.requests(Kind::kCommitMany), 0U);
  // The mount receives other bytes than were written; the error names the file.
  OnSubmit([](Controls controls) -> long {
    reinterpret_cast<std::byte*>(controls[0]->buffer)[5 * kBlockSize] ^= std::byte{1};
    return static_cast<long>(controls.size());
  });
  const auto refused = handle->SaveMany(mount_.folder(), Files(contents_));
  OnSubmit(nullptr);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().error_number(), EILSEQ);
  EXPECT_EQ(refused.error().path, mount_.folder() + "/tensor.2");
  EXPECT_NE(refused.error().what.find("the mount did not commit tensor.2, and so none of the files: the fake refuses"),
            std::string::npos)
      << refused.error().what;
  mount_.WaitForNoLease();
}

TEST_F(LeaseManyTest, ASaveLargerThanOneCommitIsRefusedBeforeAnythingIsReserved) {
  contents_.resize(lease::kMaximumFiles + 1);
  for (const Direct direct : {Direct::kAuto, Direct::kRequire}) {
    const auto handle = std::move(Handle::Create({.direct = direct}).value());
    const auto refused = handle->SaveMany(mount_.folder(), Files(contents_));
    EXPECT_EQ(refused.error().error_number(), EINVAL);
    EXPECT_EQ(refused.error().what, mount_.folder() +
                                        ": 131073 files: one commit takes 131072 at most; save them in "
                                        "several calls");
    // So large that its checksums exceed a message. Its bytes are never accessed.
    Bytes some(1);
    const NamedMemory huge{"huge", MemoryView(std::span<std::byte>(some.data(), size_t{2} << 40))};
    const auto larger = handle->SaveMany(mount_.folder(), std::span(&huge, 1));
    EXPECT_EQ(larger.error().error_number(), EINVAL);
    EXPECT_NE(larger.error().what.find("one commit takes 1073741824 at most"), std::string::npos)
        << larger.error().what;
  }
  EXPECT_EQ(mount_.requests(Kind::kReserve), 0U);
  EXPECT_EQ(mount_.entries(), 0U);
}

TEST_F(LeaseManyTest, FilesWithoutALeaseAreLoadedThroughTheKernel) {
  Fill(20, 7919);
  ASSERT_TRUE(Make()->SaveMany(mount_.folder(), Files(contents_)).has_value());
  std::vector<Bytes> loaded;
  for (const auto& content : contents_) loaded.emplace_back(content.size());
  for (const int why : {EINVAL, EAGAIN, EFBIG, ESTALE, EACCES}) {
    mount_.file_errors = {{"tensor.3", why}, {"tensor.11", why}, {"tensor.19", why}};
    for (auto& content : loaded) std::fill(content.begin(), content.end(), std::byte{0});
    const auto handle = std::move(Handle::Create({}).value());
    EXPECT_TRUE(handle->LoadMany(mount_.folder(), Files(loaded)).value().empty());
    EXPECT_EQ(loaded, contents_);
    EXPECT_EQ(handle->direct_operations(), 1U);
    const auto errors = Make()->LoadMany(mount_.folder(), Files(loaded)).value();
    ASSERT_EQ(errors.size(), 3U);
    EXPECT_EQ(errors[1].name, "tensor.11");
    EXPECT_EQ(errors[1].error.error_number(), why);
  }
  std::filesystem::remove(mount_ / "tensor.3");
  const auto errors = std::move(Handle::Create({}).value())->LoadMany(mount_.folder(), Files(loaded)).value();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].error.error_number(), ENOENT);
}

TEST_F(LeaseManyTest, TheFileSizeLimitOfTheProcessAppliesToADeviceThatIsAFile) {
  contents_.assign(3, RandomBytes(4096));
  Bytes one = RandomBytes(8192);
  std::vector<int> found;
  bool saved = false;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{.rlim_cur = 8192, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  found.push_back(Make()->SaveMany(mount_.folder(), Files(contents_)).error().error_number());
  found.push_back(Make()->Write(mount_ / "one", MemoryView(std::span<std::byte>(one))).error().error_number());
  saved = std::move(Handle::Create({}).value())->SaveMany(mount_.folder(), Files(contents_)).has_value();
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(found, (std::vector<int>{EFBIG, EFBIG}));
  EXPECT_TRUE(saved);
  EXPECT_EQ(ReadFile(mount_ / "tensor.2"), contents_[2]);
  EXPECT_EQ(mount_.requests(Kind::kCommitMany), 0U);
  mount_.WaitForNoLease();
}

TEST_F(LeaseManyTest, ABatchThatFailsIsLoadedOneByOneUnlessALeaseIsRequired) {
  Fill(20, 7919);
  ASSERT_TRUE(Make()->SaveMany(mount_.folder(), Files(contents_)).has_value());
  std::vector<Bytes> loaded;
  for (const auto& content : contents_) loaded.emplace_back(content.size());
  OnEvent([](KernelEvent& event) { event.result = -EIO; });
  EXPECT_EQ(Make()->LoadMany(mount_.folder(), Files(loaded)).error().error_number(), EIO);
  int left = 1;
  OnEvent([&](KernelEvent& event) {
    if (left-- > 0) event.result = -EIO;
  });
  const auto handle = std::move(Handle::Create({}).value());
  EXPECT_TRUE(handle->LoadMany(mount_.folder(), Files(loaded)).value().empty());
  EXPECT_EQ(loaded, contents_);
  mount_.ticket_error = EOPNOTSUPP;
  EXPECT_TRUE(handle->LoadMany(mount_.folder(), Files(loaded)).value().empty());
  EXPECT_TRUE(handle->SaveMany(mount_.folder(), Files(loaded)).has_value());
  EXPECT_EQ(handle->direct_operations(), 1U);
  mount_.WaitForNoLease();
}

}  // namespace
}  // namespace weightfs::client
