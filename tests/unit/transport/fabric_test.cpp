// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric.h"

#include <gtest/gtest.h>

#include "onecopy/core/error.h"
#include "support/refusal.h"

namespace onecopy::transport {
namespace {

using testing::expect_refusal;

TEST(AFabric, IsRefusedByAnUnknownName) {
  expect_refusal(ErrorCode::invalid_argument, {"no fabric", "\"pigeons\""},
                 [] { require_fabric("pigeons"); });
}

TEST(AFabric, IsRefusedWithTheOptionThatLeftItOut) {
#ifdef ONECOPY_WITHOUT_UCX
  for (void (*use)() : {+[] { require_fabric("ucx"); }, +[] { find_fabric("ucx"); }})
    expect_refusal(ErrorCode::unsupported, {"built without UCX", "ONECOPY_UCX", "tls"}, use);
#else
  GTEST_SKIP() << "is about a build without UCX";
#endif
}

}  // namespace
}  // namespace onecopy::transport
