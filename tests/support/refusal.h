// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>

#include "onecopy/core/error.h"

namespace onecopy::testing {

/// Expects that `call` throws an Error of `code` whose message contains all of `parts`: the fault with its numbers, and
/// what to do. Returns the message.
inline std::string expect_refusal(ErrorCode code, std::initializer_list<const char*> parts,
                                  const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_STREQ(name(error.code()), name(code)) << message;
    for (const char* part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    return message;
  }
  ADD_FAILURE() << "nothing was thrown instead of " << name(code);
  return {};
}

}  // namespace onecopy::testing
