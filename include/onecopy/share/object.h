// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "onecopy/core/api.h"
#include "onecopy/share/handle.h"

ONECOPY_API_BEGIN
namespace onecopy {

// Thread safety: all functions may be called concurrently.

/// Returns a handle that names an object of this process. The process keeps `object` while the handle, a copy of it or
/// a claim of any process lives; then it drops the object, on any thread. Another process claims the object with
/// open(), which returns a tensor without content; the claim ends with the last copy of that tensor, or with that
/// process. hold() keeps the object for a handle that is written down. Costs no system call. Throws invalid_argument
/// for an empty object, and what empty() throws.
Handle share_object(std::shared_ptr<const void> object);

/// Returns the object that a handle of this process names, or null if the handle belongs to another process or the
/// object is gone.
std::shared_ptr<const void> shared_object(const Handle& handle);

}  // namespace onecopy
ONECOPY_API_END
