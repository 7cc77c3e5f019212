// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/graphs.h"

namespace onecopy::cuda {

/// Returns the driver of captured graphs, which lives until the process ends.
GraphDriver* graph_driver();

}  // namespace onecopy::cuda
