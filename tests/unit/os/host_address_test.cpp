// SPDX-License-Identifier: Apache-2.0
#include "os/host_address.h"

#include <gtest/gtest.h>

#include "onecopy/core/error.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using onecopy::testing::expect_refusal;

TEST(HostAddress, IsAnAddressOrAName) {
  for (const char* const text : {"10.0.0.1:7000", "[fd00::1]:7000"}) {
    const auto found = HostAddress(text).resolve();
    ASSERT_EQ(found.size(), 1);
    EXPECT_EQ(found.front().str(), text);
  }
  const auto found = HostAddress("localhost:7000").resolve();
  ASSERT_FALSE(found.empty());
  for (const HostPort& one : found) {
    EXPECT_TRUE(one.is_loopback());
    EXPECT_EQ(one.port, 7000);
  }
}

TEST(HostAddress, MayBeANameOfLettersThatAreDigits) {
  expect_refusal(ErrorCode::system, {"cafe"}, [] { HostAddress("cafe:7000").resolve(); });
}

TEST(HostAddress, RefusesOtherTexts) {
  for (const char* const text : {"", ":", ":7000", "trainer", "trainer:", "trainer:port", "trainer:70000",
                                 "fd00::1:7000", "[trainer]:7000", "[fd00::1]", "10.0.0.1", "10.0.0.1:"})
    expect_refusal(ErrorCode::invalid_argument, {"is not an address"},
                   [&] { const HostAddress address(text); });
}

}  // namespace
}  // namespace onecopy
