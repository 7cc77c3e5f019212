// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "rpc/node.h"
#include "share/session.h"

/// Members on other hosts. The far thread puts their messages into lanes of this process, so they are read as those of
/// others are.
namespace onecopy::rpc {

std::unique_ptr<Far> Node::make_far() {
  return std::make_unique<Far>(
      FarOptions::of_environment(), session_.loop(), [this] { return address(); },
      [this](const Address& from, const FarLinkRef& link) { return take_link(enter(from), link); });
}

bool Node::is_far(const Address& address) const {
  return address.host != this_host() || (far_->is_forced() && !address.endpoint.empty());
}

void Node::enter_far(Member& member) {
  member.is_far = true;
  member.exit = std::make_shared<std::atomic<bool>>(false);
}

/// By one thread; others wait for the member to be opened.
void Node::connect_far(Member& to, Deadline deadline) {
  {
    const LockGuard lock(to.opening);
    if (to.is_greeted || to.has_ended) return;
    to.is_greeted = true;
  }
  try {
    const FarLinkRef link = far_->connect(to.address, deadline);
    far_->read(link, take_link(to, link));
  } catch (...) {
    to.is_greeted = false;
    throw;
  }
}

/// A further connection to a member: to send on, if there is no other. Messages of all of them come into the member's lane.
Far::Delivery Node::take_link(Member& member, const FarLinkRef& link) {
  if (member.number() == number())
    throw Error(ErrorCode::protocol, "another process says that it is this one");
  std::shared_ptr<Outbound> lane;
  {
    const LockGuard lock(member.opening);
    if (member.has_ended) throw Error(ErrorCode::peer_died, fmt::format("{} has ended", member.name()));
    if (!member.inbound) member.inbound = std::make_unique<Inbound>();
    lane = std::make_shared<Outbound>(member.inbound->sender_to_itself(), bell_);
    member.links.push_back(link);
    if (!member.outbound) member.outbound = std::make_unique<Outbound>(link);
    member.in = member.inbound.get();
    member.out = member.outbound.get();
  }
  point("rpc.lane.opened");
  complete(member.opened, End::answered);
  const auto deliver = [lane](Message&& message) {
    const bool is_answer = (message.tag & kFormBits) == static_cast<std::uint32_t>(Form::answer);
    lane->put(message);
    if (is_answer && (message.tag & kInOrder) == 0) lane->ring_for_answer();
    else lane->ring_for_call();
  };
  const auto end = [exit = member.exit, bell = bell_] {
    exit->store(true);
    (*bell)->calls.ring();
    (*bell)->answers.ring_all();
  };
  return {deliver, end};
}

void Node::close_links(Member& member) {
  const LockGuard lock(member.opening);
  for (const FarLinkRef& link : member.links) link->close();
}

}  // namespace onecopy::rpc
