// SPDX-License-Identifier: Apache-2.0
// The driver in programs that link HDF5: its property lists, and files that HDF5's own drivers read.
#include "hdf5/fapl.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <numeric>
#include <string>
#include <vector>

#include "tests/unit/client/files.h"

namespace {

class FaplTest : public testing::Test {
 protected:
  void SetUp() override {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    fapl_ = H5Pcreate(H5P_FILE_ACCESS);
  }
  void TearDown() override { H5Pclose(fapl_); }

  // Returns the driver's line on HDF5's error stack.
  static std::string LastError() {
    std::string text;
    H5Ewalk2(
        H5E_DEFAULT, H5E_WALK_UPWARD,
        [](unsigned, const H5E_error2_t* error, void* out) {
          auto* found = static_cast<std::string*>(out);
          if (found->empty()) *found = error->desc;
          return 0;
        },
        &text);
    return text;
  }
  void Write(const std::vector<double>& values) const {
    const hid_t file = H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, fapl_);
    ASSERT_GE(file, 0) << LastError();
    const hsize_t size = values.size();
    const hid_t space = H5Screate_simple(1, &size, nullptr);
    const hid_t data = H5Dcreate2(file, "x", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    ASSERT_GE(H5Dwrite(data, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0) << LastError();
    ASSERT_GE(H5Fflush(file, H5F_SCOPE_GLOBAL), 0);
    H5Dclose(data);
    H5Sclose(space);
    ASSERT_GE(H5Fclose(file), 0) << LastError();
  }
  std::vector<double> Read(hid_t fapl, size_t size) const {
    std::vector<double> values(size);
    const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDONLY, fapl);
    EXPECT_GE(file, 0) << LastError();
    const hid_t data = H5Dopen2(file, "x", H5P_DEFAULT);
    EXPECT_GE(H5Dread(data, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0) << LastError();
    H5Dclose(data);
    H5Fclose(file);
    return values;
  }

  weightfs::client::Folder folder_;
  const std::string path_ = folder_ / "file.h5";
  hid_t fapl_ = -1;
};

TEST_F(FaplTest, OtherDriversReadItsFiles) {
  std::vector<double> values(2'000'000);
  std::iota(values.begin(), values.end(), 0.5);
  ASSERT_GE(H5Pset_fapl_weightfs(fapl_, nullptr), 0);
  EXPECT_EQ(H5Pget_driver(fapl_), H5FD_weightfs_init());
  Write(values);
  EXPECT_EQ(Read(fapl_, values.size()), values);
  EXPECT_EQ(Read(H5P_DEFAULT, values.size()), values);
}

TEST_F(FaplTest, AccessListOfAnOpenFileHasTheSettings) {
  weightfs_fapl_t settings{};
  settings.version = WEIGHTFS_FAPL_VERSION;
  settings.num_threads = 3;
  settings.no_read_ahead = 1;
  settings.sync = WEIGHTFS_SYNC_NEVER;
  ASSERT_GE(H5Pset_fapl_weightfs(fapl_, &settings), 0) << LastError();
  const hid_t file = H5Fcreate(path_.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, fapl_);
  ASSERT_GE(file, 0) << LastError();
  const hid_t list = H5Fget_access_plist(file);
  weightfs_fapl_t found{};
  ASSERT_GE(H5Pget_fapl_weightfs(list, &found), 0) << LastError();
  EXPECT_EQ(found.num_threads, 3U);
  EXPECT_EQ(found.queue_depth, 32U);
  EXPECT_EQ(found.read_ahead, 0U);
  EXPECT_EQ(found.sync, WEIGHTFS_SYNC_NEVER);
  EXPECT_EQ(found.block_size, 1U << 20);
  H5Pclose(list);
  H5Fclose(file);
}

TEST_F(FaplTest, RejectsInvalidSettingsWithAMessage) {
  weightfs_fapl_t settings{};
  EXPECT_LT(H5Pset_fapl_weightfs(fapl_, &settings), 0);
  EXPECT_NE(LastError().find("WEIGHTFS_FAPL_VERSION"), std::string::npos) << LastError();
  settings.version = WEIGHTFS_FAPL_VERSION;
  settings.num_threads = 5000;
  EXPECT_LT(H5Pset_fapl_weightfs(fapl_, &settings), 0);
  EXPECT_NE(LastError().find("num_threads=5000"), std::string::npos) << LastError();
  settings.num_threads = 1;
  settings.sync = 7;
  EXPECT_LT(H5Pset_fapl_weightfs(fapl_, &settings), 0);
  EXPECT_LT(H5Pget_fapl_weightfs(fapl_, &settings), 0) << "the list has another driver";
}

TEST_F(FaplTest, ErrorNamesAMissingFile) {
  ASSERT_GE(H5Pset_fapl_weightfs(fapl_, nullptr), 0);
  EXPECT_LT(H5Fopen(path_.c_str(), H5F_ACC_RDONLY, fapl_), 0);
  EXPECT_NE(LastError().find(path_), std::string::npos) << LastError();
}

TEST_F(FaplTest, RegistersAgainAfterHdf5WasClosed) {
  ASSERT_GE(H5Pset_fapl_weightfs(fapl_, nullptr), 0);
  H5close();
  H5open();
  SetUp();
  ASSERT_GE(H5Pset_fapl_weightfs(fapl_, nullptr), 0) << LastError();
  Write({1.0, 2.0});
  EXPECT_EQ(Read(H5P_DEFAULT, 2), (std::vector<double>{1.0, 2.0}));
}

}  // namespace
