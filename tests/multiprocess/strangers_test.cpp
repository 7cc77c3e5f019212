// SPDX-License-Identifier: Apache-2.0
// Other users of the host, which can listen under any abstract name and connect to any; and owners that are late or
// stopped, which must not be taken for dead.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/point.h"
#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/deadline_scope.h"
#include "os/mapping.h"
#include "share/borrower/broker_client.h"
#include "share/broker/broker.h"
#include "share/format/process_name.h"
#include "share/format/wire.h"
#include "share/owner/claim_memory.h"
#include "support/child.h"
#include "support/limits.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::element;
using testing::eventually;
using testing::expect_refusal;
using testing::JoinedChild;
using testing::kPatience;
using testing::kSanitized;
using testing::Limit;
using testing::Note;
using testing::number_in;
using testing::numbers;
using testing::Shared;
using testing::Watchdog;
using namespace std::chrono_literals;

constexpr uid_t kStranger = 65534;
constexpr const char* kNeedsRoot = "needs root, who can become another user";

/// A process, of another user if not told otherwise, that listens under an owner's name as soon as that is free.
class Squatter {
 public:
  Squatter(const ProcessId& owner, bool is_full, uid_t user = kStranger)
      : process_([this, name = socket_name(public_name(owner)), is_full, user] {
          ASSERT_EQ(setuid(user), 0);
          UnixSocket listener;
          EXPECT_TRUE(eventually([&] { return try_listen(name, listener); }));
          std::vector<UnixSocket> callers;
          if (is_full) fill(name, callers);
          note_->step = 1;
          note_->serve_until(2);
        }) {}
  ~Squatter() {
    note_->step = 2;
    EXPECT_EQ(process_.join(), 0);
  }
  void await() { note_->reach(1); }

 private:
  static bool try_listen(const SocketName& name, UnixSocket& listener) {
    try {
      listener = UnixSocket::listen(name, 0);
      return true;
    } catch (const Error&) {
      return false;
    }
  }
  static void fill(const SocketName& name, std::vector<UnixSocket>& callers) {
    try {
      for (;;) callers.push_back(UnixSocket::connect(name, 0ms));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::timeout) << e.what();
    }
  }

  Shared<Note> note_;
  Child process_;
};

/// Whether the other user's socket has no room for a caller.
class TakenName : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << kNeedsRoot;
  }
  /// The owner dies, and another user takes its name.
  std::unique_ptr<Squatter> take_name(const ProcessId& owner, Child& process) {
    auto squatter = std::make_unique<Squatter>(owner, GetParam());
    process.kill();
    squatter->await();
    return squatter;
  }

  Watchdog watchdog_;
  Shared<Note> note_;
};

TEST_P(TakenName, OfADeadOwnerIsPassedOverWhereAHolderHasTheMemory) {
  Shared<Note> passed;
  Child owner([&] {
    const Tensor tensor = numbers(1000);
    note_->write(share(tensor).to_text());
    note_->serve_until(9);
  });
  const Handle handle = Handle::from_text(note_->read());
  Child holder([&] {
    const Tensor tensor = open(handle);
    note_->step = 2;
    note_->reach(3);
    const Handle again = share(tensor);
    passed->write(again.to_text());
    note_->reach(4);
  });
  note_->reach(2);
  const auto squatter = take_name(handle.fields().owner, owner);
  note_->step = 3;
  EXPECT_EQ(element(open(Handle::from_text(passed->read())), 999), 999);
  note_->step = 4;
  EXPECT_EQ(holder.join(), 0);
}

TEST_P(TakenName, OfADeadProducerLosesNoItem) {
  Queue queue = Queue::create();
  Child producer([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    for (int i = 0; i < 3; ++i) mine.put(numbers(1000, i));
    const Tensor named = numbers(1);
    note_->write(share(named).to_text());
    note_->serve_until(9);
  });
  const ProcessId owner = Handle::from_text(note_->read()).fields().owner;
  const auto squatter = take_name(owner, producer);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(number_in(queue.get_tensor()), i);
}

/// Only what the producer alone had is lost, and the items behind it are not.
TEST_P(TakenName, IsNotWaitedForByAQueue) {
  Shared<Note> other;
  Child creator([&] {
    const Queue queue = Queue::create();
    note_->write(queue.handle().to_text());
    note_->serve_until(9);
  });
  Queue queue = Queue::connect(Handle::from_text(note_->read()));
  Child producer([&, handle = Handle::from_text(note_->read())] {
    Queue mine = Queue::connect(handle);
    note_->step = 2;
    note_->reach(3);
    mine.put(numbers(1000, 7));
    const Tensor named = numbers(1);
    other->write(share(named).to_text());
    note_->serve_until(9);
  });
  note_->reach(2);
  creator.kill();
  note_->step = 3;
  const ProcessId owner = Handle::from_text(other->read()).fields().owner;
  queue.put(numbers(1000, 8));
  const auto squatter = take_name(owner, producer);
  expect_refusal(ErrorCode::other_user, {"is lost", "uid 65534", "taken its name"},
                 [&] { queue.get_tensor(); });
  EXPECT_EQ(number_in(queue.get_tensor()), 8);
}

INSTANTIATE_TEST_SUITE_P(Strangers, TakenName, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Full" : "WithRoom"; });

/// Whose it is does not help where the kernel does not tell, nor here: then the deposit says that its owner has ended.
TEST(SilentSocket, InADeadProducersPlaceLosesNoItem) {
  const Watchdog watchdog;
  Shared<Note> note;
  Queue queue = Queue::create();
  Child producer([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    mine.put(numbers(1000, 7));
    const Tensor named = numbers(1);
    note->write(share(named).to_text());
    note->serve_until(9);
  });
  Squatter squatter(Handle::from_text(note->read()).fields().owner, true, geteuid());
  producer.kill();
  squatter.await();
  reply_timeout_ms = 100;
  EXPECT_EQ(number_in(queue.get_tensor()), 7);
  reply_timeout_ms = 10'000;
}

/// An owner to whose broker another user connects without end: again whenever a connection was accepted.
class Flood : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << kNeedsRoot;
  }
  /// Starts the owner. The kernel records the user of the thread that connects.
  static void begin(const ProcessId& owner) {
    name_ = socket_name(public_name(owner)).text;
    point_hook = [](const char* point) noexcept {
      if (std::string_view(point) == "broker.accepted" && ++accepted_ != 0) connect_as_stranger();
    };
    connect_as_stranger();
    EXPECT_TRUE(eventually([] { return accepted_ > 100; }));
  }
  static void connect_as_stranger() noexcept {
    ::syscall(SYS_setresuid, -1, kStranger, -1);
    try {
      UnixSocket::connect({name_, true}, 0ms);
    } catch (const Error&) {  // there is no room: then there are others
    }
    ::syscall(SYS_setresuid, -1, 0, -1);
  }

  inline static std::string name_;
  inline static std::atomic<int> accepted_{0};
  Watchdog watchdog_;
  Shared<Note> note_;
};

TEST_F(Flood, OfStrangersKeepsNoForkWaitingAndNoBorrower) {
  JoinedChild owner([&] {
    const Tensor tensor = numbers(1000);
    const Handle handle = share(tensor);
    begin(handle.fields().owner);
    note_->write(handle.to_text());
    note_->reach(2);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Child([&] { EXPECT_EQ(element(tensor, 999), 999); }).join(), 0);
  });
  EXPECT_EQ(element(open(Handle::from_text(note_->read())), 999), 999);
  note_->step = 2;
}

/// Its hello lies unread for longer than a stranger may be silent.
TEST(LateBroker, DoesNotHangUpOnWhoHasSpoken) {
  static constexpr auto kSilence = 500ms;
  Shared<Note> note;
  Child owner([&] {
    static std::atomic<bool> is_late{false};
    static std::atomic<int> accepted{0};
    const Tensor tensor = numbers(10);
    const Handle handle = share(tensor);
    stranger_silence_ms = static_cast<int>(kSilence.count());
    point_hook = [](const char* name) noexcept {
      if (std::string_view(name) == "broker.accepted" && ++accepted == 1)
        std::this_thread::sleep_for(50ms);  // a tick is due before anything is read
      if (std::string_view(name) == "broker.look" && accepted == 1 && !is_late.exchange(true))
        std::this_thread::sleep_for(2 * kSilence);
    };
    note->write(handle.to_text());
    note->serve_until(2);
  });
  const ProcessId id = Handle::from_text(note->read()).fields().owner;
  UnixSocket socket = dial(public_name(id), kPatience);
  socket.send(peer::Greeting(wire::kProtocol).hello(), {}, kPatience);
  wire::expect(socket.receive(kPatience).bytes, wire::Type::challenge);
  note->step = 2;
  EXPECT_EQ(owner.join(), 0);
}

/// A live borrower with a closed connection has its mappings read again and again.
TEST(ClosedBorrower, ThatLivesIsLookedAtLessAndLess) {
  Shared<Note> note;
  Child owner([&] {
    static std::atomic<int> ticks{0}, looks{0};
    const Tensor tensor = numbers(10);
    const Handle handle = share(tensor);
    point_hook = [](const char* name) noexcept {
      if (std::string_view(name) == "broker.looked_at_maps") ++looks;
      if (std::string_view(name) == "broker.look" && looks != 0) ++ticks;
    };
    note->write(handle.to_text());
    EXPECT_TRUE(eventually([] { return ticks >= 60; }));
    EXPECT_LE(looks, 20);
    EXPECT_EQ(stats().borrowers, 1u);
    note->step = 2;
  });
  const ProcessId id = Handle::from_text(note->read()).fields().owner;
  std::optional<UnixSocket> socket = dial(public_name(id), kPatience);
  const peer::Greeting greeting(wire::kProtocol);
  socket->send(greeting.hello(), {}, kPatience);
  const Packet challenge = socket->receive(kPatience);
  socket->send(greeting.prove(challenge.bytes, std::as_bytes(std::span(id))), {}, kPatience);
  const Packet welcome = socket->receive(kPatience);
  ASSERT_EQ(welcome.fds.size(), 2u);
  const Mapping page = map_claims(welcome.fds[1]);
  socket.reset();
  note->reach(2);
  EXPECT_EQ(owner.join(), 0);
}

/// Descriptors on their way count for the whole user, so this test needs a user of its own.
TEST(ForksBesideAStoppedOwner, LeaveTheUsersOtherProcessesTheirDescriptors) {
  if (geteuid() != 0) GTEST_SKIP() << kNeedsRoot;
  if (kSanitized) GTEST_SKIP() << "sanitizers need descriptors of their own";
  const Watchdog watchdog;
  JoinedChild user([] {
    ASSERT_EQ(setuid(static_cast<uid_t>(200'000 + getpid())), 0);
    Shared<Note> notes[2];
    const Limit limit(RLIMIT_NOFILE, 100);
    const auto lend = [](Note& note) {
      const Tensor tensor = numbers(1000);
      note.write(share(tensor).to_text());
      note.serve_until(2);
    };
    Child stopped([&] { lend(*notes[0]); });
    Child other([&] { lend(*notes[1]); });
    const Tensor tensor = open(Handle::from_text(notes[0]->read()));
    stopped.signal(SIGSTOP);
    for (int i = 0; i < 80; ++i) ASSERT_EQ(Child([&] { EXPECT_EQ(element(tensor, 999), 999); }).join(), 0);
    EXPECT_EQ(element(open(Handle::from_text(notes[1]->read())), 999), 999);
    stopped.signal(SIGCONT);
    for (Shared<Note>& note : notes) note->step = 2;
    EXPECT_EQ(stopped.join(), 0);
    EXPECT_EQ(other.join(), 0);
  });
}

/// The owner was told of more children than it has met.
TEST(ForksBesideAStoppedOwner, KeepWhatTheyBorrowedUntilAllHaveEndedAndNoLonger) {
  const Watchdog watchdog;
  Shared<Note> note;
  JoinedChild owner([&] {
    Tensor tensor = numbers(1000);
    note->write(share(tensor).to_text());
    note->reach(4);
    tensor.release();
    EXPECT_EQ(stats().limbo, 1u);
    note->step = 5;
    note->reach(6);
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  });
  Child borrower([&] {
    Tensor tensor = open(Handle::from_text(note->read()));
    note->step = 2;
    note->reach(3);
    for (int i = 0; i < 40; ++i) ASSERT_EQ(Child([&] { EXPECT_EQ(element(tensor, 999), 999); }).join(), 0);
    JoinedChild last([&] {
      note->reach(5);
      EXPECT_EQ(element(tensor, 999), 999);
    });
    tensor.release();
    note->step = 4;
  });
  note->reach(2);
  owner.signal(SIGSTOP);
  note->step = 3;
  note->reach(4);
  owner.signal(SIGCONT);
  EXPECT_EQ(borrower.join(), 0);
  note->step = 6;
}

}  // namespace
}  // namespace onecopy
