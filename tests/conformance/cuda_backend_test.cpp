// SPDX-License-Identifier: Apache-2.0
#include "conformance/backend_conformance.h"

namespace onecopy {

INSTANTIATE_TEST_SUITE_P(Cuda, BackendConformance,
                         ::testing::Values(BackendCase{"vmm", DeviceType::cuda, 0, SegmentKind::cuda_vmm},
                                           BackendCase{"vmm_second_device", DeviceType::cuda, 1,
                                                       SegmentKind::cuda_vmm}),
                         [](const auto& one) { return one.param.name; });

}  // namespace onecopy
