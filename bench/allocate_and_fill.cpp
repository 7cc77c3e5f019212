// SPDX-License-Identifier: Apache-2.0
// Measures what memory of the pool costs, and when it is returned.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "rows.h"
#include "support/memory.h"
#include "support/samples.h"

namespace onecopy::bench {
namespace {

constexpr int kFillRounds = 41;
constexpr std::size_t kSize = std::size_t{16} << 20;

Tensor block() { return empty(Layout(DType::u8, {static_cast<std::int64_t>(kSize)})); }

/// Makes a copy that the compiler cannot remove.
void fill(void* to, const std::vector<char>& source) {
  std::memcpy(to, source.data(), kSize);
  asm volatile("" : : "r"(to) : "memory");
}

void measure_steady(const Effort& effort, const std::vector<char>& source, Row& row) {
  const Tensor kept = block();
  Samples warm;
  Samples ours;
  Samples heap;
  for (int i = -2; i < effort.rounds(kFillRounds); ++i) {
    const double warm_ns = time_ns([&] { fill(kept.data(), source); });
    const double ours_ns = time_ns([&] { fill(block().data(), source); });
    const double heap_ns = time_ns([&] {
      const std::unique_ptr<void, decltype(&std::free)> memory(std::malloc(kSize), &std::free);
      fill(memory.get(), source);
    });
    if (i < 0) continue;
    warm.add(warm_ns);
    ours.add(ours_ns);
    heap.add(heap_ns);
  }
  row.add("memcpy of 16 MiB into warm memory", warm.median(), "ns");
  row.judge("allocate 16 MiB, fill, free: steady state", ours.median(), "ns", ours.ratio_to(warm),
            "warm memcpy", 1.3);
  row.add("malloc, memcpy, free", heap.median(), "ns", heap.ratio_to(warm), "warm memcpy");
}

void measure_first_touch(const Effort& effort, const std::vector<char>& source, Row& row) {
  Samples fresh;
  Samples ours;
  for (int i = -1; i < effort.rounds(kFillRounds); ++i) {
    collect();  // releases all cached memory
    std::unique_ptr<FreshMemory> memory;
    const double fresh_ns = time_ns([&] {
      memory = std::make_unique<FreshMemory>(kSize);
      fill(memory->data(), source);
    });
    Tensor tensor;
    const double ours_ns = time_ns([&] {
      tensor = block();
      fill(tensor.data(), source);
    });
    if (i < 0) continue;
    fresh.add(fresh_ns);
    ours.add(ours_ns);
  }
  row.add("mmap of 16 MiB of fresh anonymous memory, memcpy", fresh.median(), "ns");
  row.judge("allocate 16 MiB, fill: first touch", ours.median(), "ns", ours.ratio_to(fresh), "fresh memory",
            1.3);
}

/// Frees 256 MiB and waits until their files have no more pages than before.
void measure_return(const std::vector<char>& source, Row& row) {
  constexpr int kBlocks = 16;
  collect();
  const std::uint64_t before = memfd_bytes() + kSize;
  std::vector<Tensor> tensors;
  for (int i = 0; i < kBlocks; ++i) {
    tensors.push_back(block());
    fill(tensors.back().data(), source);
  }
  tensors.clear();
  const auto start = Clock::now();
  const auto deadline = start + std::chrono::seconds(10);
  while (memfd_bytes() > before && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const double ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  row.judge("256 MiB freed until they are back with the system", ns, "ns", at_most(ns, 2e9));
}

}  // namespace

Row allocate_and_fill(const Effort& effort) {
  Row row("Allocate, fill, free",
          "steady state within 1.3 x a warm memcpy, first touch within 1.3 x the same copy into fresh "
          "anonymous "
          "memory, idle memory back to the system within 2 s");
  const std::vector<char> source(kSize, 1);
  measure_steady(effort, source, row);
  measure_first_touch(effort, source, row);
  measure_return(source, row);
  return row;
}

}  // namespace onecopy::bench
