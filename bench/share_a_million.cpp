// SPDX-License-Identifier: Apache-2.0
// Measures a million live shared tensors that are all open in a second process.
#include <fmt/format.h>

#include <charconv>
#include <sstream>
#include <string>
#include <vector>

#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "rows.h"
#include "support/memory.h"
#include "support/samples.h"

namespace onecopy::bench {
namespace {

constexpr std::size_t kMillion = 1'000'000;
constexpr std::int64_t kBytesEach = 64;

std::string name_of(std::size_t i) { return "t" + std::to_string(i); }

/// The answer of both processes: the resources that they have taken since the beginning.
std::string describe(const Footprint& before, double ns) {
  const Footprint now = footprint();
  return fmt::format("{} {} {} {}", now.descriptors,
                     static_cast<std::int64_t>(now.mappings - before.mappings),
                     now.resident - before.resident, ns);
}

struct Answer {
  double descriptors = 0;
  double mappings = 0;
  double resident = 0;
  double ns = 0;

  explicit Answer(const std::string& text) {
    std::istringstream(text) >> descriptors >> mappings >> resident >> ns;
  }
  double bookkeeping() const { return (resident - static_cast<double>(kMillion * kBytesEach)) / kMillion; }
};

void judge(Row& row, const std::string& who, const Answer& answer) {
  row.judge("descriptors open in the " + who, answer.descriptors, "", at_most(answer.descriptors, 40));
  row.judge("new mappings in the " + who, answer.mappings, "", at_most(answer.mappings, 64));
  row.judge("bookkeeping a tensor in the " + who, answer.bookkeeping() - sizeof(Tensor), "bytes",
            at_most(answer.bookkeeping() - sizeof(Tensor), 200));
  row.add("the same with the Tensor object that the program keeps", answer.bookkeeping(), "bytes");
}

}  // namespace

/// Shares a million tensors as one bundle. Answers with the handle, and when asked again with the cost.
void own_a_million(Parent& parent) {
  const Footprint before = footprint();
  std::vector<Tensor> tensors;
  Handle handle;
  const double ns = time_ns([&] {
    tensors.reserve(kMillion);
    const Layout layout(DType::u8, {kBytesEach});
    for (std::size_t i = 0; i < kMillion; ++i) {
      tensors.push_back(empty(layout));
      *tensors.back().as<unsigned char>() = 1;
    }
    std::vector<NamedTensor> named;
    named.reserve(kMillion);
    for (std::size_t i = 0; i < kMillion; ++i) named.emplace_back(name_of(i), tensors[i]);
    handle = share_bundle(named);
  });
  parent.talk.say(handle.to_text());
  for (std::string message; parent.talk.try_hear(message);) parent.talk.say(describe(before, ns));
}

/// Receives a handle, opens and touches every tensor of the bundle, and answers with the cost.
void open_a_million(Parent& parent) {
  const Footprint before = footprint();
  std::vector<Tensor> tensors;
  const Handle handle = Handle::from_text(parent.talk.hear());
  std::size_t sum = 0;
  const double ns = time_ns([&] {
    const Bundle bundle = Bundle::open(handle);
    tensors.reserve(bundle.size());
    for (std::size_t i = 0; i < bundle.size(); ++i) tensors.push_back(bundle.tensor(i));
  });
  for (const Tensor& tensor : tensors) sum += *tensor.as<unsigned char>();
  parent.talk.say(sum == kMillion ? describe(before, ns) : "error: the tensors have other bytes");
  parent.talk.hear();
}

Row share_a_million(const Effort&) {
  Row row("A million tensors",
          "1,000,000 live shared tensors, all open in a second process: 40 descriptors, 64 new mappings, "
          "200 bytes of "
          "bookkeeping a tensor in each process");
  Peer owner("own_a_million");
  const std::string handle = owner.hear();
  Peer borrower("open_a_million");
  borrower.say(handle);
  const Answer borrowed(borrower.hear());
  const Answer owned(owner.ask("now"));
  judge(row, "owner", owned);
  judge(row, "borrower", borrowed);
  row.add("allocate and share them all", owned.ns, "ns");
  row.add("open them all", borrowed.ns, "ns");
  row.note(fmt::format(
      "bookkeeping is all memory that became resident, shared memory counted in full in both, without "
      "the tensors' own {} bytes and without the {} bytes of the program's own Tensor objects",
      kBytesEach, sizeof(Tensor)));
  borrower.say("done");
  return row;
}

}  // namespace onecopy::bench
