// SPDX-License-Identifier: Apache-2.0
// Graphs of CUDA devices as the driver shows and changes them: on the simulator, and on a card where there is one.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "device/backend.h"
#include "device/graphs.h"
#include "onecopy/core/error.h"
#include "onecopy/graph/arena.h"
#include "support/cuda_calls.h"
#include "support/cuda_kernel.h"
#include "support/cuda_streams.h"
#include "support/refusal.h"

namespace onecopy::graph {
namespace {

using namespace onecopy::cuda;  // the names of cuda.h
using testing::close_with;
using testing::CopyByte;
using testing::CudaCalls;
using testing::expect_refusal;
using testing::Gate;
using testing::in_child;
using testing::kCuda0;

constexpr std::size_t kBytes = 256;

using Captured = std::pair<CUgraph, CUgraphExec>;

/// One device with its driver, as a program and as the library sees it.
struct Card {
  Card() : stream((cu.use(0), cu.stream())), graphs(*backend(DeviceType::cuda).graphs()) {
    graphs.prepare(0);
  }

  CUdeviceptr bytes(unsigned char first) const {
    const CUdeviceptr at = cu.memory(kBytes);
    std::vector<unsigned char> values(kBytes);
    std::iota(values.begin(), values.end(), first);
    EXPECT_EQ(cu.cuMemcpyHtoD(at, values.data(), kBytes), CUDA_SUCCESS);
    return at;
  }
  template <class Work>
  Captured capture(Work&& work) const {
    Captured made{};
    EXPECT_EQ(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    work();
    EXPECT_EQ(cu.cuStreamEndCapture(stream, &made.first), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuGraphInstantiateWithFlags(&made.second, made.first, 0), CUDA_SUCCESS);
    return made;
  }
  void launch(const Captured& graph) const { graphs.launch(0, graph.second, native()); }
  void wait() const { EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS); }
  Stream native() const { return {stream}; }

  CudaCalls cu;
  CUstream stream;
  GraphDriver& graphs;
};

CopyRange range(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return {reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from), bytes};
}

TEST(CudaGraphs, ManyRangesAreCopiedInOneLaunchWhateverTheirAddressesAre) {
  in_child([] {
    const Card card;
    std::vector<CopyRange> ranges;
    std::vector<std::pair<CUdeviceptr, int>> wanted;
    for (unsigned i = 0; i < GraphDriver::kMaxRanges; ++i) {
      const CUdeviceptr to = card.bytes(0), from = card.bytes(static_cast<unsigned char>(i));
      const unsigned shift = i % 18, bytes = 1 + i * 3 % 200;
      ranges.push_back(range(to + shift, from + shift + i % 2 * 4, bytes));
      wanted.emplace_back(to + shift + bytes - 1, (i + shift + i % 2 * 4 + bytes - 1) % 256);
      wanted.emplace_back(to + shift + bytes, (shift + bytes) % 256);  // beyond it nothing is written
    }
    EXPECT_EQ(card.graphs.copy(0, card.native(), ranges), nullptr) << "nothing is captured";
    card.wait();
    for (const auto& [at, value] : wanted) EXPECT_EQ(card.cu.read(at), value);
    ranges.push_back(ranges[0]);
    expect_refusal(ErrorCode::invalid_argument, {"1 to 64 ranges, not 65"},
                   [&] { card.graphs.copy(0, card.native(), ranges); });
    expect_refusal(ErrorCode::invalid_argument, {"not 0"}, [&] { card.graphs.copy(0, card.native(), {}); });
  });
}

TEST(CudaGraphs, ALaunchKeepsTheRangesThatItWasGiven) {
  in_child([] {
    const Card card;
    const CUdeviceptr to = card.bytes(0), first = card.bytes(10), second = card.bytes(20),
                      other = card.bytes(0);
    GraphNode node = nullptr;
    const Captured graph = card.capture([&] {
      const CopyRange itself = range(to, to, kBytes);
      node = card.graphs.copy(0, card.native(), std::span(&itself, 1));
    });
    ASSERT_NE(node, nullptr);
    Gate gate;
    close_with(card.cu, card.stream, gate);
    const CopyRange early = range(to, first, kBytes), late = range(other, second, 8);
    card.graphs.set_copy(0, graph.second, node, std::span(&early, 1));
    card.launch(graph);
    card.graphs.set_copy(0, graph.second, node, std::span(&late, 1));
    card.launch(graph);
    gate.open = true;
    card.wait();
    EXPECT_EQ(card.cu.read(to), 10);
    EXPECT_EQ(card.cu.read(to + 255), (10 + 255) % 256);
    EXPECT_EQ(card.cu.read(other + 7), 27);
    EXPECT_EQ(card.cu.read(other + 8), 8);
  });
}

/// g14: the graphs of torch programs are often on another card than the current one.
TEST(CudaGraphs, AGraphOfACardThatIsNotTheCurrentOneRunsThere) {
  in_child([] {
    const CudaCalls cu;
    int cards = 0;
    ASSERT_EQ(cu.cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuDeviceGetCount(&cards), CUDA_SUCCESS);
    if (cards < 2) return;  // wants two cards
    cu.use(1);
    const CUstream stream = cu.stream();
    const CUdeviceptr from = cu.memory(kBytes);
    cu.write(from + 9, 7);
    const CUcontext current = cu.use(0);
    GraphDriver& graphs = *backend(DeviceType::cuda).graphs();
    graphs.prepare(1);
    const auto arena = Arena::make({DeviceType::cuda, 1});
    const Window window = arena->open(kBytes);
    const auto to = reinterpret_cast<CUdeviceptr>(window.base());
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    ASSERT_EQ(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    const CopyRange itself = range(to, to, kBytes), wanted = range(to, from, kBytes);
    GraphNode node = graphs.copy(1, {stream}, std::span(&itself, 1));
    ASSERT_EQ(cu.cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
    graphs.set_copy(1, executable, node, std::span(&wanted, 1));
    const auto mark = graphs.make_mark(1);
    graphs.launch(1, executable, {stream});
    mark->record({stream});
    mark->wait();
    CUcontext after = nullptr;
    EXPECT_EQ(cu.cuCtxGetCurrent(&after), CUDA_SUCCESS);
    EXPECT_EQ(after, current);
    cu.use(1);
    EXPECT_EQ(cu.read(to + 9), 7);
  });
}

/// Two windows over one page, as graphs of one arena have them.
struct TwoWindows {
  TwoWindows() : arena(Arena::make(kCuda0)), first(arena->open(kBytes)), second(arena->open(kBytes)) {}

  static CUdeviceptr at(const Window& window) { return reinterpret_cast<CUdeviceptr>(window.base()); }

  std::shared_ptr<Arena> arena;
  Window first, second;
};

TEST(CudaGraphs, KernelsThatUseAPageThroughTwoWindowsWithoutOrderAreReported) {
  in_child([] {
    const Card card;
    if (!card.cu.sim_unordered) return;  // a real driver does not tell
    const CopyByte kernel(card.cu);
    const TwoWindows windows;
    const CUdeviceptr apart = card.bytes(40);
    CUstream other = card.cu.stream();
    const Captured graph =
        card.capture([&] { kernel.launch(TwoWindows::at(windows.second), apart, card.stream); });
    EXPECT_EQ(card.cu.sim_unordered(), 0U);
    kernel.launch(TwoWindows::at(windows.first), apart, other);
    EXPECT_EQ(card.cu.sim_unordered(), 0U) << card.cu.sim_first_unordered();
    card.launch(graph);
    EXPECT_EQ(card.cu.sim_unordered(), 1U);
    EXPECT_NE(std::string(card.cu.sim_first_unordered()).find("another address"), std::string::npos);
    kernel.launch(TwoWindows::at(windows.second), apart, other);  // the stream's own address of before
    EXPECT_EQ(card.cu.sim_unordered(), 1U);
    card.wait();
    EXPECT_EQ(card.cu.cuStreamSynchronize(other), CUDA_SUCCESS);
    kernel.launch(TwoWindows::at(windows.first), apart, card.stream);  // the host has waited for all
    EXPECT_EQ(card.cu.sim_unordered(), 1U) << card.cu.sim_first_unordered();
  });
}

TEST(CudaGraphs, MoreWindowsThanAddressesAreRefusedAndTheArenaIsAsItWas) {
  in_child([] {
    const Card card;
    if (!card.cu.sim_fail) return;  // a real driver has addresses for thousands
    const auto arena = Arena::make(kCuda0);
    const Window window = arena->open(kBytes);
    card.cu.sim_fail("cuMemAddressReserve", 2, 0, 1);
    expect_refusal(ErrorCode::out_of_mappings, {"addresses"}, [&] { (void)arena->open(kBytes); });
    EXPECT_EQ(arena->footprint().windows, 1U);
    const Window later = arena->open(kBytes);
    card.cu.write(TwoWindows::at(window), 6);
    EXPECT_EQ(card.cu.read(TwoWindows::at(later)), 6);
  });
}

/// Else CUDA puts a program's own memory into the rest, far from its other memory.
TEST(CudaGraphs, AWindowsAddressesAreAWholeNumberOfTheLargestPages) {
  in_child([] {
    const Card card;
    if (!card.cu.sim_reserved) return;
    const auto arena = Arena::make(kCuda0);
    const std::size_t before = card.cu.sim_reserved();
    const Window window = arena->open_growing((std::size_t{143771} << 20) - 4096);
    EXPECT_EQ((card.cu.sim_reserved() - before) % (std::size_t{64} << 20), 0U);
    EXPECT_GT(card.cu.sim_reserved() - before, std::size_t{143771} << 20);
  });
}

TEST(CudaGraphs, OutOfMemoryInTheMiddleOfACaptureLeavesTheArenaAsItWas) {
  in_child([] {
    const Card card;
    if (!card.cu.sim_fail) return;
    constexpr std::size_t kPage = std::size_t{2} << 20;
    const auto arena = Arena::make(kCuda0);
    const Window held = arena->open(kPage);
    card.cu.write(TwoWindows::at(held), 6);
    Window captured = arena->open_growing(64 * kPage);
    captured.grow(2 * kPage);
    card.cu.sim_fail("cuMemCreate", 2, 1, 1);  // of three more pages the second
    expect_refusal(ErrorCode::out_of_memory, {"cuda:0"}, [&] { captured.grow(60 * kPage); });
    EXPECT_EQ(arena->footprint().shared, 2 * kPage);
    EXPECT_EQ(captured.size(), 2 * kPage);
    EXPECT_EQ(card.cu.read(TwoWindows::at(captured)), 6);
    captured.grow(60 * kPage);
    EXPECT_EQ(arena->footprint().shared, 60 * kPage);
  });
}

TEST(CudaGraphs, MarksAreTheOrderOfWindowsOnTwoStreams) {
  in_child([] {
    const Card card;
    const CopyByte kernel(card.cu);
    const TwoWindows windows;
    const CUdeviceptr apart = card.bytes(40);
    CUstream streams[] = {card.stream, card.cu.stream()};
    const auto mark = card.graphs.make_mark(0);
    for (int turn = 0; turn < 40; ++turn) {
      CUstream stream = streams[turn % 2];
      if (turn > 0) mark->let_wait({stream});
      kernel.launch(TwoWindows::at(turn % 3 == 0 ? windows.first : windows.second), apart, stream);
      mark->record({stream});
    }
    mark->wait();
    if (card.cu.sim_unordered) {
      EXPECT_EQ(card.cu.sim_unordered(), 0U) << card.cu.sim_first_unordered();
    }
    EXPECT_EQ(card.cu.read(TwoWindows::at(windows.first)), 40);
  });
}

TEST(CudaGraphs, AMarkOrdersTwoStreams) {
  in_child([] {
    const Card card;
    const CUstream other = card.cu.stream();
    const CUdeviceptr at = card.bytes(0);
    const auto mark = card.graphs.make_mark(0);
    Gate gate;
    close_with(card.cu, card.stream, gate);
    EXPECT_EQ(card.cu.cuMemsetD8Async(at, 1, 1, card.stream), CUDA_SUCCESS);
    mark->record(card.native());
    mark->let_wait({other});
    EXPECT_EQ(card.cu.cuMemsetD8Async(at, 2, 1, other), CUDA_SUCCESS);
    gate.open = true;
    EXPECT_EQ(card.cu.cuStreamSynchronize(other), CUDA_SUCCESS);
    mark->wait();
    card.wait();
    EXPECT_EQ(card.cu.read(at), 2);
  });
}

TEST(CudaGraphs, AnOldDriverSaysWhatItLacks) {
  if (std::string(std::getenv("ONECOPY_CUDA_DRIVER")).find("simulators") == std::string::npos)
    GTEST_SKIP() << "wants the simulated driver, which can be old";
  testing::in_child_with({{"ONECOPY_SIM_CUDA_MISSING", "cuStreamGetCaptureInfo"}}, [] {
    GraphDriver& graphs = *backend(DeviceType::cuda).graphs();
    expect_refusal(ErrorCode::unsupported, {"cuStreamGetCaptureInfo", "12.3"}, [&] { graphs.prepare(0); });
  });
}

}  // namespace
}  // namespace onecopy::graph
