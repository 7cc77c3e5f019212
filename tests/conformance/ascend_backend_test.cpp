// SPDX-License-Identifier: Apache-2.0
#include "conformance/backend_conformance.h"

namespace onecopy {

INSTANTIATE_TEST_SUITE_P(Ascend, BackendConformance,
                         ::testing::Values(BackendCase{"vmm", DeviceType::npu, 0, SegmentKind::ascend_vmm},
                                           BackendCase{"vmm_second_device", DeviceType::npu, 1,
                                                       SegmentKind::ascend_vmm},
                                           BackendCase{"key", DeviceType::npu, 0, SegmentKind::ascend_key}),
                         [](const auto& one) { return one.param.name; });

}  // namespace onecopy
