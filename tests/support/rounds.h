// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

#include "support/limits.h"

namespace onecopy::testing {

/// Returns how many rounds a test repeats: a tenth of `all` in sanitizer builds, where each takes ten times as long, and `all` in
/// others. The nightly run sets ONECOPY_NIGHTLY, and does `all` in sanitizer builds, too.
inline unsigned rounds(unsigned all) {
  return kSanitized && std::getenv("ONECOPY_NIGHTLY") == nullptr ? all / 10 : all;
}

}  // namespace onecopy::testing
