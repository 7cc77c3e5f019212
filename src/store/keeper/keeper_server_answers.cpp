// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include <fmt/format.h>

#include "core/point.h"
#include "os/log.h"
#include "os/memfd.h"
#include "store/keeper/keeper_server.h"
#include "store/keeper/version_files.h"

namespace onecopy::store {
namespace {

constexpr std::size_t kListingBytes = std::size_t{128} << 10;

/// Returns the error for a keeper that has no free descriptors.
Error describe_lack(const Error& error) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return Error(
      ErrorCode::out_of_descriptors,
      fmt::format("the keeper of the store may have {} open files, and no more are free ({}); delete "
                  "versions with `onecopy store rm`, or start the keeper with a higher `ulimit -Hn`",
                  limit.rlim_cur, error.what()));
}

}  // namespace

/// Answers a packet. Closes the connection for bytes that are not a message and for a question before the client has
/// proved the secret; all other errors are sent as the answer.
void KeeperServer::answer(std::uint64_t token, Connection& c, Packet packet) {
  const ByteSpan bytes(packet.bytes);
  Type type{};
  try {
    type = type_of(bytes);
  } catch (const Error& error) {
    send(c, refuse(error));
    throw;
  }
  if (!c.is_client) return c.gate.is_challenged() ? admit(c, bytes) : greet(c, bytes);
  try {
    if (packet.is_cut) throw Error(ErrorCode::out_of_descriptors, "descriptors did not arrive");
    switch (type) {
      case Type::publish: return publish(c, std::move(packet));
      case Type::reserve: return reserve(token, c, bytes);
      case Type::unreserve: return rules_.release(unpack<Unreserve>(bytes).token);
      case Type::join: return join(c, std::move(packet));
      case Type::conclude: return conclude(c, bytes);
      case Type::open_draft: return open_draft(c, bytes);
      case Type::open: return open(c, bytes);
      case Type::poll: return rules_.poll_all();
      case Type::restore: return restore(c, std::move(packet));
      case Type::list: return list(c, bytes);
      case Type::rollback: return rollback(c, bytes);
      case Type::remove: return remove(c, bytes);
      case Type::watch: return watch(c, bytes);
      case Type::describe: return send(c, pack(Welcome{state_.keeper, ::getpid(), guard_.pid()}));
      case Type::ask_limits: return send(c, pack(state_.limits.kept()));
      case Type::replace: return replace(c);
      case Type::stop: is_stopping_ = true; return send(c, pack(Done{}));
      default: throw Error(ErrorCode::protocol, "the store's keeper is not asked this");
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::protocol || error.code() == ErrorCode::peer_died) throw;
    if (is_shortage(error.code())) log_info("the store refuses pid {}: {}", c.pid, error.what());
    send(c, refuse(error.code() == ErrorCode::out_of_descriptors ? describe_lack(error) : error));
  }
}

void KeeperServer::greet(Connection& c, ByteSpan packet) {
  const Bytes challenge = c.gate.challenge(packet, std::as_bytes(std::span(state_.secret)));
  point("store.worker.greets");
  send(c, challenge);
}

void KeeperServer::admit(Connection& c, ByteSpan packet) {
  try {
    c.gate.check(packet, std::as_bytes(std::span(state_.secret)));
  } catch (const Error& error) {
    send(c, refuse(error));
    throw;
  }
  c.is_client = true;
  send(c, pack(Welcome{state_.keeper, ::getpid(), guard_.pid()}));
}

void KeeperServer::publish(Connection& c, Packet packet) {
  auto [version, transaction] = unpack<Publish>(packet.bytes);
  check_files(version, packet.fds);
  version.publisher = c.pid;
  if (transaction != Token{}) {
    rules_.publish_part(transaction, std::move(version),
                        [&](std::uint64_t id) { take(id, std::move(packet.fds)); });
    return send(c, pack(Published{}));
  }
  const std::string name = version.name;
  const std::uint64_t number =
      rules_.publish(std::move(version), [&](std::uint64_t id) { take(id, std::move(packet.fds)); });
  point("store.publish.recorded");
  send(c, pack(Published{number}));
  answer_waiting();
  rules_.reclaim(name);
}

void KeeperServer::join(Connection& c, Packet packet) {
  auto [member, transaction] = unpack<Join>(packet.bytes);
  if (packet.fds.size() != 1)
    throw Error(ErrorCode::protocol, "a member of a transaction came without its file");
  member.publisher = c.pid;
  rules_.join(transaction, std::move(member), [&](std::uint64_t id) { take(id, std::move(packet.fds)); });
  send(c, pack(Done{}));
}

void KeeperServer::conclude(Connection& c, ByteSpan packet) {
  const auto [transaction, member, how] = unpack<Conclude>(packet);
  std::uint64_t number = 0;
  switch (how) {
    case Conclude::How::commit: number = rules_.commit(transaction); break;
    case Conclude::How::abort: rules_.abort(transaction); break;
    case Conclude::How::leave: rules_.leave(transaction, member); break;
    default: throw Error(ErrorCode::protocol, "a transaction cannot be concluded in this way");
  }
  send(c, pack(Published{number}));
  answer_waiting();
}

/// Sends the memory of a draft, for another process to write.
void KeeperServer::open_draft(Connection& c, ByteSpan packet) {
  const auto [transaction, draft] = unpack<OpenDraft>(packet);
  const VersionRecord& version = rules_.draft(transaction, draft);
  send(c, pack(Opened{version}), numbers_of(state_.versions.at(version.id)));
}

void KeeperServer::reserve(std::uint64_t token, Connection& c, ByteSpan packet) {
  auto version = unpack<Reserve>(packet).version;
  version.publisher = c.pid;
  rules_.reserve(token, version);
  send(c, pack(Done{}));
}

void KeeperServer::open(Connection& c, ByteSpan packet) {
  auto wanted = unpack<Open>(packet);
  if (!try_open(c, wanted)) c.open = std::move(wanted);
}

/// Answers the question. Returns false, without an answer, if the version may be here soon. Sends a new
/// open file of the table, which is locked: the client reads the version from the moment at which the answer is in the
/// socket.
bool KeeperServer::try_open(Connection& c, const Open& wanted) {
  const VersionRecord* const version = rules_.open(wanted.name, wanted.number);
  if (!version) return false;
  if (version->token == wanted.known) return send(c, pack(Opened{*version})), true;
  const std::vector<Fd>& held = state_.versions.at(version->id);
  const Fd table = reopen_read_only(held.front());
  lock_for_reader(*version, table, wanted.keeps);
  std::vector<int> files = numbers_of(held);
  files.front() = table.get();
  send(c, pack(Opened{*version}), files);
  return true;
}

/// Takes a version back from a reader, if this keeper has no memory of it.
void KeeperServer::restore(Connection& c, Packet packet) {
  auto [version, keeper] = unpack<Restore>(packet.bytes);
  check_files(version, packet.fds);
  rules_.restore(std::move(version), keeper == state_.keeper,
                 [&](std::uint64_t id) { take(id, std::move(packet.fds)); });
  point("store.worker.restored");
  send(c, pack(Done{}));
  answer_waiting();
}

void KeeperServer::list(Connection& c, ByteSpan packet) {
  const auto wanted = unpack<List>(packet);
  Listing listing;
  std::size_t bytes = 0;
  const auto& objects = rules_.catalog().objects();
  for (auto object = objects.lower_bound(wanted.after); object != objects.end(); ++object) {
    const auto& [name, state] = *object;
    auto version = state.versions.upper_bound(name == wanted.after ? wanted.number : 0);
    if (version == state.versions.end()) continue;
    if (bytes >= kListingBytes) break;
    const VersionRecord& current = rules_.catalog().current(name)->record;
    ListedObject& listed = listing.objects.emplace_back(
        ListedObject{name, current.number, current.kind == VersionKind::kv_pool, {}});
    for (bytes += name.size(); version != state.versions.end() && bytes < kListingBytes; ++version) {
      listed.versions.push_back(describe(version->second.record));
      bytes += write_fields(listed.versions.back()).size();
    }
  }
  send(c, pack(listing));
}

ListedVersion KeeperServer::describe(const VersionRecord& v) const {
  const auto held = state_.versions.find(v.id);
  const bool is_here = held != state_.versions.end();
  const unsigned readers = is_here ? count_readers(v, held->second) : 0;
  const unsigned unkept = readers != 0 ? count_unkept(held->second) : 0;
  return {v.number, v.bytes, v.made_at, v.publisher, readers, unkept, v.device, is_here};
}

void KeeperServer::rollback(Connection& c, ByteSpan packet) {
  const auto wanted = unpack<Rollback>(packet);
  rules_.rollback(wanted.name, wanted.number);
  send(c, pack(Done{}));
  answer_waiting();
}

void KeeperServer::remove(Connection& c, ByteSpan packet) {
  const auto wanted = unpack<Remove>(packet);
  rules_.remove(wanted.name, wanted.keep);
  send(c, pack(Done{}));
  answer_waiting();
}

void KeeperServer::watch(Connection& c, ByteSpan packet) {
  c.watch = unpack<WaitForChange>(packet);
  check_name(c.watch->name);
  answer_waiting();
}

/// Answers the clients that wait for a change or for a version. Ignores failures, because the connection of a client
/// that has ended reports its end.
void KeeperServer::answer_waiting() {
  for (auto& [token, c] : connections_) {
    try {
      if (c.open) answer_open(c);
      if (c.watch) answer_watch(c);
    } catch (const Error& error) {
      log_info("the store cannot answer pid {}: {}", c.pid, error.what());
    }
  }
}

void KeeperServer::answer_open(Connection& c) {
  const Open wanted = *std::exchange(c.open, std::nullopt);
  try {
    if (!try_open(c, wanted)) c.open = wanted;
  } catch (const Error& error) {
    send(c, refuse(error));
  }
}

void KeeperServer::answer_watch(Connection& c) {
  const auto* const current = rules_.current(c.watch->name);
  if (!current || current->token == c.watch->known) return;
  c.watch.reset();
  send(c, pack(Opened{*current}));
}

}  // namespace onecopy::store
