// SPDX-License-Identifier: Apache-2.0
// Measures tensors on a card sent through a Queue: the host's time for each put and get, in stream order.
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "device/cuda/devices.h"
#include "gpu_rows.h"
#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"
#include "support/samples.h"

namespace onecopy::bench {
namespace {

constexpr int kBatch = 64;
constexpr std::int64_t kSmall = 4096;

Stream new_stream() {
  const cuda::UseDevice use(0);
  cuda::CUstream stream = nullptr;
  cuda::Driver::get().cuStreamCreate.must(&stream, cuda::CU_STREAM_NON_BLOCKING);
  return {stream};
}

/// Returns the host's time of one put. The consumer empties the queue afterwards.
template <class Make>
double time_puts(Queue& queue, Stream stream, Make&& make) {
  return time_ns([&] {
           for (int i = 0; i < kBatch; ++i) queue.put(make(), stream);
         }) /
         kBatch;
}

/// Returns the host's time of one get and of releasing the tensor.
double time_gets(Queue& queue, Stream stream) {
  return time_ns([&] {
           for (int i = 0; i < kBatch; ++i) queue.get_tensor(stream);
         }) /
         kBatch;
}

/// A process that returns each tensor, with a queue in each direction.
struct CardLink {
  CardLink() : peer("follow_on_a_card"), stream(new_stream()) {
    peer.ask(there.handle().to_text() + " " + back.handle().to_text());
  }

  Queue there = Queue::create();
  Queue back = Queue::create();
  Peer peer;
  Stream stream;
};

struct OneWay {
  Samples put, get, returned_put, returned_get;

  template <class Make>
  void measure(CardLink& link, Make&& make) {
    put.add(time_puts(link.there, link.stream, make));
    get.add(std::stod(link.peer.ask("get")));
    returned_put.add(std::stod(link.peer.ask("put")));
    returned_get.add(time_gets(link.back, link.stream));
  }
  double there() const { return put.median() + get.median(); }
  double back() const { return returned_put.median() + returned_get.median(); }
};

double time_round_trips(CardLink& link, const Tensor& tensor) {
  link.peer.say("echo");
  return time_ns([&] {
           for (int i = 0; i < kBatch; ++i) {
             link.there.put(tensor, link.stream);
             link.back.get_tensor(link.stream);
           }
         }) /
         kBatch;
}

/// Measures the minimum that ordering two streams costs a host: one word written, and one waited for.
double time_words(Stream stream) {
  static auto& words = *new Mapping(Mapping::anonymous(1 << 16));
  Backend& cuda = backend(DeviceType::cuda);
  auto& word = *words.as<std::atomic<std::uint64_t>>();
  if (!cuda.register_words(0, words.data(), 1 << 16)) return 0;
  return time_ns([&] {
           for (std::uint64_t i = 1; i <= kBatch; ++i) {
             cuda.write_word(0, stream, word, i);
             cuda.wait_for_word(0, stream, word, i);
           }
         }) /
         kBatch;
}

}  // namespace

/// Receives the names of the queues, and then commands: "get", "put" (puts the last received tensor repeatedly) and
/// "echo".
void follow_on_a_card(Parent& parent) {
  const std::string names = parent.talk.hear();
  Queue there = Queue::connect(Handle::from_text(names.substr(0, names.find(' '))));
  Queue back = Queue::connect(Handle::from_text(names.substr(names.find(' ') + 1)));
  const Stream stream = new_stream();
  const Tensor mine = card_bytes(kSmall);
  parent.talk.say("ready");
  for (std::string what; parent.talk.try_hear(what);) {
    if (what == "get") parent.talk.say(fmt::format("{}", time_gets(there, stream)));
    else if (what == "put")
      parent.talk.say(fmt::format("{}", time_puts(back, stream, [&] { return mine; })));
    else
      for (int i = 0; i < kBatch; ++i) back.put(there.get_tensor(stream), stream);
  }
}

Row hand_over_on_a_card(int rounds) {
  Row row("A tensor on a card through a Queue and back, memory already mapped",
          "at most 5 µs of host time each way; 1 GiB within 10 % of 4 KiB");
  CardLink link;
  const Tensor small = card_bytes(kSmall);
  const std::int64_t large = large_bytes(std::int64_t{1} << 30, 4);
  const Tensor big = card_bytes(large);
  OneWay after_pause, same, fresh, one_gib;
  Samples trips, words;
  for (int i = -2; i < rounds; ++i) {
    if (i == 0) after_pause = same = fresh = one_gib = {};  // the rounds before were warm-ups
    after_pause.measure(link, [&] { return small; });
    same.measure(link, [&] { return small; });
    one_gib.measure(link, [&] { return big; });
    fresh.measure(link, [] { return card_bytes(kSmall); });
    trips.add(time_round_trips(link, small));
    words.add(time_words(link.stream));
    std::this_thread::sleep_for(std::chrono::milliseconds(25));  // deferred releases are complete by then
  }
  row.add("write one word and wait for it, in a stream", words.median(), "ns");
  row.judge("put and get, the same tensor", same.there(), "ns", at_most(same.there(), 5000));
  row.judge("put and get on the way back", same.back(), "ns", at_most(same.back(), 5000));
  row.judge("put and get, a fresh tensor each time", fresh.there(), "ns", at_most(fresh.there(), 5000));
  row.add("of which put", fresh.put.median(), "ns");
  row.add("of which get and give back", fresh.get.median(), "ns");
  row.judge(fmt::format("put and get, {} MiB", large >> 20), one_gib.there(), "ns",
            one_gib.there() / same.there(), "4 KiB", 1.10);
  row.add(fmt::format("put and get, the first {} after a pause", kBatch), after_pause.there(), "ns");
  row.add("round trip of both hosts, one tensor at a time", trips.median(), "ns");
  row.note(fmt::format("{} rounds of {} tensors; stats().host_waits stays 0 where streams wait for words",
                       rounds, kBatch));
  return row;
}

}  // namespace onecopy::bench
