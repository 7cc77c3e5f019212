// SPDX-License-Identifier: Apache-2.0
// The CUDA backend where the driver is absent, old, short of something, or in the middle of a capture.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>

#include "device/backend.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/cuda_calls.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::CudaCalls;
using testing::element;
using testing::expect_refusal;
using testing::in_child;
using testing::in_child_with;

constexpr Device kCuda0{DeviceType::cuda, 0};
constexpr Device kCuda1{DeviceType::cuda, 1};

class CudaFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(std::getenv("ONECOPY_CUDA_DRIVER")).find("simulators") == std::string::npos)
      GTEST_SKIP() << "a real driver does not fail on demand";
  }
};

Tensor small(Device device = kCuda0) { return empty(Layout(DType::i64, {100}), device); }

void expect_unsupported(std::initializer_list<const char*> words) {
  EXPECT_TRUE(backend(DeviceType::cuda).devices().empty());
  expect_refusal(ErrorCode::unsupported, words, [] { small(); });
  EXPECT_NO_THROW(empty(Layout(DType::i64, {100}))) << "the CPU needs no driver";
}

TEST_F(CudaFaults, WithoutADriverEverythingElseWorks) {
  in_child_with({{"ONECOPY_CUDA_DRIVER", "libnot-there.so.1"}}, [] {
    expect_unsupported({"no CUDA driver", "libnot-there.so.1"});
  });
}

TEST_F(CudaFaults, WithoutADeviceThatIsSaid) {
  in_child_with({{"CUDA_VISIBLE_DEVICES", ""}}, [] {
    expect_unsupported({"CUDA_ERROR_NO_DEVICE (100)", "CUDA_VISIBLE_DEVICES"});
  });
}

TEST_F(CudaFaults, AnOldDriverIsNamedWithItsVersion) {
  in_child_with({{"ONECOPY_SIM_CUDA_VERSION", "11020"}}, [] { expect_unsupported({"11.2", "11.4"}); });
}

TEST_F(CudaFaults, AStubIsRecognised) {
  in_child_with({{"ONECOPY_SIM_CUDA_FAIL", "cuInit=34"}}, [] {
    expect_unsupported({"CUDA_ERROR_STUB_LIBRARY", "LD_LIBRARY_PATH"});
  });
}

TEST_F(CudaFaults, ADeviceThatThisUserMayNotOpenIsSaid) {
  for (const char* fault : {"cuInit=100", "cuInit=304"})
    in_child_with({{"ONECOPY_SIM_CUDA_FAIL", fault}}, [] { expect_unsupported({"/dev/nvidia*"}); });
}

TEST_F(CudaFaults, ADeviceThatAnotherProcessHasForItselfIsSaid) {
  in_child([] {
    const CudaCalls cu;
    cu.sim_fail("cuDevicePrimaryCtxRetain", 46, 0, -1);
    expect_refusal(ErrorCode::unsupported, {"(46)", "exclusively", "compute mode"},
                   [] { element(small(), 0); });
    cu.sim_fail("cuDevicePrimaryCtxRetain", 0, 0, 0);
    EXPECT_NO_THROW(element(small(), 0)) << "once it is free";
  });
}

TEST_F(CudaFaults, AMissingCallIsNamedWhereItIsNeeded) {
  in_child_with({{"ONECOPY_SIM_CUDA_MISSING", "cuMemCreate"}}, [] {
    expect_refusal(ErrorCode::unsupported, {"cuMemCreate", "CUDA 10.2"}, [] { small(); });
    EXPECT_EQ(stats().live_blocks, 0u);
  });
}

TEST_F(CudaFaults, ADeviceThatCannotExportIsToldApart) {
  in_child_with({{"ONECOPY_SIM_CUDA_MISSING", "attribute103"}}, [] {
    expect_refusal(ErrorCode::unsupported, {"cuda:0", "cudaMalloc"}, [] { small(); });
  });
}

TEST_F(CudaFaults, EachStepOfAnAllocationMayFailAndLeavesNothing) {
  for (const char* call : {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"})
    in_child([call] {
      const CudaCalls cu;
      cu.sim_fail(call, 999, 0, -1);
      EXPECT_THROW(small(), Error) << call;
      cu.sim_fail(call, 0, 0, 0);
      EXPECT_EQ(stats().live_blocks, 0u);
      EXPECT_NO_THROW(small()) << call;
      cu.use(0);
      std::size_t free = 0;
      std::size_t total = 0;
      cu.cuMemGetInfo(&free, &total);
      EXPECT_EQ(total - free, std::size_t{2} << 20) << call;
    });
}

TEST_F(CudaFaults, AnOrdinalThatIsNotThereIsNamed) {
  in_child([] {
    expect_refusal(ErrorCode::invalid_argument, {"cuda:7", "2 CUDA devices"}, [] {
      small({DeviceType::cuda, 7});
    });
  });
}

TEST_F(CudaFaults, AFailedDeviceSaysWhatHappened) {
  in_child([] {
    const Tensor tensor = small();
    const CudaCalls cu;
    cu.sim_fail("cuMemcpyDtoHAsync", 700, 0, -1);
    expect_refusal(ErrorCode::system, {"CUDA_ERROR_ILLEGAL_ADDRESS (700)", "can no longer use the device"},
                   [&] { element(tensor, 0); });
  });
}

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::Shared<std::atomic<std::size_t>> count;
    in_child([&] { *count = backend(DeviceType::cuda).devices().size(); });
    if (*count < 1) GTEST_SKIP() << "no CUDA device on this machine";
    devices_ = *count;
  }
  std::size_t devices_ = 0;
};

TEST_F(Cuda, CopiesGoBetweenHostAndDevicesWithAnyStrides) {
  if (devices_ < 2) GTEST_SKIP() << "one CUDA device only";
  in_child([] {
    const Tensor host = empty(Layout(DType::i32, {6, 10}));
    for (std::int32_t i = 0; i < 60; ++i) host.as<std::int32_t>()[i] = i;
    const Tensor first = copy(host.view(), kCuda0);
    const Tensor second = copy(first.slice(1, 2, 5).view(), kCuda1);
    EXPECT_EQ(second.device(), kCuda1);
    const Tensor back = copy(second.view(), kCpu);
    for (std::int32_t i = 0; i < 6; ++i)
      for (std::int32_t j = 0; j < 3; ++j) EXPECT_EQ(back.as<std::int32_t>()[i * 3 + j], i * 10 + j + 2);
    copy_into(host.slice(1, 0, 3).view(), second.view());
    EXPECT_EQ(element<std::int32_t>(second, 4), 11);
    expect_refusal(ErrorCode::invalid_argument, {"shape"}, [&] { copy_into(host.view(), second.view()); });
  });
}

TEST_F(Cuda, CopiesInAStreamWaitForItAndNotForTheHost) {
  in_child([] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor from = small();
    const Tensor to = small();
    testing::set_element<std::int64_t>(from, 99, 5);
    testing::set_element<std::int64_t>(to, 99, 6);
    struct Gate {
      std::atomic<bool> open{false};
    } gate;
    cu.cuLaunchHostFunc(
        stream,
        [](void* at) {
          while (!static_cast<Gate*>(at)->open) {
          }
        },
        &gate);
    copy_into(from.view(), to.view(), Stream{stream});
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY);
    gate.open = true;
    cu.cuStreamSynchronize(stream);
    EXPECT_EQ(element(to, 99), 5);
  });
}

constexpr std::int64_t kRows = 64;

/// Returns copies of rows of one tensor into rows of another, in the reversed order.
std::vector<Transfer> reversed_rows(const Tensor& to, const Tensor& from) {
  std::vector<Transfer> all;
  const std::size_t bytes = to.nbytes() / kRows;
  for (std::size_t row = 0; row < kRows; ++row)
    all.push_back({static_cast<std::byte*>(to.data()) + row * bytes, to.device(),
                   static_cast<const std::byte*>(from.data()) + (kRows - 1 - row) * bytes, from.device(),
                   bytes});
  return all;
}

/// Copies numbered rows to the card and back in batches of the stream, and expects them in their first order.
void expect_rows_there_and_back(const Tensor& host, const Tensor& back, Stream stream) {
  const Tensor card = empty(host.layout(), kCuda0);
  for (std::int64_t i = 0; i < kRows * 512; ++i) host.as<std::int64_t>()[i] = i;
  std::memset(back.data(), 0, back.nbytes());
  copy_batch(reversed_rows(card, host), stream);
  copy_batch(reversed_rows(back, card), stream);
  backend(DeviceType::cuda).synchronize(0, stream);
  for (std::int64_t i = 0; i < kRows * 512; ++i) EXPECT_EQ(back.as<std::int64_t>()[i], i);
}

TEST_F(Cuda, ABatchOfCopiesIsOneCallWithPinnedMemoryInAStreamOfItsOwn) {
  in_child([] {
    const CudaCalls cu(0);
    const auto batches = [&] { return cu.sim_batches ? cu.sim_batches() : 0; };
    const Tensor host = empty(Layout(DType::i64, {kRows, 512})), back = empty(host.layout());
    expect_rows_there_and_back(host, back, {cu.stream()});
    EXPECT_EQ(batches(), 0u) << "the memory is not pinned";
    pin(host);
    pin(back);
    expect_rows_there_and_back(host, back, {});
    EXPECT_EQ(batches(), 0u) << "the legacy stream takes none";
    expect_rows_there_and_back(host, back, {cu.stream()});
    EXPECT_EQ(batches(), cu.sim_batches ? 2u : 0u);
  });
}

TEST_F(Cuda, ABatchReadsItsSourcesAfterTheWorkInItsStream) {
  in_child([] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor host = empty(Layout(DType::i64, {kRows, 512}));
    pin(host);
    const Tensor card = empty(host.layout(), kCuda0);
    std::memset(host.data(), 0, host.nbytes());
    cu.cuLaunchHostFunc(
        stream, [](void* at) { static_cast<std::int64_t*>(at)[0] = 7; }, host.data());
    copy_batch(reversed_rows(card, host), {stream});
    cu.cuStreamSynchronize(stream);
    EXPECT_EQ(element<std::int64_t>(card, (kRows - 1) * 512), 7);
  });
}

TEST_F(Cuda, ForeignMemoryIsFoundFromAThreadThatNeverUsedTheDevice) {  // as a queue's feeder
  in_child([] {
    const CudaCalls cu(0);
    const auto* memory = reinterpret_cast<const void*>(cu.memory(4096));
    ForeignMemory found;
    std::thread([&] { found = backend(DeviceType::cuda).find_foreign(memory, 4096); }).join();
    EXPECT_EQ(found.base, memory);
    EXPECT_EQ(found.device, kCuda0);
  });
}

TEST_F(Cuda, AllocatingDuringACaptureDoesNotSpoilIt) {
  in_child([] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    EXPECT_EQ(cu.cuStreamBeginCapture(stream, testing::CU_STREAM_CAPTURE_MODE_GLOBAL),
              testing::CUDA_SUCCESS);
    const Tensor tensor = empty(Layout(DType::u8, {100 << 20}), kCuda0);
    testing::CUgraph graph = nullptr;
    EXPECT_EQ(cu.cuStreamEndCapture(stream, &graph), testing::CUDA_SUCCESS);
  });
}

constexpr std::size_t kSegment = 2 << 20;

std::unique_ptr<DeviceMemory> committed_segment() {
  auto segment = backend(DeviceType::cuda).create(0, kSegment, SegmentKind::cuda_vmm, "test", 0);
  segment->commit(0, kSegment);
  return segment;
}

/// `work` runs in this thread while another thread's capture goes on, and must leave the capture good.
void expect_capture_survives(const std::function<void()>& work) {
  const CudaCalls cu(0);
  const auto stream = cu.stream();
  std::atomic<bool> begun{false};
  std::atomic<bool> done{false};
  std::thread capturer([&] {
    cu.use(0);
    EXPECT_EQ(cu.cuStreamBeginCapture(stream, testing::CU_STREAM_CAPTURE_MODE_GLOBAL),
              testing::CUDA_SUCCESS);
    begun = true;
    begun.notify_all();
    done.wait(false);
    testing::CUgraph graph = nullptr;
    EXPECT_EQ(cu.cuStreamEndCapture(stream, &graph), testing::CUDA_SUCCESS);
  });
  begun.wait(false);
  work();
  done = true;
  done.notify_all();
  capturer.join();
}

struct CallInCapture {
  const char* name;
  bool ends_it;
  std::function<void(const CudaCalls&, testing::CUstream other)> call;
};

/// Calls that another thread makes while this thread captures a non-blocking stream in global mode, as
/// torch.cuda.graph() does. The results were seen on an H200 with driver 580.159.
const CallInCapture kCallsInCapture[] = {
    {"a word written in the default stream", false,
     [](const CudaCalls& cu, testing::CUstream) {
       static std::uint64_t words[8192];
       backend(DeviceType::cuda).register_words(0, words, sizeof words);
       cu.cuStreamWriteValue64(nullptr, reinterpret_cast<testing::CUdeviceptr>(words), 1, 0);
     }},
    {"a query for a capture", false,
     [](const CudaCalls& cu, testing::CUstream other) {
       int status = 0;
       cu.cuStreamIsCapturing(other, &status);
     }},
    {"a query of another stream", true,
     [](const CudaCalls& cu, testing::CUstream other) { cu.cuStreamQuery(other); }},
    {"a wait for another stream", true,
     [](const CudaCalls& cu, testing::CUstream other) { cu.cuStreamSynchronize(other); }},
    {"a query of an event", true,
     [](const CudaCalls& cu, testing::CUstream other) {
       testing::CUevent event = nullptr;
       cu.cuEventCreate(&event, 0);
       cu.cuEventRecord(event, other);
       cu.cuEventQuery(event);
     }},
    {"an allocation", true,
     [](const CudaCalls& cu, testing::CUstream) {
       testing::CUdeviceptr at = 0;
       cu.cuMemAlloc(&at, 4096);
     }},
    {"a registration of host memory", true,
     [](const CudaCalls& cu, testing::CUstream) {
       alignas(4096) static char page[4096];
       cu.cuMemHostRegister(page, sizeof page, 0);
     }},
};

TEST_F(Cuda, SomeCallsOfAnotherThreadEndACaptureAndOthersDoNot) {
  in_child([] {
    const CudaCalls cu(0);
    const auto captured = cu.stream();
    const auto other = cu.stream();
    for (const auto& [name, ends_it, call] : kCallsInCapture) {
      EXPECT_EQ(cu.cuStreamBeginCapture(captured, testing::CU_STREAM_CAPTURE_MODE_GLOBAL),
                testing::CUDA_SUCCESS);
      std::thread([&, &call = call] {
        cu.use(0);
        call(cu, other);
      }).join();
      testing::CUgraph graph = nullptr;
      EXPECT_EQ(cu.cuStreamEndCapture(captured, &graph),
                ends_it ? testing::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : testing::CUDA_SUCCESS)
          << name;
    }
  });
}

// The watch thread marks it, or the next call: a word in the default stream would end the capture of a blocking one.
TEST_F(Cuda, WhatIsDroppedInTheDefaultStreamDuringACaptureDoesNotSpoilIt) {
  in_child([] {
    const CudaCalls cu(0);
    const auto in_default_stream = [] {
      return record_stream(empty(Layout(DType::u8, {4096}), kCuda0), Stream{});
    };
    in_default_stream().release();  // words are registered now
    for (const unsigned flags : {0u, unsigned{testing::CU_STREAM_NON_BLOCKING}}) {
      const auto captured = cu.stream(flags);
      Tensor tensor = in_default_stream();
      EXPECT_EQ(cu.cuStreamBeginCapture(captured, testing::CU_STREAM_CAPTURE_MODE_GLOBAL),
                testing::CUDA_SUCCESS);
      tensor.release();
      collect();
      testing::CUgraph graph = nullptr;
      EXPECT_EQ(cu.cuStreamEndCapture(captured, &graph), testing::CUDA_SUCCESS);
      EXPECT_TRUE(testing::eventually([] { return stats().live_blocks == 0; }));
    }
  });
}

// The calls that give memory back invalidated any capture under way, which then failed at its end.
TEST_F(Cuda, TheWatchThreadGivesIdleMemoryBackWithoutSpoilingACapture) {
  in_child([] {
    const std::uint64_t before = stats().bytes_shared;
    Tensor tensor = empty(Layout(DType::u8, {100 << 20}), kCuda0);
    expect_capture_survives([&] {
      tensor.release();
      EXPECT_TRUE(testing::eventually([&] { return stats().bytes_shared == before; }));
    });
  });
}

TEST_F(Cuda, MakingAndUndoingASegmentSpoilsNoCapture) {
  in_child([] {
    Backend& cuda = backend(DeviceType::cuda);
    static std::uint64_t words[8192];  // registered for good
    expect_capture_survives([&] {
      auto made = committed_segment();
      auto opened = cuda.open(0, made->export_memory(Access::read_write), Access::read_write);
      opened.reset();
      made->decommit(0, kSegment);
      made.reset();
      cuda.register_words(0, words, sizeof words);
    });
  });
}

unsigned long long access_of(int ordinal, const DeviceMemory& memory) {
  const testing::CUmemLocation location{testing::CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
  unsigned long long flags = 99;
  const auto at = reinterpret_cast<testing::CUdeviceptr>(memory.data());
  EXPECT_EQ(CudaCalls().cuMemGetAccess(&flags, &location, at), testing::CUDA_SUCCESS);
  return flags;
}

void expect_opened_for_both_cards(Access access, unsigned long long flags) {
  const auto segment = committed_segment();
  const auto opened =
      backend(DeviceType::cuda).open(0, segment->export_memory(access), access, kCuda1.index);
  for (const int ordinal : {0, 1}) {
    EXPECT_EQ(access_of(ordinal, *opened), flags);
    EXPECT_EQ(opened->allow(ordinal), opened->data()) << "at the same addresses";
  }
}

// A copy to memory of the card that it is of is made by that card.
TEST_F(Cuda, MemoryThatIsOpenedForAnotherCardIsThereForItsOwnToo) {
  if (devices_ < 2) GTEST_SKIP() << "needs two CUDA devices";
  in_child([] {
    expect_opened_for_both_cards(Access::read_write, testing::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    expect_opened_for_both_cards(Access::read_only, testing::CU_MEM_ACCESS_FLAGS_PROT_READ);
  });
}

TEST_F(CudaFaults, MemoryIsNotOpenedForACardThatHasNoPathToIt) {
  in_child_with({{"ONECOPY_SIM_CUDA_PEERS", "none"}}, [] {
    const auto segment = committed_segment();
    expect_refusal(ErrorCode::unsupported, {"cuda:1 cannot reach memory of cuda:0", "no peer access"}, [&] {
      const Access access = Access::read_write;
      backend(DeviceType::cuda).open(0, segment->export_memory(access), access, 1);
    });
  });
}

/// How many descriptors of this process are of files with this in their names.
std::ptrdiff_t descriptors_of(const std::string& name) {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return std::count_if(begin(all), end(all), [&](const auto& descriptor) {
    std::error_code gone;  // that of the directory itself
    return read_symlink(descriptor.path(), gone).string().find(name) != std::string::npos;
  });
}

// The first to open a segment waited 0.8 ms for its descriptor.
TEST_F(CudaFaults, OneExportOfACardStaysOpenWhileItHasMemory) {
  in_child([] {
    const auto open = [] { return descriptors_of("simulated-cuda"); };
    const auto first = committed_segment();
    EXPECT_EQ(open(), 2) << "the simulator's own and one export";
    const auto second = committed_segment();
    EXPECT_EQ(open(), 3) << "no further export";
    first->decommit(0, kSegment);
    EXPECT_EQ(open(), 1) << "nothing keeps the memory";
    second->export_memory(Access::read_write);
    EXPECT_EQ(open(), 2) << "the second has taken it over";
  });
}

TEST_F(CudaFaults, WhatOthersHaveOpenedIsNotExportedAgain) {
  in_child([] {
    const auto first = committed_segment();
    const auto second = committed_segment();
    second->export_memory(Access::read_write);
    const CudaCalls cu;
    cu.sim_fail("cuMemExportToShareableHandle", 304, 0, 1);
    EXPECT_EQ(first->export_memory(Access::read_write).fds.size(), 1u);
    EXPECT_EQ(second->export_memory(Access::read_only).fds.size(), 1u);
  });
}

TEST_F(CudaFaults, ExportsStayOpenUpToANumber) {
  in_child([] {
    std::vector<std::unique_ptr<DeviceMemory>> segments;
    for (int i = 0; i < 20; ++i) {
      segments.push_back(committed_segment());
      EXPECT_EQ(segments.back()->export_memory(Access::read_write).fds.size(), 1u);
    }
    EXPECT_EQ(descriptors_of("simulated-cuda"), 20 + 8);
  });
}

TEST_F(CudaFaults, AnExportThatCannotStayOpenIsNoFailure) {
  in_child([] {
    const CudaCalls cu;
    cu.sim_fail("cuMemExportToShareableHandle", 304, 0, 1);
    const auto segment = committed_segment();
    EXPECT_EQ(segment->export_memory(Access::read_write).fds.size(), 1u);
    EXPECT_EQ(descriptors_of("simulated-cuda"), 2) << "the next call has made up for it";
  });
}

TEST_F(Cuda, AForkedChildKeepsNoMemoryOfTheCard) {
  in_child([] {
    const auto segment = committed_segment();
    const auto opened =
        backend(DeviceType::cuda).open(0, segment->export_memory(Access::read_write), Access::read_write);
    const auto before = descriptors_of("/dev/null");
    in_child([before] { EXPECT_EQ(descriptors_of("/dev/null"), before + 2); });
    EXPECT_EQ(descriptors_of("/dev/null"), before) << "its parent goes on";
  });
}

TEST_F(Cuda, AForkedChildsOwnDescriptorsAreNotTakenForThose) {
  in_child([] {
    const auto segment = committed_segment();
    in_child([] {
      for (int fd = 3; fd < 1024; ++fd) ::dup2(STDERR_FILENO, fd);  // all numbers are of something else now
      const auto before = descriptors_of("/dev/null");
      in_child([before] { EXPECT_EQ(descriptors_of("/dev/null"), before); });
    });
  });
}

}  // namespace
}  // namespace onecopy
