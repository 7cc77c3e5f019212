// SPDX-License-Identifier: Apache-2.0
// The questions of borrowers, and their answers.
#include <algorithm>
#include <utility>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/process.h"
#include "share/broker/broker.h"
#include "share/format/process_name.h"

namespace onecopy {
namespace {

/// The time within which a borrower usually answers a challenge, even if it has to make its own tables first.
constexpr std::chrono::microseconds kSoon{200};

/// Adds the borrower to the list of processes that may open the memory, which some drivers keep.
void admit(const ExportedMemory& memory, std::int32_t number) {
  if (number != 0) backend(device_type(memory.kind)).admit(memory, number);
}

Access access_of(bool read_only) { return read_only ? Access::read_only : Access::read_write; }

}  // namespace

void Broker::answer(At at, Packet packet) {
  Connection& c = *at;
  bool answered = true;
  c.serial = 0;
  try {
    const wire::Type type = wire::type_of(packet.bytes);
    c.serial = peer::serial_of(packet.bytes);
    answered = wire::is_answered(type);
    if (answer_anybody(at, type, packet.bytes)) return;
    if (!c.attached) throw Error(ErrorCode::bad_secret, "prove that you hold a handle first");
    answer_borrower(c, type, std::move(packet));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::peer_died) throw;
    if (answered) return refuse(c, e);
    log_warning("a borrower (pid {}): {}", c.credentials.pid, e.what());
  }
}

/// Answers messages that need no proof, and proofs themselves. Returns false for all other messages.
bool Broker::answer_anybody(At at, wire::Type type, ByteSpan packet) {
  switch (type) {
    case wire::Type::hello: return challenge(*at, packet), true;
    case wire::Type::prove: return welcome(*at, packet), true;
    case wire::Type::child_hello: return greet_child(at, packet), true;
    case wire::Type::acknowledge: return holds_.end(wire::unpack<wire::Acknowledge>(packet).hold), true;
    case wire::Type::want_info: return send_info(*at), true;
    default: return false;
  }
}

void Broker::answer_borrower(Connection& c, wire::Type type, Packet packet) {
  const ByteSpan bytes = packet.bytes;
  switch (type) {
    case wire::Type::want_segment: return send_segment(c, bytes);
    case wire::Type::want_segments: return send_segments(c, bytes);
    case wire::Type::want_rest: return send_rest(c, bytes);
    case wire::Type::want_foreign: return send_foreign(c, bytes);
    case wire::Type::ask_limbo: return send_limbo(c, bytes);
    case wire::Type::want_timeline: return send_timeline(c);
    case wire::Type::adopt_child: return adopt_child(c, std::move(packet));
    case wire::Type::join_queue: return join(c, bytes);
    case wire::Type::leave_queue: return leave(c, wire::unpack<wire::LeaveQueue>(bytes).queue);
    case wire::Type::retain: return retain(c, std::move(packet));
    case wire::Type::forget: return forget(bytes);
    case wire::Type::release: return release(c, bytes);
    case wire::Type::detach:
      c.has_detached = true;
      throw Error(ErrorCode::peer_died, "the borrower ends the connection");
    default: throw Error(ErrorCode::protocol, "a message that no borrower sends");
  }
}

void Broker::send_info(Connection& c) { reply(c, wire::pack(wire::Info{describe_()})); }

void Broker::send_limbo(Connection& c, ByteSpan packet) {
  const auto body = wire::unpack<wire::AskLimbo>(packet);
  const wire::Limbo answer{ledger_.is_kept(body.block, body.generation)};
  reply(c, wire::pack(answer));
}

void Broker::send_timeline(Connection& c) {
  const Fd page = timeline_.export_page();
  reply(c, wire::pack(wire::Timeline{}), {page.get()});
}

void Broker::challenge(Connection& c, ByteSpan packet) {
  reply(c, c.gate.challenge(packet, std::as_bytes(std::span(self_))));
  if (c.is_stranger()) loop_.stay_awake(kSoon);
}

/// Returns the number of strangers whose proof is awaited.
std::size_t Broker::challenged() const {
  return static_cast<std::size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const Connection& c) { return c.is_stranger() && c.gate.is_challenged(); }));
}

void Broker::welcome(Connection& c, ByteSpan packet) {
  if (!c.is_stranger()) throw Error(ErrorCode::bad_secret, wire::kProtocol.stranger);
  c.gate.check(packet, std::as_bytes(std::span(self_)));
  c.process = {c.credentials.pid, c.socket.peer_pidfd()};
  const Fd table = ledger_.export_table();
  ClaimFile page = spare_page_.file ? std::move(spare_page_) : create_claim_file();
  c.page = std::move(page.memory);
  c.page_inode = inode_of(page.file);
  {
    // Locked before the welcome is written: a segment that retires before that is not announced to the borrower.
    const LockGuard lock(mutex_);
    c.attached = ledger_.borrowers().attach(claims_in(c.page));
    c.stage = Borrower{};
    point("attach.done");
    reply(c, wire::pack(wire::Welcome{}), {table.get(), page.file.get()});
  }
  log_debug([&] { return fmt::format("process {} is attached", c.credentials.pid); });
  if (challenged() == 0) loop_.may_sleep();
  polling_.request();  // makes another spare page later, because this borrower's next question comes first
}

void Broker::send_segment(Connection& c, ByteSpan packet) {
  const auto body = wire::unpack<wire::WantSegment>(packet);
  const ExportedMemory memory = ledger_.export_segment(body.segment, access_of(body.read_only));
  log_debug(
      [&] { return fmt::format("hands segment {} out to process {}", body.segment, c.credentials.pid); });
  admit(memory, body.number);
  flag_device_memory(c, memory);
  reply(c, wire::pack(wire::Segment{wire::Described(memory)}), wire::descriptors(memory));
}

void Broker::send_segments(Connection& c, ByteSpan packet) {
  const auto wanted = wire::unpack<wire::WantSegments>(packet).wanted;
  if (wanted.size() > wire::kMaxAskedAtOnce)
    throw Error(ErrorCode::protocol, "a message asks for too many segments");
  wire::Segments answer;
  for (const wire::WantSegment& one : wanted) answer.segments.push_back(try_describe(c, one));
  reply(c, wire::pack(answer));
}

/// Describes the memory of a segment; as 0 bytes if it takes descriptors or cannot be exported, in which case the borrower
/// asks for it alone.
wire::Described Broker::try_describe(const Connection& c, const wire::WantSegment& wanted) noexcept {
  try {
    const ExportedMemory memory = ledger_.export_segment(wanted.segment, access_of(wanted.read_only));
    if (!memory.fds.empty() || memory.missing != 0) return {};
    admit(memory, wanted.number);
    flag_device_memory(c, memory);
    return wire::Described(memory);
  } catch (const std::exception&) {
    return {};
  }
}

void Broker::send_rest(Connection& c, ByteSpan packet) {
  const auto body = wire::unpack<wire::WantRest>(packet);
  const std::vector<Fd> fds = ledger_.export_rest(body.segment, body.first);
  reply(c, wire::pack(wire::Rest{}), numbers_of(fds));
}

/// Notes that memory of a device was sent to the borrower, on all connections of its process: after a hang-up a process
/// asks over a new connection, while its claims are in the page of the old one.
void Broker::flag_device_memory(const Connection& c, const ExportedMemory& memory) noexcept {
  if (device_type(memory.kind) == DeviceType::cpu) return;
  for (Connection& other : connections_)
    if (other.credentials.pid == c.credentials.pid) other.has_device_memory = true;
}

void Broker::send_foreign(Connection& c, ByteSpan packet) {
  const auto [owner, wanted] = wire::unpack<wire::WantForeign>(packet);
  const auto found = source_.find_here({owner, wanted.segment}, access_of(wanted.read_only));
  if (!found)
    throw Error(ErrorCode::owner_died,
                "the maker of this handle does not hold the memory any more; keep the tensor or the Handle "
                "there until others have opened it");
  admit(found->memory, wanted.number);
  reply(c, wire::pack(wire::Segment{wire::Described(found->memory), true, found->owner_gone}),
        wire::descriptors(found->memory, found->table));
}

void Broker::adopt_child(Connection& parent, Packet packet) {
  const auto suspect_since = parent.suspect_since;
  if (!suspect_since) parent.suspect_since = Clock::now();  // in case a later step fails
  if (packet.fds.size() != 2) throw Error(ErrorCode::protocol, "a child without page or socket");
  const At child = add_connection(UnixSocket(std::move(packet.fds[1])));
  {
    const LockGuard lock(mutex_);
    child->credentials = {};  // they are the parent's until child_hello arrives
  }
  child->page = map_claims(packet.fds[0]);
  child->page_inode = inode_of(packet.fds[0]);
  {
    const LockGuard lock(mutex_);
    child->attached = ledger_.borrowers().attach(claims_in(child->page));
    child->stage = Borrower{};
    child->is_child = parent.is_child;
    child->untold = parent.untold;  // the child has inherited the mappings
  }
  point("adopt.attached");
  ledger_.borrowers().attach_child(*parent.attached);
  parent.suspect_since = suspect_since;
}

void Broker::greet_child(At at, ByteSpan packet) {
  const ProcessOrigin child = wire::unpack<wire::ChildHello>(packet).child;
  if (!at->attached || at->credentials.pid != 0)
    throw Error(ErrorCode::protocol, "a child's greeting from another process");
  // The watch is for no process if that process is in another pid namespace, whose numbers differ.
  ProcessWatch process(child.pid, open_pidfd(child));
  const LockGuard lock(mutex_);
  if (process) at->credentials.pid = child.pid;
  at->process = std::move(process);
}

void Broker::retain(Connection& c, Packet packet) {
  auto wanted = wire::unpack<wire::Retain>(packet.bytes);
  Fd table = wire::take_table(packet.fds);
  const auto added = retention_.segments.add(
      {wanted.owner, wanted.segment}, wanted.origin, std::move(table),
      std::move(wanted.memory).with(std::move(packet.fds)), wanted.queue, RetainRequest{&c, wanted.number});
  if (added == RetainedSegments::Added::queue_is_closed)
    throw Error(ErrorCode::closed, "the queue's creator has closed it");
  if (added == RetainedSegments::Added::no_room)
    throw Error(ErrorCode::unsupported, "the queue's creator keeps no more descriptors of device memory");
  point("segment.retained");
  reply(c, wire::pack(wire::Retained{}));
}

void Broker::forget(ByteSpan packet) {
  const auto [owner, segment] = wire::unpack<wire::Forget>(packet);
  retention_.retire({owner, segment});
}

void Broker::release(const Connection& c, ByteSpan packet) {
  const auto [owner, segment, number] = wire::unpack<wire::Release>(packet);
  retention_.segments.release({owner, segment}, {&c, number});
}

}  // namespace onecopy
