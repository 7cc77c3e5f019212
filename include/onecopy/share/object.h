// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "onecopy/share/handle.h"

namespace onecopy {

// Thread safety: all functions may be called concurrently.

/// Names an object of this process for others. The process keeps `object` while the handle, a copy of it or a claim
/// of any process lives; then it drops the object, on any thread. Another process claims it by open(). The tensor
/// that open() returns has no content. Its last copy, or the death of that process, ends the claim. hold() keeps the
/// object for a handle that is written down. Costs no system call. Throws invalid_argument for an empty object, and
/// as empty() does.
Handle share_object(std::shared_ptr<const void> object);

/// Returns the object that a handle of this process names. Empty if the handle is another process's, or the object is
/// gone.
std::shared_ptr<const void> shared_object(const Handle& handle);

}  // namespace onecopy
