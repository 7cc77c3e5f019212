// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "device/backend.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

TEST(Registry, RefusesEachTypeOfDeviceThatTheBuildLeavesOut) {
  const auto built = backend_types();
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda, DeviceType::npu}) {
    if (std::find(built.begin(), built.end(), type) != built.end()) EXPECT_EQ(backend(type).type(), type);
    else
      testing::expect_refusal(ErrorCode::unsupported, {"this build of onecopy has no backend", "npu"},
                              [type] { backend(type); });
  }
}

}  // namespace
}  // namespace onecopy
