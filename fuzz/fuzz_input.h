// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <optional>

#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"

/// The code that all fuzzers share: it checks properties, and lets through the errors that are allowed.
namespace onecopy::fuzz {

inline ByteSpan span_of(const std::uint8_t* data, std::size_t size) noexcept {
  return std::as_bytes(std::span(data, size));
}

/// Ends the run when a property does not hold, so that libFuzzer keeps the input.
inline void require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "property violated: %s\n", property);
  std::abort();
}

/// Returns the action's result; empty if the action throws an Error with one of the `allowed` codes. Aborts on other
/// codes.
template <class Action>
auto accepted(std::initializer_list<ErrorCode> allowed, Action&& action)
    -> std::optional<decltype(action())> {
  try {
    return action();
  } catch (const Error& error) {
    for (const ErrorCode code : allowed)
      if (error.code() == code) return std::nullopt;
    std::fprintf(stderr, "unexpected error %s: %s\n", name(error.code()), error.what());
    std::abort();
  }
}

}  // namespace onecopy::fuzz
