// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace onecopy::testing {

/// So many allocations of this thread succeed, and then `operator new` throws; negative: all succeed.
inline thread_local int allocations_left = -1;

}  // namespace onecopy::testing
