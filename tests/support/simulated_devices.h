// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace onecopy::testing {

/// Lets this process and its children find the simulators where they were built, unless the environment
/// names real drivers. Call it before the first use of a device.
void use_simulated_devices();

}  // namespace onecopy::testing
