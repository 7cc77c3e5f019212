// SPDX-License-Identifier: Apache-2.0
#include "onecopy/core/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>

namespace onecopy {
namespace {

Error thrown_by(int error) {
  try {
    throw_errno("cannot do it", error, ErrorCode::closed);
  } catch (const Error& caught) {
    return caught;
  }
}

TEST(Error, CarriesCodeMessageAndVendorCode) {
  const Error error(ErrorCode::stale_handle, "the block was freed", 700, ErrorDomain::cuda);
  EXPECT_EQ(error.code(), ErrorCode::stale_handle);
  EXPECT_STREQ(error.what(), "the block was freed");
  EXPECT_EQ(error.vendor_code(), 700);
  EXPECT_EQ(error.domain(), ErrorDomain::cuda);
}

TEST(Error, EveryCodeHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(kLastErrorCode); ++code)
    names.insert(name(static_cast<ErrorCode>(code)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kLastErrorCode) + 1);
  EXPECT_EQ(names.count("unknown"), 0u);
}

TEST(Error, FailedSystemCallTellsItsErrno) {
  const Error error = thrown_by(EPERM);
  EXPECT_EQ(error.code(), ErrorCode::closed);
  EXPECT_EQ(error.vendor_code(), EPERM);
  EXPECT_EQ(error.domain(), ErrorDomain::posix);
  EXPECT_EQ(std::string(error.what()), "cannot do it: Operation not permitted (errno 1)");
}

TEST(Error, ExhaustedResourcesHaveCodesOfTheirOwn) {
  EXPECT_EQ(thrown_by(EMFILE).code(), ErrorCode::out_of_descriptors);
  EXPECT_EQ(thrown_by(ENFILE).code(), ErrorCode::out_of_descriptors);
  EXPECT_EQ(thrown_by(ENOMEM).code(), ErrorCode::out_of_memory);
  EXPECT_EQ(thrown_by(ENOSPC).code(), ErrorCode::out_of_memory);
}

TEST(Error, OutOfDescriptorsSaysWhatToRaise) {
  EXPECT_NE(std::string(thrown_by(EMFILE).what()).find("ulimit -n"), std::string::npos);
}

}  // namespace
}  // namespace onecopy
