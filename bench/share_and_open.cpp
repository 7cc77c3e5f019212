// SPDX-License-Identifier: Apache-2.0
// Measures share, open and release of a pooled block whose owner is connected and whose segment is mapped.
#include <fmt/format.h>

#include <vector>

#include "onecopy/share/share.h"
#include "rows.h"
#include "support/cpu.h"
#include "support/samples.h"

namespace onecopy::bench {
namespace {

constexpr int kShareRounds = 61;
constexpr int kCount = 5000;
constexpr std::size_t kBlocks = 256;  // used in turn

Tensor small_tensor() { return empty(Layout(DType::f32, {32, 32})); }

double time_sharing(const std::vector<Tensor>& tensors, std::size_t& sum) {
  return time_ns([&] {
           for (std::size_t i = 0; i < kCount; ++i)
             sum += share(tensors[i % tensors.size()]).to_bytes().size();
         }) /
         kCount;
}

double time_opening(const std::vector<Bytes>& handles, std::size_t& sum) {
  return time_ns([&] {
           for (std::size_t i = 0; i < kCount; ++i)
             sum += open(Handle::from_bytes(handles[i % handles.size()])).nbytes();
         }) /
         kCount;
}

}  // namespace

/// Receives handles as text, then "go"; answers with the time of one open and release.
void open_handles(Parent& parent) {
  std::vector<Bytes> handles;
  const Pin pin(1);
  std::size_t sum = 0;
  for (std::string message; parent.talk.try_hear(message);) {
    if (message == "go") {
      parent.talk.say(fmt::format("{}", time_opening(handles, sum)));
    } else {
      handles.push_back(Handle::from_text(message).to_bytes());
      open(Handle::from_bytes(handles.back()));
    }
  }
}

Row share_and_open(const Effort& effort) {
  Row row("Share, open and release a tensor",
          "share + open + release of a pooled block, claim already mapped: 0.5 µs");
  std::vector<Tensor> tensors;
  std::vector<Handle> kept;
  Peer borrower("open_handles");
  for (std::size_t i = 0; i < kBlocks; ++i) {
    tensors.push_back(small_tensor());
    kept.push_back(share(tensors.back()));
    borrower.say(kept.back().to_text());
  }
  const Pin pin(0);
  Samples shared;
  Samples opened;
  Samples both;
  std::size_t sum = 0;
  time_sharing(tensors, sum);
  borrower.ask("go");
  for (int i = 0; i < effort.rounds(kShareRounds); ++i) {
    shared.add(time_sharing(tensors, sum));
    borrower.say("go");
    opened.add(borrower.hear_number());
    both.add(shared[shared.size() - 1] + opened[opened.size() - 1]);
  }
  row.add("share() and to_bytes(), in the owner", shared.median(), "ns");
  row.add("from_bytes(), open() and release, in the borrower", opened.median(), "ns");
  row.judge("together", both.median(), "ns", at_most(both.median(), 500));
  return row;
}

}  // namespace onecopy::bench
