// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_devices.h"

#include <cstdlib>

namespace onecopy::testing {

void use_simulated_devices() {
  ::setenv("ONECOPY_CUDA_DRIVER", ONECOPY_BINARY_DIR "/simulators/cuda/libcuda.so.1", 0);
  ::setenv("ONECOPY_ASCEND_RUNTIME", ONECOPY_BINARY_DIR "/simulators/ascend/libascendcl.so", 0);
}

}  // namespace onecopy::testing
