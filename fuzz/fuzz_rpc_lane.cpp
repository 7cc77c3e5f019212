// SPDX-License-Identifier: Apache-2.0
// A member of a group of rpc that gets whatever another process puts into its lane or its door: it hands out work that
// is whole, completes its calls once, and goes on. The input is messages: a byte (1: through the door), a tag, a length
// of 16 bits, data.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "fuzz_input.h"
#include "os/log.h"
#include "os/process.h"
#include "rpc/node.h"

namespace onecopy::fuzz {
namespace {

using namespace rpc;
using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{1000};  ///< until the memory of a message is open

/// A process that joins the group as member 0 and sends what the input says.
class Stranger {
 public:
  explicit Stranger(Node& victim) : victim_(victim), door_to_(connect(victim.address().door)) {
    const int pid = current_pid();
    Message greeting{static_cast<std::uint32_t>(Form::note), {}, {}};
    greeting.data = encode_greeting(
        {"stranger", 0, pid, process_start_time(pid), door_.handle(), bell_->handle(), this_host()},
        lane_.handle());
    append_tail(greeting.data, NoteTail{NoteKind::greeting, 0});
    door_to_->send(greeting, {}, kForever);
    look();
    auto answer = door_.try_take(kPatience);
    require(answer.has_value(), "a greeting is answered");
    take_tail<NoteTail>(answer->data);
    lane_to_ = connect(decode_greeting(answer->data).second);
  }

  void put(bool through_door, const Message& message) {
    (through_door ? *door_to_ : *lane_to_).send(message, {}, kForever);
  }
  /// Lets the victim read the messages.
  void look() {
    const CallRef call = victim_.begin_here(steady_clock::now(), nullptr, nullptr);
    while (!victim_.wait(call, kForever)) continue;
    victim_.serve({});  // newcomers
  }
  void drain() {
    while (lane_.try_take(kPatience)) continue;
  }

 private:
  static ChannelRef connect_channel(const Handle& door) { return ChannelRef(&Channel::connect(door)); }
  std::unique_ptr<Connection> connect(const Handle& door) {
    return std::make_unique<RingConnection>(connect_channel(door), bell_);
  }

  Node& victim_;
  std::shared_ptr<const DoorbellMemory> bell_ = std::make_shared<DoorbellMemory>();
  Inbound door_, lane_;
  std::unique_ptr<Connection> door_to_, lane_to_;
};

std::optional<std::pair<bool, Message>> next_message(ByteSpan& rest) {
  constexpr std::size_t kHead = 7;
  if (rest.size() < kHead) return {};
  const auto size = std::min<std::size_t>(load<std::uint16_t>(rest.data() + 5), rest.size() - kHead);
  Message message{load<std::uint32_t>(rest.data() + 1), {}, {}};
  message.data.assign(rest.begin() + kHead, rest.begin() + static_cast<std::ptrdiff_t>(kHead + size));
  const bool through_door = rest[0] == std::byte{1};
  rest = rest.subspan(kHead + size);
  return std::pair(through_door, std::move(message));
}

/// Returns the last message of a run: once the victim has read it, the victim has read all messages.
Message end_mark() {
  Message message{tag_of(Form::note, 0, true), Bytes(9, std::byte{0xee}), {}};
  append_tail(message.data, NoteTail{});
  return message;
}

bool is_end(const Work& work) {
  return work.kind == Work::Kind::member_ended ||
         (work.kind == Work::Kind::note && work.message.data == Bytes(9, std::byte{0xee}));
}

/// Answers each call with its body, as a worker does. Ends behind the end mark, or with the stranger's farewell.
void do_work(Node& node) {
  for (;;) {
    Work work;
    require(node.next(work), "a member goes on, whatever it gets");
    if (work.kind == Work::Kind::service) {
      node.serve(work);
      continue;
    }
    require(work.from != nullptr || work.kind == Work::Kind::settle, "work is of a member");
    if (work.is_in_order) node.end_order();
    if (is_end(work)) return;
    if (work.kind == Work::Kind::call) {
      require(work.function != nullptr && work.function->name().size() <= kMaxNameBytes,
              "a call has a function");
      node.answer(*work.from, work.call, Status::value, std::move(work.message));
    }
    if (work.kind == Work::Kind::answer)
      node.complete(work.done, End::answered, work.status, std::move(work.message));
  }
}

void check_ended(const CallRef& call) {
  require(call->is_done(), "each call has ended");
  require(call->end == End::answered || call->end == End::member_ended || call->end == End::stopped,
          "a call ends with an answer, or with its member");
}

void run(ByteSpan rest) {
  Node node({"victim", 1, std::chrono::nanoseconds{0}});
  Stranger stranger(node);
  Member& member = *node.find(0);
  std::vector<CallRef> calls;
  for (const bool is_settled_by_worker : {false, true}) {
    calls.push_back(node.call(member, {{}, node.functions().of("f")}, kForever));
    if (is_settled_by_worker) node.want(calls.back());
  }
  constexpr int kMaxMessages = 64;  // that a ring has room for
  for (int i = 0; i < kMaxMessages; ++i)
    if (const auto next = next_message(rest)) stranger.put(next->first, next->second);
  stranger.put(false, end_mark());
  stranger.look();
  do_work(node);
  stranger.drain();
  node.stop();
  for (const CallRef& call : calls) check_ended(call);
  require(node.calls_under_way() == 0, "no call is left");
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy;
  set_log_sink([](LogLevel, std::string_view) {});
  if (size > 4096) return 0;
  fuzz::run(fuzz::span_of(data, size));
  return 0;
}
