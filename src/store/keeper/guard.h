// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "store/keeper/keeper_state.h"
#include "store/keeper/partner.h"

namespace onecopy::store {

/// The half of the keeper that holds the same descriptors as the worker, reads nothing that a client sent, and starts a
/// new worker when the worker ends. Returns what this process does next: a child that was forked becomes the worker.
Next run_guard(KeeperState& state, Partner& worker);

}  // namespace onecopy::store
