// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "device/work_point.h"

namespace onecopy::cuda {

// The functions cover all of the process's work in primary contexts, but not in other contexts. Thread safety: all may
// be called concurrently.

/// Implements Backend::device_in_use(), mark_work() and finish_work().
int device_in_use() noexcept;
std::unique_ptr<WorkPoint> mark_work();
bool finish_work() noexcept;

}  // namespace onecopy::cuda
