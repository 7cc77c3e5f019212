// SPDX-License-Identifier: Apache-2.0
#include "rpc/far/far_transport.h"

#include <fmt/format.h>

#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "rpc/lane.h"
#include "rpc/message.h"

namespace onecopy::rpc {
namespace {

/// Messages over one link. The link's own thread wakes the member.
class FarConnection final : public Connection {
 public:
  explicit FarConnection(FarLinkRef link) : link_(std::move(link)) {}
  void send(const Message& message, Stream stream, Deadline deadline) override {
    link_->put(message, stream, deadline);
  }

 private:
  const FarLinkRef link_;
};

}  // namespace

FarTransport::FarTransport(TransportHost& host, EventLoop& loop)
    : host_(host),
      far_(
          FarOptions::of_environment(), loop, [this] { return host_.address(); },
          [this](const Address& from, const FarLinkRef& link) {
            return take_link(host_.enter(from), link);
          }) {}

void FarTransport::open(Member& to, Deadline deadline) {
  {
    const LockGuard lock(to.opening);
    if (!to.state || to.has_ended || std::exchange(state_of(to).is_connecting, true)) return;
  }
  try {
    const FarLinkRef link = far_.connect(to.address, deadline);
    far_.read(link, take_link(to, link));
  } catch (...) {
    const LockGuard lock(to.opening);
    if (to.state) state_of(to).is_connecting = false;
    throw;
  }
}

/// Takes a further connection to a member: messages of all of them come into the member's lane, and the first is sent on.
Far::Delivery FarTransport::take_link(Member& member, const FarLinkRef& link) {
  if (member.transport != this)
    throw Error(ErrorCode::protocol, "another process says that it is one of this host");
  std::shared_ptr<RingConnection> lane;
  {
    const LockGuard lock(member.opening);
    if (member.has_ended || !member.state)
      throw Error(ErrorCode::peer_died, fmt::format("{} has ended", member.name()));
    if (!member.inbound) member.inbound = std::make_unique<Inbound>();
    lane = std::make_shared<RingConnection>(member.inbound->sender_to_itself(), host_.bell());
    state_of(member).links.push_back(link);
    if (!member.outbound) member.outbound = std::make_unique<FarConnection>(link);
    member.in = member.inbound.get();
    member.out = member.outbound.get();
  }
  point("rpc.lane.opened");
  host_.note_opened(member);
  const auto deliver = [lane](Message&& message) {
    const bool is_answer = (message.tag & kFormBits) == static_cast<std::uint32_t>(Form::answer);
    lane->send(message, {}, kForever);
    if (is_answer && (message.tag & kInOrder) == 0) lane->ring_for_answer();
    else lane->ring_for_call();
  };
  return {deliver, host_.end_of(member)};
}

void FarTransport::close(Member& member) noexcept {
  const LockGuard lock(member.opening);
  if (!member.state) return;
  for (const FarLinkRef& link : state_of(member).links) link->close();
}

std::chrono::seconds FarTransport::silence_of(Member& member) const {
  constexpr std::chrono::seconds kSilent{3};  // a member on another host says something each second
  const LockGuard lock(member.opening);
  std::chrono::seconds shortest{0};
  if (!member.state) return shortest;
  for (const FarLinkRef& link : state_of(member).links)
    if (shortest == std::chrono::seconds{0} || link->silence() < shortest) shortest = link->silence();
  return shortest < kSilent ? std::chrono::seconds{0} : shortest;
}

}  // namespace onecopy::rpc
