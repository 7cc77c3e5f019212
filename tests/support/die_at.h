// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace onecopy::testing {

/// Makes this process die by SIGKILL when it passes the point with this name for the `nth` time. REQUIRES: this process is a
/// Child.
void die_at(const char* point, int nth = 1);

}  // namespace onecopy::testing
