// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "onecopy/core/error.h"

namespace onecopy {

/// Returns what a member of a class points to. Throws closed if the object was moved from. `type`: the name of the class.
template <typename Pointer>
auto& of_object(const Pointer& pointer, const char* type) {
  if (!pointer)
    throw Error(ErrorCode::closed,
                std::string("this ") + type + " was moved from: use the object that it was moved to");
  return *pointer;
}

}  // namespace onecopy
