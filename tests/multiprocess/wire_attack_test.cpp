// SPDX-License-Identifier: Apache-2.0
// Peers that may sit at the other end of a broker's socket: liars, strangers, the broken and the silent.
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <thread>

#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/deadline_scope.h"
#include "os/memfd.h"
#include "os/random.h"
#include "share/borrower/peer.h"
#include "share/broker/broker.h"
#include "share/format/process_name.h"
#include "share/format/wire.h"
#include "share/owner/claim_memory.h"
#include "support/child.h"
#include "support/footprint.h"
#include "support/note.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::eventually;
using testing::expect_refusal;
using testing::expect_soon;
using testing::Footprint;
using testing::JoinedChild;
using testing::kPatience;
using testing::Note;
using testing::Shared;
using testing::Watchdog;
using wire::Type;

constexpr std::uint32_t kBeyond = static_cast<std::uint32_t>(wire::kLastType) + 1;  // of no message

constexpr std::int64_t kOwnSegment = 5 << 20;  // i64: 40 MiB, which get a segment of their own

Tensor filled(std::int64_t count, std::int64_t value) {
  Tensor tensor = empty(Layout(DType::i64, {count}));
  std::fill_n(tensor.as<std::int64_t>(), count, value);
  return tensor;
}

UnixSocket dial_owner(const ProcessId& owner) {
  return UnixSocket::connect(socket_name(public_name(owner)), kPatience);
}

ByteSpan secret(const ProcessId& id) { return std::as_bytes(std::span(id)); }

/// Returns the fields of a request to retain, in a message of any type.
Bytes retain_as(Type type) {
  Bytes message = wire::pack(wire::Retain{});
  write_value(message.data() + sizeof(std::uint32_t), type);
  return message;
}

/// A client that speaks the protocol's words one by one.
struct Client {
  explicit Client(const ProcessId& owner) : id(owner), socket(dial_owner(owner)) {}

  Packet ask(const Bytes& message, const std::vector<int>& fds = {}) {
    socket.send(message, fds, kPatience);
    return socket.receive(kPatience);
  }
  peer::Challenge greet() {
    return wire::unpack<peer::Challenge>(ask(wire::pack(peer::Hello{nonce})).bytes);
  }
  Packet prove(const peer::Nonce& theirs) {
    return ask(wire::pack(peer::Prove{onecopy::prove(secret(id), "borrower", nonce, theirs)}));
  }
  void attach() { wire::expect(prove(greet().nonce).bytes, Type::welcome); }

  ProcessId id;
  UnixSocket socket;
  peer::Nonce nonce = random_value<peer::Nonce>();
};

/// An owner that must serve other processes during all attacks, and be unchanged afterwards.
class Attack : public ::testing::Test {
 protected:
  Attack()
      : owner_([this] {
          const Tensor tensor = filled(1000, 7);
          // Counted before any process can connect: other tests list all owners there are, this one too. The listener
          // and the page for the next borrower.
          const std::uint64_t at_rest = stats().descriptors + 2;
          const Handle handle = share(tensor);
          note_->write(handle.to_text());
          note_->serve_until(2);
          EXPECT_TRUE(eventually([&] { return stats().borrowers == 0 && stats().descriptors <= at_rest; }))
              << stats().borrowers << " borrowers, " << stats().descriptors << " instead of " << at_rest
              << " descriptors";
          EXPECT_EQ(stats().deposits, 0u);
          EXPECT_EQ(tensor.as<std::int64_t>()[999], 7);
        }),
        handle_(Handle::from_text(note_->read())) {}

  void TearDown() override {
    expect_served();
    note_->step = 2;
    EXPECT_EQ(owner_.join(), 0);
  }
  const ProcessId& owner() const { return handle_.fields().owner; }

  /// An honest borrower gets what it wants.
  void expect_served() {
    JoinedChild borrower([&] { EXPECT_EQ(open(handle_).as<std::int64_t>()[999], 7); });
  }

  Watchdog watchdog_{2 * Watchdog::kLimit};
  Shared<Note> note_;
  Child owner_;
  Handle handle_;
};

TEST_F(Attack, AWrongProofGetsNothing) {
  Client client(owner());
  client.greet();
  const Packet packet = client.prove(peer::Nonce{});  // an answer to another challenge
  EXPECT_TRUE(packet.fds.empty());
  expect_refusal(ErrorCode::bad_secret, {"does not know the secret"},
                 [&] { wire::expect(packet.bytes, Type::welcome); });
}

TEST_F(Attack, TheBrokersOwnProofCannotBeSentBack) {
  Client client(owner());
  const peer::Challenge challenge = client.greet();
  const Packet packet = client.ask(wire::pack(peer::Prove{challenge.proof}));
  expect_refusal(ErrorCode::bad_secret, {"secret"}, [&] { wire::expect(packet.bytes, Type::welcome); });
}

/// Its claim page is in use.
TEST_F(Attack, AnotherHelloOfABorrowerChangesNothing) {
  Client client(owner());
  client.attach();
  client.greet();
  expect_refusal(ErrorCode::bad_secret, {"secret"},
                 [&] { wire::expect(client.prove(client.greet().nonce).bytes, Type::welcome); });
  expect_served();
}

TEST_F(Attack, AProofWithoutAChallengeGetsNothing) {
  Client client(owner());
  expect_refusal(ErrorCode::bad_secret, {"secret"},
                 [&] { wire::expect(client.prove(peer::Nonce{}).bytes, Type::welcome); });
}

TEST_F(Attack, NothingIsServedBeforeTheProof) {
  Client client(owner());
  for (std::uint32_t type = 0; type <= kBeyond; ++type) {
    const auto t = static_cast<Type>(type);
    if (t == Type::hello || t == Type::want_info || t == Type::prove || !wire::is_answered(t)) continue;
    const Packet packet = client.ask(retain_as(t));
    EXPECT_TRUE(packet.fds.empty());
    expect_refusal(ErrorCode::bad_secret, {"prove"}, [&] { wire::expect(packet.bytes, Type::welcome); });
  }
}

TEST_F(Attack, AnotherProtocolVersionIsToldSo) {
  Client client(owner());
  Bytes hello = wire::pack(peer::Hello{});
  write_value(hello.data(), std::uint32_t{7});
  const Packet packet = client.ask(hello);
  expect_refusal(ErrorCode::version_mismatch, {"version 7", "same release"},
                 [&] { wire::expect(packet.bytes, Type::challenge); });
}

TEST_F(Attack, GarbageHalfMessagesAndGiantsDoNotHurt) {
  std::mt19937 random(3);
  for (int client = 0; client < 20; ++client) {
    Client stranger(owner());
    if (client % 2 == 1) stranger.attach();
    try {
      for (int i = 0; i < 200; ++i) {
        Bytes bytes(1 + random() % 200);
        for (std::byte& b : bytes) b = static_cast<std::byte>(random());
        if (i % 2 == 1 && bytes.size() >= 8) {  // a known type and version, cut off anywhere
          write_value(bytes.data(), wire::kProtocol.version);
          write_value(bytes.data() + 4, static_cast<std::uint32_t>(random() % (kBeyond + 1)));
        }
        stranger.socket.try_send(bytes);
        while (stranger.socket.try_receive()) {
        }
      }
      stranger.socket.try_send(Bytes(UnixSocket::kMaxPacketBytes));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::peer_died) << e.what();  // the broker may hang up
    }
  }
}

struct Impatience {
  Impatience() { stranger_silence_ms = 1000; }
  ~Impatience() { stranger_silence_ms = 5000; }
};
/// Its owner has little patience with strangers.
class Silence : public Impatience, public Attack {};

bool is_hung_up(Client& client) {
  try {
    client.socket.try_receive();
    return false;
  } catch (const Error& error) {
    return error.code() == ErrorCode::peer_died;
  }
}

/// A client that has said so much before the owner lost its patience.
std::unique_ptr<Client> client_in_time(const ProcessId& owner, const std::function<void(Client&)>& say) {
  std::unique_ptr<Client> client;
  EXPECT_TRUE(eventually([&] {
    try {
      client = std::make_unique<Client>(owner);
      say(*client);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_died) << error.what();
      return false;
    }
  }));
  return client;
}

TEST_F(Silence, OfStrangersEndsTheirConnectionAndOfBorrowersDoesNot) {
  const auto borrower = client_in_time(owner(), [](Client& client) { client.attach(); });
  const auto half = client_in_time(owner(), [](Client& client) { client.greet(); });
  Client silent(owner());
  std::vector<Client> many;
  for (int i = 0; i < 50; ++i) many.emplace_back(owner());
  EXPECT_TRUE(eventually([&] { return is_hung_up(silent) && is_hung_up(*half); }));
  for (Client& client : many) EXPECT_TRUE(eventually([&] { return is_hung_up(client); }));
  EXPECT_FALSE(borrower->ask(wire::pack(wire::WantInfo{})).bytes.empty());
}

/// Every message a borrower may send, cut off after every byte.
TEST_F(Attack, TruncatedMessagesOfABorrowerAreRefusedOrIgnored) {
  for (std::uint32_t type = 0; type <= kBeyond; ++type) {
    Client client(owner());
    client.attach();
    const Bytes whole = retain_as(static_cast<Type>(type));
    for (std::size_t size = 1; size <= whole.size(); size += 3) {
      client.socket.send(ByteSpan(whole).first(size), {}, kPatience);
      while (client.socket.try_receive()) {
      }
    }
    const Packet still = client.ask(wire::pack(wire::WantInfo{}));
    EXPECT_FALSE(still.bytes.empty());
  }
}

TEST_F(Attack, DescriptorsThatNobodyAskedForAreClosed) {
  const std::vector<int> many(UnixSocket::kMaxPacketFds, 2);
  for (const bool attached : {false, true}) {
    Client client(owner());
    if (attached) client.attach();
    for (std::uint32_t type = 1; type <= kBeyond; ++type) {
      client.socket.send(retain_as(static_cast<Type>(type)), many, kPatience);
      while (client.socket.try_receive()) {
      }
    }
  }
}

/// A page that the child of a borrower could shrink under the owner's feet.
TEST_F(Attack, AnUnsealedPageForAChildIsNotTouched) {
  Client client(owner());
  client.attach();
  const Fd good = create_claim_file().file;
  const Fd small = create_memfd("small", 4096);
  const auto [ours, theirs] = UnixSocket::pair();
  for (const int page : {small.get(), 2}) {
    const int fds[] = {page, theirs.fd()};
    client.socket.send(wire::pack(wire::AdoptChild{}), fds, kPatience);
  }
  const int only_one[] = {good.get()};
  client.socket.send(wire::pack(wire::AdoptChild{}), only_one, kPatience);
  wire::expect(client.ask(wire::pack(wire::WantInfo{})).bytes, Type::info);
}

TEST_F(Attack, SegmentsAndBlocksThatDoNotExistAreRefusedOneByOne) {
  Client client(owner());
  client.attach();
  expect_refusal(ErrorCode::stale_handle, {"segment 4711", "gone"}, [&] {
    wire::expect(client.ask(wire::pack(wire::WantSegment{4711})).bytes, Type::segment);
  });
  expect_refusal(ErrorCode::owner_died, {"does not hold"}, [&] {
    wire::expect(client.ask(wire::pack(wire::WantForeign{{}, {1}})).bytes, Type::segment);
  });
  for (const std::uint32_t block : {4u << 20, ~0u}) {
    const Packet packet = client.ask(wire::pack(wire::AskLimbo{0, block}));
    wire::expect(packet.bytes, Type::limbo);
    EXPECT_FALSE(wire::unpack<wire::Limbo>(packet.bytes).yes);
  }
}

TEST_F(Attack, AFloodThatIsNeverReadIsCutOff) {
  Client client(owner());
  const Bytes question = wire::pack(wire::WantInfo{});
  EXPECT_TRUE(eventually([&] {
    try {
      for (int i = 0; i < 1000; ++i) client.socket.try_send(question);
      return false;
    } catch (const Error& e) {
      return e.code() == ErrorCode::peer_died;
    }
  }));
}

/// Sends small questions until the owner hangs up, and counts its answers: so many find room.
std::size_t answers_that_find_room(const ProcessId& owner, const Bytes& question) {
  Client client(owner);
  client.attach();
  std::size_t answers = 0;
  try {
    for (int i = 0; i < 100'000; ++i) client.socket.send(question, {}, kPatience);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::peer_died);
  }
  try {
    for (;; ++answers) client.socket.receive(kPatience);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::peer_died);
  }
  return answers;
}

TEST(SlowBorrower, LearnsOfASegmentThatWentWhileThereWasNoRoomToTellIt) {
  const Watchdog watchdog;
  Shared<Note> note;
  Child child([&] {
    const Tensor tensor = filled(1000, 7);
    Tensor large = filled(kOwnSegment, 1);
    note->write(share(tensor).to_text());
    note->reach(2);
    large.release();
    EXPECT_TRUE(eventually([] {
      collect();
      return stats().segments == 1;
    }));
    note->step = 3;
    note->reach(4);
  });
  const ProcessId owner = Handle::from_text(note->read()).fields().owner;
  const Bytes question = wire::pack(wire::AskLimbo{0, 0});
  const std::size_t most = answers_that_find_room(owner, question);
  Client client(owner);
  client.attach();
  for (std::size_t i = 0; i < most; ++i) client.socket.send(question, {}, kPatience);
  const auto all = static_cast<int>(most * wire::pack(wire::Limbo{}).size());
  EXPECT_TRUE(eventually([&] {
    int waiting = 0;
    return ::ioctl(client.socket.fd(), FIONREAD, &waiting) == 0 && waiting >= all;
  }));
  note->step = 2;
  note->reach(3);
  for (std::size_t i = 0; i < most; ++i) wire::expect(client.socket.receive(kPatience).bytes, Type::limbo);
  wire::expect(client.socket.receive(kPatience).bytes, Type::retire);
  note->step = 4;
  EXPECT_EQ(child.join(), 0);
}

TEST_F(Attack, AFloodThatIsReadDoesNotKeepOthersOut) {
  Shared<Note> stop;
  JoinedChild flooder([&] {
    Client client(owner());
    client.attach();  // no test waits for a stranger for so long
    const Bytes question = wire::pack(peer::Hello{});
    for (int asked = 0, answered = 0; stop->step == 0;) {
      if (asked - answered < 100) asked += client.socket.try_send(question) ? 1 : 0;
      while (client.socket.try_receive()) ++answered;
      if (answered > 1000) stop->text[0] = 1;
    }
  });
  EXPECT_TRUE(eventually([&] { return stop->text[0] == 1; }));
  for (int i = 0; i < 5; ++i) expect_served();
  stop->step = 1;
}

TEST_F(Attack, SilentConnectionsKeepNobodyOut) {
  std::vector<UnixSocket> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(dial_owner(owner()));
  expect_served();
}

/// The page of a few unproved strangers is made early.
TEST_F(Attack, GreetingsWithoutAProofCostAnOwnerLittle) {
  constexpr std::size_t kMany = 200;
  const std::string directory = "/proc/" + std::to_string(owner_.pid()) + "/fd";
  const std::uint64_t before = testing::count_files(directory.c_str());
  std::vector<std::unique_ptr<Client>> silent;
  for (std::size_t i = 0; i < kMany; ++i) {
    silent.push_back(std::make_unique<Client>(owner()));
    silent.back()->greet();
  }
  EXPECT_LE(testing::count_files(directory.c_str()), before + kMany + 8);
  wire::expect(silent.back()->prove(silent.back()->greet().nonce).bytes, Type::welcome);
  expect_served();
}

TEST_F(Attack, AnotherUserIsNotEvenAnswered) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  JoinedChild stranger([&] {
    ASSERT_EQ(setuid(65534), 0);
    Client client(owner());
    expect_refusal(ErrorCode::peer_died, {}, [&] { client.greet(); });
  });
}

// These tests do the reverse: a listener takes the place of an owner.

/// Returns the first message of the next connection. Empty if none has come yet, or if it is not a borrower's: other
/// tests list all owners, including this one.
std::optional<Packet> greeting(UnixSocket& listener, std::optional<UnixSocket>& socket) {
  socket = listener.try_accept();
  if (!socket) return {};
  try {
    Packet first = socket->receive(kPatience);
    if (wire::type_of(first.bytes) == Type::hello) return first;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::peer_died) << e.what();
  }
  return {};
}

/// Listens under the name of an owner, takes one borrower's connection and treats it as `manners` says.
void impostor(const ProcessId& id, Note& ready, const std::function<void(UnixSocket&, ByteSpan)>& manners) {
  UnixSocket listener = UnixSocket::listen(socket_name(public_name(id)));
  ready.step = 1;
  std::optional<UnixSocket> socket;
  std::optional<Packet> hello;
  EXPECT_TRUE(eventually([&] { return (hello = greeting(listener, socket)).has_value(); }));
  if (!hello) return;
  try {
    manners(*socket, hello->bytes);
    ready.reach(2);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::peer_died) << e.what();
  }
}

class Impostor : public ::testing::Test {
 protected:
  /// A handle of an owner that does not exist, opened in this process while `manners` poses as it.
  void expect_open(ErrorCode code, std::initializer_list<const char*> says,
                   const std::function<void(const ProcessId&, UnixSocket&, ByteSpan)>& manners) {
    HandleFields fields = share(filled(100, 1)).fields();
    random_bytes(std::as_writable_bytes(std::span(fields.owner)));
    fields.maker = fields.owner;
    Shared<Note> ready;
    Child poser([&] {
      impostor(fields.owner, *ready,
               [&](UnixSocket& socket, ByteSpan hello) { manners(fields.owner, socket, hello); });
    });
    ready->reach(1);
    const Footprint before = Footprint::unchanging();
    expect_refusal(code, says, [&] { open(Handle::from_bytes(encode(fields))); });
    expect_soon(before);
    ready->step = 2;
    EXPECT_EQ(poser.join(), 0);
  }
};

/// The challenge of an owner with this id.
Bytes answer_to(const ProcessId& id, ByteSpan hello) {
  return peer::Gate(wire::kProtocol).challenge(hello, secret(id));
}

/// An impostor that knows the secret: another user of a leaked handle. Its welcome is `fds`.
void welcome_with(const ProcessId& id, UnixSocket& socket, ByteSpan hello, const std::vector<int>& fds) {
  socket.send(answer_to(id, hello), {}, kPatience);
  socket.receive(kPatience);
  socket.send(wire::pack(wire::Welcome{}), fds, kPatience);
}

TEST_F(Impostor, ThatDoesNotKnowTheSecretIsFoundOut) {
  expect_open(ErrorCode::bad_secret, {"does not know its secret", "not used"},
              [](const ProcessId&, UnixSocket& socket, ByteSpan hello) {
                socket.send(answer_to(ProcessId{}, hello), {}, kPatience);
              });
}

TEST_F(Impostor, ThatSendsTheBorrowersOwnNonceBackIsFoundOut) {
  expect_open(ErrorCode::bad_secret, {"does not know its secret"},
              [](const ProcessId&, UnixSocket& socket, ByteSpan hello) {
                const auto nonce = wire::unpack<peer::Hello>(hello).nonce;
                socket.send(wire::pack(peer::Challenge{nonce, {}}), {}, kPatience);
              });
}

TEST_F(Impostor, ThatSkipsTheProofIsFoundOut) {
  expect_open(ErrorCode::protocol, {"a message has type 4"},
              [](const ProcessId&, UnixSocket& socket, ByteSpan) {
                const Fd file = create_memfd("x", 4096);
                const int fds[] = {file.get(), file.get()};
                socket.send(wire::pack(wire::Welcome{}), fds, kPatience);
              });
}

TEST_F(Impostor, ThatTalksGarbageIsFoundOut) {
  expect_open(ErrorCode::protocol, {"cut off"},
              [](const ProcessId&, UnixSocket& socket, ByteSpan) { socket.send(Bytes(3), {}, kPatience); });
  expect_open(ErrorCode::version_mismatch, {"version"}, [](const ProcessId&, UnixSocket& socket, ByteSpan) {
    socket.send(Bytes(100, std::byte{0x5a}), {}, kPatience);
  });
  expect_open(ErrorCode::protocol, {"error code that does not exist"},
              [](const ProcessId&, UnixSocket& socket, ByteSpan) {
                socket.send(wire::pack(peer::Refused{ErrorCode{77}, {}}), {}, kPatience);
              });
}

TEST_F(Impostor, ThatHangsUpAndListensIsNotCalledDead) {
  reply_timeout_ms = 300;
  expect_open(ErrorCode::timeout, {"did not answer", "stopped"},
              [](const ProcessId&, UnixSocket& socket, ByteSpan) { socket = UnixSocket(); });
}

TEST_F(Impostor, ThatStaysSilentIsGivenUp) {
  reply_timeout_ms = 100;
  expect_open(ErrorCode::timeout, {"did not answer", "stopped"},
              [](const ProcessId&, UnixSocket&, ByteSpan) {});
}

TEST_F(Impostor, WhoseTableCouldShrinkIsRefused) {
  const Fd page = create_claim_file().file;
  expect_open(ErrorCode::protocol, {"block table", "sealed"},
              [&](const ProcessId& id, UnixSocket& socket, ByteSpan hello) {
                const Fd table = create_memfd("table", 4096);
                welcome_with(id, socket, hello, {table.get(), page.get()});
              });
  expect_open(ErrorCode::protocol, {"claim page", "sealed"},
              [&](const ProcessId& id, UnixSocket& socket, ByteSpan hello) {
                const Fd table = create_memfd("table", kTableBytes);
                const Fd small = create_memfd("page", 4096);
                welcome_with(id, socket, hello, {table.get(), small.get()});
              });
  expect_open(ErrorCode::protocol, {"another version"},
              [&](const ProcessId& id, UnixSocket& socket, ByteSpan hello) {
                const Fd table = create_memfd("table", kTableBytes);
                const Fd zeros = create_memfd("page", file_size(page));
                welcome_with(id, socket, hello, {table.get(), zeros.get()});
              });
}

TEST_F(Impostor, WithoutDescriptorsIsRefused) {
  expect_open(
      ErrorCode::protocol, {"without its descriptors"},
      [](const ProcessId& id, UnixSocket& socket, ByteSpan hello) { welcome_with(id, socket, hello, {}); });
}

/// Stops an owner in the middle of its life.
class StoppedOwner : public ::testing::Test {
 protected:
  Tensor open_step(int step) { return open(Handle::from_text(note_->read(step))); }

  Shared<Note> note_;
  Child owner_{[this] {
    const Tensor first = filled(kOwnSegment, 1);
    const Tensor second = filled(kOwnSegment, 2);
    const Tensor small = filled(10, 3);
    const Handle handles[] = {share(small), share(first), share(second)};
    for (int i = 0; i < 3; ++i) {
      note_->write(handles[i].to_text(), 2 * i + 1);
      note_->reach(2 * i + 2);
    }
    note_->reach(7);
  }};
};

TEST_F(StoppedOwner, IsAnErrorAndItsLateAnswerIsNotTakenForAnother) {
  EXPECT_EQ(open_step(1).as<std::int64_t>()[0], 3);
  note_->step = 2;
  const Handle first = Handle::from_text(note_->read(3));
  note_->step = 4;
  const Handle second = Handle::from_text(note_->read(5));
  const Footprint before = Footprint::unchanging();
  owner_.signal(SIGSTOP);
  reply_timeout_ms = 100;
  expect_refusal(ErrorCode::timeout, {"did not answer", "stopped", "100 ms"}, [&] { open(first); });
  expect_soon(before);
  owner_.signal(SIGCONT);
  reply_timeout_ms = 10'000;
  EXPECT_EQ(open(second).as<std::int64_t>()[kOwnSegment - 1],
            2);  // not the first, whose answer comes first
  EXPECT_EQ(open(first).as<std::int64_t>()[kOwnSegment - 1], 1);
  note_->step = 7;
  EXPECT_EQ(owner_.join(), 0);
}

}  // namespace
}  // namespace onecopy
