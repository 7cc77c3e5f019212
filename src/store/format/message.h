// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "os/unix_socket.h"
#include "peer/handshake.h"
#include "peer/message.h"
#include "store/format/record.h"

/// The messages between a client and the keeper, see peer/message.h. A client asks one question at a time on a
/// connection, and the keeper answers each, with `refused` if it cannot do what the client asks.
namespace onecopy::store {

inline constexpr peer::Protocol kProtocol{
    6,
    "the store's protocol",
    "a message of the store",
    "use the same version of onecopy everywhere. `onecopy store stop` of the version that started the "
    "keeper ends it, `onecopy store stop --force` that of any version",
    "keeper",
    "client",
    "the process that listens as the store's keeper does not know its secret",
    "the client does not know the secret of the store"};
inline constexpr std::size_t kMaxFiles = 16'384;  ///< the max number of descriptors of one version

enum class Type : std::uint32_t {
  hello = 1,  // the types begin with the types of peer::First
  challenge,
  prove,
  welcome,
  refused,
  done,
  publish,
  published,
  reserve,
  unreserve,
  open,
  opened,
  poll,
  restore,
  list,
  listing,
  rollback,
  remove,
  watch,
  describe,
  stop,
  files,
  replace,
  handover,
  moved,
  ready,
  join,
  conclude,
  open_draft,
  ask_limits,
  kept_limits,
};

template <Type type>
using EmptyMessage = peer::EmptyMessage<type>;
/// A message about a version.
template <Type type>
struct AboutVersion {
  static constexpr Type kType = type;
  VersionRecord version;
  void fields(auto& f) { f(version); }
};

/// The keeper lets the client ask questions. The keeper also answers `describe` with a `welcome`. While `keeper` is the
/// same, no version was lost.
struct Welcome {
  static constexpr Type kType = Type::welcome;
  Token keeper{};
  std::int32_t worker = 0, guard = 0;  ///< pids
  void fields(auto& f) { f(keeper, worker, guard); }
};
using Done = EmptyMessage<Type::done>;
/// The first descriptors of the next message, if that message's packet has no room for all. There is no answer.
using Files = EmptyMessage<Type::files>;
/// The client publishes a version. Descriptors: the table, then the chunks. The client fills in all fields of `version`
/// but id, number, time and publisher. If a version with this token already exists, the answer is that version. A part of
/// a transaction has no number yet, and may be sent as a draft before it is complete.
struct Publish {
  static constexpr Type kType = Type::publish;
  VersionRecord version;
  Token transaction{};  ///< zeros for none
  void fields(auto& f) { f(version, transaction); }
};
struct Published {
  static constexpr Type kType = Type::published;
  std::uint64_t number = 0;
  void fields(auto& f) { f(number); }
};
/// The client takes part in a transaction until it concludes that. The one whose token is the transaction's begins the
/// transaction. Descriptor: a file that the client keeps locked for reading while it takes part. The answer is `done`.
struct Join {
  static constexpr Type kType = Type::join;
  VersionRecord member;  ///< the token
  Token transaction{};
  void fields(auto& f) { f(member, transaction); }
};
/// The client ends a transaction, or its own part in it. The answer is `published`.
struct Conclude {
  static constexpr Type kType = Type::conclude;
  enum class How : std::uint8_t { commit, abort, leave };
  Token transaction{}, member{};
  How how = How::commit;
  void fields(auto& f) { f(transaction, member, how); }
};
/// The client writes a draft of a transaction. The answer is `opened`, whose descriptors have no lock.
struct OpenDraft {
  static constexpr Type kType = Type::open_draft;
  Token transaction{}, draft{};
  void fields(auto& f) { f(transaction, draft); }
};
/// The client will make memory for a version, which the keeper counts in its limits until `publish`, `unreserve` or the
/// end of the connection. The answer is `done`.
using Reserve = AboutVersion<Type::reserve>;
/// The client gives a reservation up. There is no answer.
struct Unreserve {
  static constexpr Type kType = Type::unreserve;
  Token token{};
  void fields(auto& f) { f(token); }
};
/// The client opens a version.
struct Open {
  static constexpr Type kType = Type::open;
  std::string name;
  std::uint64_t number = 0;  ///< 0 for the current version
  Token known{};             ///< the token of a version that the client reads already; zeros for none
  bool keeps = true;         ///< the client keeps the descriptors, as always if the version needs_files()
  void fields(auto& f) { f(name, number, known, keeps); }
};
/// The answer to `open`. Descriptors: the table, then the chunks; none if the version is the one that the client knows.
/// The table's open file is locked for reading, with a mark if the client keeps no descriptors: the keeper takes the
/// version for read as long as this open file is open or mapped anywhere.
using Opened = AboutVersion<Type::opened>;
/// The client reads less than before, so the keeper looks for versions that nobody reads. There is no answer.
using Poll = EmptyMessage<Type::poll>;
/// The client has connected to another keeper, and reads this version, which it opened from the keeper `keeper`.
/// Descriptors: the table, then the chunks. The answer is `done`.
struct Restore {
  static constexpr Type kType = Type::restore;
  VersionRecord version;
  Token keeper{};
  void fields(auto& f) { f(version, keeper); }
};
/// Asks for the versions that follow a given one, in the order of names and numbers.
struct List {
  static constexpr Type kType = Type::list;
  std::string after;
  std::uint64_t number = 0;
  void fields(auto& f) { f(after, number); }
};
struct ListedVersion {
  std::uint64_t number = 0, bytes = 0;
  std::int64_t made_at = 0;
  std::int32_t publisher = 0;
  std::uint32_t readers = 0, unkept = 0;
  std::string device;
  bool is_here = true;  ///< false: the keeper waits for a process that has the memory
  void fields(auto& f) { f(number, bytes, made_at, publisher, readers, unkept, device, is_here); }
};
struct ListedObject {
  std::string name;
  std::uint64_t current = 0;
  bool is_kv_pool = false;
  std::vector<ListedVersion> versions;
  void fields(auto& f) { f(name, current, is_kv_pool, versions); }
};
/// The answer to `list`: as many versions as fit into a packet. The client asks again, with the last one, until the
/// answer is empty.
struct Listing {
  static constexpr Type kType = Type::listing;
  std::vector<ListedObject> objects;
  void fields(auto& f) { f(objects); }
};
struct Rollback {
  static constexpr Type kType = Type::rollback;
  std::string name;
  std::uint64_t number = 0;
  void fields(auto& f) { f(name, number); }
};
struct Remove {
  static constexpr Type kType = Type::remove;
  std::string name;
  std::uint32_t keep = 0;
  void fields(auto& f) { f(name, keep); }
};
/// Asks to be told of a change. The answer, `opened` without descriptors, is sent when the object's current version
/// differs from `known`. Until then the client sends no other question on the connection, but may close it.
struct WaitForChange {
  static constexpr Type kType = Type::watch;
  std::string name;
  Token known{};  ///< the token of the last version that the client knows
  void fields(auto& f) { f(name, known); }
};
using Describe = EmptyMessage<Type::describe>;
/// Asks for the limits that the keeper was started with. A keeper of an earlier version closes the connection.
using AskLimits = EmptyMessage<Type::ask_limits>;
struct DeviceLimit {
  std::string device;
  std::uint64_t bytes = 0;
  void fields(auto& f) { f(device, bytes); }
};
/// The answer to `ask_limits`.
struct KeptLimits {
  static constexpr Type kType = Type::kept_limits;
  std::uint64_t bytes = UINT64_MAX, client_bytes = UINT64_MAX;  ///< UINT64_MAX for no limit
  std::uint64_t age = 0;                                        ///< seconds; 0 for no limit
  std::vector<DeviceLimit> devices;
  void fields(auto& f) { f(bytes, client_bytes, age, devices); }
};
using Stop = EmptyMessage<Type::stop>;

/// The client is a keeper that takes over. The answer is `handover`, then a `moved` for each record. The old keeper
/// answers no client until it receives `ready`, and then ends. If the connection ends before that, the old keeper
/// continues.
using Replace = EmptyMessage<Type::replace>;
/// The answer to `replace`. Descriptors: the locks of the keeper's directories and its abstract name, and the
/// listener last.
struct Handover {
  static constexpr Type kType = Type::handover;
  Token keeper{};
  std::int32_t guard = 0;  ///< pid
  bool knows_all = true;
  std::uint64_t records = 0;
  void fields(auto& f) { f(keeper, guard, knows_all, records); }
};
/// A record, with the descriptors of the version that it publishes if the keeper has its memory.
struct Moved {
  static constexpr Type kType = Type::moved;
  Record record;
  void fields(auto& f) { f(record); }
};
using Ready = EmptyMessage<Type::ready>;

template <class Message>
Bytes pack(const Message& message) {
  return peer::pack(kProtocol, message);
}
template <class Message>
Message unpack(ByteSpan packet) {
  return peer::unpack<Message>(kProtocol, packet);
}
inline Type type_of(ByteSpan packet) { return Type{peer::type_of(kProtocol, packet)}; }
inline Bytes refuse(const Error& error) { return peer::refuse(kProtocol, error); }

/// Sends a message with its descriptors, in several packets if there are many descriptors. `send` sends one packet.
void send_in_packets(ByteSpan message, std::span<const int> fds,
                     const std::function<void(ByteSpan, std::span<const int>)>& send);

/// Joins messages that arrive in several packets. Thread safety: none.
class PacketJoiner {
 public:
  /// Adds a packet. Returns the whole message if the packet is its last one, as cut if one of its packets was. Throws protocol for more than kMaxFiles
  /// descriptors.
  std::optional<Packet> add(Packet packet);

 private:
  std::vector<Fd> fds_;
  bool is_cut_ = false;
};

}  // namespace onecopy::store
