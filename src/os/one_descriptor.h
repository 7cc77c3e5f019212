// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "os/fd.h"

namespace onecopy {

/// Returns a descriptor of the same file with the same access, which is `fd` or the result of an earlier call that is still
/// open: all results for a file own one descriptor. Throws system. REQUIRES: no lock belongs to the open file of `fd`, since
/// another open file may take its place.
///
/// Thread safety: may be called concurrently.
Fd one_descriptor_of(Fd fd);

}  // namespace onecopy
