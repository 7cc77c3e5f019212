// SPDX-License-Identifier: Apache-2.0
// Queues between processes, some of which die.
#include "onecopy/channel/queue.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/deadline_scope.h"
#include "share/borrower/peer.h"
#include "share/format/process_name.h"
#include "share/runtime/runtime.h"
#include "support/child.h"
#include "support/die_at.h"
#include "support/footprint.h"
#include "support/limits.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/peer_group.h"
#include "support/processes_test.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Body;
using testing::Child;
using testing::die_at;
using testing::element;
using testing::eventually;
using testing::expect_refusal;
using testing::expect_soon;
using testing::Footprint;
using testing::Form;
using testing::JoinedChild;
using testing::Note;
using testing::number;
using testing::number_in;
using testing::numbers;
using testing::ProcessesTest;
using testing::Role;
using testing::set_element;
using testing::Shared;
using testing::Watchdog;

/// Blocks that this process keeps for receivers to come.
std::uint64_t blocks_sent() {
  std::uint64_t blocks = 0;
  for (const TransitInfo& info : this_owner().in_transit)
    if (info.where.rfind("queue ", 0) == 0) blocks += info.blocks;
  return blocks;
}

// The same body serves all kinds of processes.

constexpr std::int64_t kEach = 3000;

const Body queue_producer("queue.producer", [](Role& me) {
  Queue queue = Queue::connect(Handle::from_text(me.hear("owner")));
  const std::int64_t base = std::stoll(me.hear("owner"));
  for (std::int64_t i = 0; i < kEach; ++i) queue.put(numbers(5, base + i));
});

const Body queue_consumer("queue.consumer", [](Role& me) {
  Queue queue = Queue::connect(Handle::from_text(me.hear("owner")));
  std::array<std::int64_t, 2> last{-1, -1};
  std::int64_t sum = 0;
  for (;;) {
    const Message message = queue.get();
    if (message.tensors.empty()) break;
    const std::int64_t n = number_in(message.tensors[0]);
    auto& before = last.at(static_cast<std::size_t>(n / kEach));
    EXPECT_LT(before, n) << "out of the order of its producer";
    EXPECT_EQ(element(message.tensors[0], 4), n + 4);
    before = n;
    sum += n;
  }
  me.tell("owner", std::to_string(sum));
});

const Body queue_owner("queue.owner", [](Role& me) {
  Queue queue = Queue::create({100});
  for (const char* role : {"producer", "producer2", "consumer", "consumer2"})
    me.tell(role, queue.handle().to_text());
  me.tell("producer", "0");
  me.tell("producer2", std::to_string(kEach));
  std::int64_t sum = 0;
  me.hear("referee");
  queue.put(Message{});
  queue.put(Message{});
  for (const char* role : {"consumer", "consumer2"}) sum += std::stoll(me.hear(role));
  EXPECT_EQ(sum, 2 * kEach * (2 * kEach - 1) / 2);
});

const Body counting_producer("queue.counting", [](Role& me) {
  queue_producer.run(me);
  me.tell("referee", "done");
});

const Body referee("queue.referee", [](Role& me) {
  me.hear("producer");
  me.hear("producer2");
  me.tell("owner", "all put");
});

class QueueIn : public ::testing::TestWithParam<Form> {};

TEST_P(QueueIn, EachItemArrivesOnceInTheOrderOfItsProducer) {
  Watchdog watchdog;
  testing::run_peers(GetParam(), {{"owner", &queue_owner},
                                  {"producer", &counting_producer},
                                  {"producer2", &counting_producer},
                                  {"consumer", &queue_consumer},
                                  {"consumer2", &queue_consumer},
                                  {"referee", &referee}});
}

INSTANTIATE_TEST_SUITE_P(Forms, QueueIn, ::testing::ValuesIn(testing::kForms),
                         [](const auto& form) { return testing::form_name(form.param); });

// Put, then the producer ends.

class PutThenGone : public ::testing::TestWithParam<std::int64_t> {};

std::string size_name(const ::testing::TestParamInfo<std::int64_t>& size) {
  return std::to_string(size.param) + "Bytes";
}

void put_bytes(Queue& queue, std::int64_t bytes) {
  const Tensor tensor = empty(Layout(DType::u8, {bytes}), testing::device());
  const Bytes content(tensor.nbytes(), std::byte{0x5a});
  copy_bytes_and_wait({tensor.data(), tensor.device(), content.data(), kCpu, content.size()});
  queue.put(tensor);
}

void expect_bytes(const Tensor& tensor, std::int64_t bytes) {
  ASSERT_EQ(static_cast<std::int64_t>(tensor.nbytes()), bytes);
  Bytes content(tensor.nbytes());
  copy_bytes_and_wait({content.data(), kCpu, tensor.data(), tensor.device(), content.size()});
  EXPECT_EQ(content.front(), std::byte{0x5a});
  EXPECT_EQ(std::memcmp(content.data(), content.data() + 1, content.size() - 1), 0)
      << "not the same everywhere";
}

TEST_P(PutThenGone, GetDeliversAfterAnExit) {
  Queue queue = Queue::create();
  Child putter([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    put_bytes(mine, GetParam());
  });
  EXPECT_EQ(putter.join(), 0);
  expect_bytes(queue.get_tensor(), GetParam());
}

TEST_P(PutThenGone, GetDeliversAfterAKill) {
  Queue queue = Queue::create();
  Child putter([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    put_bytes(mine, GetParam());
    raise(SIGKILL);
  });
  EXPECT_EQ(putter.join(), -SIGKILL);
  expect_bytes(queue.get_tensor(), GetParam());
}

TEST_P(PutThenGone, AThirdProcessGetsIt) {
  Queue queue = Queue::create();
  Child putter([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    put_bytes(mine, GetParam());
    raise(SIGKILL);
  });
  EXPECT_EQ(putter.join(), -SIGKILL);
  JoinedChild getter([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    expect_bytes(mine.get_tensor(), GetParam());
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, PutThenGone,
                         ::testing::Values(1, 4096, 1 << 20, 33 << 20,
                                           testing::kSanitized ? 64 << 20 : 256 << 20),
                         size_name);

class QueueCreator : public ProcessesTest {};

TEST_F(QueueCreator, ThatIsKilledLeavesTheQueueAndItsTensorsToTheOthers) {
  Child creator([&] {
    Queue queue = Queue::create();
    const Handle handle = queue.handle();
    queue.put(numbers(100, 1));
    queue.put(Message{0, Bytes(5000), {numbers(100, 2)}});
    note->write(handle.to_text());
    note->reach(2);
    queue.put(numbers(5 << 20, 3));
    EXPECT_EQ(stats().unkept, 0u);
    note->step = 3;
    pause();
  });
  Queue queue = Queue::connect(Handle::from_text(note->read()));
  Child other([&, handle = queue.handle()] {
    note->reach(4);
    Queue mine = Queue::connect(handle);
    EXPECT_EQ(stats().unkept, 0u);
    mine.put(number(4));
    EXPECT_EQ(stats().unkept, 1u) << "nobody keeps its memory, should it die now";
    EXPECT_TRUE(eventually([&] { return mine.empty(); }));
  });
  note->step = 2;
  note->reach(3);
  // A large tensor has a segment of its own, and an item too large for the queue is on the CPU.
  const std::uint64_t segments = testing::device() == kCpu ? 2 : 3;
  EXPECT_TRUE(eventually([&] { return stats().deposits == segments; }));
  creator.kill();
  EXPECT_EQ(number_in(queue.get_tensor()), 1);
  EXPECT_EQ(number_in(queue.get().tensors.at(0)), 2);
  EXPECT_EQ(number_in(queue.get_tensor()), 3);
  note->step = 4;
  EXPECT_EQ(number_in(queue.get_tensor()), 4);
  EXPECT_EQ(other.join(), 0);
}

// A deposit, which is kept for the day that an owner dies, ends with the segment, also while everybody lives.

constexpr int kSegments = 3;

/// A large tensor has a segment of its own.
void put_large_ones(Queue& queue) {
  for (int i = 0; i < kSegments; ++i) queue.put(numbers(5 << 20, i));
}

void take_large_ones(Queue& queue) {
  for (int i = 0; i < kSegments; ++i) EXPECT_EQ(number_in(queue.get_tensor()), i);
}

/// Gives freed segments back until `done`.
bool collected(const std::function<bool()>& done) {
  return eventually([&] {
    collect();
    return done();
  });
}

/// As a program does that starts others with the queue and needs it no more itself.
TEST_F(QueueCreator, ThatLetsGoBeforeOthersHaveConnectedKeepsWhatTheyPut) {
  Shared<Note> for_putter, for_receiver;
  Child putter([&] {
    Queue queue = Queue::connect(Handle::from_text(for_putter->read()));
    queue.put(numbers(1000, 7));
    EXPECT_EQ(stats().unkept, 0u);
    for_putter->step = 2;
    ::pause();
  });
  JoinedChild receiver([&] {
    for_receiver->reach(2);
    EXPECT_EQ(number_in(Queue::connect(Handle::from_text(for_receiver->text)).get_tensor()), 7);
  });
  {
    Queue queue = Queue::create();
    for_receiver->write(hold(queue.handle()).to_text());
    for_putter->write(hold(queue.handle()).to_text());
  }
  for_putter->reach(2);
  putter.kill();
  for_receiver->step = 2;
}

TEST_F(QueueCreator, KeepsNoSegmentThatItsOwnerHasGivenBack) {
  Queue queue = Queue::create();
  JoinedChild lender([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    put_large_ones(mine);
    note->step = 1;
    EXPECT_TRUE(collected([&] { return note->step == 2; }));
  });
  note->reach(1);
  EXPECT_TRUE(eventually([] { return stats().deposits == kSegments; }));
  Child taker([&, handle = queue.handle()] {  // another process: the creator has no connection to the owner
    Queue mine = Queue::connect(handle);
    take_large_ones(mine);
  });
  EXPECT_EQ(taker.join(), 0);
  EXPECT_TRUE(eventually([&] { return stats().deposits == 0; }));
  note->step = 2;
}

TEST_F(QueueCreator, ThatGivesASegmentBackHasItKeptByNobody) {
  Child creator([&] {
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    note->reach(2);
    put_large_ones(queue);
    EXPECT_TRUE(collected([&] { return note->step == 3; }));
  });
  Queue queue = Queue::connect(Handle::from_text(note->read()));
  const std::uint64_t before = stats().foreign_segments;
  note->step = 2;
  take_large_ones(queue);
  EXPECT_TRUE(eventually([&] { return stats().deposits == 0; }));
  EXPECT_TRUE(eventually([&] { return stats().foreign_segments == before; }));
  note->step = 3;
  EXPECT_EQ(creator.join(), 0);
}

class QueueProducer : public ProcessesTest {};

TEST_F(QueueProducer, ThatSentOnAnothersSegmentTellsTheQueuesCreatorOfItsEnd) {
  Queue queue = Queue::create();
  Child forwarder([&, handle = queue.handle()] {
    Queue mine = Queue::create();
    note->write(mine.handle().to_text());
    Queue onward = Queue::connect(handle);
    for (int i = 0; i < kSegments; ++i) onward.put(mine.get_tensor());
    note->step = 2;
    EXPECT_TRUE(collected([&] { return note->step == 3; }));
  });
  JoinedChild lender([&] {
    Queue first = Queue::connect(Handle::from_text(note->read()));
    put_large_ones(first);
    EXPECT_TRUE(collected([&] { return note->step == 3; }));
  });
  note->reach(2);
  EXPECT_TRUE(eventually([] { return stats().deposits == kSegments; }));
  Child taker([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    take_large_ones(mine);
  });
  EXPECT_EQ(taker.join(), 0);
  EXPECT_TRUE(eventually([&] { return stats().deposits == 0; }));
  note->step = 3;
  EXPECT_EQ(forwarder.join(), 0);
}

TEST_F(QueueProducer, ThatPutItsParentsSegmentTellsTheQueuesCreatorOfItsEnd) {
  Queue queue = Queue::create();
  JoinedChild parent([&, handle = queue.handle()] {
    std::vector<Tensor> large;
    for (int i = 0; i < kSegments; ++i) large.push_back(numbers(5 << 20, i));
    JoinedChild child([&] {
      Queue mine = Queue::connect(handle);
      for (const Tensor& tensor : large) mine.put(tensor);
      large.clear();
      note->step = 1;
      EXPECT_TRUE(collected([&] { return note->step == 3; }));
    });
    note->reach(2);
    large.clear();
    EXPECT_TRUE(collected([&] { return note->step == 3; }));
  });
  note->reach(1);
  EXPECT_TRUE(eventually([] { return stats().deposits == kSegments; }));
  Child taker([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    take_large_ones(mine);
  });
  EXPECT_EQ(taker.join(), 0);
  note->step = 2;
  EXPECT_TRUE(eventually([&] { return stats().deposits == 0; }));
  note->step = 3;
}

TEST_F(QueueProducer, ThatIsStoppedHoldsUpItsItemAndDoesNotLoseIt) {
  Queue queue = Queue::create();
  JoinedChild putter([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    mine.put(numbers(100, 7));
    mine.put(
        Message{0, Bytes(5000), {numbers(5 << 20, 8)}});  // too long for the queue, in a segment of its own
    note->step = 1;
    note->reach(2);
  });
  note->reach(1);
  for (const std::uint64_t left : {2, 1}) {
    putter.signal(SIGSTOP);
    reply_timeout_ms = 100;
    expect_refusal(ErrorCode::timeout, {"did not answer", "stopped"}, [&] { queue.get(); });
    EXPECT_EQ(queue.size(), left);
    putter.signal(SIGCONT);
    reply_timeout_ms = 10'000;
    EXPECT_EQ(number_in(queue.get().tensors.at(0)), left == 2 ? 7 : 8);
  }
  note->step = 2;
}

/// With a patience of ten seconds for an owner that does not answer, the watchdog comes if a call uses it up.
TEST_F(QueueProducer, ThatIsStoppedKeepsNobodyLongerThanHeWantedToWait) {
  Queue queue = Queue::create();
  JoinedChild putter([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    mine.put(numbers(100, 7));
    note->step = 1;
    note->reach(2);
  });
  note->reach(1);
  putter.signal(SIGSTOP);
  for (int i = 0; i < 10; ++i)
    for (const auto timeout : {0ms, 10ms})
      expect_refusal(ErrorCode::timeout, {"did not answer"}, [&] { queue.try_get(timeout); });
  putter.signal(SIGCONT);
  EXPECT_EQ(number_in(queue.get_tensor()), 7);
  note->step = 2;
}

TEST_F(QueueProducer, ThatIsStoppedInsideAPutKeepsNobodyLongerThanHeWantedToWait) {
  static Note* stopping = nullptr;
  Queue queue = Queue::create();
  Child putter([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    mine.put(numbers(100, 7));
    stopping = &*note;
    point_hook = [](const char* name) noexcept {
      if (std::string_view(name) != "ring.put.locked" || stopping->step != 0) return;
      stopping->step = 1;
      stopping->reach(2);
    };
    mine.put(numbers(100, 8));
  });
  note->reach(1);
  putter.signal(SIGSTOP);
  for (const auto timeout : {0ms, 50ms})  // of a segment that the queue does not know yet
    expect_refusal(ErrorCode::timeout, {"stopped"}, [&] { queue.try_put(numbers(100), timeout); });
  reply_timeout_ms = 100;
  expect_refusal(ErrorCode::timeout, {"stopped"}, [&] { queue.close(); });
  reply_timeout_ms = 10'000;
  EXPECT_FALSE(queue.is_closed());
  note->step = 2;
  putter.signal(SIGCONT);
  EXPECT_EQ(putter.join(), 0);
  EXPECT_EQ(number_in(queue.get_tensor()), 7);
  EXPECT_EQ(number_in(queue.get_tensor()), 8);
  queue.close();
}

/// A forked child joins the queue at its first use, and its creator is to hear of that.
TEST_F(QueueCreator, ThatIsStoppedKeepsAForkedChildNoLongerThanItWantedToWait) {
  Child creator([&] {
    const Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    note->reach(2);
  });
  Queue queue = Queue::connect(Handle::from_text(note->read()));
  creator.signal(SIGSTOP);
  for (int i = 0; i < 8; ++i) {  // with ten seconds for each the watchdog comes
    JoinedChild child([&] {
      EXPECT_FALSE(queue.try_get_at_once());
      EXPECT_FALSE(queue.try_get(0ms));
    });
  }
  creator.signal(SIGCONT);
  note->step = 2;
  EXPECT_EQ(creator.join(), 0);
}

/// Only the creator's own memory is needed for a put; that it cannot keep the segment now is counted.
TEST_F(QueueCreator, ThatIsStoppedKeepsNobodyFromPuttingANewSegment) {
  Child creator([&] {
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    note->reach(2);
    for (const int number : {7, 8, 9}) EXPECT_EQ(number_in(queue.get_tensor()), number);
  });
  Queue queue = Queue::connect(Handle::from_text(note->read()));
  creator.signal(SIGSTOP);
  const auto unkept = stats().unkept;
  EXPECT_TRUE(queue.try_put(numbers(100, 7), 0ms));
  EXPECT_EQ(stats().unkept, unkept + 1);
  EXPECT_TRUE(queue.try_put(numbers(5 << 20, 8), 50ms));
  queue.put(numbers(5 << 20, 9));
  creator.signal(SIGCONT);
  note->step = 2;
  EXPECT_EQ(creator.join(), 0);
}

/// Its owner lives, and may need longer than no time at all for the first contact.
void take_if_there(Queue& queue) {
  try {
    queue.try_get_tensor(0ms);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
  }
}

std::atomic<int> waits_in_vain{0};

/// A creator is not asked again, before it goes on, about requests that it has not answered; then it keeps their
/// segments.
TEST_F(QueueCreator, ThatIsStoppedIsWaitedForOnceAndKeepsSegmentsWhenItGoesOn) {
  JoinedChild creator([&] {
    const Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    note->reach(10);
  });
  Child putter([&] {
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    note->step = 2;
    note->reach(3);
    point_hook = [](const char* name) noexcept {
      if (std::string_view(name) == "conversation.silence") ++waits_in_vain;
    };
    const std::array<Tensor, 3> large{numbers(5 << 20, 1), numbers(5 << 20, 2), numbers(5 << 20, 3)};
    for (const Tensor& tensor : large) queue.try_put(tensor, 0ms);
    EXPECT_EQ(waits_in_vain, 1);
    EXPECT_EQ(stats().unkept, 3u);
    note->step = 4;
    note->reach(5);
    EXPECT_TRUE(eventually([&] {
      for (const Tensor& tensor : large) queue.put(tensor);
      return stats().unkept == 0;
    }));
    EXPECT_TRUE(eventually([&] { return queue.empty(); }));
    note->step = 6;
    note->reach(7);
    for (const Tensor& tensor : large) queue.put(tensor);
    note->step = 8;
    ::pause();
  });
  Child receiver([&] {
    note->reach(9);
    Queue queue = Queue::connect(Handle::from_text(note->text));
    for (const int number : {1, 2, 3}) EXPECT_EQ(number_in(queue.get_tensor()), number);
  });
  {
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    note->reach(2);
    creator.signal(SIGSTOP);
    note->step = 3;
    note->reach(4);
    creator.signal(SIGCONT);
    note->step = 5;
    EXPECT_TRUE(eventually([&] {
      take_if_there(queue);
      return note->step == 6;
    }));
  }
  note->step = 7;
  note->reach(8);
  putter.kill();
  note->step = 9;
  EXPECT_EQ(receiver.join(), 0);
  note->step = 10;
}

class QueueUsers : public ProcessesTest {};

/// Each has put an item, and waits for a getter.
TEST_F(QueueUsers, ThatHaveAllLeftDoNotKeepItsItemsForEachOther) {
  const auto put_and_leave = [](Queue queue, int item) { queue.put(numbers(100, item)); };
  const auto expect_nothing_kept = [] { EXPECT_TRUE(eventually([] { return blocks_sent() == 0; })); };
  std::optional<Queue> created(Queue::create());
  JoinedChild other([&, handle = created->handle()] {
    created.reset();  // which the fork has copied
    put_and_leave(Queue::connect(handle), 1);
    note->step = 1;
    note->reach(2);
    expect_nothing_kept();
    note->step = 3;
    note->reach(4);
  });
  note->reach(1);
  put_and_leave(*std::exchange(created, std::nullopt), 2);
  EXPECT_EQ(blocks_sent(), 1u);
  note->step = 2;
  expect_nothing_kept();
  note->reach(3);
  note->step = 4;
}

/// A mapping keeps its open file, and so the locks for Queue objects: the child kept its parent's.
TEST_F(QueueUsers, ThatWereKilledAreNotTakenForUsersByTheirForkedChildren) {
  Child parent([&] {
    std::optional<Queue> queue(Queue::create());
    Child child([&] {
      ::prctl(PR_SET_PDEATHSIG, 0);  // it goes on without its parent
      queue->put(numbers(100));
      queue.reset();
      EXPECT_EQ(blocks_sent(), 1u);
      note->step = 1;
      note->reach(2);
      if (eventually([] { return blocks_sent() == 0; })) note->step = 3;
    });
    ::pause();
  });
  note->reach(1);
  parent.kill();
  note->step = 2;
  note->reach(3);
}

TEST_F(QueueCreator, ThatIsStoppedHearsWhoHasLeftWhenItGoesOn) {
  Child creator([&] {
    {
      const Queue queue = Queue::create();
      note->write(queue.handle().to_text());
      note->reach(2);
    }
    note->step = 3;
    note->reach(4);
    EXPECT_TRUE(eventually([] { return stats().live_blocks == 0; })) << "the queue has no users";
    note->step = 5;
  });
  const Handle handle = Handle::from_text(note->read());
  {
    const Queue queue = Queue::connect(handle);
    note->step = 2;
    note->reach(3);
    creator.signal(SIGSTOP);
    const auto peer = Runtime::current().peers().find_open(handle.fields().owner);
    ASSERT_TRUE(peer);
    while (peer->broker().notify(wire::LeaveQueue{0})) {  // unknown so far, until there is no room for more
    }
  }
  creator.signal(SIGCONT);
  note->step = 4;
  note->reach(5);  // this process lives on, and so does its connection
  EXPECT_EQ(creator.join(), 0);
}

TEST_F(QueueProducer, ThatIsStoppedKeepsNoOtherThreadFromItsFirstContactWithAnother) {
  Queue slow = Queue::create();
  Queue quick = Queue::create();
  const auto put_one = [&](const Queue& queue, int number) {
    return [&, number, handle = queue.handle()] {
      Queue mine = Queue::connect(handle);
      mine.put(numbers(100, number));
      ++note->step;
      note->reach(3);
    };
  };
  Child stopped(put_one(slow, 1));
  Child running(put_one(quick, 2));
  note->reach(2);
  stopped.signal(SIGSTOP);
  std::atomic<bool> waiting{false}, waited{false};
  std::thread waiter([&] {
    waiting = true;
    EXPECT_EQ(number_in(slow.get_tensor()), 1);
    waited = true;
  });
  EXPECT_TRUE(eventually([&] { return waiting.load(); }));
  std::this_thread::sleep_for(50ms);  // for it to be in the middle of its question
  EXPECT_EQ(number_in(quick.get_tensor()), 2);
  EXPECT_FALSE(waited);
  stopped.signal(SIGCONT);
  waiter.join();
  note->step = 3;
  EXPECT_EQ(stopped.join(), 0);
  EXPECT_EQ(running.join(), 0);
}

TEST(Queue, PassesTensorsOnToAThirdProcess) {
  Queue first = Queue::create();
  Queue second = Queue::create();
  Child last([handle = second.handle()] {
    Tensor tensor = Queue::connect(handle).get_tensor();
    set_element(tensor, 0, element(tensor, 0) + 1);
  });
  Child middle([from = first.handle(), to = second.handle()] {
    Queue in = Queue::connect(from);
    Queue out = Queue::connect(to);
    out.put(in.get_tensor());
  });
  const Tensor tensor = number(1);
  first.put(tensor);
  EXPECT_EQ(middle.join(), 0);
  EXPECT_EQ(last.join(), 0);
  EXPECT_EQ(number_in(tensor), 2);
}

TEST(Queue, TakesTheSameTensorManyTimes) {
  Queue queue = Queue::create();
  const Tensor tensor = number(8);
  for (int i = 0; i < 1000; ++i) queue.put(tensor);
  Child getter([handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    const Tensor first = mine.get_tensor();
    for (int i = 1; i < 1000; ++i) EXPECT_EQ(mine.get_tensor().data(), first.data());
  });
  EXPECT_EQ(getter.join(), 0);
  EXPECT_TRUE(eventually([] { return blocks_sent() == 0 && stats().borrowers == 0; }));
}

TEST(Queue, LendsWhatItGotForReadingForReadingOnly) {
  Queue queue = Queue::create();
  const Tensor tensor = number(8);
  Child middle([handle = queue.handle(), lent = share(tensor)] {
    Queue::connect(handle).put(open(lent, Access::read_only));
  });
  const Tensor mine = queue.get_tensor();
  EXPECT_EQ(mine.access(), Access::read_only);
  EXPECT_EQ(number_in(mine), 8);
  EXPECT_EQ(middle.join(), 0);
}

TEST(Queue, AnInheritedQueueWorksInAForkedChild) {
  Queue in = Queue::create();
  Queue out = Queue::create();
  in.put(number(1));
  JoinedChild child([&] {
    EXPECT_EQ(blocks_sent(), 0u);
    const Tensor tensor = in.get_tensor();
    out.put(tensor);
    out.put(number(number_in(tensor) + 1));
  });
  EXPECT_EQ(number_in(out.get_tensor()), 1);
  EXPECT_EQ(number_in(out.get_tensor()), 2);
}

TEST(Queue, WhatIsLostIsAClearErrorAndTheNextItemComes) {
  Watchdog watchdog;
  Shared<Note> note;
  Child creator([&] {
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    pause();
  });
  Queue queue = Queue::connect(Handle::from_text(note->read()));
  {
    Child putter([handle = queue.handle()] {
      Queue mine = Queue::connect(handle);
      mine.put(number(1));
      mine.put(Message{0, Bytes(10'000), {number(2)}});
      pause();
    });
    EXPECT_TRUE(eventually([&] { return queue.size() == 2; }));
    creator.kill();  // and with it the only other process that has the putter's memory
  }
  queue.put(number(3));
  expect_refusal(ErrorCode::owner_died, {"taken out of the queue and is lost"},
                 [&] { queue.get_tensor(); });
  expect_refusal(ErrorCode::owner_died, {"taken out of the queue and is lost"}, [&] { queue.get(); });
  EXPECT_EQ(number_in(queue.get_tensor()), 3);
}

TEST(Queue, LeavesNothingBehindAfterThousandsOfMessagesOfAnotherProcess) {
  constexpr std::int64_t kMessages = testing::kSanitized ? 2'000 : 10'000;
  constexpr std::int64_t kLarge = testing::kSanitized ? 3 : 20;
  Watchdog watchdog;
  Queue queue = Queue::create();
  Queue back = Queue::create();
  const Footprint before = Footprint::unchanging();
  Child echo([from = queue.handle(), to = back.handle()] {
    Queue in = Queue::connect(from);
    Queue out = Queue::connect(to);
    for (;;) {
      const Message message = in.get();
      if (message.tag == 1) break;
      out.put(message);
    }
    EXPECT_TRUE(eventually([] { return blocks_sent() == 0; }));
  });
  for (std::int64_t i = 0; i < kMessages; ++i) {
    queue.put(Message{0, Bytes(static_cast<std::size_t>(i % 400)), {numbers(1 + i % 50, i)}});
    EXPECT_EQ(number_in(back.get().tensors.at(0)), i);
  }
  for (std::int64_t i = 0; i < kLarge; ++i) {
    queue.put(numbers(5 << 20, i));
    EXPECT_EQ(number_in(back.get_tensor()), i);
  }
  queue.put(Message{1, {}, {}});
  EXPECT_EQ(echo.join(), 0);
  expect_soon(before);
}

// Users that are killed at each step.

std::string point_name(const ::testing::TestParamInfo<const char*>& point) {
  std::string name = point.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

/// Memory of Ascend without an opener ends with its process; that is reported for each item.
std::int64_t next_that_is_left(Queue& queue) {
  const bool may_be_lost = testing::device().type == DeviceType::npu;
  while (may_be_lost) {
    try {
      return number_in(queue.get().tensors.at(0));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::owner_died) throw;
    }
  }
  return number_in(queue.get().tensors.at(0));
}

class PutterDies : public ::testing::TestWithParam<const char*> {};

void put_as_the_victim_does(const Handle& handle) {
  Queue created = Queue::create();
  Queue mine = Queue::connect(handle);
  for (std::int64_t i = 0; i < 3; ++i) mine.put(number(i));
  mine.put(Message{0, Bytes(1000), {number(3)}});
}

TEST_P(PutterDies, TheOthersGoOnWithWhatItHadPut) {
  Watchdog watchdog;
  Shared<Note> note;
  Child polite([&] {  // leaves the same state as a death
    note->serve_until(1);
    put_as_the_victim_does(Handle::from_text(note->read()));
    note->reach(2);
  });
  Child victim([&] {
    note->serve_until(3);
    const Handle handle = Handle::from_text(note->read(3));
    die_at(GetParam());
    put_as_the_victim_does(handle);
  });
  Child other([&] {
    note->serve_until(4);
    Queue mine = Queue::connect(Handle::from_text(note->read(4)));
    for (std::int64_t i = 0; i < 10; ++i) mine.put(number(100 + i));
    note->reach(5);
  });
  Queue queue = Queue::create();
  note->write(queue.handle().to_text());
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(number_in(queue.get().tensors.at(0)), i);
  note->step = 2;
  EXPECT_EQ(polite.join(), 0);
  const Footprint before = Footprint::settled_owner();
  note->step = 3;
  EXPECT_EQ(victim.join(), -SIGKILL) << "the point was not reached";
  note->step = 4;
  std::int64_t expected = 0;
  for (std::int64_t n = -1; n != 109; ++expected) {
    n = next_that_is_left(queue);
    if (expected < 4 && n == 100) expected = 100;
    EXPECT_EQ(n, expected);
    if (HasFailure()) break;
  }
  note->step = 5;
  EXPECT_EQ(other.join(), 0);
  EXPECT_TRUE(eventually([] { return stats().borrowers == 0 && blocks_sent() == 0; }));
  expect_soon(before);
}

INSTANTIATE_TEST_SUITE_P(Points, PutterDies,
                         ::testing::Values("queue.create.made", "queue.create.adopted",
                                           "queue.connect.opened", "queue.connect.joined",
                                           "queue.put.retained", "queue.segment.written",
                                           "queue.segment.counted", "queue.put.encoded", "queue.put.held",
                                           "queue.put.done", "queue.put.written_elsewhere",
                                           "queue.put.kept_elsewhere", "ring.put.committed"),
                         point_name);

class GetterDies : public ::testing::TestWithParam<const char*> {};

TEST_P(GetterDies, AtMostTheItemThatItHadTakenIsGone) {
  Watchdog watchdog;
  Shared<Note> note;
  const auto get_all = [](const Handle& handle) {
    Queue mine = Queue::connect(handle);
    for (int i = 0; i < 5; ++i) mine.get();
  };
  Child polite([&] { get_all(Handle::from_text(note->read())); });
  Child victim([&] {
    note->serve_until(2);
    const Handle handle = Handle::from_text(note->read(2));
    die_at(GetParam());
    get_all(handle);
  });
  JoinedChild lender([&] {
    Queue queue = Queue::create();
    const auto put_all = [&] {
      for (std::int64_t i = 0; i < 4; ++i) queue.put(number(i));
      queue.put(Message{0, Bytes(1000), {number(4)}});
    };
    put_all();
    note->write(queue.handle().to_text());
    EXPECT_TRUE(eventually([&] { return queue.empty(); }));
    const Footprint footprint = Footprint::settled_owner();
    const auto live = stats().live_blocks;
    const auto limbo = stats().limbo;
    put_all();
    note->step = 2;
    note->reach(3);
    queue.put(number(5));
    std::int64_t before = -1;
    do {
      const std::int64_t n = number_in(queue.get().tensors.at(0));
      if (before != -1) {
        EXPECT_EQ(n, before + 1);
      }
      EXPECT_LE(n, before == -1 ? 1 : 5);
      before = n;
    } while (before != 5 && !HasFailure());
    EXPECT_TRUE(eventually([&] {
      const Stats now = stats();
      return now.borrowers == 0 && now.live_blocks == live && now.limbo == limbo;
    }));
    expect_soon(footprint);
  });
  EXPECT_EQ(polite.join(), 0);
  EXPECT_EQ(victim.join(), -SIGKILL) << "the point was not reached";
  note->step = 3;
}

INSTANTIATE_TEST_SUITE_P(Points, GetterDies,
                         ::testing::Values("queue.get.deferred", "queue.get.opened", "queue.get.claimed",
                                           "queue.get.done", "ring.take.accepted", "ring.take.committed"),
                         point_name);

/// A consumer that lives for months meets many producers.
TEST(Queue, AGetterKeepsNothingOfPuttersThatHaveEnded) {
  constexpr int kPutters = 300;
  Queue queue = Queue::create();
  for (int i = 0; i < kPutters; ++i) {
    JoinedChild putter([&, handle = queue.handle()] { Queue::connect(handle).put(numbers(100, i)); });
    EXPECT_EQ(number_in(queue.get_tensor()), i);
  }
  EXPECT_TRUE(eventually([&] {
    Child putter([&, handle = queue.handle()] { Queue::connect(handle).put(numbers(100)); });
    queue.get_tensor();
    EXPECT_EQ(putter.join(), 0);
    return Runtime::current().peers().size() < kPutters / 2;
  }));
}

}  // namespace
}  // namespace onecopy
