// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

namespace onecopy::testing {

inline constexpr std::chrono::seconds kPatience{20};

/// Waits until `condition` is true. Returns false if it is still false at the deadline. Used for conditions that other
/// processes and threads will make true soon: EXPECT_TRUE(eventually([&] { return done.load(); })).
[[nodiscard]] bool eventually(const std::function<bool()>& condition,
                              std::chrono::milliseconds deadline = kPatience);

}  // namespace onecopy::testing
