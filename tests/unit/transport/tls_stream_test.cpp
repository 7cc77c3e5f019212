// SPDX-License-Identifier: Apache-2.0
// Records that another process reads, replays, cuts, reorders or alters, and frames that no member writes.
#include "transport/tls/tls_stream.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/backend.h"
#include "onecopy/share/share.h"
#include "rpc/message.h"
#include "share/session.h"
#include "support/refusal.h"
#include "transport/tls/tls_link.h"
#include "unit/rpc/tls_environment.h"

namespace onecopy::transport {
namespace {

using namespace rpc;
using namespace std::chrono_literals;
using testing::expect_refusal;

ByteSpan bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

Message note_of(std::size_t bytes) {
  Message message{tag_of(Form::note, 0, true), Bytes(bytes, std::byte{7}), {}};
  append_tail(message.data, NoteTail{});
  return message;
}

std::shared_ptr<const TlsContext> context_of(std::string_view key) {
  static std::map<std::string, std::shared_ptr<const TlsContext>, std::less<>> made;
  auto& context = made[std::string(key)];
  if (!context) context = std::make_shared<const TlsContext>(bytes_of(key));
  return context;
}

/// Returns how many records are in front of the first byte that an attacker has changed. A byte that was cut off may happen
/// to be the first one of the record behind it.
std::size_t untouched(const std::vector<Bytes>& sent, const std::vector<Bytes>& came) {
  Bytes all_sent, all_came;
  for (const Bytes& record : sent) append_bytes(all_sent, record);
  for (const Bytes& record : came) append_bytes(all_came, record);
  const auto at = std::ranges::mismatch(all_sent, all_came).in1 - all_sent.begin();
  std::size_t end = 0, count = 0;
  while (count < sent.size() && (end += sent[count].size()) <= static_cast<std::size_t>(at)) ++count;
  return count;
}

/// One end of a connection; the other end of its socket is the test's. What one end of a socket of the host sends is at the
/// other end at once; over TCP the kernel may take its time under load.
struct End {
  End(std::string_view key, Side side) {
    static std::atomic<int> number{0};
    StreamSocket listener = StreamSocket::listen(fmt::format("unix:@onecopy-{}-{}", ::getpid(), number++));
    StreamSocket own = StreamSocket::connect(listener.address(), 10s);
    wire = listener.accept(10s);
    stream = std::make_unique<TlsStream>(context_of(key), std::move(own), side);
  }
  /// Returns what the stream has sent.
  Bytes sent() {
    Bytes all;
    std::array<std::byte, 65536> part;
    bool has_more = true;
    while (has_more) {
      has_more = !stream->flush();
      for (ssize_t got; (got = ::recv(wire.fd(), part.data(), part.size(), MSG_DONTWAIT)) > 0;)
        all.insert(all.end(), part.begin(), part.begin() + got);
    }
    return all;
  }

  StreamSocket wire;
  std::unique_ptr<TlsStream> stream;
};

/// Records go in at one end; the bytes between the ends are the test's.
class RecordsOnTheWay : public ::testing::Test {
 protected:
  RecordsOnTheWay() { connect(); }

  void connect() {
    sender_.emplace(kTestKey, Side::client);
    receiver_.emplace(kTestKey, Side::listener);
    inbox_.emplace(true);
    arrived_ = {};
    bool is_open = false;
    for (int i = 0; i < 10 && !is_open; ++i) {
      const bool is_sender_open = sender_->stream->handshake();
      receiver_->wire.send_all(sender_->sent(), 10s);
      const bool is_receiver_open = receiver_->stream->handshake();
      sender_->wire.send_all(receiver_->sent(), 10s);
      is_open = is_sender_open && is_receiver_open;
    }
    ASSERT_TRUE(is_open);
  }
  /// Returns the bytes of a message's records.
  Bytes records_of(Message&& message) {
    Outbox outbox;
    outbox.put(std::move(message));
    Bytes all;
    for (ByteSpan record; !(record = outbox.next_record(false)).empty();) {
      sender_->stream->write(record);
      const Bytes part = sender_->sent();
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  void receive() {
    receiver_->stream->begin_turn();
    while (const std::size_t got = receiver_->stream->read(inbox_->room())) inbox_->take(got, arrived_);
  }
  void deliver(ByteSpan bytes) {
    constexpr std::size_t kPart = 64 << 10;
    while (!bytes.empty()) {
      const ByteSpan part = bytes.first(std::min(bytes.size(), kPart));
      receiver_->wire.send_all(part, 10s);
      bytes = bytes.subspan(part.size());
      receive();
    }
  }
  void expect_refused(ByteSpan bytes) {
    expect_refusal(ErrorCode::protocol, {"did not send"}, [&] { deliver(bytes); });
  }

  std::optional<End> sender_, receiver_;
  std::optional<Inbox> inbox_;
  Inbox::Arrived arrived_;
};

TEST_F(RecordsOnTheWay, ArriveAsTheyWereSent) {
  deliver(records_of(note_of(10)));
  deliver(records_of(note_of(2'000'000)));
  Message with_tensor = note_of(5);
  with_tensor.tensors.push_back(empty(Layout(DType::f32, {1000, 300})));
  deliver(records_of(std::move(with_tensor)));
  ASSERT_EQ(arrived_.messages.size(), 3U);
  EXPECT_EQ(arrived_.messages[1].data, note_of(2'000'000).data);
  EXPECT_EQ(arrived_.messages[2].tensors.at(0).layout(), Layout(DType::f32, {1000, 300}));
}

TEST_F(RecordsOnTheWay, ArriveInPieces) {
  const Bytes records = records_of(note_of(300));
  for (const std::byte& byte : records) deliver({&byte, 1});
  ASSERT_EQ(arrived_.messages.size(), 1U);
  EXPECT_EQ(arrived_.messages[0].data, note_of(300).data);
}

TEST_F(RecordsOnTheWay, DoNotShowWhatTheyCarry) {
  const Bytes records = records_of(note_of(1000));
  const Bytes pattern(8, std::byte{7});
  EXPECT_EQ(std::search(records.begin(), records.end(), pattern.begin(), pattern.end()), records.end());
}

TEST_F(RecordsOnTheWay, AreRefusedWhenReplayed) {
  const Bytes record = records_of(note_of(10));
  deliver(record);
  expect_refused(record);
  EXPECT_EQ(arrived_.messages.size(), 1U);
}

TEST_F(RecordsOnTheWay, AreRefusedWhenOneIsMissing) {
  records_of(note_of(10));
  expect_refused(records_of(note_of(10)));
}

TEST_F(RecordsOnTheWay, AreRefusedInAnotherOrder) {
  const Bytes first = records_of(note_of(10)), second = records_of(note_of(20));
  expect_refused(second);
  expect_refused(first);
  EXPECT_TRUE(arrived_.messages.empty());
}

TEST_F(RecordsOnTheWay, AreRefusedWhereverTheyWereAltered) {
  constexpr std::size_t kTypeAndVersion = 3, kLength = 5;
  const std::size_t size = records_of(note_of(10)).size();
  for (std::size_t i = kLength; i < size; ++i) {
    connect();
    Bytes altered = records_of(note_of(10));
    altered[i] ^= std::byte{1};
    expect_refused(altered);
    EXPECT_TRUE(arrived_.messages.empty());
  }
  for (std::size_t i = 0; i < kTypeAndVersion; ++i) {
    connect();
    Bytes altered = records_of(note_of(10));
    altered[i] ^= std::byte{1};
    expect_refusal(ErrorCode::protocol, {}, [&] { deliver(altered); });
  }
}

/// Records are altered, left out, swapped, replayed and cut at random: what arrives is what was sent in front of that, and the
/// connection ends with a typed error. ONECOPY_TEST_RECORDS=1000000 tries many.
TEST_F(RecordsOnTheWay, AreNeverTakenOnceAnAttackerTouchedThem) {
  const char* const many = std::getenv("ONECOPY_TEST_RECORDS");
  const std::int64_t rounds = many ? std::atoll(many) : 500;
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  for (std::int64_t round = 0; round < rounds; ++round) {
    connect();
    std::vector<Bytes> records;
    for (std::size_t i = 0; i < 4; ++i) records.push_back(records_of(note_of(10 + i)));
    const std::vector<Bytes> sent = records;
    const std::size_t at = random() % 3, bit = random() % (8 * records[at].size()), attack = random() % 5;
    SCOPED_TRACE(fmt::format("seed {}, round {}: attack {} on record {} of {} bytes, bit {}", seed, round,
                             attack, at, records[at].size(), bit));
    switch (attack) {
      case 0: records[at][bit / 8] ^= static_cast<std::byte>(1U << bit % 8); break;
      case 1: records.erase(records.begin() + static_cast<std::ptrdiff_t>(at)); break;
      case 2: std::swap(records[at], records[at + 1]); break;
      case 3:
        records.insert(records.begin() + static_cast<std::ptrdiff_t>(at) + 1, Bytes(records[at]));
        break;
      default: records[at].resize(bit / 8);
    }
    const std::size_t max = untouched(sent, records);
    try {
      for (const Bytes& record : records) deliver(record);
      receiver_->wire = {};
      receive();
      ADD_FAILURE() << "the connection goes on";
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::protocol || error.code() == ErrorCode::peer_died)
          << error.what();
    }
    ASSERT_EQ(arrived_.messages.size(), max);
    for (std::size_t i = 0; i < max; ++i) EXPECT_EQ(arrived_.messages[i].data, note_of(10 + i).data);
  }
}

TEST_F(RecordsOnTheWay, EndWithTheConnectionWhenCut) {
  Bytes record = records_of(note_of(10));
  record.pop_back();
  deliver(record);
  receiver_->wire = {};
  expect_refusal(ErrorCode::peer_died, {}, [&] { receive(); });
  EXPECT_TRUE(arrived_.messages.empty());
}

/// A ticket would let a later connection go without a fresh exchange of keys.
TEST_F(RecordsOnTheWay, AreOfNoTickets) {
  EXPECT_TRUE(receiver_->sent().empty());
  std::array<std::byte, 16> ticket;
  EXPECT_EQ(sender_->stream->read(ticket), 0U);
}

TEST_F(RecordsOnTheWay, AreOfAKeyOfTheirOwnInEachConnection) {
  const Bytes of_this = records_of(note_of(10));
  connect();
  expect_refused(of_this);
}

TEST(AHandshake, IsRefusedWithAnotherKey) {
  End client("another secret, which has 40 characters, too", Side::client),
      listener(kTestKey, Side::listener);
  EXPECT_FALSE(client.stream->handshake());
  listener.wire.send_all(client.sent(), 10s);
  expect_refusal(ErrorCode::protocol, {"not a member"}, [&] { listener.stream->handshake(); });
  client.wire.send_all(listener.sent(), 10s);
  expect_refusal(ErrorCode::bad_secret, {"ONECOPY_RPC_KEY"}, [&] { client.stream->handshake(); });
}

TEST(AHandshake, IsRefusedWithAServiceThatIsNotTls) {
  End client(kTestKey, Side::client);
  EXPECT_FALSE(client.stream->handshake());
  client.wire.send_all(bytes_of("220 mail.example.org ESMTP ready\r\n"), 10s);
  expect_refusal(ErrorCode::protocol, {"not a member"}, [&] { client.stream->handshake(); });
}

TEST(OpenSsl, ThatIsMissingIsNamedByItsPackage) {
  expect_refusal(ErrorCode::unsupported, {"OpenSSL 3", "libssl3"},
                 [] { openssl::Library({"libssl.so.0"}); });
  expect_refusal(ErrorCode::unsupported, {"libc.so.6 has no OpenSSL_version_num", "libssl3"},
                 [] { openssl::Library({"libc.so.6"}); });
}

/// Bytes of shared memory that this process has in use.
std::size_t shared_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssShmem:")) return std::stoull(line.substr(9)) * 1024;
  throw std::runtime_error("the system does not say how much shared memory a process uses");
}

/// All of it at once takes a second a GiB, in which the event loop serves nobody else.
TEST(AnArrivingMessage, HasMemoryForALargeTensorAsItsBytesCome) {
  constexpr std::size_t kBytes = (std::size_t{512} << 20) + 4096, kStep = std::size_t{16} << 10;
  const Layout layout(DType::u8, {static_cast<std::int64_t>(kBytes)});
  Message message = note_of(0);
  message.tensors.push_back(Session::current().adopt(
      backend(DeviceType::cpu).create(0, kBytes, SegmentKind::memfd, "of a test", 0), kBytes));
  Parcel parcel(std::move(message));
  Assembly assembly(kMaxMessageBytes);
  const std::size_t before = shared_bytes();
  assembly.begin(parcel.next(kStep).value().bytes);
  assembly.fill(assembly.room(sizeof(NoteTail)).size());
  for (std::size_t at = 0; at < kBytes; at += kStep) {
    const auto room = assembly.room(std::min(kStep, kBytes - at));
    room[0] = static_cast<std::byte>(at / kStep);
    assembly.fill(room.size());
    ASSERT_LT(shared_bytes() - before, at + (std::size_t{32} << 20));
  }
  const auto arrived = assembly.take();
  ASSERT_TRUE(arrived.has_value());
  ASSERT_EQ(arrived->tensors.at(0).layout(), layout);
  for (std::size_t at = 0; at < kBytes; at += kStep)
    ASSERT_EQ(arrived->tensors[0].as<std::byte>()[at], static_cast<std::byte>(at / kStep));
}

/// Gives an inbox the frame of a process that knows the key.
void give(Inbox& inbox, FrameKind kind, ByteSpan payload) {
  Inbox::Arrived arrived;
  const auto add = [&](ByteSpan bytes) {
    while (!bytes.empty()) {
      const auto room = inbox.room();
      const std::size_t part = std::min(room.size(), bytes.size());
      std::copy_n(bytes.begin(), part, room.begin());
      inbox.take(part, arrived);
      bytes = bytes.subspan(part);
    }
  };
  const FrameHead head{static_cast<std::uint32_t>(payload.size()), kind};
  add(std::as_bytes(std::span(&head, 1)));
  add(payload);
}

TEST(AFrame, IsRefusedBeforeItsSenderHasANumber) {
  Inbox inbox(false);
  expect_refusal(ErrorCode::protocol, {"which member"}, [&] { give(inbox, FrameKind::heartbeat, {}); });
}

TEST(AFrame, IsRefusedWhenItWithdrawsNothing) {
  Inbox inbox(true);
  expect_refusal(ErrorCode::protocol, {"withdraws no message"},
                 [&] { give(inbox, FrameKind::withdrawn, {}); });
}

TEST(AFrame, IsRefusedWhenItSaysThatItIsAWholeMessageAndIsNot) {
  Parcel parcel(note_of(100'000));
  Inbox inbox(true);
  const ByteSpan first = parcel.next(1000)->bytes;
  expect_refusal(ErrorCode::protocol, {"not whole"}, [&] { give(inbox, FrameKind::whole, first); });
}

TEST(AFrame, IsRefusedWithAKindOrALengthThatNoMemberWrites) {
  const Bytes payload(20);
  for (const int kind : {0, 8, 255}) {
    Inbox inbox(true);
    expect_refusal(ErrorCode::protocol, {"no known kind"},
                   [&] { give(inbox, static_cast<FrameKind>(kind), payload); });
  }
  Inbox inbox(true);
  expect_refusal(ErrorCode::protocol, {"another length"},
                 [&] { give(inbox, FrameKind::heartbeat, payload); });
}

}  // namespace
}  // namespace onecopy::transport
