// SPDX-License-Identifier: Apache-2.0
#include "conformance/backend_conformance.h"

namespace onecopy {

INSTANTIATE_TEST_SUITE_P(Cpu, BackendConformance,
                         ::testing::Values(BackendCase{"memfd", DeviceType::cpu, 0, SegmentKind::memfd},
                                           BackendCase{"named_file", DeviceType::cpu, 0,
                                                       SegmentKind::named_file}),
                         [](const auto& one) { return one.param.name; });

}  // namespace onecopy
