// SPDX-License-Identifier: Apache-2.0
#include "share/broker.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "onecopy/core/error.h"
#include "onecopy/os/log.h"
#include "onecopy/os/memfd.h"
#include "onecopy/os/process.h"
#include "share/process_name.h"

namespace onecopy {
namespace {

constexpr int kPacketsATurn = 32;
/// In this time a borrower answers a challenge, also one that has to make its own tables first.
constexpr std::chrono::microseconds kSoon{200};

bool is_shortage(const Error& e) noexcept {
  return e.code() == ErrorCode::out_of_descriptors || e.code() == ErrorCode::out_of_mappings ||
         e.code() == ErrorCode::out_of_memory;
}

/// Where the driver keeps a list of who may open the memory.
void admit(const ExportedMemory& memory, std::int32_t number) {
  if (number != 0) backend(device_type(memory.kind)).admit(memory, number);
}

Access access_of(std::uint8_t read_only) { return read_only ? Access::read_only : Access::read_write; }

}  // namespace

Broker::Broker(const ProcessId& self, Ledger& ledger, Importer& importer, Deposits& deposits, Holds& holds,
               Timeline& timeline, Watch& watch)
    : self_(self),
      ledger_(ledger),
      importer_(importer),
      deposits_(deposits),
      holds_(holds),
      timeline_(timeline),
      watch_(watch) {}

void Broker::listen() {
  if (listening_) return;
  std::lock_guard lock(mutex_);
  if (listening_) return;
  if (!listener_) listener_ = UnixSocket::listen(socket_name(public_name(self_)));  // else the rest failed
  make_spare_page();
  watch_.add(listener_.fd(), [this] { accept_all(); });  // which may run before this returns
  listening_ = true;
}

void Broker::accept_all() {
  try {
    while (auto socket = listener_.try_accept()) {
      if (socket->peer().uid != geteuid()) continue;  // closes it
      add_connection(std::move(*socket));
    }
    starving_ = false;
  } catch (const Error& e) {
    if (!is_shortage(e)) throw;
    if (!starving_) log_warning(fmt::format("borrowers have to wait: {}", e.what()));
    starving_ = true;
    watch_.remove(listener_.fd());  // it would be reported without end; tick() looks again
    starved_ = true;
    watch_.request_tick();
  }
}

Broker::At Broker::add_connection(UnixSocket socket) {
  std::lock_guard lock(mutex_);
  const At at = connections_.emplace(connections_.end());
  at->credentials = socket.peer();
  at->socket = std::move(socket);
  watch_.add(at->socket.fd(), [this, at] { serve(at); });
  watch_.request_tick();  // it may say nothing
  return at;
}

void Broker::serve(At at) {
  bool answering = false;
  try {
    for (int i = 0; i < kPacketsATurn; ++i) {  // the others wait; what is left is reported again
      answering = false;
      auto packet = at->socket.try_receive();
      if (!packet) return;
      answering = true;
      answer(at, std::move(*packet));
    }
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died)
      log_warning(fmt::format("a borrower (pid {}): {}", at->credentials.pid, e.what()));
    if ((answering || e.code() != ErrorCode::peer_died) &&
        !at->misheard)  // else it closed, and all was read
      at->misheard = Clock::now();
    on_hangup(at);
  }
}

void Broker::answer(At at, Packet packet) {
  Connection& c = *at;
  const ByteSpan bytes = packet.bytes;
  bool answered = true;
  c.serial = 0;
  try {
    const wire::Type type = wire::type_of(bytes);
    c.serial = wire::serial_of(bytes);
    answered = wire::is_answered(type);
    switch (type) {
      case wire::Type::hello: return challenge(c, bytes);
      case wire::Type::prove: return welcome(c, bytes);
      case wire::Type::child_hello: return greet_child(at, bytes);
      case wire::Type::acknowledge: return holds_.end(wire::body_of<wire::Acknowledge>(bytes).hold);
      case wire::Type::want_info: {
        const std::string text = describe ? describe() : std::string();
        return reply(c, wire::pack(wire::Type::info, wire::WantInfo{}, std::as_bytes(std::span(text))));
      }
      default: break;
    }
    if (!c.attached) throw Error(ErrorCode::bad_secret, "prove that you hold a handle first");
    switch (type) {
      case wire::Type::want_segment: return send_segment(c, bytes);
      case wire::Type::want_foreign: return send_foreign(c, bytes);
      case wire::Type::ask_limbo: {
        const auto body = wire::body_of<wire::AskLimbo>(bytes);
        const wire::Limbo answer{ledger_.is_in_limbo(body.block, body.generation)};
        return reply(c, wire::pack(wire::Type::limbo, answer));
      }
      case wire::Type::want_timeline: {
        const Fd page = timeline_.export_page();
        return reply(c, wire::pack(wire::Type::timeline, wire::Deposited{}), {page.get()});
      }
      case wire::Type::adopt_child: return adopt_child(c, std::move(packet));
      case wire::Type::join_channel: return join(c, bytes);
      case wire::Type::leave_channel: return leave(c, wire::body_of<wire::JoinChannel>(bytes));
      case wire::Type::deposit: return take_deposit(c, std::move(packet));
      case wire::Type::withdraw: return drop_deposit(bytes);
      default: throw Error(ErrorCode::protocol, "a message that no borrower sends");
    }
  } catch (const Error& e) {
    if (e.code() == ErrorCode::peer_died) throw;
    if (answered) return refuse(c, e);
    log_warning(fmt::format("a borrower (pid {}): {}", c.credentials.pid, e.what()));
  }
}

/// A borrower that is told of a shortage should not look for it at home.
void Broker::refuse(Connection& c, const Error& why) {
  if (!is_shortage(why)) return reply(c, wire::refuse(why));
  reply(c, wire::refuse(
               Error(why.code(), fmt::format("process {}, which holds this memory, cannot hand it out: {}",
                                             current_pid(), why.what()))));
}

void Broker::challenge(Connection& c, ByteSpan packet) {
  c.theirs = wire::body_of<wire::Hello>(packet).nonce;
  c.ours = wire::new_nonce();
  c.greeted = true;
  const ByteSpan secret = std::as_bytes(std::span(self_));
  reply(c, wire::pack(wire::Type::challenge,
                      wire::Challenge{c.ours, wire::prove(secret, "broker", c.ours, c.theirs)}));
  if (c.attached) return;
  watch_.stay_awake(kSoon);
}

/// For the next borrower, so that it need not wait. What cannot be made now is made when it has proved itself, and
/// it is told why not.
void Broker::make_spare_page() noexcept {
  try {
    if (!spare_page_.file) spare_page_ = create_claim_file();
  } catch (const std::exception&) {  // see above
  }
}

/// Those whose proof is on its way.
std::size_t Broker::challenged() const {
  return static_cast<std::size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const Connection& c) { return c.greeted && !c.attached && !c.closed; }));
}

void Broker::welcome(Connection& c, ByteSpan packet) {
  const auto body = wire::body_of<wire::Prove>(packet);
  const Digest expected = wire::prove(std::as_bytes(std::span(self_)), "borrower", c.theirs, c.ours);
  if (!c.greeted || c.attached ||
      !equal_in_constant_time(std::as_bytes(std::span(body.proof)), std::as_bytes(std::span(expected))))
    throw Error(ErrorCode::bad_secret,
                "the owner refuses: this process does not know the secret that its handles carry");
  c.pidfd = c.socket.peer_pidfd();
  const Fd table = ledger_.export_table();
  ClaimFile page = spare_page_.file ? std::move(spare_page_) : create_claim_file();
  c.page = std::move(page.memory);
  c.page_inode = inode_of(page.file);
  {
    const std::lock_guard lock(mutex_);  // nobody tells it of a segment that went before it is welcomed
    c.attached = ledger_.attach(claims_in(c.page));
    point("attach.done");
    reply(c, wire::pack(wire::Type::welcome, wire::Welcome{}), {table.get(), page.file.get()});
  }
  if (challenged() == 0) watch_.may_sleep();
  watch_.request_tick();  // for another spare page: what this borrower asks next comes first
}

void Broker::send_segment(Connection& c, ByteSpan packet) {
  const auto body = wire::body_of<wire::WantSegment>(packet);
  const ExportedMemory memory = ledger_.export_segment(body.segment, access_of(body.read_only));
  admit(memory, body.number);
  note_what_is_sent(c, memory);
  const wire::Segment answer{memory.size, static_cast<std::uint8_t>(memory.kind), 0, 0, memory.device};
  reply(c, wire::pack(wire::Type::segment, answer, memory.blob), wire::descriptors(memory));
}

/// After a hangup of ours a process asks over a new connection, and its claims stand in the old one's page.
void Broker::note_what_is_sent(const Connection& c, const ExportedMemory& memory) noexcept {
  if (device_type(memory.kind) == DeviceType::cpu) return;
  for (Connection& other : connections_)
    if (other.credentials.pid == c.credentials.pid) other.has_device_memory = true;
}

void Broker::send_foreign(Connection& c, ByteSpan packet) {
  const auto body = wire::body_of<wire::WantForeign>(packet);
  const std::string owner = wire::to_string(body.owner);
  const Access access = access_of(body.read_only);
  Deposits::Opened found;
  if (auto kept = deposits_.open({owner, body.segment}, access)) {
    found = std::move(*kept);
  } else if (Peer* peer = importer_.find(owner)) {
    found = {peer->export_table(), peer->export_segment(body.segment, access), peer->is_gone()};
  } else {
    for (const Ledger* ledger : importer_.inherited())
      if (public_name(ledger->owner()) == owner)
        found = {ledger->export_table(), ledger->export_segment(body.segment, access),
                 is_gone(ledger->origin())};
  }
  if (!found.table)
    throw Error(ErrorCode::owner_died, "the maker of this handle does not hold the memory any more");
  admit(found.memory, body.number);
  const wire::Segment answer{found.memory.size, static_cast<std::uint8_t>(found.memory.kind), 1,
                             found.owner_gone, found.memory.device};
  reply(c, wire::pack(wire::Type::segment, answer, found.memory.blob),
        wire::descriptors(found.memory, found.table));
}

void Broker::adopt_child(Connection& parent, Packet packet) {
  const auto misheard = parent.misheard;
  if (!misheard) parent.misheard = Clock::now();  // should anything fail
  if (packet.fds.size() != 2) throw Error(ErrorCode::protocol, "a child without page or socket");
  const At child = add_connection(UnixSocket(std::move(packet.fds[1])));
  {
    std::lock_guard lock(mutex_);
    child->credentials = {};  // the parent's, until the child says who it is
  }
  child->page = map_claims(packet.fds[0]);
  child->page_inode = inode_of(packet.fds[0]);
  {
    const std::lock_guard lock(mutex_);
    child->attached = ledger_.attach(claims_in(child->page));
    child->untold = parent.untold;  // it has inherited the mappings
  }
  point("adopt.attached");
  ledger_.attach_child(*parent.attached);
  parent.misheard = misheard;
}

void Broker::greet_child(At at, ByteSpan packet) {
  const auto body = wire::body_of<wire::ChildHello>(packet);
  if (!at->attached || at->credentials.pid != 0)
    throw Error(ErrorCode::protocol, "a child's greeting from somebody else");
  Fd pidfd =
      open_pidfd(ProcessOrigin{body.pid, body.start_time});  // none in another namespace, of other numbers
  const std::lock_guard lock(mutex_);
  if (pidfd) at->credentials.pid = body.pid;
  at->pidfd = std::move(pidfd);
}

void Broker::take_deposit(Connection& c, Packet packet) {
  const auto body = wire::body_of<wire::Deposit>(packet.bytes);
  if (packet.fds.empty()) throw Error(ErrorCode::protocol, "a deposit without descriptors");
  Fd table = std::move(packet.fds[0]);
  if (!deposits_.add({wire::to_string(body.owner), body.segment}, {body.owner_pid, body.owner_start},
                     std::move(table), wire::memory_in<wire::Deposit>(std::move(packet), 1), body.channel))
    throw Error(ErrorCode::unsupported, "the queue's creator keeps no more descriptors of device memory");
  point("deposit.kept");
  reply(c, wire::pack(wire::Type::deposited, wire::Deposited{}));
}

void Broker::drop_deposit(ByteSpan packet) {
  const auto body = wire::body_of<wire::Withdraw>(packet);
  if (deposits_.retire({wire::to_string(body.owner), body.segment})) watch_.request_tick();
}

/// The socket has closed: a sign to look, not yet a death.
void Broker::on_hangup(At at) {
  watch_.remove(at->socket.fd());
  {
    std::lock_guard lock(mutex_);
    at->closed = true;
    at->socket = UnixSocket();  // it may live on: it must not wait for answers
  }
  if (!at->attached || !at->pidfd || has_exited(at->pidfd)) return bury(at);
  watch_.add(at->pidfd.get(), [this, at] {
    if (has_exited(at->pidfd)) bury(at);
  });
  watch_.request_tick();
}

bool Broker::tick() {
  if (listening_) make_spare_page();
  if (starved_) watch_.add(listener_.fd(), [this] { accept_all(); });
  starved_ = false;
  std::vector<At> looked_after;
  {
    std::lock_guard lock(mutex_);
    for (At at = connections_.begin(); at != connections_.end(); ++at)
      if (at->closed || !at->attached) looked_after.push_back(at);
  }
  bool waiting = tell_all_retired();
  for (const At at : looked_after) {
    if (at->orphan ? is_delivered(*at->orphan) : !at->attached && is_over(*at)) drop(at);
    else if (at->lost && !has_unseen_children(*at)) leave_in_transit(at);
    else if (at->closed && !at->orphan && !at->lost && is_over(*at)) bury(at);
    else waiting = waiting || is_looked_for(*at);
  }
  return waiting;
}

/// Does it take a look to see that it is over? Otherwise its pidfd says so, or nothing ever does.
bool Broker::is_looked_for(const Connection& c) const {
  if (c.lost) return c.lost->are_visible();
  return c.orphan || !c.attached || !c.pidfd || !c.has_device_memory;
}

/// A stranger that has been silent too long, or a borrower that is no more.
bool Broker::is_over(const Connection& c) const {
  if (!c.attached) return Clock::now() - c.since > std::chrono::milliseconds(stranger_silence_ms);
  return has_exited(c.pidfd) ||
         (!c.has_device_memory && !maps_file(c.credentials.pid, {"onecopy-claims", c.page_inode}));
}

/// Its receivers have what a dead borrower left, or have had the time. In which queues that is it has
/// noted; those that are open here tell.
bool Broker::is_delivered(Orphan& orphan) const {
  const auto now = Clock::now();
  if (now - orphan.since > Holds::kLifetime) return true;
  if (!orphan.knows_queues) return false;
  for (auto at = orphan.waiting_for.begin(); at != orphan.waiting_for.end();) {
    auto& [channel, put_at_death] = *at;
    const auto progress = deposits_.progress(channel);
    if (progress && !put_at_death) put_at_death = progress->first;
    const bool passed = progress && progress->second >= *put_at_death;
    at = passed ? orphan.waiting_for.erase(at) : std::next(at);
  }
  if (!orphan.waiting_for.empty()) return false;
  if (!orphan.taken) orphan.taken = now;
  return now - *orphan.taken > std::chrono::milliseconds(after_transit_ms);
}

/// Its child, of which we know nothing but that there may be one; or itself, when we hung up on it and cannot see
/// whether it lives.
bool Broker::may_be_used_unseen(const Connection& c) const {
  return c.misheard && (!c.pidfd || ledger_.awaits_child(*c.attached));
}

/// Its page stays attached: an awaited child counts as holding everything.
void Broker::lose(At at) noexcept {
  log_warning(fmt::format(
      "what process {} had borrowed stays reserved while children of it may live that are not known here",
      at->credentials.pid));
  const std::lock_guard lock(mutex_);
  at->lost.emplace(at->credentials.pid != 0);
  watch_.request_tick();
}

/// Every borrower maps the block table. One that was connected before a child could be missed is no such child.
bool Broker::has_unseen_children(Connection& lost) const {
  const auto is_known = [&](int pid) {
    return std::any_of(connections_.begin(), connections_.end(), [&](const Connection& c) {
      return c.attached && !c.orphan && !c.lost && c.credentials.pid == pid && c.since < *lost.misheard;
    });
  };
  return !lost.lost->are_all_gone({"onecopy-blocks", ledger_.table_inode()}, is_known);
}

/// The borrower is gone. What it had put into queues stays for the receivers.
void Broker::bury(At at) noexcept {
  if (at->pidfd) watch_.remove(at->pidfd.get());
  while (!at->joined.empty()) leave(*at, wire::JoinChannel(at->joined.back()));
  if (!at->attached) return drop(at);
  if (may_be_used_unseen(*at)) return lose(at);
  leave_in_transit(at);
}

void Broker::leave_in_transit(At at) noexcept {
  Orphan orphan;
  const Transits transits = transits_in(at->page);
  orphan.blocks = ledger_.leave_in_transit(*at->attached, transits);
  if (orphan.blocks == 0) return drop(at);
  if (const auto channels = transits.channels()) {
    orphan.knows_queues = true;
    for (const std::uint64_t channel : *channels) orphan.waiting_for[channel];
  }
  std::lock_guard lock(mutex_);
  at->orphan = std::move(orphan);
  at->lost.reset();
  at->pidfd.reset();
  watch_.request_tick();
}

void Broker::drop(At at) noexcept {
  if (at->socket) watch_.remove(at->socket.fd());
  if (at->pidfd) watch_.remove(at->pidfd.get());
  {
    std::lock_guard lock(mutex_);
    at->leaving = true;
  }
  if (at->attached) ledger_.detach(*at->attached);
  point("detach.done");
  std::lock_guard lock(mutex_);
  connections_.erase(at);
}

void Broker::reply(Connection& c, Bytes message, const std::vector<int>& fds) {
  wire::set_serial(message, c.serial);
  send(c, message, fds);
}

void Broker::send(Connection& c, const Bytes& message, const std::vector<int>& fds) {
  if (!c.socket.try_send(message, fds))
    throw Error(ErrorCode::peer_died, "a borrower does not read its answers");
}

void Broker::announce_retired(std::uint32_t segment) noexcept {
  bool waiting = false;
  {
    std::lock_guard lock(mutex_);
    for (auto& [channel, segments] : spread_) segments.erase(segment);
    for (Connection& c : connections_) {
      if (!c.attached || c.closed) continue;
      c.untold.push_back(segment);
      tell_retired(c);
      waiting = waiting || !c.untold.empty();
    }
  }
  if (waiting) watch_.request_tick();
}

/// As many as find room. REQUIRES: mutex_.
void Broker::tell_retired(Connection& c) noexcept {
  auto next = c.untold.begin();
  try {
    while (next != c.untold.end() && c.socket.try_send(wire::pack(wire::Type::retire, wire::Retire{*next})))
      ++next;
  } catch (const Error& e) {  // it is gone, which its hangup says too, or the system is short of memory
    if (e.code() == ErrorCode::peer_died) next = c.untold.end();
  }
  c.untold.erase(c.untold.begin(), next);
}

/// True while there are borrowers that do not read.
bool Broker::tell_all_retired() noexcept {
  const std::lock_guard lock(mutex_);
  bool waiting = false;
  for (Connection& c : connections_) {
    if (c.closed) c.untold.clear();
    tell_retired(c);
    waiting = waiting || !c.untold.empty();
  }
  return waiting;
}

void Broker::spread_deposit(std::uint32_t segment, std::uint64_t channel) {
  std::lock_guard lock(mutex_);
  if (!spread_[channel].insert(segment).second) return;
  for (Connection& c : connections_)
    for (const wire::JoinChannel& joined : c.joined)
      if (joined.channel == channel && !c.closed) send_keep(c, segment, channel);
}

void Broker::forget_channel(std::uint64_t channel) noexcept {
  std::lock_guard lock(mutex_);
  spread_.erase(channel);
}

void Broker::send_keep(Connection& c, std::uint32_t segment, std::uint64_t channel) noexcept {
  try {
    const ExportedMemory memory = ledger_.export_segment(segment, Access::read_write);
    const Fd table = ledger_.export_table();
    const ProcessOrigin origin = ledger_.origin();
    const wire::Deposit body{wire::to_name(public_name(self_)),
                             origin.pid,
                             origin.start_time,
                             memory.size,
                             channel,
                             segment,
                             static_cast<std::uint8_t>(memory.kind),
                             memory.device};
    note_what_is_sent(c, memory);
    send(c, wire::pack(wire::Type::keep, body, memory.blob), wire::descriptors(memory, table));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died) log_warning(e.what());
  }
}

/// What is in the queue already may be ours, and we may die before it is taken.
void Broker::join(Connection& c, ByteSpan packet) {
  const auto body = wire::body_of<wire::JoinChannel>(packet);
  {
    std::lock_guard lock(mutex_);
    c.joined.push_back(body);
    const auto at = spread_.find(body.channel);
    if (at != spread_.end())
      for (const std::uint32_t segment : at->second) send_keep(c, segment, body.channel);
  }
  report_users(body);
  reply(c, wire::pack(wire::Type::joined, wire::Joined{}));
}

void Broker::leave(Connection& c, const wire::JoinChannel& which) {
  {
    std::lock_guard lock(mutex_);
    const auto at = std::find_if(c.joined.begin(), c.joined.end(), [&](const auto& j) {
      return j.channel == which.channel && j.role == which.role;
    });
    if (at == c.joined.end()) return;
    c.joined.erase(at);
  }
  report_users(which);
}

void Broker::report_users(const wire::JoinChannel& which) {
  std::size_t users = 0;
  {
    std::lock_guard lock(mutex_);
    for (const Connection& c : connections_)
      users += std::any_of(c.joined.begin(), c.joined.end(), [&](const auto& j) {
        return j.channel == which.channel && j.role == which.role;
      });
  }
  deposits_.report_users(which.channel, which.role, users);
}

std::vector<BorrowerInfo> Broker::borrowers() const {
  std::lock_guard lock(mutex_);
  std::vector<BorrowerInfo> list;
  for (const Connection& c : connections_)
    if (c.attached && !c.orphan && !c.lost)
      list.push_back({c.credentials.pid, process_name(c.credentials.pid),
                      c.leaving ? 0 : ledger_.claims_of(*c.attached)});
  return list;
}

std::size_t Broker::borrower_count() const {
  std::lock_guard lock(mutex_);
  return std::count_if(connections_.begin(), connections_.end(),
                       [](const Connection& c) { return c.attached && !c.orphan && !c.lost; });
}

std::vector<TransitInfo> Broker::orphans() const {
  std::lock_guard lock(mutex_);
  std::vector<TransitInfo> list;
  const auto now = Clock::now();
  for (const Connection& c : connections_)
    if (c.orphan)
      list.push_back({c.orphan->blocks, std::chrono::duration<double>(now - c.orphan->since).count(),
                      fmt::format("queue, put by process {} before it ended", c.credentials.pid)});
  return list;
}

ForkPage Broker::prepare_fork() {
  ClaimFile page = create_claim_file();
  ForkPage child{map_claims(page.file), {}};
  claims_in(child.memory).header().all.store(1);
  auto [ours, theirs] = UnixSocket::pair();
  child.socket = std::move(theirs);
  const At at = connections_.emplace(connections_.end());
  at->socket = std::move(ours);
  at->page = std::move(page.memory);
  at->page_inode = inode_of(page.file);
  at->attached = ledger_.attach_locked(claims_in(at->page));
  watch_.add(at->socket.fd(), [this, at] { serve(at); });
  return child;
}

void Broker::abandon() noexcept {
  connections_.clear();
  spare_page_ = {};
  if (listener_) Fd(listener_.release()).reset();
}

}  // namespace onecopy
