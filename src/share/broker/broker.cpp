// SPDX-License-Identifier: Apache-2.0
#include "share/broker/broker.h"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/process.h"
#include "share/format/process_name.h"

namespace onecopy {
namespace {

constexpr int kPacketsATurn = 32;
constexpr int kAcceptsATurn = 64;

}  // namespace

Broker::Broker(const ProcessId& self, Ledger& ledger, SegmentSource& source, SegmentRetention& retention,
               Holds& holds, Timeline& timeline, EventLoop& loop, Describe describe)
    : self_(self),
      ledger_(ledger),
      source_(source),
      retention_(retention),
      holds_(holds),
      timeline_(timeline),
      loop_(loop),
      describe_(std::move(describe)) {}

void Broker::listen() {
  if (listening_) return;
  const LockGuard lock(mutex_);
  if (listening_) return;
  // There is a listener if an earlier call has failed in a later step.
  if (!listener_) listener_ = UnixSocket::listen(socket_name(public_name(self_)));
  make_spare_page();
  loop_.add(listener_.fd(), [this] { accept_some(); });  // may run before add() returns
  listening_ = true;
}

/// Accepts as many connections as one turn may take, so that a process that connects endlessly does not occupy the
/// watch thread. The rest is reported again.
void Broker::accept_some() {
  try {
    for (int i = 0; i < kAcceptsATurn && !loop_.is_stopping(); ++i) {
      auto socket = listener_.try_accept();
      if (!socket) break;
      point("broker.accepted");
      listener_.follow_user();
      if (const PeerCredentials peer = socket->peer(); !peer.is_our_user) {  // the socket closes here
        log_debug([&] { return fmt::format("refused a process that {}", describe_other_user(peer.uid)); });
        continue;
      }
      add_connection(std::move(*socket));
    }
    starving_ = false;
  } catch (const Error& e) {
    if (!is_shortage(e.code())) throw;
    if (!starving_) log_warning("borrowers have to wait: {}", e.what());
    starving_ = true;
    loop_.remove(listener_.fd());  // it would be reported all the time; poll() tries again
    starved_ = true;
    polling_.request();
  }
}

Broker::At Broker::add_connection(UnixSocket socket) {
  const LockGuard lock(mutex_);
  const At at = connections_.emplace(connections_.end());
  at->credentials = socket.peer();
  at->socket = std::move(socket);
  loop_.add(at->socket.fd(), [this, at] { serve(at); });
  polling_.request();  // a silent stranger causes no event
  return at;
}

void Broker::serve(At at) {
  if (auto* stranger = std::get_if<Stranger>(&at->stage); stranger && !stranger->heard_since)
    stranger->heard_since = Clock::now();
  bool answering = false;
  try {
    // Reads a few packets, because other connections wait; unread packets are reported again.
    for (int i = 0; i < kPacketsATurn; ++i) {
      answering = false;
      auto packet = at->socket.try_receive();
      if (!packet) return;
      answering = true;
      answer(at, std::move(*packet));
    }
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died)
      log_warning("a borrower (pid {}): {}", at->credentials.pid, e.what());
    if ((answering || e.code() != ErrorCode::peer_died) && !at->has_detached &&
        !at->suspect_since)  // false if the connection closed and all packets were read
      at->suspect_since = Clock::now();
    on_hangup(at);
  }
}

/// Sends a refusal. The message names this process, so that nobody looks for a shortage in the borrower.
void Broker::refuse(Connection& c, const Error& why) {
  log_debug([&] { return fmt::format("refused process {}: {}", c.credentials.pid, why.what()); });
  if (!is_shortage(why.code())) return reply(c, wire::refuse(why));
  reply(c, wire::refuse(
               Error(why.code(), fmt::format("process {}, which holds this memory, cannot hand it out: {}",
                                             current_pid(), why.what()))));
}

/// Makes a claim page ahead, so that the next borrower need not wait. If that fails, the page is made when the borrower
/// has proved itself, and the borrower gets the error.
void Broker::make_spare_page() noexcept {
  try {
    if (!spare_page_.file) spare_page_ = create_claim_file();
  } catch (const std::exception&) {  // see above
  }
}

Timer::Pause Broker::poll() {
  point("broker.look");
  if (listening_) make_spare_page();
  if (starved_) loop_.add(listener_.fd(), [this] { accept_some(); });
  starved_ = false;
  const bool untold = tell_all_retired();
  return Timer::soon_if(poll_closed() || untold);
}

void Broker::reply(Connection& c, Bytes message, const std::vector<int>& fds) {
  peer::set_serial(message, c.serial);
  send(c, message, fds);
}

/// Sends a message, unless the borrower has closed its end. Earlier packets of the borrower are still read.
void Broker::send(Connection& c, const Bytes& message, const std::vector<int>& fds) {
  bool is_sent = true;
  try {
    is_sent = c.socket.try_send(message, fds);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died) throw;
  }
  if (!is_sent) throw Error(ErrorCode::peer_died, "a borrower does not read its answers");
}

void Broker::announce_retired(std::uint32_t segment) {
  bool waiting = false;
  {
    const LockGuard lock(mutex_);
    for (auto& [channel, segments] : spread_) segments.erase(segment);
    for (Connection& c : connections_) {
      if (!c.is_open()) continue;
      c.untold.push_back(segment);
      tell_retired(c);
      waiting = waiting || !c.untold.empty();
    }
  }
  if (waiting) polling_.request();
}

/// Tells a borrower of as many retired segments as its socket has room for.
void Broker::tell_retired(Connection& c) noexcept {
  auto next = c.untold.begin();
  try {
    while (next != c.untold.end() && c.socket.try_send(wire::pack(wire::Retire{*next}))) ++next;
  } catch (const Error& e) {  // the borrower is gone, as its hang-up tells, or memory is short
    if (e.code() == ErrorCode::peer_died) next = c.untold.end();
  } catch (const std::bad_alloc&) {  // this process is short of memory; tries again later
  }
  c.untold.erase(c.untold.begin(), next);
}

/// Tells all borrowers of retired segments. Returns whether some of them do not read.
bool Broker::tell_all_retired() noexcept {
  const LockGuard lock(mutex_);
  bool waiting = false;
  for (Connection& c : connections_) {
    if (!c.is_open()) c.untold.clear();
    tell_retired(c);
    waiting = waiting || !c.untold.empty();
  }
  return waiting;
}

std::vector<BorrowerInfo> Broker::borrowers() const {
  const LockGuard lock(mutex_);
  std::vector<BorrowerInfo> list;
  for (const Connection& c : connections_)
    if (c.is_borrower())
      list.push_back({c.credentials.pid, process_name(c.credentials.pid),
                      c.leaving ? 0 : ledger_.borrowers().claims_of(*c.attached)});
  return list;
}

std::size_t Broker::borrower_count() const {
  const LockGuard lock(mutex_);
  return std::count_if(connections_.begin(), connections_.end(),
                       [](const Connection& c) { return c.is_borrower(); });
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
  at->attached = ledger_.borrowers().attach_locked(claims_in(at->page));
  at->stage = Borrower{};
  at->is_child = true;
  loop_.add(at->socket.fd(), [this, at] { serve(at); });
  return child;
}

bool Broker::has_children() const {
  const LockGuard lock(mutex_);
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const Connection& c) { return c.is_child; });
}

void Broker::abandon() noexcept {
  connections_.clear();
  spare_page_ = {};
  if (listener_) Fd(listener_.release()).reset();
}

// The following functions record which processes have which queue open, and which segments of ours they retain for the
// queue in case this process dies.
void Broker::spread(std::uint32_t segment, std::uint64_t queue) {
  const LockGuard lock(mutex_);
  if (!spread_[queue].insert(segment).second) return;
  for (Connection& c : connections_)
    if (c.is_open() && c.has_joined(queue)) ask_to_retain(c, segment, queue);
}

void Broker::forget_queue(std::uint64_t queue) noexcept {
  const LockGuard lock(mutex_);
  spread_.erase(queue);
}

void Broker::ask_to_retain(Connection& c, std::uint32_t segment, std::uint64_t queue) noexcept {
  try {
    const ExportedMemory memory = ledger_.export_segment(segment, Access::read_write);
    require_all(memory);
    const Fd table = ledger_.export_table();
    const ProcessOrigin origin = ledger_.origin();
    const wire::RetainMine request{public_name(self_), segment, origin, queue, 0, wire::Described(memory)};
    flag_device_memory(c, memory);
    send(c, wire::pack(request), wire::descriptors(memory, table));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died) log_warning(e.what());
  }
}

/// Notes that a borrower has opened the queue, and gives it the segments of ours that the queue's items are in, because
/// this process may die before the items are taken.
void Broker::join(Connection& c, ByteSpan packet) {
  const std::uint64_t queue = wire::unpack<wire::JoinQueue>(packet).queue;
  {
    const LockGuard lock(mutex_);
    if (!c.has_joined(queue)) c.joined.push_back(queue);
    const auto at = spread_.find(queue);
    if (at != spread_.end())
      for (const std::uint32_t segment : at->second) ask_to_retain(c, segment, queue);
  }
  report_users(queue);
  reply(c, wire::pack(wire::Joined{}));
}

void Broker::leave(Connection& c, std::uint64_t queue) {
  retention_.segments.release_all_by(&c, queue);
  {
    const LockGuard lock(mutex_);
    if (std::erase(c.joined, queue) == 0) return;
  }
  report_users(queue);
}

void Broker::report_users(std::uint64_t queue) {
  std::size_t users = 0;
  {
    const LockGuard lock(mutex_);
    for (const Connection& c : connections_) users += c.has_joined(queue);
  }
  retention_.queues.report_users(queue, users);
}

}  // namespace onecopy
