// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "device/cuda/devices.h"
#include "gpu_rows.h"
#include "onecopy/memory/copy.h"
#include "support/samples.h"

namespace onecopy::bench {
namespace {

/// The same bytes by the driver's own call, on the same streams.
void copy_raw(const Tensor& from, const Tensor& to) {
  const cuda::UseDevice use(to.device().index);
  cuda::Devices& devices = cuda::Devices::get();
  cuda::Driver::get().cuMemcpyPeerAsync.must(reinterpret_cast<cuda::CUdeviceptr>(to.data()),
                                             devices.context(to.device().index),
                                             reinterpret_cast<cuda::CUdeviceptr>(from.data()),
                                             devices.context(from.device().index), from.nbytes(), nullptr);
}

void measure(Row& row, Device to, std::int64_t bytes, int rounds) {
  const Tensor source = card_bytes(bytes);
  const Tensor target = card_bytes(bytes, to);
  const auto wait = [&] { backend(to.type).synchronize(to.index, {}); };
  Samples raw, ours;
  for (int i = -2; i < rounds; ++i) {
    if (i == 0) raw = ours = {};
    raw.add(time_ns([&] { copy_raw(source, target), wait(); }));
    ours.add(time_ns([&] { copy_into(source.view(), target.view(), Stream{}), wait(); }));
  }
  const auto rate = [&](const Samples& s) { return static_cast<double>(bytes) / s.median() * 1e9; };
  const double ratio = rate(ours) / rate(raw);
  row.add(fmt::format("{} MiB, cuMemcpyPeerAsync", bytes >> 20), rate(raw) / 1e9, "GB/s");
  row.figures.push_back({fmt::format("{} MiB, copy_into", bytes >> 20), rate(ours) / 1e9, "GB/s", ratio,
                         "the driver's", at_least(ratio, 0.95)});
}

}  // namespace

Row copy_between_cards(int rounds) {
  const bool two = cards() > 1;
  Row row(two ? "Copies from card to card" : "Copies within a card", "95 % of the driver's own copy");
  for (const std::int64_t mib : {64, 256, 1024})
    measure(row, two ? kSecondCard : kFirstCard, large_bytes(mib << 20, 8), rounds);
  if (!two) row.note("one card here: copies between cards were not measured");
  return row;
}

}  // namespace onecopy::bench
