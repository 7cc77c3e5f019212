// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "store/format/place.h"
#include "store/keeper/holdings.h"

namespace onecopy::store {

struct ServeOptions {
  Limits limits{};
  /// Takes over from the keeper of this user, if there is one. Its versions go on, and clients connect again unnoticed.
  bool replace = false;
  /// Returns once clients can connect, and leaves the keeper to two processes of their own.
  bool in_background = false;
};

/// Is the keeper of this user: a worker and a guard, of which this process is one. Returns when the keeper ends. Throws
/// unsupported if there is a keeper already, and version_mismatch if that keeper cannot be replaced by this build.
/// REQUIRES: the process has one thread.
void serve(const Place& place, const ServeOptions& options);

}  // namespace onecopy::store
