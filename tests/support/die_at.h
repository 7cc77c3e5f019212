// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace onecopy::testing {

/// From now on this process dies by SIGKILL at the `nth` time it comes past the point of this name.
/// For children only.
void die_at(const char* point, int nth = 1);

}  // namespace onecopy::testing
