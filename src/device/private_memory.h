// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace onecopy {

/// Says that this process has opened a segment of kind sealed_file for writing, so that it may have pages that other
/// processes do not see. Never false again. Looked at by verbs that name memory for other processes, whose fast path is
/// one load.
inline std::atomic<bool> has_private_memory{false};

}  // namespace onecopy
