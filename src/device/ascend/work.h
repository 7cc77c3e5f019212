// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace onecopy::ascend {

// Thread safety: both may be called concurrently.

/// As Backend::device_in_use() and finish_work() say: ACL has no event of a whole context.
int device_in_use() noexcept;
bool finish_work() noexcept;

}  // namespace onecopy::ascend
