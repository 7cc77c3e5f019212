// SPDX-License-Identifier: Apache-2.0
#include "rpc/node.h"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "channel/ring/ring_layout.h"
#include "core/point.h"
#include "onecopy/core/error.h"
#include "support/eventually.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;
using testing::eventually;
using testing::expect_refusal;
using testing::Watchdog;

/// Two members in one process; the second has a worker, which notes what it was given.
class Nodes : public ::testing::Test {
 protected:
  Nodes() : a_({"a", 0, 0ns}), b_({"b", 1, 0ns}) {
    to_b_ = &a_.join(b_.address());
    worker_ = std::thread([this] {
      Work work;
      while (b_.next(work)) {
        if (work.is_in_order) b_.end_order();
        if (work.kind == Work::Kind::service) {
          b_.serve(work);
          continue;
        }
        const std::lock_guard lock(mutex_);
        kinds_.push_back(work.kind);
        if (work.kind == Work::Kind::call)
          b_.answer(*work.from, work.call, Status::value, std::move(work.message), false, {}, kForever,
                    work.context);
      }
    });
  }
  ~Nodes() override {
    a_.stop();
    b_.stop();
    worker_.join();
  }
  std::vector<Work::Kind> kinds() {
    const std::lock_guard lock(mutex_);
    return kinds_;
  }
  Message answer_to(std::string_view function, Message&& message, bool is_in_order = false) {
    const CallRef call =
        a_.call(*to_b_, {std::move(message), a_.functions().of(function), is_in_order}, kForever);
    while (!a_.wait(call, kForever)) continue;
    EXPECT_EQ(call->end, End::answered);
    return std::move(call->answer);
  }

  Watchdog watchdog_;
  Node a_, b_;
  Member* to_b_ = nullptr;
  std::mutex mutex_;
  std::vector<Work::Kind> kinds_;
  std::thread worker_;
};

TEST_F(Nodes, CallAndAnswer) {
  EXPECT_EQ(answer_to("f", {0, {std::byte{7}}, {}}).data, Bytes{std::byte{7}});
  EXPECT_EQ(answer_to("g", {0, {}, {}}).data, Bytes{});
  EXPECT_EQ(answer_to("f", {0, {std::byte{8}}, {}}).data, Bytes{std::byte{8}});
  EXPECT_EQ(a_.calls_under_way(), 0U);
}

/// A worker of `a`, which no other call of it needs.
class Settler {
 public:
  explicit Settler(Node& node)
      : thread_([this, &node] {
          Work work;
          while (node.next(work)) {
            if (work.kind == Work::Kind::service) node.serve(work);
            if (work.kind == Work::Kind::settle) settled_ = work.done.get();
          }
        }) {}
  void join() { thread_.join(); }
  bool has_settled(const CallRef& call) const {
    return eventually([&] { return settled_.load() == call.get(); });
  }

 private:
  std::atomic<const Call*> settled_{nullptr};
  std::thread thread_;
};

TEST_F(Nodes, LeaveAnAnswerInTheLaneUntilSomebodyLooks) {
  answer_to("f", {});
  const CallRef call = a_.call(*to_b_, {{}, a_.functions().of("f")}, kForever);
  EXPECT_TRUE(eventually([&] { return kinds().size() == 2; }));
  EXPECT_FALSE(call->is_done());
  EXPECT_TRUE(eventually([&] { return a_.has_ended(call); }));
  EXPECT_EQ(call->end, End::answered);
}

TEST_F(Nodes, GiveTheEndOfAWantedCallToAWorker) {
  Settler worker(a_);
  answer_to("f", {});
  const CallRef before = a_.call(*to_b_, {{}, a_.functions().of("f")}, kForever);
  a_.want(before);
  EXPECT_TRUE(worker.has_settled(before));
  const CallRef after = a_.call(*to_b_, {{}, a_.functions().of("f")}, kForever);
  EXPECT_TRUE(eventually([&] { return kinds().size() == 3; }));
  EXPECT_TRUE(!a_.want(after) || worker.has_settled(after));  // it may have looked by itself
  EXPECT_FALSE(a_.want(before));
  a_.stop();
  worker.join();
}

TEST_F(Nodes, GiveOutWhatIsInOrderOneAtATime) {
  answer_to("f", {}, true);
  a_.note(*to_b_, {});
  answer_to("f", {}, true);
  EXPECT_EQ(kinds(), (std::vector{Work::Kind::call, Work::Kind::note, Work::Kind::call}));
}

TEST_F(Nodes, CarryTheContextOfACallThereAndBack) {
  answer_to("f", {});
  const CallContext context{CallContext::kAutograd | CallContext::kTrace, 0, 7, 0, {1ULL << 40, 3}, {}};
  Node::CallRequest request{{0, {std::byte{1}}, {}}, a_.functions().of("f")};
  request.context = context;
  const CallRef call = a_.call(*to_b_, std::move(request), kForever);
  while (!a_.wait(call, kForever)) continue;
  EXPECT_EQ(take_context(call->answer), context);
  EXPECT_EQ(call->answer.data, Bytes{std::byte{1}});
}

TEST_F(Nodes, KeepTheBodysFormInTheTag) {
  EXPECT_EQ(body_form(answer_to("f", {5U << kBodyShift, {}, {}}).tag), 5U);
}

TEST_F(Nodes, EndACallFromHereOnce) {
  const CallRef call = a_.begin_here(kForever, nullptr, nullptr);
  EXPECT_EQ(a_.calls_under_way(), 1U);
  EXPECT_TRUE(a_.end_call(call, End::cancelled));
  EXPECT_FALSE(a_.end_call(call, End::answered));
  EXPECT_EQ(call->end, End::cancelled);
  EXPECT_EQ(a_.calls_under_way(), 0U);
}

TEST_F(Nodes, TakeNoAnswerFromAMemberThatWasNotCalled) {
  answer_to("f", {});
  const CallRef call = a_.begin_here(kForever, nullptr, [](void*) noexcept {});
  b_.answer(*b_.find(0), call->number, Status::value, {});
  answer_to("f", {});  // its answer comes behind the wrong one
  EXPECT_FALSE(call->is_done());
  EXPECT_EQ(a_.find_call(call->number), call);
  EXPECT_TRUE(a_.end_call(call, End::cancelled));
}

TEST_F(Nodes, RefuseAMemberUnderATakenNumber) {
  Node other({"other", 1, 0ns});
  expect_refusal(ErrorCode::invalid_argument, {"member 1 of the group is b"},
                 [&] { a_.join(other.address()); });
}

TEST_F(Nodes, RefuseAnotherUnderTheirOwnNumber) {
  Node other({"other", 0, 0ns});
  expect_refusal(ErrorCode::invalid_argument, {"member 0 of the group is a, this process"},
                 [&] { a_.join(other.address()); });
  EXPECT_EQ(a_.find(0), nullptr);
}

TEST_F(Nodes, RefuseBytesThatAreNoAddress) {
  const Bytes good = b_.address().to_bytes();
  expect_refusal(ErrorCode::bad_handle, {}, [&] { Address::from_bytes({}); });
  expect_refusal(ErrorCode::bad_handle, {},
                 [&] { Address::from_bytes(ByteSpan(good).first(good.size() - 1)); });
  Bytes longer = good;
  longer.push_back({});
  expect_refusal(ErrorCode::bad_handle, {}, [&] { Address::from_bytes(longer); });
  Bytes later = good;
  later[4] = std::byte{9};
  expect_refusal(ErrorCode::version_mismatch, {}, [&] { Address::from_bytes(later); });
  EXPECT_EQ(Address::from_bytes(good).name, "b");
}

/// A worker that went on looking at that lane would never sleep.
TEST_F(Nodes, RestWhenAMemberHasPutSomethingBehindItsFarewell) {
  answer_to("f", {});
  Connection& lane = *to_b_->out.load();
  const auto put = [&lane](NoteKind kind) {
    Message note{static_cast<std::uint32_t>(Form::note) | kInOrder, {}, {}};
    append_tail(note.data, NoteTail{kind, 0});
    lane.send(note, {}, kForever);
    lane.ring_for_call();
  };
  put(NoteKind::farewell);
  EXPECT_TRUE(eventually([&] { return b_.find(0)->has_ended.load(); }));
  put(NoteKind::user);
  EXPECT_TRUE(eventually([] {
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(100ms);
    return std::clock() - before < CLOCKS_PER_SEC / 100;
  }));
}

std::atomic<bool> g_is_answering{false};
thread_local bool t_reads_doors = true;

/// Keeps greetings in the door, but in one thread, until an answer is on its way.
void wait_until_answering(const char* name) noexcept {
  if (std::string_view(name) != "rpc.door.locked" || t_reads_doors) return;
  EXPECT_TRUE(eventually([] { return g_is_answering.load(); }));
}

/// A member may call as soon as it has answered a greeting. Its own is still in the door then.
TEST(ANode, AnswersAMemberWhoseGreetingItHasNotTaken) {
  Watchdog watchdog;
  Node greeter({"greeter", 0, 0ns}), greeted({"greeted", 1, 0ns});
  point_hook = &wait_until_answering;
  g_is_answering = false;
  Member& to_greeted = greeter.join(greeted.address());
  const auto read_door = [&](auto&& then) {
    t_reads_doors = false;
    then();
  };
  std::vector<std::jthread> threads;
  threads.emplace_back(read_door, [&] { greeter.connect(to_greeted, kForever); });
  Work work;
  while (greeted.next(work) && work.kind != Work::Kind::service) continue;
  greeted.serve(work);
  const CallRef call = greeted.call(*greeted.find(0), {{}, greeted.functions().of("f")}, kForever);
  while (greeter.next(work) && work.kind != Work::Kind::call)
    if (work.kind == Work::Kind::service) threads.emplace_back(read_door, [&] { greeter.serve({}); });
  EXPECT_EQ(to_greeted.out.load(), nullptr);
  g_is_answering = true;
  greeter.answer(*work.from, work.call, Status::value, {});
  while (!greeted.wait(call, kForever)) continue;
  EXPECT_EQ(call->end, End::answered);
  threads.clear();
  point_hook = nullptr;
}

/// The queues that this process has mapped and that so many items were put into.
std::vector<RingHeader*> rings_with_tail(std::uint64_t tail) {
  std::vector<RingHeader*> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("rw-s 00000000") == std::string::npos || line.find("memfd") == std::string::npos)
      continue;
    auto* const header = reinterpret_cast<RingHeader*>(std::stoull(line, nullptr, 16));
    if (header->magic == kRingMagic && header->producers.tail == tail) found.push_back(header);
  }
  return found;
}

/// The damaged slot rings no bell, and would never be read.
TEST_F(Nodes, EndAMemberWhoseLaneIsDamaged) {
  constexpr std::size_t kNotes = 40;
  answer_to("f", {});
  for (std::size_t i = 0; i < kNotes; ++i) a_.note(*to_b_, {});
  EXPECT_TRUE(eventually([&] { return kinds().size() == kNotes + 1; }));
  const auto lane = rings_with_tail(kNotes + 1);
  ASSERT_GE(lane.size(), 1U);  // both ends of the lane may have mapped it
  lane[0]->producers.tail += 2;
  EXPECT_TRUE(eventually([&] { return b_.find(0)->has_ended.load(); }));
  EXPECT_TRUE(eventually([&] {
    a_.look_once();
    return to_b_->has_ended && to_b_->has_left;
  }));
}

TEST(Tail, ThatIsCutOffIsRefused) {
  for (std::size_t size = 0; size < sizeof(CallTail); ++size) {
    Bytes data(size);
    expect_refusal(ErrorCode::bad_handle, {}, [&] { take_tail<CallTail>(data); });
  }
  CallTail tail;
  tail.name_bytes = 3;
  Bytes data(2);
  expect_refusal(ErrorCode::bad_handle, {}, [&] { take_name(data, tail); });
  Message without_context{kHasContext, Bytes(sizeof(CallContext) - 1), {}};
  expect_refusal(ErrorCode::bad_handle, {}, [&] { take_context(without_context); });
  expect_refusal(ErrorCode::bad_handle, {}, [] { form_of(3); });
  expect_refusal(ErrorCode::bad_handle, {}, [] { form_of(4 | 1U << 20); });
}

}  // namespace
}  // namespace onecopy::rpc
