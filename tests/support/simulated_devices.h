// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace onecopy::testing {

/// Makes this process and its children load the simulators, unless the environment names real drivers. REQUIRES: called
/// before the first use of a device.
void use_simulated_devices();

}  // namespace onecopy::testing
