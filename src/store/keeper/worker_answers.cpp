// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>

#include <fmt/format.h>

#include "core/point.h"
#include "store/keeper/version_files.h"
#include "store/keeper/worker.h"

namespace onecopy::store {
namespace {

constexpr std::size_t kListingBytes = std::size_t{128} << 10;

std::int64_t now() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

/// Answers a packet. Closes the connection for bytes that are not a message and for a question before the client has
/// proved the secret; all other errors are sent as the answer.
void Worker::answer(Connection& c, Packet packet) {
  const ByteSpan bytes(packet.bytes);
  Type type{};
  try {
    type = type_of(bytes);
  } catch (const Error& error) {
    send(c, refuse(error));
    throw;
  }
  if (c.stage == Connection::Stage::stranger) return greet(c, bytes);
  if (c.stage == Connection::Stage::challenged) return admit(c, bytes);
  try {
    switch (type) {
      case Type::publish: return publish(c, std::move(packet));
      case Type::open: return open(c, bytes);
      case Type::release: return release(c, bytes);
      case Type::offer: return offer(c, std::move(packet));
      case Type::list: return list(c, bytes);
      case Type::rollback: return rollback(c, bytes);
      case Type::remove: return remove(c, bytes);
      case Type::watch: return watch(c, bytes);
      case Type::describe: return send(c, pack(Welcome{holdings_.keeper, ::getpid(), guard_.pid()}));
      case Type::replace: return replace(c);
      case Type::stop: is_stopping_ = true; return send(c, pack(Done{}));
      default: throw Error(ErrorCode::protocol, "the store's keeper is not asked this");
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::protocol || error.code() == ErrorCode::peer_died) throw;
    send(c, refuse(error));
  }
}

void Worker::greet(Connection& c, ByteSpan packet) {
  c.theirs = unpack<Hello>(packet).nonce;
  point("store.worker.greets");
  c.ours = make_nonce<Nonce>();
  c.stage = Connection::Stage::challenged;
  send(c, pack(Challenge{c.ours,
                         prove(std::as_bytes(std::span(holdings_.secret)), "keeper", c.theirs, c.ours)}));
}

void Worker::admit(Connection& c, ByteSpan packet) {
  const ByteSpan secret = std::as_bytes(std::span(holdings_.secret));
  if (!is_proof(unpack<Prove>(packet).proof, prove(secret, "client", c.theirs, c.ours))) {
    const Error error(ErrorCode::bad_secret, "the client does not know the secret of the store");
    send(c, refuse(error));
    throw error;
  }
  c.stage = Connection::Stage::client;
  send(c, pack(Welcome{holdings_.keeper, ::getpid(), guard_.pid()}));
}

/// Throws invalid_argument for an arena under the name of an object, and for an object under the name of an arena.
void Worker::check_kind(const VersionRecord& version) const {
  if (version.kind > VersionKind::arena) throw Error(ErrorCode::protocol, "a version has an unknown kind");
  const auto* const current = catalog_.current(version.name);
  const bool is_arena = version.kind == VersionKind::arena;
  if (!current || is_arena == (current->record.kind == VersionKind::arena)) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("\"{}\" is {}: choose another name, or remove it first", version.name,
                          is_arena ? "an object" : "an arena"));
}

void Worker::publish(Connection& c, Packet packet) {
  auto version = unpack<Publish>(packet.bytes).version;
  check_name(version.name);
  if (const auto* const before = catalog_.find(version.name, version.token))
    return send(c, pack(Published{before->record.number}));
  check_kind(version);
  check_files(version, packet.fds);
  version.publisher = c.pid;
  make_room(version);
  version.number = catalog_.next_number(version.name);
  version.made_at = now();
  const VersionRecord& added = add(std::move(version), std::move(packet.fds));
  point("store.publish.recorded");
  const std::string name = added.name;
  send(c, pack(Published{added.number}));
  tell_watchers();
  reclaim(name);
}

void Worker::open(Connection& c, ByteSpan packet) {
  const auto wanted = unpack<Open>(packet);
  const VersionRecord& version = require(wanted.name, wanted.number).record;
  if (version.id == wanted.known) return send(c, pack(Opened{version}));
  send(c, pack(Opened{version}), numbers_of(holdings_.versions.at(version.id)));
  begin_reading(c, version.id);
}

void Worker::release(Connection& c, ByteSpan packet) { end_reading(c, unpack<Release>(packet).id); }

/// Takes a version back from a reader, if the keeper lost it when both halves were killed. The newest version that was
/// taken back is the current one.
void Worker::offer(Connection& c, Packet packet) {
  auto offered = unpack<Offer>(packet.bytes).version;
  check_name(offered.name);
  const auto* known = catalog_.find(offered.name, offered.token);
  if (!known) {
    check_kind(offered);
    check_files(offered, packet.fds);
    make_room(offered);
    if (catalog_.find(offered.name, offered.number))
      throw Error(ErrorCode::stale_handle, fmt::format("the store has another version {} of \"{}\" by now",
                                                       offered.number, offered.name));
    const std::uint64_t id = add(offered, std::move(packet.fds)).id;
    show_newest(offered.name);
    known = catalog_.find(id);
  }
  begin_reading(c, known->record.id);
  point("store.worker.offered");
  send(c, pack(Opened{known->record}));
  tell_watchers();
}

void Worker::list(Connection& c, ByteSpan packet) {
  const auto wanted = unpack<List>(packet);
  Listing listing;
  std::size_t bytes = 0;
  const auto& objects = catalog_.objects();
  for (auto object = objects.lower_bound(wanted.after); object != objects.end(); ++object) {
    const auto& [name, state] = *object;
    auto version = state.versions.upper_bound(name == wanted.after ? wanted.number : 0);
    if (version == state.versions.end()) continue;
    if (bytes >= kListingBytes) break;
    const VersionRecord& current = catalog_.current(name)->record;
    ListedObject& listed = listing.objects.emplace_back(
        ListedObject{name, current.number, current.kind == VersionKind::arena, {}});
    for (bytes += name.size(); version != state.versions.end() && bytes < kListingBytes; ++version) {
      listed.versions.push_back(describe(version->second.record));
      bytes += encode_fields(listed.versions.back()).size();
    }
  }
  send(c, pack(listing));
}

ListedVersion Worker::describe(const VersionRecord& v) const {
  const auto readers = readers_.find(v.id);
  return {v.number, v.bytes, v.made_at, v.publisher, readers == readers_.end() ? 0 : readers->second,
          v.device};
}

void Worker::rollback(Connection& c, ByteSpan packet) {
  const auto wanted = unpack<Rollback>(packet);
  const std::uint64_t id = require(wanted.name, wanted.number).record.id;
  if (catalog_.current(wanted.name)->record.id != id) write({Record::Kind::show, id, {}});
  send(c, pack(Done{}));
  tell_watchers();
}

void Worker::remove(Connection& c, ByteSpan packet) {
  const auto wanted = unpack<Remove>(packet);
  for (const std::uint64_t id : catalog_.beyond(wanted.name, wanted.keep)) drop(id);
  send(c, pack(Done{}));
  tell_watchers();
}

void Worker::watch(Connection& c, ByteSpan packet) {
  c.watch = unpack<WaitForChange>(packet);
  check_name(c.watch->name);
  tell_watchers();
}

}  // namespace onecopy::store
