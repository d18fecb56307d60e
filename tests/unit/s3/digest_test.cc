// SPDX-License-Identifier: Apache-2.0
#include "s3/digest.h"

#include <gtest/gtest.h>

namespace weightfs::s3 {
namespace {

TEST(Base64, EncodesTheExamplesOfRfc4648) {
  EXPECT_EQ(EncodeBase64(""), "");
  EXPECT_EQ(EncodeBase64("f"), "Zg==");
  EXPECT_EQ(EncodeBase64("fo"), "Zm8=");
  EXPECT_EQ(EncodeBase64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(EncodeBase64(std::string("\0\xff\xfe", 3)), "AP/+");
}

}  // namespace
}  // namespace weightfs::s3
