// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace onecopy::ascend {

// Thread safety: both functions may be called concurrently.

/// Implements Backend::device_in_use() and finish_work(). ACL has no event of a whole context.
int device_in_use() noexcept;
bool finish_work() noexcept;

}  // namespace onecopy::ascend
