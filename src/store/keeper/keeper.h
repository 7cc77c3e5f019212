// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "store/format/store_directory.h"
#include "store/keeper/keeper_state.h"

namespace onecopy::store {

struct ServeOptions {
  Limits limits{};  ///< those that are not set are the limits of the keeper that is replaced
  /// Takes over from the keeper of this user, if there is one. Its versions stay, and clients connect again without
  /// notice.
  bool replace = false;
  /// Returns once clients can connect, and runs the keeper in two new processes, which log to StoreDirectory::log().
  bool in_background = false;
};

/// Runs the keeper of this user: a worker and a guard, one of which is this process. Returns when the keeper ends.
/// Throws unsupported if there is a keeper already, and version_mismatch if this build cannot replace that keeper.
/// REQUIRES: the process has one thread.
void serve(const StoreDirectories& directories, const ServeOptions& options);

}  // namespace onecopy::store
