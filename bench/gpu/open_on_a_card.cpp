// SPDX-License-Identifier: Apache-2.0
// Measures the first open of memory on a card by a process with a context, the open of all tensors of a state_dict, and
// the memory that stays allocated afterwards.
#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "device/cuda/devices.h"
#include "gpu_rows.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/session.h"
#include "support/samples.h"

namespace onecopy::bench {
namespace {

constexpr int kTensors = 20'000;

double free_bytes() {
  const cuda::UseDevice use(0);
  std::size_t free = 0;
  std::size_t total = 0;
  cuda::Driver::get().cuMemGetInfo.must(&free, &total);
  return static_cast<double>(free);
}

void make_context() {
  const cuda::UseDevice use(0);
  cuda::Driver::get().cuCtxSynchronize.must();
}

/// Measures the driver's part (import, reserve, map, allow) in a process that has done it before.
double time_mapping(std::int64_t bytes, int rounds) {
  Backend& cuda = backend(DeviceType::cuda);
  const auto memory = cuda.create(0, static_cast<std::size_t>(bytes), SegmentKind::cuda_vmm, "bench", 0);
  memory->commit(0, static_cast<std::size_t>(bytes));
  Samples samples;
  for (int i = 0; i < rounds; ++i) {
    ExportedMemory exported = memory->export_memory(Access::read_write);
    std::unique_ptr<DeviceMemory> mapped;
    samples.add(time_ns([&] { mapped = cuda.open(0, std::move(exported), Access::read_write); }));
  }
  return samples.median();
}

/// Returns tensors with the sizes of a mixture of experts: many small tensors, and some large ones with most of the bytes.
std::vector<NamedTensor> state_dict(std::int64_t bytes) {
  std::vector<NamedTensor> tensors;
  const std::int64_t each = bytes / kTensors;
  for (int i = 0; i < kTensors; ++i)
    tensors.emplace_back(fmt::format("model.layers.{}.experts.{}.weight", i / 400, i % 400),
                         card_bytes(i % 10 == 0 ? each * 7 : each / 3));
  return tensors;
}

}  // namespace

/// Receives the state of the process: "new", "used" for a process with its own tensor, or "acquainted" and a handle for
/// a process that opens a tensor of the same owner first. Then receives a handle, and answers with the time to open it.
void open_on_a_card(Parent& parent) {
  make_context();
  parent.talk.say("ready");
  const std::string what = parent.talk.hear();
  const Handle small = Handle::from_text(parent.talk.hear());
  const Handle handle = Handle::from_text(parent.talk.hear());
  Tensor had;
  if (what == "acquainted") had = open(small);
  if (what == "used") share(had = card_bytes(64));
  Tensor opened;
  parent.talk.say(fmt::format("{}", time_ns([&] { opened = open(handle); })));
}

/// Receives a handle; answers with the time of the driver's part of opening it.
void import_on_a_card(Parent& parent) {
  make_context();
  parent.talk.say("ready");
  const HandleFields handle = Handle::from_text(parent.talk.hear()).fields();
  ExportedMemory memory = Session::current().fetch_memory(handle, Access::read_write);
  std::unique_ptr<DeviceMemory> mapped;
  parent.talk.say(fmt::format(
      "{}",
      time_ns([&] { mapped = backend(DeviceType::cuda).open(0, std::move(memory), Access::read_write); })));
}

/// Receives a bundle's handle; answers with the time to open all tensors, then with the open descriptors.
void open_many_on_a_card(Parent& parent) {
  make_context();
  parent.talk.say("ready");
  const Handle handle = Handle::from_text(parent.talk.hear());
  std::vector<Tensor> tensors;
  parent.talk.say(fmt::format("{}", time_ns([&] {
                                const Bundle bundle = Bundle::open(handle);
                                for (std::size_t i = 0; i < bundle.size(); ++i)
                                  tensors.push_back(bundle.tensor(i));
                              })));
  for (std::string what; parent.talk.try_hear(what);)
    parent.talk.say(fmt::format("{}", stats().descriptors));
}

Row open_first_on_a_card(int processes) {
  const std::int64_t bytes = large_bytes(std::int64_t{1} << 30, 4);
  Row row(fmt::format("First open of {} MiB on a card by a new process", bytes >> 20),
          "300 µs once it has a context and knows the owner; within 2 x the driver alone when it has to "
          "connect, and "
          "3 x when it has not used onecopy before");
  const Tensor tensor = card_bytes(bytes);
  const Handle handle = share(tensor);
  const Tensor small = empty(Layout(DType::u8, {64}));
  const std::string small_text = share(small).to_text();
  std::map<std::string, Samples> times;
  for (int i = 0; i < processes; ++i) {
    for (const char* what : {"new", "used", "acquainted"}) {
      Peer borrower("open_on_a_card");
      borrower.hear();
      borrower.say(what);
      borrower.say(small_text);
      times[what].add(std::stod(borrower.ask(handle.to_text())));
    }
    Peer borrower("import_on_a_card");
    borrower.hear();
    times["driver"].add(std::stod(borrower.ask(handle.to_text())));
  }
  row.add("import and map by the driver alone", times["driver"].median(), "ns");
  row.add("the same in a process that has done so before", time_mapping(bytes, 10), "ns");
  const double known = times["acquainted"].median();
  row.judge("receive and map, by a process that knows the owner", known, "ns", at_most(known, 300e3));
  const auto judge = [&](const char* text, const char* what, double most) {
    row.judge(text, times[what].median(), "ns", times[what].ratio_to(times["driver"]), "driver", most);
  };
  judge("connect, receive and map, by one with tensors of its own", "used", 2);
  judge("connect, receive and map, by one that has not used onecopy before", "new", 3);
  row.note(fmt::format("{} processes each; the slowest tenth of the last took {}", processes,
                       format_value(times["new"].quantile(0.9), "ns")));
  return row;
}

Row open_a_state_dict() {
  const std::int64_t bytes = large_bytes(std::int64_t{8} << 30, 4);
  Row row(fmt::format("A state_dict of {} tensors and {} MiB on a card", kTensors, bytes >> 20),
          "shared and opened in 100 ms");
  const std::vector<NamedTensor> tensors = state_dict(bytes);
  Peer borrower("open_many_on_a_card");
  borrower.hear();
  const double before = free_bytes();
  Handle handle;
  const double shared = time_ns([&] { handle = share_bundle(tensors); });
  const double opened = std::stod(borrower.ask(handle.to_text()));
  const double extra = before - free_bytes();
  row.add("share", shared, "ns");
  row.add("open every tensor", opened, "ns");
  row.judge("both", shared + opened, "ns", at_most(shared + opened, 100e6));
  row.judge("more of the card's memory in use afterwards", extra, "bytes", at_most(extra, 0));
  row.add("descriptors of the owner", static_cast<double>(stats().descriptors), "");
  row.add("descriptors of the borrower", std::stod(borrower.ask("descriptors")), "");
  return row;
}

Row rest_on_a_card() {
  const std::int64_t bytes = large_bytes(std::int64_t{80} << 30, 2);
  Row row(fmt::format("{} MiB of a card shared in pieces of a 80th", bytes >> 20),
          "at most 64 descriptors a process at rest");
  const auto before = static_cast<double>(stats().descriptors);
  std::vector<NamedTensor> tensors;
  for (int i = 0; i < 80; ++i) tensors.emplace_back(fmt::format("{}", i), card_bytes(bytes / 80));
  Peer borrower("open_many_on_a_card");
  borrower.hear();
  const Handle handle = share_bundle(tensors);
  row.add("open all", std::stod(borrower.ask(handle.to_text())), "ns");
  const auto own = static_cast<double>(stats().descriptors);
  const double theirs = std::stod(borrower.ask("descriptors"));
  row.add("of the owner before", before, "");
  row.judge("of the owner", own, "", at_most(own, 64));
  row.judge("of the borrower", theirs, "", at_most(theirs, 64));
  return row;
}

}  // namespace onecopy::bench
