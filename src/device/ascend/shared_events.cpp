// SPDX-License-Identifier: Apache-2.0
#include "device/shared_events.h"

#include "device/ascend/acl_api.h"
#include "device/calls_by_name.h"

namespace onecopy {
namespace {

using ascend::aclrtEvent, ascend::aclrtIpcEventHandle, ascend::aclrtStream;

constexpr std::uint32_t kAscendEventFlags = 0x40;
constexpr int kInitialisedAlready = 100002;

CallsByName ascend_calls(std::int32_t ordinal) {
  CallsByName npu("ONECOPY_ASCEND_RUNTIME", {"libascendcl.so", "libacl_rt.so"});
  if (const int error = npu.result("aclInit", static_cast<const char*>(nullptr));
      error != 0 && error != kInitialisedAlready)
    throw Error(ErrorCode::unsupported, fmt::format("aclInit failed with error {}", error));
  npu.must("aclrtSetDevice", ordinal);
  return npu;
}

}  // namespace

SharedEvent record_ascend_event() {
  const CallsByName npu = ascend_calls(0);
  aclrtEvent event = nullptr;
  aclrtIpcEventHandle handle{};
  npu.must("aclrtCreateEventExWithFlag", &event, kAscendEventFlags);
  npu.must("aclrtRecordEvent", event, aclrtStream{});
  npu.must("aclrtIpcGetEventHandle", event, &handle);
  return bytes_of_event(handle);
}

void wait_for_ascend_event(const SharedEvent& handle) {
  const CallsByName npu = ascend_calls(0);
  aclrtEvent event = nullptr;
  npu.must("aclrtIpcOpenEventHandle", event_in<aclrtIpcEventHandle>(handle), &event);
  npu.must("aclrtStreamWaitEvent", aclrtStream{}, event);
  npu.must("aclrtSynchronizeStream", aclrtStream{});
}

}  // namespace onecopy
