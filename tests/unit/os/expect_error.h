// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "onecopy/core/error.h"

namespace onecopy {

/// Runs `body`, which must throw an Error of `code`; gives back its message.
inline std::string expect_error(ErrorCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_STREQ(name(error.code()), name(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no " << name(code) << " was thrown";
  return {};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace onecopy
