// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

namespace onecopy::testing {

inline constexpr std::chrono::seconds kPatience{20};

/// Waits until `condition`, which another process or thread makes true, is true: EXPECT_TRUE(eventually(is_done)). Returns
/// false if it is still false at the deadline, or ONECOPY_TEST_SLOWNESS times as late if that is set (an emulated processor).
[[nodiscard]] bool eventually(const std::function<bool()>& condition,
                              std::chrono::milliseconds deadline = kPatience);

}  // namespace onecopy::testing
