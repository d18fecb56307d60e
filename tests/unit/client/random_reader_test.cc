// SPDX-License-Identifier: Apache-2.0
#include "client/random_reader.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <numeric>
#include <random>
#include <thread>

#include "client/lease/lease_windows.h"
#include "common/units.h"
#include "tests/support/aligned_memory.h"
#include "tests/support/kernel_hooks.h"
#include "tests/unit/client/fake_lease_mount.h"
#include "tests/unit/client/operations.h"

namespace weightfs::client {
namespace {

using lease::Kind;

constexpr uint64_t kSmallMemory = 4096;  // bytes of checksums: of 4 MiB, in windows of 128 KiB
constexpr uint64_t kSmallWindow = kSmallMemory / 4 / LeaseWindows::kMost * kBlockSize;

class RandomReaderTest : public KernelHooksTest {
 protected:
  std::unique_ptr<RandomReader> Open(const FileName& file, RandomReaderOptions options = {}) {
    options.direct = options.direct == Direct::kAuto ? Direct::kRequire : options.direct;
    auto made = RandomReader::Open(file, options);
    EXPECT_TRUE(made.has_value()) << (made.has_value() ? "" : made.error().what);
    return std::move(*made);
  }
  // Content with blocks of zeros, which are holes on the fake mount.
  static Bytes Sparse(size_t size) {
    Bytes bytes = RandomBytes(size, 5);
    for (size_t at = 3 * kBlockSize; at + 9 * kBlockSize < size; at += 40 * kBlockSize) {
      std::fill_n(bytes.begin() + static_cast<long>(at), 7 * kBlockSize, std::byte{0});
    }
    return bytes;
  }
  static std::vector<uint64_t> RandomOffsets(size_t count, uint64_t end, uint64_t unit = 1) {
    static std::mt19937_64 generator(17);
    std::vector<uint64_t> offsets(count);
    for (uint64_t& offset : offsets) offset = generator() % (end / unit + 1) * unit;
    return offsets;
  }
  static bool Matches(const Bytes& content, std::span<const uint64_t> offsets, size_t length, const std::byte* memory) {
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (std::memcmp(memory + i * length, content.data() + offsets[i], length) != 0) return false;
    }
    return true;
  }
  static Error ErrorOf(RandomReader& reader, uint64_t offset, size_t size) {
    Bytes bytes(size);
    const auto read = reader.Read(offset, View(bytes));
    return read.has_value() ? Error{} : read.error();
  }
  static Bytes ReadAt(RandomReader& reader, uint64_t offset, size_t size) {
    Bytes bytes(size);
    const auto read = reader.Read(offset, View(bytes));
    EXPECT_TRUE(read.has_value()) << read.error().what;
    return bytes;
  }
  void CheckRows(RandomReader& reader, const Bytes& content, bool briefly = false);

  FakeLeaseMount mount_;
};

// Rows of many lengths, inside of blocks and across them, over holes, into memory of every alignment. `briefly`: the
// fake mount's device has space for few leases.
void RandomReaderTest::CheckRows(RandomReader& reader, const Bytes& content, bool briefly) {
  AlignedMemory memory(8 << 20);
  const std::vector<size_t> lengths{1, 4095, 12'288, 9'001, 100, 4096, 300'000};
  const std::vector<size_t> misalignments{0, 64, 1};
  for (const size_t length : std::span(lengths).subspan(briefly ? 4 : 0)) {
    for (const uint64_t unit : {uint64_t{1}, kBlockSize}) {
      for (const size_t misalignment : std::span(misalignments).first(briefly ? 1 : 3)) {
        for (const bool starts : {false, true}) {
          SCOPED_TRACE(fmt::format("length {} unit {} memory +{}, starts: {}", length, unit, misalignment, starts));
          const size_t count = std::min<size_t>(200, (7 << 20) / length);
          auto offsets = RandomOffsets(count, content.size() - length, unit);
          offsets[count / 2] = offsets[0];               // twice
          offsets[count - 1] = content.size() - length;  // the last bytes of the file
          std::memset(memory.data(), 0x5a, memory.size());
          std::byte* const into = memory.data() + misalignment;
          const MemoryView view(std::span(into, count * length));
          if (starts) {
            const auto operation = reader.StartRows(offsets, length, view);
            ASSERT_TRUE(operation.has_value()) << operation.error().what;
            (*operation)->Wait();
            ASSERT_FALSE((*operation)->error()) << (*operation)->error()->what;
          } else {
            const auto read = reader.ReadRows(offsets, length, view);
            ASSERT_TRUE(read.has_value()) << read.error().what;
          }
          ASSERT_TRUE(Matches(content, offsets, length, into));
          ASSERT_EQ(into[count * length], std::byte{0x5a});
          if (misalignment > 0) {
            ASSERT_EQ(into[-1], std::byte{0x5a});
          }
        }
      }
    }
  }
}

TEST_F(RandomReaderTest, RowsAreReadToTheLastByteAndNoFurther) {
  const Bytes content = Sparse(5'000'123);
  WriteFile(mount_ / "file", content);
  mount_.extent_blocks = 37;
  const auto reader = Open(mount_ / "file");
  EXPECT_TRUE(reader->leased());
  EXPECT_EQ(reader->file_size(), content.size());
  CheckRows(*reader, content);
  EXPECT_EQ(mount_.requests(Kind::kRead), 1U);
  EXPECT_EQ(mount_.leases(), 1U);
}

TEST_F(RandomReaderTest, RowsOfWindowsAreReadWithinTheLimitOfLeases) {
  const Bytes content = Sparse(6'000'123);
  WriteFile(mount_ / "file", content);
  std::atomic<size_t> most{0};
  mount_.on_request = [&](Kind) {
    most = std::max<size_t>(most, mount_.leases());
    return 0;
  };
  const auto reader = Open(mount_ / "file", {.memory = kSmallMemory});
  EXPECT_EQ(mount_.leases(), 1U);
  CheckRows(*reader, content, true);
  EXPECT_EQ(mount_.leases(), LeaseWindows::kMost);
  EXPECT_LE(most, LeaseWindows::kMost);
}

TEST_F(RandomReaderTest, RowsAreReadFromOrdinaryFiles) {
  const Bytes content = Sparse(5'000'123);
  const Folder folder;
  WriteFile(folder / "file", content);
  EXPECT_EQ(RandomReader::Open(folder / "file", {.direct = Direct::kRequire}).error().error_number(), ENOTTY);
  const auto reader = RandomReader::Open(folder / "file").value();
  EXPECT_FALSE(reader->leased());
  EXPECT_NE(reader->no_lease()->what.find("weightfs mount"), std::string::npos);
  CheckRows(*reader, content);
  // The file changes like any other.
  const Bytes more = RandomBytes(6'000'000, 8);
  WriteFile(folder / "file", more);
  EXPECT_TRUE(std::ranges::equal(ReadAt(*reader, 5'900'000, 100'000), std::span(more).subspan(5'900'000)));
  WriteFile(folder / "file", std::span(more).first(10'000));
  EXPECT_EQ(ErrorOf(*reader, 8'192, 4'096).error_number(), ENODATA);
  EXPECT_EQ(ErrorOf(*reader, 9'000, 1'000).error_number(), 0);
}

TEST_F(RandomReaderTest, WithoutALeaseTheFileOfTheMountIsRead) {
  const Bytes content = RandomBytes(1'000'000);
  WriteFile(mount_ / "file", content);
  for (const Direct direct : {Direct::kAuto, Direct::kNever}) {
    mount_.ticket_error = direct == Direct::kAuto ? EPERM : 0;
    const auto reader = RandomReader::Open(mount_ / "file", {.direct = direct}).value();
    EXPECT_FALSE(reader->leased());
    EXPECT_EQ(reader->no_lease().has_value(), direct == Direct::kAuto);
    CheckRows(*reader, content);
  }
  mount_.ticket_error = EPERM;
  const auto refused = RandomReader::Open(mount_ / "file", {.direct = Direct::kRequire});
  EXPECT_EQ(refused.error().error_number(), EPERM);
  EXPECT_EQ(refused.error().path, mount_ / "file");
  EXPECT_EQ(mount_.requests(Kind::kRead), 0U);
}

TEST_F(RandomReaderTest, ARowBehindTheEndIsAnErrorAndNothingIsRead) {
  WriteFile(mount_ / "file", RandomBytes(10'000));
  const auto reader = Open(mount_ / "file");
  Bytes bytes(8'192, std::byte{7});
  const std::vector<uint64_t> offsets{0, 6'000};
  const auto read = reader->ReadRows(offsets, 4'096, View(bytes));
  EXPECT_EQ(read.error().error_number(), ENODATA);
  EXPECT_EQ(read.error().offset, 6'000U);
  EXPECT_NE(read.error().what.find("only 4000 bytes there"), std::string::npos) << read.error().what;
  EXPECT_EQ(bytes, Bytes(8'192, std::byte{7}));
  EXPECT_EQ(ErrorOf(*reader, UINT64_MAX - 3, 4).error_number(), ENODATA);
  EXPECT_EQ(ErrorOf(*reader, 10'000, 0).error_number(), 0);
  EXPECT_EQ(ReadAt(*reader, 9'999, 1).size(), 1U);
}

TEST_F(RandomReaderTest, ImpossibleMemoryIsRefused) {
  WriteFile(mount_ / "file", RandomBytes(100'000));
  const auto reader = Open(mount_ / "file");
  Bytes bytes(8'192);
  const std::vector<uint64_t> offsets{0, 1};
  EXPECT_EQ(reader->ReadRows(offsets, 4'000, View(bytes)).error().error_number(), EINVAL);
  EXPECT_EQ(reader->ReadRows(offsets, UINT64_MAX / 2 + 1, View(bytes)).error().error_number(), EINVAL);
  EXPECT_TRUE(reader->ReadRows({}, 4'000, MemoryView()).has_value());
  EXPECT_TRUE(reader->ReadRows(offsets, 0, MemoryView()).has_value());
  EXPECT_EQ(RandomReader::Open(mount_ / "file", {.queue_depth = 0}).error().error_number(), EINVAL);
  EXPECT_EQ(RandomReader::Open(mount_ / "none").error().error_number(), ENOENT);
  // Elements of a row with gaps between them.
  const std::vector<int64_t> shape{2, 100}, strides{4'096, 2};
  const auto gaps = MemoryView::Strided(bytes.data(), 1, shape, strides).value();
  EXPECT_EQ(reader->ReadRows(offsets, 100, gaps).error().error_number(), EINVAL);
  // Gaps between the rows.
  const std::vector<int64_t> apart{4'096, 1};
  const auto rows = MemoryView::Strided(bytes.data(), 1, shape, apart).value();
  ASSERT_TRUE(reader->ReadRows(offsets, 100, rows).has_value());
  EXPECT_EQ(std::memcmp(bytes.data() + 4'096, RandomBytes(100'000).data() + 1, 100), 0);
}

TEST_F(RandomReaderTest, ManyRowsAreReadInPartsThatCanBeInterrupted) {
  const Bytes content = Sparse(6'000'123);
  WriteFile(mount_ / "file", content);
  const auto offsets = RandomOffsets(200'000, content.size() - 8);
  for (const uint64_t memory : {uint64_t{1} << 20, kSmallMemory}) {
    const auto reader = Open(mount_ / "file", {.memory = memory});
    Bytes bytes(8 * offsets.size());
    size_t asked = 0;
    ASSERT_TRUE(reader->ReadRows(offsets, 8, View(bytes), [&] { return ++asked == 0; }).has_value());
    EXPECT_TRUE(Matches(content, offsets, 8, bytes.data()));
    EXPECT_GE(asked, 4U) << "once for each part";
    EXPECT_EQ(reader->ReadRows(offsets, 8, View(bytes), [] { return true; }).error().error_number(), ECANCELED);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    const auto started = reader->StartRows(offsets, 8, View(bytes)).value();
    EXPECT_TRUE(started->Wait());
    EXPECT_FALSE(started->error()) << started->error()->what;
    EXPECT_EQ(started->transferred(), bytes.size());
    EXPECT_TRUE(Matches(content, offsets, 8, bytes.data()));
    const auto canceled = reader->StartRows(offsets, 8, View(bytes)).value();
    EXPECT_TRUE(canceled->Cancel());
    EXPECT_TRUE(canceled->Wait());
    EXPECT_TRUE(canceled->cancelled());
  }
}

TEST_F(RandomReaderTest, ChangesOfOthersAreSeenAfterARefresh) {
  const Bytes old = RandomBytes(300'000, 1), other = RandomBytes(400'000, 2);
  WriteFile(mount_ / "file", old);
  const auto reader = Open(mount_ / "file");
  const auto is = [&](const Bytes& content) {
    return reader->file_size() == content.size() &&
           ReadAt(*reader, 12'345, 200'000) == Bytes(content.begin() + 12'345, content.begin() + 212'345);
  };
  WriteFile(mount_ / "file", other);  // rewritten
  EXPECT_TRUE(is(old));
  ASSERT_TRUE(reader->Refresh().has_value());
  EXPECT_TRUE(is(other));
  WriteFile(mount_ / "new", old);
  std::filesystem::rename(mount_ / "new", mount_ / "file");  // replaced
  EXPECT_TRUE(is(other));
  ASSERT_TRUE(reader->Refresh().has_value());
  EXPECT_TRUE(is(old));
  std::filesystem::resize_file(mount_ / "file", 10);  // truncated
  EXPECT_TRUE(is(old));
  ASSERT_TRUE(reader->Refresh().has_value());
  EXPECT_EQ(reader->file_size(), 10U);
  EXPECT_EQ(ErrorOf(*reader, 0, 11).error_number(), ENODATA);
  EXPECT_EQ(ReadAt(*reader, 0, 10), Bytes(old.begin(), old.begin() + 10));
  std::filesystem::remove(mount_ / "file");
  EXPECT_EQ(ReadAt(*reader, 0, 10), Bytes(old.begin(), old.begin() + 10));
  EXPECT_EQ(reader->Refresh().error().error_number(), ENOENT);
  EXPECT_EQ(ReadAt(*reader, 0, 10), Bytes(old.begin(), old.begin() + 10));
  mount_.WaitForLeases(1);
  EXPECT_EQ(mount_.leases(), 1U);
}

TEST_F(RandomReaderTest, AReaderCanOpenAnotherFile) {
  const Bytes first = RandomBytes(300'000, 1), second = RandomBytes(70'000, 2);
  WriteFile(mount_ / "first", first);
  WriteFile(mount_ / "second", second);
  const auto reader = Open(mount_ / "first");
  EXPECT_EQ(ReadAt(*reader, 1, 100'000), Bytes(first.begin() + 1, first.begin() + 100'001));
  ASSERT_TRUE(reader->Reopen(mount_ / "second").has_value());
  EXPECT_EQ(reader->file_size(), second.size());
  EXPECT_EQ(ReadAt(*reader, 1, 60'000), Bytes(second.begin() + 1, second.begin() + 60'001));
  EXPECT_EQ(ErrorOf(*reader, 0, 100'000).error_number(), ENODATA);
  EXPECT_EQ(reader->Reopen(mount_ / "none").error().error_number(), ENOENT);
  EXPECT_EQ(ReadAt(*reader, 0, second.size()), second);
  WriteFile(mount_ / "second", first);
  ASSERT_TRUE(reader->Refresh().has_value());  // of the second file
  EXPECT_EQ(ReadAt(*reader, 0, first.size()), first);
  mount_.WaitForLeases(1);
  EXPECT_EQ(mount_.leases(), 1U);
}

TEST_F(RandomReaderTest, AReaderOfADescriptorStaysAtItsFile) {
  const Bytes content = RandomBytes(300'000);
  WriteFile(mount_ / "file", content);
  const int descriptor = open((mount_ / "file").c_str(), O_RDONLY);
  const auto reader = Open(descriptor);
  close(descriptor);
  WriteFile(mount_ / "new", RandomBytes(300'000, 9));
  std::filesystem::rename(mount_ / "new", mount_ / "file");
  EXPECT_EQ(ReadAt(*reader, 0, 300'000), content);
}

TEST_F(RandomReaderTest, AWindowOfAnotherStateIsNeverRead) {
  const Bytes content = RandomBytes(6'000'000);
  WriteFile(mount_ / "file", content);
  const auto reader = Open(mount_ / "file", {.memory = kSmallMemory});
  ASSERT_GT(reader->file_size(), kSmallWindow * LeaseWindows::kMost);
  EXPECT_EQ(ReadAt(*reader, 0, 100), Bytes(content.begin(), content.begin() + 100));
  const Bytes other = RandomBytes(6'000'000, 3);
  WriteFile(mount_ / "file", other);
  EXPECT_EQ(ReadAt(*reader, 0, 100), Bytes(content.begin(), content.begin() + 100));
  const Error stale = ErrorOf(*reader, 5'000'000, 100);
  EXPECT_EQ(stale.error_number(), ESTALE);
  EXPECT_NE(stale.what.find("refresh the reader"), std::string::npos) << stale.what;
  ASSERT_TRUE(reader->Refresh().has_value());
  EXPECT_EQ(ReadAt(*reader, 5'000'000, 100), Bytes(other.begin() + 5'000'000, other.begin() + 5'000'100));
}

TEST_F(RandomReaderTest, ARefusedLeaseOfAWindowIsAnErrorAndTheOthersAreRead) {
  const Bytes content = RandomBytes(6'000'000);
  WriteFile(mount_ / "file", content);
  const auto reader = Open(mount_ / "file", {.memory = kSmallMemory});
  mount_.on_request = [](Kind kind) { return kind == Kind::kRead ? EAGAIN : 0; };
  EXPECT_EQ(ErrorOf(*reader, 5'000'000, 100).error_number(), EAGAIN);
  EXPECT_EQ(ReadAt(*reader, 0, 100), Bytes(content.begin(), content.begin() + 100));
  mount_.on_request = nullptr;
  EXPECT_EQ(ReadAt(*reader, 5'000'000, 100), Bytes(content.begin() + 5'000'000, content.begin() + 5'000'100));
}

TEST_F(RandomReaderTest, ARowOfMoreWindowsThanMayBeLeasedIsRefused) {
  WriteFile(mount_ / "file", RandomBytes(6'000'000));
  const auto reader = Open(mount_ / "file", {.memory = kSmallMemory});
  EXPECT_EQ(ErrorOf(*reader, 0, 6'000'000).error_number(), EINVAL);
  EXPECT_EQ(ErrorOf(*reader, 1'000, 3'000'000).error_number(), 0);
}

TEST_F(RandomReaderTest, DamageIsAnErrorWithTheFileAndTheOffset) {
  const Bytes content = RandomBytes(1'000'000);
  WriteFile(mount_ / "file", content);
  mount_.on_laid_out = [&](const std::vector<lease::Extent>& extents) {
    const UniqueFd device(open(mount_.device().c_str(), O_WRONLY));
    for (const auto& extent : extents) {
      if (extent.file_block > 150 || extent.file_block + extent.count <= 150) continue;
      const std::byte wrong = content[150 * kBlockSize + 7] ^ std::byte{1};
      ASSERT_EQ(pwrite(device.get(), &wrong, 1,
                       static_cast<off_t>((extent.device_block + 150 - extent.file_block) * kBlockSize + 7)),
                1);
    }
    ASSERT_EQ(fdatasync(device.get()), 0);
  };
  const auto reader = Open(mount_ / "file");
  Bytes bytes(3 * 100);
  const std::vector<uint64_t> offsets{5, 150 * kBlockSize + 200, 600'000};
  const auto read = reader->ReadRows(offsets, 100, View(bytes));
  EXPECT_EQ(read.error().error_number(), EIO);
  EXPECT_EQ(read.error().path, mount_ / "file");
  EXPECT_EQ(read.error().offset, 150 * kBlockSize);
  EXPECT_NE(read.error().what.find("is not what was written"), std::string::npos) << read.error().what;
  EXPECT_EQ(ReadAt(*reader, 0, 600'000), Bytes(content.begin(), content.begin() + 600'000));
  const auto operation = reader->StartRows(offsets, 100, View(bytes)).value();
  operation->Wait();
  EXPECT_EQ(operation->error()->error_number(), EIO);
}

TEST_F(RandomReaderTest, AMountThatEndedIsAnError) {
  WriteFile(mount_ / "file", RandomBytes(100'000));
  const auto reader = Open(mount_ / "file");
  mount_.Stop();
  const Error gone = ErrorOf(*reader, 0, 4'096);
  EXPECT_EQ(gone.error_number(), EPIPE);
  EXPECT_EQ(gone.path, mount_ / "file");
  EXPECT_NE(gone.what.find("the mount went away"), std::string::npos) << gone.what;
  EXPECT_FALSE(reader->Refresh().has_value());
}

TEST_F(RandomReaderTest, AForkedChildIsRefused) {
  const Bytes content = RandomBytes(100'000);
  WriteFile(mount_ / "file", content);
  auto reader = Open(mount_ / "file");
  const pid_t child = fork();
  if (child == 0) {
    Bytes bytes(10);
    const uint64_t offset = 0;
    const bool refused = reader->Read(0, View(bytes)).error().error_number() == EPERM &&
                         reader->StartRows(std::span(&offset, 1), 10, View(bytes)).error().error_number() == EPERM &&
                         reader->Refresh().error().error_number() == EPERM &&
                         reader->Reopen(mount_ / "file").error().error_number() == EPERM;
    reader.reset();  // must not end the parent's lease
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  mount_.WaitForLeases(1);
  EXPECT_EQ(mount_.leases(), 1U);
  EXPECT_EQ(ReadAt(*reader, 0, 100'000), content);
}

TEST_F(RandomReaderTest, ManyThreadsReadAndRefreshTogether) {
  const Bytes content = RandomBytes(6'000'000);
  WriteFile(mount_ / "file", content);
  const auto reader = Open(mount_ / "file", {.queue_depth = 8, .memory = kSmallMemory});
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 generator(seed);
      Bytes bytes(40 * 5'000);
      for (int i = 0; i < 5; ++i) {
        std::vector<uint64_t> offsets(40);
        for (uint64_t& offset : offsets) offset = generator() % (content.size() - 5'000);
        const auto read = reader->ReadRows(offsets, 5'000, View(bytes));
        ASSERT_TRUE(read.has_value()) << read.error().what;
        ASSERT_TRUE(Matches(content, offsets, 5'000, bytes.data()));
      }
    });
  }
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(reader->Refresh().has_value());
  for (auto& thread : threads) thread.join();
}

TEST_F(RandomReaderTest, TheEndOfAReaderEndsItsLeasesAndOperations) {
  WriteFile(mount_ / "file", RandomBytes(1'000'000));
  for (const auto& [rows, length] : {std::pair(100, 10'000), std::pair(200'000, 8), std::pair(0, 8)}) {
    Bytes bytes(static_cast<size_t>(rows) * length);
    std::vector<uint64_t> offsets(rows);
    std::iota(offsets.begin(), offsets.end(), 0);
    std::shared_ptr<Operation> operation;
    {
      const auto reader = Open(mount_ / "file");
      operation = reader->StartRows(offsets, length, View(bytes)).value();
    }
    EXPECT_TRUE(operation->done());
    mount_.WaitForNoLease();  // although the operation is kept
  }
}

TEST_F(RandomReaderTest, TheEndOfAReaderEndsItsReadsOfManyParts) {
  WriteFile(mount_ / "file", RandomBytes(6'000'123));
  const auto offsets = RandomOffsets(200'000, 6'000'000);
  Bytes bytes(8 * offsets.size());
  auto reader = Open(mount_ / "file");
  std::shared_ptr<Operation> operation;
  std::promise<void> reached, goes_on;
  for (bool early = true; early;) {  // the callback runs here if the operation is done before it is given
    operation = reader->StartRows(offsets, 8, View(bytes)).value();
    early = false;
    operation->OnDone([&, test = std::this_thread::get_id()] {
      if (std::this_thread::get_id() == test) {
        early = true;
        return;
      }
      reached.set_value();
      goes_on.get_future().wait();
    });
  }
  auto closing = StartUntilBlocked([&] {
    reader.reset();
    return true;
  });
  reached.get_future().wait();
  EXPECT_FALSE(HasEnded(closing)) << "its thread has not ended";
  goes_on.set_value();
  EXPECT_TRUE(closing.get());
  EXPECT_TRUE(operation->done());
}

TEST_F(RandomReaderTest, ACallbackMayCloseTheReader) {
  WriteFile(mount_ / "file", RandomBytes(6'000'123));
  const auto offsets = RandomOffsets(200'000, 6'000'000);
  Bytes bytes(8 * offsets.size()), row(8);
  const auto close_in_callback = [&](bool of_many) {
    auto reader = Open(mount_ / "file");
    const auto many = reader->StartRows(offsets, 8, View(bytes)).value();
    const auto one = reader->StartRows(std::span(offsets).first(1), 8, View(row)).value();
    std::promise<bool> closed;
    (of_many ? many : one)->OnDone([&, test = std::this_thread::get_id()] {
      const bool under_way = std::this_thread::get_id() != test && (of_many || !many->done());
      reader.reset();
      closed.set_value(under_way);
    });
    const bool under_way = closed.get_future().get();
    EXPECT_TRUE(many->Wait());
    EXPECT_TRUE(one->Wait());
    return under_way;
  };
  for (const bool of_many : {false, true}) {
    while (!close_in_callback(of_many)) {  // again if the operation was done before it had the callback
    }
  }
  mount_.WaitForNoLease();
}

}  // namespace
}  // namespace weightfs::client
