// SPDX-License-Identifier: Apache-2.0
// What the simulated ACL runtime promises its users: that it does and refuses what the published interface says.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "support/ascend_calls.h"
#include "support/note.h"

namespace onecopy {
namespace {

using namespace ascend;
using testing::AclCalls;
using testing::Child;
using testing::in_npu_child;
using testing::JoinedChild;
using testing::Note;
using testing::Shared;

constexpr std::size_t kHuge = std::size_t{2} << 20;

class AscendSimulator : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::is_simulated_ascend()) GTEST_SKIP() << "a real runtime has its own tests";
  }
};

TEST_F(AscendSimulator, StructuresHaveTheSizesOfThePublishedHeaders) {
  EXPECT_EQ(sizeof(aclrtPhysicalMemProp), 32u);
  EXPECT_EQ(sizeof(aclrtMemAccessDesc), 24u);
  EXPECT_EQ(sizeof(aclrtPtrAttributes), 28u);
  EXPECT_EQ(sizeof(aclrtUuid), 16u);
  EXPECT_EQ(sizeof(aclrtIpcEventHandle), 64u);
  EXPECT_EQ(sizeof(aclrtMemLocation), 8u);
}

TEST_F(AscendSimulator, CallsFailBeforeInitialisationAndASecondOneIsSaid) {
  in_npu_child({}, [] {
    const AclCalls acl;
    std::uint32_t count = 0;
    EXPECT_EQ(acl.aclrtGetDeviceCount(&count), ACL_ERROR_UNINITIALIZE);
    EXPECT_EQ(acl.aclInit(nullptr), ACL_SUCCESS);
    EXPECT_EQ(acl.aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
    EXPECT_EQ(acl.aclrtGetDeviceCount(&count), ACL_SUCCESS);
    EXPECT_EQ(count, 2u);
  });
}

TEST_F(AscendSimulator, AThreadHasNoDeviceUntilItSetsOne) {
  in_npu_child({}, [] {
    const AclCalls acl;
    acl.aclInit(nullptr);
    std::int32_t device = -1;
    void* at = nullptr;
    EXPECT_EQ(acl.aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(acl.aclrtMalloc(&at, kHuge, 0), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(acl.aclrtSetDevice(7), ACL_ERROR_RT_INVALID_DEVICEID);
    EXPECT_EQ(acl.aclrtSetDevice(1), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtGetDevice(&device), ACL_SUCCESS);
    EXPECT_EQ(device, 1);
  });
}

TEST_F(AscendSimulator, VisibleDevicesAreAnAscendingListThatABadWordEnds) {
  for (const auto& [list, seen] :
       {std::pair{"1", 1U}, {"1,0", 1U}, {"0,1", 2U}, {"0, 1", 1U}, {"0,x,1", 1U}})
    in_npu_child({{"ASCEND_RT_VISIBLE_DEVICES", list}}, [list = list, seen = seen] {
      const AclCalls acl;
      acl.aclInit(nullptr);
      std::uint32_t count = 0;
      EXPECT_EQ(acl.aclrtGetDeviceCount(&count), ACL_SUCCESS);
      EXPECT_EQ(count, seen) << list;
    });
}

// ---- copies

TEST_F(AscendSimulator, CopiesMindTheSizeOfTheirTarget) {
  in_npu_child({}, [] {
    const AclCalls acl(0);
    void* at = acl.memory(kHuge);
    char byte = 1;
    EXPECT_EQ(acl.aclrtMemcpy(at, 0, &byte, 1, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(acl.aclrtMemcpy(at, 1, &byte, 1, 8), ACL_ERROR_INVALID_PARAM) << "no such direction";
    EXPECT_EQ(acl.aclrtMemcpy(at, 1, &byte, 0, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtMemcpy(at, kHuge + 1, at, kHuge + 1, ACL_MEMCPY_DEVICE_TO_DEVICE),
              ACL_ERROR_RT_PARAM_INVALID);
    acl.write(at, 7);
    EXPECT_EQ(acl.read(at), 7);
  });
}

/// Later work of the stream waits until the gate is open.
void close_with(const AclCalls& acl, AclCalls::aclrtStream stream, std::atomic<bool>& open) {
  const auto wait = [](void* gate) {
    while (!*static_cast<std::atomic<bool>*>(gate))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_EQ(acl.aclrtLaunchHostFunc(stream, wait, &open), ACL_SUCCESS);
}

TEST_F(AscendSimulator, StreamsWorkBehindTheHostsBack) {
  in_npu_child({}, [] {
    const AclCalls acl(0);
    const auto stream = acl.stream();
    std::atomic<bool> open{false};
    close_with(acl, stream, open);
    int status = -1;
    EXPECT_EQ(acl.aclrtStreamQuery(stream, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_STREAM_STATUS_NOT_READY);
    EXPECT_EQ(acl.aclrtSynchronizeStreamWithTimeout(stream, 1), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    open = true;
    EXPECT_EQ(acl.aclrtSynchronizeStream(stream), ACL_SUCCESS);
    acl.aclrtSetDevice(1);
    EXPECT_EQ(acl.aclrtSynchronizeStream(stream), ACL_ERROR_RT_STREAM_CONTEXT) << "of the other device";
  });
}

// ---- keys

struct Offered {
  Note note;
  std::atomic<int> number{0};
};

TEST_F(AscendSimulator, AKeyOpensOnlyForWhomItsOwnerAdmits) {
  Shared<Offered> offered;
  JoinedChild owner([&] {
    const AclCalls acl(0);
    void* at = acl.memory(kHuge);
    acl.write(at, 5);
    char key[kKeyBytes];
    EXPECT_EQ(acl.aclrtIpcMemGetExportKey(at, kHuge, key, 64, 0), ACL_ERROR_INVALID_PARAM) << "too short";
    EXPECT_EQ(acl.aclrtIpcMemGetExportKey(static_cast<char*>(at) + 4096, 4096, key, sizeof key, 0),
              ACL_ERROR_RT_DRV_INTERNAL_ERROR)
        << "not the base";
    EXPECT_EQ(acl.aclrtIpcMemGetExportKey(at, 100, key, sizeof key, 0), ACL_ERROR_RT_ADDR_UNALIGNED);
    EXPECT_EQ(acl.aclrtIpcMemGetExportKey(at, kHuge, key, sizeof key, 0), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtFree(at), ACL_ERROR_RT_DRV_INTERNAL_ERROR) << "exported";
    offered->note.write(key);
    offered->note.reach(2);
    std::int32_t number = offered->number;
    EXPECT_EQ(acl.aclrtIpcMemSetImportPid(key, &number, 1), ACL_SUCCESS);
    offered->note.step = 3;
    offered->note.reach(4);
    EXPECT_EQ(acl.aclrtIpcMemClose(key), ACL_ERROR_RT_DRV_INTERNAL_ERROR) << "still open elsewhere";
    offered->note.step = 5;
    offered->note.reach(6);
    EXPECT_EQ(acl.aclrtIpcMemClose(key), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtFree(at), ACL_SUCCESS);
  });
  JoinedChild borrower([&] {
    const AclCalls acl(0);
    const std::string key = offered->note.read();
    void* at = nullptr;
    EXPECT_EQ(acl.aclrtIpcMemImportByKey(&at, key.c_str(), 0), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    std::int32_t number = 0;
    EXPECT_EQ(acl.aclrtDeviceGetBareTgid(&number), ACL_SUCCESS);
    offered->number = number;
    offered->note.step = 2;
    offered->note.reach(3);
    EXPECT_EQ(acl.aclrtIpcMemImportByKey(&at, key.c_str(), 0), ACL_SUCCESS);
    EXPECT_EQ(acl.read(at), 5);
    offered->note.step = 4;
    offered->note.reach(5);
    EXPECT_EQ(acl.aclrtIpcMemClose(key.c_str()), ACL_SUCCESS);
    offered->note.step = 6;
  });
}

TEST_F(AscendSimulator, AnotherCardsMemoryTakesPeerAccessAndNoCopiesWithTheHost) {
  Shared<Note> note;
  JoinedChild owner([&] {
    const AclCalls acl(0);
    void* at = acl.memory(kHuge);
    acl.write(at, 9);
    char key[kKeyBytes];
    acl.aclrtIpcMemGetExportKey(at, kHuge, key, sizeof key,
                                ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION);
    std::int32_t number = 1;
    EXPECT_EQ(acl.aclrtIpcMemSetImportPid(key, &number, 1), ACL_ERROR_RT_DRV_INTERNAL_ERROR)
        << "a key is with a whitelist or without";
    note->write(key);
    note->reach(2);
  });
  JoinedChild borrower([&] {
    const AclCalls acl;
    acl.use(1);
    const std::string key = note->read();
    void* at = nullptr;
    EXPECT_EQ(acl.aclrtIpcMemImportByKey(&at, key.c_str(), 0), ACL_ERROR_RT_DRV_INTERNAL_ERROR)
        << "no peer access";
    EXPECT_EQ(acl.aclrtIpcMemImportByKey(&at, key.c_str(), ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS),
              ACL_SUCCESS);
    unsigned char byte = 0;
    EXPECT_EQ(acl.aclrtMemcpy(&byte, 1, at, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    void* own = acl.memory(kHuge);
    EXPECT_EQ(acl.aclrtMemcpy(own, kHuge, at, kHuge, ACL_MEMCPY_DEVICE_TO_DEVICE),
              ACL_ERROR_RT_DRV_INTERNAL_ERROR)
        << "only in a stream";
    EXPECT_EQ(acl.aclrtMemcpyAsync(own, kHuge, at, kHuge, ACL_MEMCPY_DEFAULT, nullptr),
              ACL_ERROR_RT_DRV_INTERNAL_ERROR)
        << "the direction has to be named";
    EXPECT_EQ(acl.aclrtMemcpyAsync(own, kHuge, at, kHuge, ACL_MEMCPY_DEVICE_TO_DEVICE, nullptr),
              ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
    EXPECT_EQ(acl.read(own), 9);
    note->step = 2;
  });
}

TEST_F(AscendSimulator, KeysOfAKilledProcessStayInTheDriversTable) {
  std::string pattern = "/tmp/simulated-keys-XXXXXX";
  const std::string folder = ::mkdtemp(pattern.data());
  const std::vector<std::pair<const char*, std::string>> variables{{"ONECOPY_SIM_ASCEND_KEYS", folder},
                                                                   {"ONECOPY_SIM_ASCEND_MAX_KEYS", "1"}};
  const auto exported = [](const AclCalls& acl) {
    char key[kKeyBytes];
    acl.use(0);
    return acl.aclrtIpcMemGetExportKey(acl.memory(kHuge), kHuge, key, sizeof key, 0);
  };
  in_npu_child(variables, [&] {
    EXPECT_EQ(exported(AclCalls()), ACL_SUCCESS);
    ::_exit(0);
  });
  in_npu_child(variables, [&] { EXPECT_EQ(exported(AclCalls()), ACL_ERROR_RT_DRV_INTERNAL_ERROR); });
  std::filesystem::remove_all(folder);
}

// ---- virtual memory

TEST_F(AscendSimulator, MapsWholeAllocationsOfOneKindOnly) {
  in_npu_child({}, [] {
    const AclCalls acl(0);
    const auto prop = AclCalls::physical(0);
    aclrtDrvMemHandle none = nullptr;
    EXPECT_EQ(acl.aclrtMallocPhysical(&none, kHuge + 1, &prop, 0), ACL_ERROR_INVALID_PARAM);
    const auto chunk = acl.chunk(2 * kHuge, 0);
    const auto other = acl.chunk(kHuge, 1);
    void* at = nullptr;
    EXPECT_EQ(acl.aclrtReserveMemAddress(&at, 4 * kHuge, 0, nullptr, 0), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtMapMem(at, kHuge, 0, chunk, 0), ACL_ERROR_RT_PARAM_INVALID) << "a part";
    EXPECT_EQ(acl.aclrtMapMem(at, 2 * kHuge, kHuge, chunk, 0), ACL_ERROR_INVALID_PARAM) << "an offset";
    EXPECT_EQ(acl.aclrtMapMem(at, 2 * kHuge, 0, chunk, 0), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtMapMem(static_cast<char*>(at) + 2 * kHuge, kHuge, 0, other, 0),
              ACL_ERROR_RT_PARAM_INVALID)
        << "another card's in the same range";
    acl.write(at, 3);
    EXPECT_EQ(acl.aclrtFreePhysical(chunk), ACL_SUCCESS);
    EXPECT_EQ(acl.read(at), 3) << "the mapping keeps the memory";
    EXPECT_EQ(acl.aclrtReleaseMemAddress(at), ACL_ERROR_RT_PARAM_INVALID) << "still mapped";
    EXPECT_EQ(acl.aclrtUnmapMem(at), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtReleaseMemAddress(at), ACL_SUCCESS);
  });
}

TEST_F(AscendSimulator, UsesOfAPageThroughTwoAddressesWithoutOrderAreReported) {
  in_npu_child({}, [] {
    const AclCalls acl;
    if (!acl.sim_unordered) return;  // a real runtime does not tell
    acl.use(0);
    const auto chunk = acl.chunk(kHuge, 0);
    void* windows[] = {acl.map(chunk, kHuge), acl.map(chunk, kHuge)};
    void* streams[] = {acl.stream(), acl.stream()};
    aclrtEvent event = nullptr;
    void* model = nullptr;
    EXPECT_EQ(acl.aclrtCreateEventExWithFlag(&event, 0), ACL_SUCCESS);
    EXPECT_EQ(acl.aclmdlRICaptureBegin(streams[1], 1), ACL_SUCCESS);
    // Halves of a page: without order both are written at once, and no byte twice.
    constexpr std::size_t kHalf = kHuge / 2;
    void* const second_half = static_cast<std::byte*>(windows[0]) + kHalf;
    EXPECT_EQ(acl.aclrtMemsetAsync(windows[1], kHalf, 2, kHalf, streams[1]), ACL_SUCCESS);
    EXPECT_EQ(acl.aclmdlRICaptureEnd(streams[1], &model), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtMemsetAsync(windows[0], kHuge, 1, kHuge, streams[0]), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtRecordEvent(event, streams[0]), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtStreamWaitEvent(streams[1], event), ACL_SUCCESS);
    EXPECT_EQ(acl.aclmdlRIExecuteAsync(model, streams[1]), ACL_SUCCESS);
    EXPECT_EQ(acl.sim_unordered(), 0U);
    EXPECT_EQ(acl.aclrtMemsetAsync(second_half, kHalf, 3, kHalf, streams[0]), ACL_SUCCESS);
    EXPECT_EQ(acl.sim_unordered(), 1U);
    EXPECT_EQ(acl.aclrtSynchronizeStream(streams[0]), ACL_SUCCESS);
    EXPECT_EQ(acl.aclmdlRIExecuteAsync(model, streams[1]), ACL_SUCCESS);
    EXPECT_EQ(acl.sim_unordered(), 1U) << "the host has waited";
    EXPECT_EQ(acl.aclrtSynchronizeStream(streams[1]), ACL_SUCCESS);
  });
}

TEST_F(AscendSimulator, ReadOnlyMappingsRefuseToBeWritten) {
  in_npu_child({}, [] {
    const AclCalls acl(0);
    void* at = acl.map(acl.chunk(kHuge, 0), kHuge);
    aclrtMemAccessDesc wanted{ACL_RT_MEM_ACCESS_FLAGS_READ, {0, ACL_MEM_LOCATION_TYPE_DEVICE}, {}};
    EXPECT_EQ(acl.aclrtMemSetAccess(at, kHuge / 2, &wanted, 1), ACL_ERROR_RT_PARAM_INVALID) << "a part";
    EXPECT_EQ(acl.aclrtMemSetAccess(at, kHuge, &wanted, 1), ACL_SUCCESS);
    unsigned char byte = 1;
    EXPECT_EQ(acl.aclrtMemcpy(at, 1, &byte, 1, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(acl.aclrtMemcpy(&byte, 1, at, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  });
}

TEST_F(AscendSimulator, ANumberNamesMemoryInAdmittedProcesses) {
  Shared<Offered> offered;
  Shared<std::uint64_t> number;
  Child owner([&] {
    const AclCalls acl(0);
    const auto chunk = acl.chunk(kHuge, 0);
    acl.write(acl.map(chunk, kHuge), 4);
    EXPECT_EQ(acl.aclrtMemExportToShareableHandle(chunk, 0, 0, &*number), ACL_SUCCESS);
    std::uint64_t again = 0;
    EXPECT_EQ(acl.aclrtMemExportToShareableHandle(chunk, 0, 0, &again), ACL_ERROR_RT_DRV_INTERNAL_ERROR)
        << "a second time";
    aclrtDrvMemHandle own = nullptr;
    EXPECT_EQ(acl.aclrtMemImportFromShareableHandle(*number, 0, &own), ACL_ERROR_RT_DRV_INTERNAL_ERROR)
        << "in its own process";
    offered->note.step = 1;
    offered->note.reach(2);
    std::int32_t borrower = offered->number;
    EXPECT_EQ(acl.aclrtMemSetPidToShareableHandle(*number, &borrower, 1), ACL_SUCCESS);
    offered->note.step = 3;
    offered->note.reach(4);
  });
  JoinedChild borrower([&] {
    const AclCalls acl(0);
    offered->note.reach(1);
    aclrtDrvMemHandle chunk = nullptr;
    EXPECT_EQ(acl.aclrtMemImportFromShareableHandle(*number, 0, &chunk), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    offered->number = ::getpid();
    offered->note.step = 2;
    offered->note.reach(3);
    EXPECT_EQ(acl.aclrtMemImportFromShareableHandle(*number, 1, &chunk), ACL_ERROR_RT_DRV_INTERNAL_ERROR)
        << "no peer access";
    EXPECT_EQ(acl.aclrtMemImportFromShareableHandle(*number, 0, &chunk), ACL_SUCCESS);
    EXPECT_EQ(acl.read(acl.map(chunk, kHuge)), 4);
    offered->note.step = 4;
  });
  EXPECT_EQ(owner.join(), 0);
}

TEST_F(AscendSimulator, AsManyProcessesAreAdmittedAsTheDriverAdmits) {
  in_npu_child({}, [] {
    const AclCalls acl(0);
    std::uint64_t number = 0;
    EXPECT_EQ(acl.aclrtMemExportToShareableHandle(acl.chunk(kHuge, 0), 0, 0, &number), ACL_SUCCESS);
    std::vector<std::int32_t> processes(32768);
    std::iota(processes.begin(), processes.end(), 1);
    EXPECT_EQ(acl.aclrtMemSetPidToShareableHandle(number, processes.data(), processes.size()), ACL_SUCCESS);
    std::int32_t one_more = 100'000;
    EXPECT_NE(acl.aclrtMemSetPidToShareableHandle(number, &one_more, 1), ACL_SUCCESS);
  });
}

TEST_F(AscendSimulator, MemoryOutlivesItsOwnerWhereItIsOpen) {
  Shared<Offered> offered;
  Shared<std::uint64_t> number;
  Child owner([&] {
    const AclCalls acl(0);
    const auto chunk = acl.chunk(kHuge, 0);
    acl.write(acl.map(chunk, kHuge), 4);
    acl.aclrtMemExportToShareableHandle(chunk, 0, ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION, &*number);
    offered->note.step = 1;
    ::pause();
  });
  JoinedChild borrower([&] {
    const AclCalls acl(0);
    offered->note.reach(1);
    aclrtDrvMemHandle chunk = nullptr;
    EXPECT_EQ(acl.aclrtMemImportFromShareableHandle(*number, 0, &chunk), ACL_SUCCESS);
    offered->note.step = 2;
    offered->note.reach(3);
    EXPECT_EQ(acl.read(acl.map(chunk, kHuge)), 4);
    aclrtDrvMemHandle late = nullptr;
    EXPECT_NE(acl.aclrtMemImportFromShareableHandle(*number, 0, &late), ACL_SUCCESS)
        << "its number is gone";
  });
  offered->note.reach(2);
  owner.kill();
  offered->note.step = 3;
}

// ---- events

TEST_F(AscendSimulator, EventsBetweenProcessesHaveTheirRules) {
  Shared<Note> note;
  Shared<aclrtIpcEventHandle> handle;
  JoinedChild recorder([&] {
    const AclCalls acl(0);
    aclrtEvent event = nullptr;
    EXPECT_EQ(acl.aclrtCreateEventExWithFlag(&event, ACL_EVENT_IPC | ACL_EVENT_SYNC),
              ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(acl.aclrtCreateEventExWithFlag(&event, ACL_EVENT_IPC), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtIpcGetEventHandle(event, &*handle), ACL_SUCCESS);
    int status = -1;
    EXPECT_EQ(acl.aclrtQueryEvent(event, &status), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(acl.aclrtResetEvent(event, nullptr), ACL_ERROR_INVALID_PARAM);
    EXPECT_EQ(acl.aclrtQueryEventStatus(event, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_COMPLETE) << "never recorded";
    const auto stream = acl.stream();
    std::atomic<bool> open{false};
    close_with(acl, stream, open);
    EXPECT_EQ(acl.aclrtRecordEvent(event, stream), ACL_SUCCESS);
    note->step = 1;
    note->reach(2);
    open = true;
    note->reach(3);
    const auto captured = acl.stream();
    EXPECT_EQ(acl.aclmdlRICaptureBegin(captured, 2), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtRecordEvent(event, captured), ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT);
  });
  JoinedChild waiter([&] {
    const AclCalls acl;
    acl.use(1);
    note->reach(1);
    aclrtEvent event = nullptr;
    EXPECT_EQ(acl.aclrtIpcOpenEventHandle(*handle, &event), ACL_SUCCESS);
    const auto stream = acl.stream();
    EXPECT_EQ(acl.aclrtStreamWaitEvent(stream, event), ACL_SUCCESS);
    int status = -1;
    EXPECT_EQ(acl.aclrtStreamQuery(stream, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_STREAM_STATUS_NOT_READY);
    note->step = 2;
    EXPECT_EQ(acl.aclrtSynchronizeStream(stream), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtDestroyEvent(event), ACL_SUCCESS);
    note->step = 3;
  });
}

TEST_F(AscendSimulator, DriversWithoutEventsBetweenProcessesSaySo) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_IPC_EVENTS", "0"}}, [] {
    const AclCalls acl(0);
    aclrtEvent event = nullptr;
    EXPECT_EQ(acl.aclrtCreateEventExWithFlag(&event, ACL_EVENT_IPC), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
  });
}

TEST_F(AscendSimulator, WorkFailsOnMemoryThatWasFreedUnderIt) {
  in_npu_child({}, [] {
    const AclCalls acl(0);
    const auto stream = acl.stream();
    void* at = acl.memory(kHuge);
    std::atomic<bool> open{false};
    close_with(acl, stream, open);
    EXPECT_EQ(acl.aclrtMemsetAsync(at, kHuge, 6, 1, stream), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtFree(at), ACL_SUCCESS) << "it waits for nothing";
    open = true;
    EXPECT_EQ(acl.aclrtSynchronizeStream(stream), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    EXPECT_EQ(acl.aclrtSynchronizeDevice(), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
  });
}

// ---- capture and faults

TEST_F(AscendSimulator, CapturedWorkIsDoneWhenItIsExecuted) {
  in_npu_child({}, [] {
    const AclCalls acl(0);
    const auto stream = acl.stream();
    void* at = acl.memory(kHuge);
    acl.write(at, 1);
    EXPECT_EQ(acl.aclmdlRICaptureBegin(stream, 1), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtMemsetAsync(at, kHuge, 6, 1, stream), ACL_SUCCESS);
    void* model = nullptr;
    EXPECT_EQ(acl.aclmdlRICaptureEnd(stream, &model), ACL_SUCCESS);
    EXPECT_EQ(acl.read(at), 1);
    EXPECT_EQ(acl.aclmdlRIExecuteAsync(model, stream), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtSynchronizeStream(stream), ACL_SUCCESS);
    EXPECT_EQ(acl.read(at), 6);
    EXPECT_EQ(acl.aclmdlRICaptureBegin(stream, 0), ACL_SUCCESS);
    EXPECT_EQ(acl.aclrtMemset(at, kHuge, 0, 1), ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT);
    EXPECT_EQ(acl.aclmdlRICaptureEnd(stream, &model), 507903) << "spoilt";
    EXPECT_EQ(acl.aclmdlRIDestroy(model), ACL_SUCCESS);
  });
}

TEST_F(AscendSimulator, FaultsComeWhereTheyWereAskedFor) {
  in_npu_child({{"ONECOPY_SIM_ASCEND_FAIL", "aclrtMalloc=207001@1"}}, [] {
    const AclCalls acl(0);
    void* at = acl.memory(kHuge);
    EXPECT_EQ(acl.aclrtMalloc(&at, kHuge, 0), ACL_ERROR_RT_MEMORY_ALLOCATION);
    acl.sim_fail("aclrtMalloc", 0, 0, 0);
    EXPECT_EQ(acl.aclrtMalloc(&at, kHuge, 0), ACL_SUCCESS);
  });
}

TEST_F(AscendSimulator, ACallCanBeMissing) {
  const testing::RuntimeWithout older("aclrtMemGetAddressRange");
  in_npu_child({{"ONECOPY_ASCEND_RUNTIME", older.path()}}, [] {
    const AclCalls acl;
    EXPECT_EQ(acl.aclrtMemGetAddressRange, nullptr);
    EXPECT_NE(acl.aclrtMalloc, nullptr);
  });
}

}  // namespace
}  // namespace onecopy
