// SPDX-License-Identifier: Apache-2.0
// Measures the first open from an owner, in a new process each time: connect, prove the identity, receive descriptors,
// and map 1 GiB.
#include <fmt/format.h>

#include "onecopy/share/share.h"
#include "rows.h"
#include "support/samples.h"

namespace onecopy::bench {
namespace {

constexpr int kFirstOpenRounds = 60;
constexpr std::int64_t kFirstOpenBytes = std::int64_t{1} << 30;

}  // namespace

/// Receives "new" or "used", then a handle; answers with the time to open it. A "used" process owns a tensor already.
void open_one_handle(Parent& parent) {
  const bool used = parent.talk.hear() == "used";
  const Handle handle = Handle::from_text(parent.talk.hear());
  Tensor own;
  if (used) {
    own = empty(Layout(DType::u8, {64}));
    share(own);
  }
  Tensor opened;
  parent.talk.say(fmt::format("{}", time_ns([&] { opened = open(handle); })));
}

Row open_first(const Effort& effort) {
  Row row("First open of an owner", "connect, receive and map 1 GiB in 300 µs");
  const Tensor tensor = empty(Layout(DType::u8, {kFirstOpenBytes}));
  const Handle handle = share(tensor);
  Samples fresh;
  Samples used;
  for (int i = 0; i < effort.rounds(kFirstOpenRounds); ++i) {
    for (Samples* samples : {&fresh, &used}) {
      Peer borrower("open_one_handle");
      borrower.say(samples == &used ? "used" : "new");
      borrower.say(handle.to_text());
      samples->add(borrower.hear_number());
    }
  }
  row.judge("by a process that has tensors of its own", used.median(), "ns", at_most(used.median(), 300e3));
  row.add("by a process that has not used onecopy before", fresh.median(), "ns");
  row.note(fmt::format("{} processes each; the slowest tenth took {} and {}", used.size(),
                       format_value(used.quantile(0.9), "ns"), format_value(fresh.quantile(0.9), "ns")));
  return row;
}

}  // namespace onecopy::bench
