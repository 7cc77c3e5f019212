// SPDX-License-Identifier: Apache-2.0
// The Ascend backend where the runtime is absent, old, short of something, or one of before some call.
#include <gtest/gtest.h>

#include "device/ascend/driver.h"
#include "device/ascend/exported.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/ascend_calls.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::AclCalls;
using testing::element;
using testing::expect_refusal;
using testing::in_npu_child;
using testing::RuntimeWithout;

constexpr Device kNpu0{DeviceType::npu, 0};
constexpr Device kNpu1{DeviceType::npu, 1};

class Ascend : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::is_simulated_ascend()) GTEST_SKIP() << "a real runtime does not fail on demand";
  }
};

Tensor a_hundred(Device device = kNpu0) { return empty(Layout(DType::i64, {100}), device); }

std::unique_ptr<DeviceMemory> new_segment(SegmentKind kind) {
  auto memory = backend(DeviceType::npu).create(0, std::size_t{2} << 20, kind, "0123456789abcdef", 1);
  memory->commit(0, memory->size());
  return memory;
}

void expect_no_ascend(std::initializer_list<const char*> words) {
  EXPECT_TRUE(backend(DeviceType::npu).devices().empty());
  expect_refusal(ErrorCode::unsupported, words, [] { a_hundred(); });
  EXPECT_NO_THROW(empty(Layout(DType::i64, {100}))) << "the CPU needs no runtime";
}

TEST_F(Ascend, WithoutARuntimeEverythingElseWorks) {
  in_npu_child({{"ONECOPY_ASCEND_RUNTIME", "libnot-there.so"}}, [] {
    expect_no_ascend({"no ACL runtime", "libnot-there.so", "set_env.sh"});
  });
}

TEST_F(Ascend, VersionsAreOrderedAsTheyWereReleased) {
  for (const char* older : {"8.2.RC1", "8.2.RC1.alpha003", "8.0.0", "7.0.RC1", "8.2"})
    EXPECT_TRUE(ascend::is_older(older, "8.3.RC1")) << older;
  for (const char* enough :
       {"8.3.RC1", "8.3.RC1.alpha002", "8.3.rc2", "8.3.0", "8.3", "8.5.0", "9.0.0", "10.0"})
    EXPECT_FALSE(ascend::is_older(enough, "8.3.RC1")) << enough;
  for (const char* older : {"25.2.3", "25.0.rc1", "24.1.rc3"})
    EXPECT_TRUE(ascend::is_older(older, "25.3.RC1")) << older;
  EXPECT_FALSE(ascend::is_older("25.3.rc1", "25.3.RC1"));
  EXPECT_FALSE(ascend::is_older("", "25.3.RC1")) << "not known";
  EXPECT_FALSE(ascend::is_older("unknown", "25.3.RC1"));
}

/// The numbers of memory that is gone, and of processes, come again.
TEST_F(Ascend, TheRuntimeIsAskedToAdmitAProcessEachTime) {
  in_npu_child({}, [] {
    Backend& npu = backend(DeviceType::npu);
    const auto memory = npu.create(0, std::size_t{2} << 20, npu.kind_on(0), "0123456789abcdef", 1);
    memory->commit(0, memory->size());
    const ExportedMemory exported = memory->export_memory(Access::read_write);
    npu.admit(exported, 4711);
    AclCalls().sim_fail("aclrtMemSetPidToShareableHandle", 507899, 0, 1);
    AclCalls().sim_fail("aclrtIpcMemSetImportPid", 507899, 0, 1);
    expect_refusal(ErrorCode::unsupported, {"does not let another process open"},
                   [&] { npu.admit(exported, 4711); });
  });
}

TEST_F(Ascend, AnOldCannIsNamedWithItsVersion) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_CANN", "8.2.RC1"}}, [] {
    expect_no_ascend({"CANN", "8.2.RC1", "8.3.RC1 or newer"});
  });
}

TEST_F(Ascend, AnOldDriverIsNamedWithItsVersion) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_DRIVER", "25.2.0"}}, [] {
    expect_no_ascend({"HDK", "25.2.0", "25.3.RC1 or newer"});
  });
}

TEST_F(Ascend, AVersionThatNobodyKnowsIsNotHeldAgainstTheMachine) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_DRIVER", ""}, {"ONECOPY_SIM_ASCEND_CANN", ""}},
               [] { EXPECT_NO_THROW(a_hundred()); });
}

TEST_F(Ascend, AFrameworkMayHaveInitialisedItBefore) {
  in_npu_child({}, [] {
    EXPECT_EQ(AclCalls().aclInit(nullptr), ascend::ACL_SUCCESS);
    EXPECT_NO_THROW(a_hundred());
  });
}

TEST_F(Ascend, AFailedInitialisationIsSaidWithItsCode) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_FAIL", "aclInit=507008"}}, [] {
    expect_no_ascend({"aclInit", "507008", "npu-smi"});
  });
}

TEST_F(Ascend, AnOrdinalThatIsNotThereIsNamed) {
  in_npu_child({}, [] {
    expect_refusal(ErrorCode::invalid_argument, {"npu:7", "2 Ascend devices", "ASCEND_RT_VISIBLE_DEVICES"},
                   [] {
                     a_hundred({DeviceType::npu, 7});
                   });
  });
  in_npu_child({{"ASCEND_RT_VISIBLE_DEVICES", ""}}, [] {
    EXPECT_TRUE(backend(DeviceType::npu).devices().empty());
    expect_refusal(ErrorCode::invalid_argument, {"0 Ascend devices"}, [] { a_hundred(); });
  });
}

TEST_F(Ascend, WithoutUuidsDevicesAreKnownByTheirPhysicalNumbers) {
  const RuntimeWithout older("aclrtDeviceGetUuid");
  in_npu_child({{"ONECOPY_ASCEND_RUNTIME", older.path()}, {"ASCEND_RT_VISIBLE_DEVICES", "1"}}, [] {
    const auto devices = backend(DeviceType::npu).devices();
    ASSERT_EQ(devices.size(), 1u);
    Uuid wanted{};
    std::memcpy(wanted.bytes.data(), "Ascend chip \1\0\0\0", 16);
    EXPECT_EQ(devices[0].uuid, wanted);
  });
}

TEST_F(Ascend, WithoutVirtualMemorySegmentsLeaveByKey) {
  const RuntimeWithout older("aclrtMallocPhysical");
  in_npu_child({{"ONECOPY_ASCEND_RUNTIME", older.path()}}, [] {
    const Tensor tensor = a_hundred();
    EXPECT_EQ(share(tensor).fields().kind, SegmentKind::ascend_key);
  });
}

/// It has the calls, which answer that it does not do it.
TEST_F(Ascend, OfAVirtualDeviceSegmentsLeaveByKey) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_VIRTUAL", "1"}}, [] {
    EXPECT_EQ(share(a_hundred(kNpu0)).fields().kind, SegmentKind::ascend_vmm) << "the other one is not";
    const Tensor tensor = a_hundred(kNpu1);
    testing::set_element<std::int64_t>(tensor, 0, 5);
    EXPECT_EQ(element(tensor, 0), 5);
    EXPECT_EQ(share(tensor).fields().kind, SegmentKind::ascend_key);
  });
}

TEST_F(Ascend, WhereShareableHandlesAreRefusedSegmentsLeaveByKey) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_FAIL", "aclrtMemExportToShareableHandle=207000"}},
               [] { EXPECT_EQ(share(a_hundred()).fields().kind, SegmentKind::ascend_key); });
}

/// Then another answer may come later, and the allocation reports the fault.
TEST_F(Ascend, ADeviceThatFailsIsNotTakenForAVirtualOne) {
  in_npu_child({}, [] {
    const AclCalls acl;
    acl.sim_fail("aclrtMallocPhysical", 507899, 0, -1);
    expect_refusal(ErrorCode::system, {"aclrtMallocPhysical", "507899"}, [] { a_hundred(); });
    acl.sim_fail("aclrtMallocPhysical", 0, 0, 0);
    EXPECT_EQ(share(a_hundred()).fields().kind, SegmentKind::ascend_vmm);
  });
}

TEST_F(Ascend, ACallThatIsMissingIsNamedWhereItIsNeeded) {
  const RuntimeWithout older("aclrtMemcpyAsync");
  in_npu_child({{"ONECOPY_ASCEND_RUNTIME", older.path()}}, [] {
    const Tensor tensor = a_hundred();
    expect_refusal(ErrorCode::unsupported, {"aclrtMemcpyAsync", "CANN 8.3.RC1"},
                   [&] { element(tensor, 0); });
  });
}

TEST_F(Ascend, EachStepOfAnAllocationMayFailAndLeavesNothing) {
  for (const char* call :
       {"aclrtSetDevice", "aclrtReserveMemAddress", "aclrtMallocPhysical", "aclrtMapMem"})
    in_npu_child({}, [call] {
      const AclCalls acl;
      acl.sim_fail(call, 507899, 0, -1);
      EXPECT_THROW(a_hundred(), Error) << call;
      acl.sim_fail(call, 0, 0, 0);
      EXPECT_EQ(stats().live_blocks, 0u);
      EXPECT_NO_THROW(a_hundred()) << call;
      acl.use(0);
      std::size_t free = 0;
      std::size_t total = 0;
      acl.aclrtGetMemInfo(ascend::ACL_HBM_MEM, &free, &total);
      EXPECT_EQ(total - free, std::size_t{2} << 20) << call;
    });
}

TEST_F(Ascend, ADeviceThatIsFullSaysHowFull) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_MEMORY", "8388608"}}, [] {
    expect_refusal(ErrorCode::out_of_memory, {"npu:0", "8388608"},
                   [] { empty(Layout(DType::u8, {std::int64_t{64} << 20}), kNpu0); });
    EXPECT_NO_THROW(a_hundred());
  });
}

TEST_F(Ascend, AFailedCopySaysWithWhichCode) {
  in_npu_child({}, [] {
    const Tensor tensor = a_hundred();
    AclCalls().sim_fail("aclrtMemcpyAsync", 507015, 0, -1);
    try {
      element(tensor, 0);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::system);
      EXPECT_EQ(error.vendor_code(), 507015);
      EXPECT_EQ(error.domain(), ErrorDomain::ascend);
    }
  });
}

TEST_F(Ascend, CopiesGoBetweenHostAndDevicesWithAnyStrides) {
  for (const char* peers : {"all", "none"})
    in_npu_child({{"ONECOPY_SIM_ASCEND_PEERS", peers}}, [] {
      const Tensor host = empty(Layout(DType::i32, {6, 10}));
      for (std::int32_t i = 0; i < 60; ++i) host.as<std::int32_t>()[i] = i;
      const Tensor first = copy(host.view(), kNpu0);
      const Tensor second = copy(first.view(), kNpu1);
      EXPECT_EQ(second.device(), kNpu1);
      const Tensor back = copy(second.view(), kCpu);
      for (std::int32_t i = 0; i < 60; ++i) EXPECT_EQ(back.as<std::int32_t>()[i], i);
    });
}

/// aclrtFree does not wait, and the first half of the copy goes into other memory.
TEST_F(Ascend, ACopyThatFailsHalfwayTakesNoMemoryFromWorkThatGoesOn) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_DELAY_US", "20000"}}, [] {
    const AclCalls acl;
    acl.use(1);
    const auto stream = acl.stream();
    Backend& npu = backend(DeviceType::npu);
    const auto memory = new_segment(SegmentKind::ascend_vmm);
    const auto there = npu.open(1, memory->export_memory(Access::read_write), Access::read_write);
    char byte = 0;
    acl.sim_fail("aclrtMemcpyAsync", 507899, 1, 1);
    EXPECT_THROW(npu.copy({&byte, kCpu, there->data(), kNpu1, 1}, Stream{stream}), Error);
    EXPECT_EQ(acl.aclrtSynchronizeStream(stream), ascend::ACL_SUCCESS);
  });
}

TEST_F(Ascend, AThreadsOwnDeviceStaysCurrent) {
  in_npu_child({}, [] {
    const AclCalls acl;
    acl.use(1);
    const Tensor tensor = a_hundred();
    testing::set_element<std::int64_t>(tensor, 0, 5);
    EXPECT_EQ(element(tensor, 0), 5);
    std::int32_t device = -1;
    EXPECT_EQ(acl.aclrtGetDevice(&device), ascend::ACL_SUCCESS);
    EXPECT_EQ(device, 1);
  });
}

/// torch_npu does, and the result of a second call is not documented.
TEST_F(Ascend, AFrameworkMayHaveEnabledPeerAccessBefore) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_PEERS_ONCE", "1"}}, [] {
    const AclCalls acl;
    acl.use(1);
    EXPECT_EQ(acl.aclrtDeviceEnablePeerAccess(0, 0), ascend::ACL_SUCCESS);
    EXPECT_NE(acl.aclrtDeviceEnablePeerAccess(0, 0), ascend::ACL_SUCCESS);
    const auto memory = new_segment(SegmentKind::ascend_vmm);
    EXPECT_NO_THROW(
        backend(DeviceType::npu).open(1, memory->export_memory(Access::read_write), Access::read_write));
  });
}

TEST_F(Ascend, PeerAccessThatCannotBeEnabledIsSaidWithItsCode) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_FAIL", "aclrtDeviceEnablePeerAccess=507899"}}, [] {
    const auto memory = new_segment(SegmentKind::ascend_vmm);
    expect_refusal(ErrorCode::system, {"aclrtDeviceEnablePeerAccess", "507899"}, [&] {
      backend(DeviceType::npu).open(1, memory->export_memory(Access::read_write), Access::read_write);
    });
  });
}

TEST_F(Ascend, MemoryOfOthersIsRefusedInWords) {
  in_npu_child({}, [] {
    const AclCalls acl(0);
    const TensorView view{acl.memory(4096), Layout(DType::i64, {10}), kNpu0, Access::read_write};
    expect_refusal(ErrorCode::unsupported, {"of another library", "copy it"},
                   [&] { adopt(view, nullptr); });
  });
}

TEST_F(Ascend, KeysThatAreUsedUpAreSaidToBeSo) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_FAIL", "aclrtIpcMemGetExportKey=507899"}}, [] {
    const auto memory = backend(DeviceType::npu).create(0, 2 << 20, SegmentKind::ascend_key, "", 1);
    expect_refusal(ErrorCode::system, {"507899", "keys", "killed"},
                   [&] { memory->export_memory(Access::read_write); });
  });
}

TEST_F(Ascend, MemoryThatWasExportedByKeyIsKeptForTheNextSegment) {
  in_npu_child({}, [] {
    const auto make = [] {
      return backend(DeviceType::npu).create(0, 2 << 20, SegmentKind::ascend_key, "", 1);
    };
    auto memory = make();
    const std::byte* const lent = memory->data();
    memory->export_memory(Access::read_write);
    memory.reset();
    memory = make();
    EXPECT_EQ(memory->data(), lent) << "a borrower may still have it open, so it cannot be freed";
  });
}

struct Way {
  int ordinal;
  Access access;

  std::unique_ptr<DeviceMemory> open(const DeviceMemory& memory) const {
    return backend(DeviceType::npu).open(ordinal, memory.export_memory(Access::read_write), access);
  }
  int read(const DeviceMemory& memory) const {
    unsigned char byte = 0;
    copy_bytes_and_wait(
        {&byte, kCpu, memory.data(), {DeviceType::npu, static_cast<std::int16_t>(ordinal)}, 1});
    return byte;
  }
};

/// The runtime ends the first import of a key that is left, whichever was meant.
void expect_it_stays(Way first, Way second, bool first_ends_first) {
  in_npu_child({}, [=] {
    const auto memory = new_segment(SegmentKind::ascend_key);
    const unsigned char byte = 7;
    copy_bytes_and_wait({memory->data(), kNpu0, &byte, kCpu, 1});
    auto one = first.open(*memory);
    auto other = second.open(*memory);
    (first_ends_first ? one : other).reset();
    EXPECT_EQ(first_ends_first ? second.read(*other) : first.read(*one), 7);
    one.reset();
    other.reset();
    const AclCalls acl;
    const auto key = ascend::decode(memory->export_memory(Access::read_only)).key;
    acl.use(0);
    EXPECT_EQ(acl.aclrtIpcMemClose(key.c_str()), ascend::ACL_SUCCESS);
    EXPECT_NE(acl.aclrtIpcMemClose(key.c_str()), ascend::ACL_SUCCESS)
        << "no import was left, only the export";
  });
}

TEST_F(Ascend, MemoryThatIsOpenTwiceByItsKeyStaysForWhoeverHasItOpen) {
  const Way writer{0, Access::read_write};
  const Way reader{0, Access::read_only};
  const Way other_card{1, Access::read_write};
  for (const bool first_ends_first : {true, false}) {
    expect_it_stays(writer, reader, first_ends_first);
    expect_it_stays(reader, writer, first_ends_first);
    expect_it_stays(writer, writer, first_ends_first);
    expect_it_stays(writer, other_card, first_ends_first);
    expect_it_stays(other_card, writer, first_ends_first);
  }
}

}  // namespace
}  // namespace onecopy
