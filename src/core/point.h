// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace onecopy {

/// A named instruction of the protocol. Tests install a hook to die, stop or delay exactly there; without a hook a
/// point costs a predicted branch. Names read "<file>.<step>", e.g. "free.closing".
using PointHook = void (*)(const char* name) noexcept;

inline std::atomic<PointHook> point_hook{nullptr};

inline void point(const char* name) noexcept {
  if (PointHook hook = point_hook.load(std::memory_order_relaxed)) [[unlikely]]
    hook(name);
}

}  // namespace onecopy
