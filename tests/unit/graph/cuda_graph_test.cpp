// SPDX-License-Identifier: Apache-2.0
// Graphs of CUDA devices as the driver shows and changes them: on the simulator, and on a card where there is one.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "device/backend.h"
#include "device/graphs.h"
#include "graph/relocation.h"
#include "graph/stand_ins.h"
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
    for (unsigned i = 0; i < GraphDriver::kMostRanges; ++i) {
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

/// Else CUDA puts a program's own memory into the rest, far from its other memory, and no proof reaches it.
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

TEST(CudaGraphs, NodesAreReadAndTheirAddressesChanged) {
  in_child([] {
    const Card card;
    const CopyByte kernel(card.cu);
    const CUdeviceptr to = card.bytes(0), from = card.bytes(40), other = card.bytes(0);
    const Captured graph = card.capture([&] {
      kernel.launch(to, from, card.stream);
      EXPECT_EQ(card.cu.cuMemcpyDtoDAsync(to + 1, from + 1, 2, card.stream), CUDA_SUCCESS);
      EXPECT_EQ(card.cu.cuMemsetD8Async(to + 3, 7, 2, card.stream), CUDA_SUCCESS);
    });
    Recording recording = card.graphs.read(0, graph.first);
    ASSERT_EQ(recording.nodes.size(), 3U);
    EXPECT_EQ(recording.edges, (std::vector<RecordedEdge>{{0, 1}, {1, 2}}));
    EXPECT_EQ(recording.nodes[0].kind, RecordedNode::Kind::kernel);
    EXPECT_EQ(recording.nodes[0].name, "copy_byte");
    EXPECT_EQ(recording.nodes[0].parameters, (std::vector<RecordedNode::Parameter>{{0, 8}, {8, 8}}));
    EXPECT_EQ(recording.nodes[1].kind, RecordedNode::Kind::copy);
    EXPECT_EQ(recording.nodes[2].kind, RecordedNode::Kind::fill);
    for (RecordedNode& node : recording.nodes) {
      for (std::size_t at = 0; at + 8 <= node.bytes.size(); at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, node.bytes.data() + at, 8);
        if (word < to || word >= to + kBytes) continue;
        word += other - to;
        std::memcpy(node.bytes.data() + at, &word, 8);
      }
      card.graphs.set(0, graph.second, node);
    }
    card.launch(graph);
    card.wait();
    EXPECT_EQ(card.cu.read(to), 0);
    const int wanted[] = {40, 41, 42, 7, 7, 5};
    for (int i = 0; i < 6; ++i)
      EXPECT_EQ(card.cu.read(other + static_cast<CUdeviceptr>(i)), wanted[i]) << i;
  });
}

TEST(CudaGraphs, AHostFunctionIsANodeWhoseParametersNobodyKnows) {
  in_child([] {
    const Card card;
    const Captured graph = card.capture([&] {
      EXPECT_EQ(card.cu.cuLaunchHostFunc(
                    card.stream, [](void*) {}, nullptr),
                CUDA_SUCCESS);
    });
    const Recording recording = card.graphs.read(0, graph.first);
    ASSERT_EQ(recording.nodes.size(), 1U);
    EXPECT_EQ(recording.nodes[0].kind, RecordedNode::Kind::other);
    EXPECT_NE(recording.nodes[0].name.find("type 3"), std::string::npos);
    expect_refusal(ErrorCode::unsupported, {"no parameters to set"},
                   [&] { card.graphs.set(0, graph.second, recording.nodes[0]); });
  });
}

/// A step of a decoder: the cache is read and written where it is, the scratch memory is the graph's.
struct Step {
  void operator()(const Card& card, const CopyByte& kernel, CUdeviceptr scratch, CUdeviceptr cache) const {
    kernel.launch(scratch, cache, card.stream);
    EXPECT_EQ(card.cu.cuMemcpyDtoDAsync(scratch + 1, cache + 1, 16, card.stream), CUDA_SUCCESS);
    EXPECT_EQ(card.cu.cuMemsetD8Async(cache + 200, 9, 8, card.stream), CUDA_SUCCESS);
    kernel.launch(cache + 100, scratch, card.stream);
  }
};

TEST(CudaGraphs, ACacheMovesByProofAndALaunchUnderWayKeepsTheOldOne) {
  in_child([] {
    const Card card;
    const CopyByte kernel(card.cu);
    const CUdeviceptr scratch = card.bytes(0), old_cache = card.bytes(50), new_cache = card.bytes(80);
    const std::vector<Region> originals{{old_cache, kBytes}};
    const StandIns elsewhere(kCuda0, originals);
    const auto capture = [&](CUdeviceptr at, CUdeviceptr cache) {
      return card.capture([&] { Step()(card, kernel, at, cache); });
    };
    const Captured graph = capture(scratch, old_cache);
    const CUdeviceptr other_scratch = card.bytes(0);
    const auto record = [&](CUdeviceptr cache) {
      return card.graphs.read(0, capture(other_scratch, cache).first);
    };
    const std::vector<MovedRegion> regions{{old_cache, elsewhere.at(0), kBytes}};
    Recording recording = card.graphs.read(0, graph.first);
    const Recording home = record(old_cache), moved = record(elsewhere.at(0)),
                    home_again = record(old_cache), moved_again = record(elsewhere.at(0));
    auto proof = Relocation::prove({home, home_again}, {moved, moved_again}, regions);
    ASSERT_TRUE(proof.relocation) << proof.reason;
    EXPECT_EQ(proof.relocation->difference(recording, home), "");
    ASSERT_TRUE(proof.relocation->can_be_at(0, new_cache));
    Gate gate;
    close_with(card.cu, card.stream, gate);
    card.launch(graph);
    for (const std::uint32_t node : proof.relocation->apply(recording, 0, new_cache))
      card.graphs.set(0, graph.second, recording.nodes[node]);
    card.launch(graph);
    const Recording fresh = record(new_cache);
    EXPECT_EQ(proof.relocation->check(recording, fresh, fresh), "");
    EXPECT_NE(proof.relocation->check(home, fresh, fresh), "");
    gate.open = true;
    card.wait();
    EXPECT_EQ(card.cu.read(old_cache + 100), 50);
    EXPECT_EQ(card.cu.read(old_cache + 203), 9);
    EXPECT_EQ(card.cu.read(new_cache + 100), 80);
    EXPECT_EQ(card.cu.read(new_cache + 203), 9);
    EXPECT_EQ(card.cu.read(scratch + 16), 96);
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
  testing::in_child_with({{"ONECOPY_SIM_CUDA_MISSING", "cuFuncGetParamInfo,cuStreamGetCaptureInfo"}}, [] {
    GraphDriver& graphs = *backend(DeviceType::cuda).graphs();
    expect_refusal(ErrorCode::unsupported, {"cuStreamGetCaptureInfo", "12.3"}, [&] { graphs.prepare(0); });
    expect_refusal(ErrorCode::unsupported, {"cuFuncGetParamInfo", "12.4"},
                   [&] { graphs.read(0, nullptr); });
  });
}

}  // namespace
}  // namespace onecopy::graph
