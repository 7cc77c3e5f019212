// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "device/cuda/devices.h"
#include "device/cuda/peers.h"
#include "gpu_rows.h"
#include "onecopy/memory/copy.h"
#include "support/samples.h"

namespace onecopy::bench {
namespace {

/// An allocation of the driver's own allocator, which frameworks use.
class Allocation {
 public:
  Allocation(Device device, std::int64_t bytes) : device_(device) {
    const cuda::UseDevice use(device.index);
    cuda::Driver::get().cuMemAlloc.must(&at_, static_cast<std::size_t>(bytes));
  }
  ~Allocation() {
    const cuda::UseDevice use(device_.index);
    cuda::Driver::get().cuMemFree(at_);
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  cuda::CUdeviceptr at() const { return at_; }

 private:
  Device device_;
  cuda::CUdeviceptr at_ = 0;
};

/// Copies at the limit of two cards: memory of cudaMalloc, peer access enabled, and the destination card reads.
void copy_raw(const Allocation& from, const Allocation& to, Device at, std::int64_t bytes) {
  const cuda::UseDevice use(at.index);
  cuda::Driver::get().cuMemcpyDtoDAsync.must(to.at(), from.at(), static_cast<std::size_t>(bytes), nullptr);
}

void measure(Row& row, Device to, std::int64_t bytes, int rounds) {
  const Tensor source = card_bytes(bytes);
  const Tensor target = card_bytes(bytes, to);
  const Allocation raw_source(kFirstCard, bytes);
  const Allocation raw_target(to, bytes);
  if (to != kFirstCard) cuda::allow_allocations(to.index, kFirstCard.index);
  const auto wait = [&] { backend(to.type).synchronize(to.index, {}); };
  Samples raw, ours, held;
  for (int i = -2; i < rounds; ++i) {
    if (i == 0) raw = ours = held = {};
    raw.add(time_ns([&] { copy_raw(raw_source, raw_target, to, bytes), wait(); }));
    ours.add(time_ns([&] {
      held.add(time_ns([&] { copy_into(source.view(), target.view(), Stream{}); }));
      wait();
    }));
  }
  const auto rate = [&](const Samples& s) { return static_cast<double>(bytes) / s.median() * 1e9; };
  const double ratio = rate(ours) / rate(raw);
  const std::string size = fmt::format("{} MiB", bytes >> 20);
  row.add(size + ", cudaMalloc with peer access", rate(raw) / 1e9, "GB/s");
  row.figures.push_back(
      {size + ", copy_into", rate(ours) / 1e9, "GB/s", ratio, "the driver's", at_least(ratio, 0.95)});
  const double us = held.median() / 1e3;
  row.figures.push_back({size + ", host held", us, "us", us / 20, "20 us", at_most(us, 20)});
}

}  // namespace

Row copy_between_cards(int rounds) {
  const bool two = cards() > 1;
  Row row(
      two ? "Copies from card to card" : "Copies within a card",
      "95 % of the raw copy of memory of cudaMalloc with peer access; the host is held for 20 us at most");
  for (const std::int64_t mib : {64, 256, 1024})
    measure(row, two ? kSecondCard : kFirstCard, large_bytes(mib << 20, 8), rounds);
  if (!two) row.note("one card here: copies between cards were not measured");
  return row;
}

}  // namespace onecopy::bench
