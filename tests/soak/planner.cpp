// SPDX-License-Identifier: Apache-2.0
#include "soak/planner.h"

#include <algorithm>

#include "soak/pattern.h"

namespace onecopy::soak {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{768} << 20;  ///< of all blocks
constexpr std::size_t kMaxHeld = 24;                       ///< by one agent
constexpr std::size_t kMaxQueues = 8;
constexpr std::size_t kMaxItems = 12;  ///< in one queue
constexpr std::size_t kMaxHandles = 6;
constexpr std::uint32_t kPutWaits = 30'000;
constexpr std::uint32_t kGetWaits = 30'000;
constexpr std::uint64_t kLingersAtMost = 600;  ///< milliseconds
constexpr Id kFirstObject = Id{1} << 48;       ///< so that objects and blocks have different numbers
constexpr Id kObjects = 4;
constexpr std::uint64_t kMaxVersion = 4 << 20;  ///< bytes

Command command(Op op, Id ref = 0) {
  Command made;
  made.op = op;
  made.ref = ref;
  return made;
}

}  // namespace

bool is_death(Fate fate) noexcept { return fate >= Fate::exit; }

struct Planner::Turn {
  Id agent;
  Fate fate;
  std::map<Id, Holding> holds;  ///< certain holdings when the next command comes
  std::map<Id, std::size_t>
      awaits;  ///< items that were in a queue before the round, or were put, and are not got
  std::map<Id, Id> published{};  ///< the block of the last version of an object
  std::vector<Planned> batch;

  bool has(Id block) const {
    return std::any_of(holds.begin(), holds.end(), [&](const auto& h) { return h.second.block == block; });
  }
  void add(Command c, bool must) { batch.push_back({std::move(c), must}); }
};

void Planner::begin_round() {
  touched_.clear();
  queues_in_use_.clear();
  planned_bytes_ = model_.held_bytes();
  new_queues_ = 0;
}

std::vector<Planned> Planner::plan(Id agent, std::size_t count, Fate fate, std::optional<Id> child) {
  Turn turn{agent, fate, model_.agents.at(agent).holds, {}, {}, {}};
  if (child) {
    Command fork = command(Op::fork);
    fork.other = *child;
    turn.add(fork, true);
  }
  for (std::size_t tries = 0; turn.batch.size() < count && tries < 4 * count; ++tries) plan_one(turn);
  if (fate == Fate::exit) turn.add(command(Op::exit), true);
  if (fate == Fate::leave) turn.add(command(Op::exit_at_once), true);
  if (fate == Fate::linger) {
    Command linger = command(Op::linger);
    linger.wait_ms = static_cast<std::uint32_t>(random_.below(kLingersAtMost));
    turn.add(linger, true);
  }
  if (fate == Fate::exec) turn.add(command(Op::exec), true);
  return std::move(turn.batch);
}

void Planner::plan_one(Turn& turn) {
  constexpr std::uint64_t kOfCards = 4;  // one command of so many
  if (has_card_ && random_.one_in(kOfCards)) return plan_card(turn);
  constexpr std::uint64_t kOfTheStore = 6;
  if (has_store_ && random_.one_in(kOfTheStore)) return plan_store(turn);
  struct Choice {
    std::uint64_t weight;
    void (Planner::*plan)(Turn&);
  };
  constexpr Choice kChoices[] = {
      {12, &Planner::plan_allocate}, {14, &Planner::plan_share},  {24, &Planner::plan_open},
      {12, &Planner::plan_check},    {5, &Planner::plan_write},   {13, &Planner::plan_drop},
      {1, &Planner::plan_queue},     {4, &Planner::plan_connect}, {15, &Planner::plan_put},
      {15, &Planner::plan_get},      {1, &Planner::plan_leave}};
  std::uint64_t all = 0;
  for (const Choice& choice : kChoices) all += choice.weight;
  std::uint64_t at = random_.below(all);
  for (const Choice& choice : kChoices) {
    if (at < choice.weight) return (this->*choice.plan)(turn);
    at -= choice.weight;
  }
}

std::uint64_t Planner::any_size() {
  const std::uint64_t kind = random_.below(1000);
  if (kind < 500) return kLeastBytes + 8 * random_.below(512);
  if (kind < 850) return 4096 + 64 * random_.below(960);
  if (kind < 990) return (64 << 10) + 4096 * random_.below(64);
  if (kind < 998) return (1 << 20) + 4096 * random_.below(1024);
  return (33 << 20) + 4096 * random_.below(1024);
}

void Planner::plan_allocate(Turn& turn) {
  if (turn.holds.size() >= kMaxHeld || planned_bytes_ > kMaxBytes) return;
  Command c = command(Op::allocate, next_id());
  c.block = next_id();
  c.size = any_size();
  c.named = random_.one_in(4);
  planned_bytes_ += c.size;
  turn.holds[c.ref] = {c.block, false};
  touch(turn.agent, c.block, true);
  turn.add(c, true);
}

void Planner::plan_share(Turn& turn) {
  const auto ref = any_ref(turn, false);
  if (!ref || turn.holds[*ref].is_version || !may_read(turn.agent, turn.holds[*ref].block)) return;
  const Id block = turn.holds[*ref].block;
  touch(turn.agent, block, false);
  Command c = command(random_.one_in(5) ? Op::keep : Op::share, *ref);
  c.block = block;
  if (c.op == Op::keep) turn.holds[c.other = next_id()] = {block, true};
  turn.add(c, true);
}

void Planner::plan_open(Turn& turn) {
  if (turn.holds.size() >= kMaxHeld) return;
  const bool wants_held = !random_.one_in(8);  // the others' handles must be refused, or be right
  std::vector<Id> choices;
  for (const auto& [number, each] : model_.blocks)
    if (!each.handles.empty() && may_read(turn.agent, number) && model_.is_held(number) == wants_held)
      choices.push_back(number);
  if (choices.empty()) return;
  const Id id = random_.pick(choices);
  const Block& block = model_.blocks.at(id);
  const TextHandle& handle = random_.pick(block.handles);
  touch(turn.agent, id, false);
  Command c = command(Op::open, next_id());
  c.block = id;
  c.other = handle.maker;
  c.bytes = handle.bytes;
  // The agent no longer holds the blocks that it has dropped in this batch.
  const bool holds_still = turn.has(id) || !model_.holds(turn.agent, id);
  turn.add(c, holds_still && model_.must_open(turn.agent, id, handle.maker));
}

void Planner::plan_check(Turn& turn) {
  const auto ref = any_ref(turn, false);
  if (!ref || !may_read(turn.agent, turn.holds[*ref].block)) return;
  Command c = command(Op::check, *ref);
  c.block = turn.holds[*ref].block;
  touch(turn.agent, c.block, false);
  turn.add(c, true);
}

void Planner::plan_card(Turn& turn) {
  const std::uint64_t kind = random_.below(10);
  if (kind == 0) return turn.add(command(Op::trim), true);
  const std::size_t before = turn.batch.size();
  plan_check(turn);
  if (turn.batch.size() != before) turn.batch.back().command.op = kind < 3 ? Op::unpin : Op::check_by_card;
}

/// Only one agent publishes an object in a round, and no other agent opens the object then. After a publish that was
/// killed, the version that an agent opens is not known, and nothing else is done with it in this round.
void Planner::plan_store(Turn& turn) {
  const Id object = kFirstObject + random_.below(kObjects);
  Command c = command(random_.one_in(4) ? Op::publish : Op::open_version);
  c.other = object;
  if (c.op == Op::publish) {
    if (!may_change(turn.agent, object) || planned_bytes_ > kMaxBytes) return;
    touch(turn.agent, object, true);
    c.block = next_id();
    c.size = std::min(any_size(), kMaxVersion);
    planned_bytes_ += c.size;
    turn.published[object] = c.block;
    return turn.add(c, true);
  }
  const auto at = model_.objects.find(object);
  const auto own = turn.published.find(object);
  const bool is_own = own != turn.published.end();
  if (turn.holds.size() >= kMaxHeld || !may_read(turn.agent, object)) return;
  if (!is_own && (at == model_.objects.end() || at->second.current.empty())) return;
  touch(turn.agent, object, false);
  c.ref = next_id();
  const bool is_known = is_own || (at->second.current.size() == 1 && !at->second.may_be_absent);
  const Id block = is_own ? own->second : *at->second.current.begin();
  if (is_known) {
    touch(turn.agent, block, false);
    turn.holds[c.ref] = {c.block = block, false, true, {turn.agent}};
  }
  turn.add(c, is_own || !at->second.may_be_absent);
}

/// Not by one that is killed: half a pattern would be its own.
void Planner::plan_write(Turn& turn) {
  const auto ref = any_ref(turn, false);
  if (!ref || turn.fate == Fate::cut || turn.fate == Fate::stop_kill || turn.holds[*ref].is_version) return;
  const Id block = turn.holds[*ref].block;
  if (!may_change(turn.agent, block) || !model_.blocks.contains(block)) return;
  touch(turn.agent, block, true);
  Command c = command(Op::write, *ref);
  c.block = block;
  c.version = next_id();
  turn.add(c, true);
}

void Planner::plan_drop(Turn& turn) {
  const auto ref = any_ref(turn, true);
  if (!ref || (turn.holds.size() < 4 && random_.one_in(2))) return;
  const Id block = turn.holds[*ref].block;
  if (!may_change(turn.agent, block)) return;
  touch(turn.agent, block, true);
  Command c = command(Op::drop, *ref);
  c.block = block;
  turn.holds.erase(*ref);
  turn.add(c, true);
}

void Planner::plan_queue(Turn& turn) {
  if (model_.queues.size() + new_queues_ >= kMaxQueues) return;
  ++new_queues_;
  Command c = command(Op::create_queue);
  c.queue = next_id();
  turn.add(c, true);
}

void Planner::plan_connect(Turn& turn) {
  if (model_.queues.empty()) return;
  const auto& [id, queue] = random_.pick(model_.queues);
  if (queue.users.contains(turn.agent) || queue.users.empty() || queues_in_use_.contains(id)) return;
  const auto& [maker, bytes] = random_.pick(queue.users);
  if (bytes.empty()) return;
  queues_in_use_[id] = turn.agent;
  Command c = command(Op::connect);
  c.queue = id;
  c.other = maker;
  c.bytes = bytes;
  turn.add(c, model_.must_connect(id, maker));
}

void Planner::plan_put(Turn& turn) {
  const auto queue = any_queue(turn);
  if (!queue || turn.fate == Fate::exec) return;  // no plan may depend on it afterwards
  if (model_.queues.at(*queue).items.size() + turn.awaits[*queue] >= kMaxItems) return;
  Command c = command(Op::put);
  const std::uint64_t kind = random_.below(10);
  const std::size_t tensors = kind < 7 ? 1 : kind < 9 ? 2 + random_.below(3) : 8 + random_.below(3);
  bool has_version = false;
  for (std::size_t i = 0; i < tensors; ++i) {
    const auto ref = any_ref(turn, false);
    if (!ref || !may_read(turn.agent, turn.holds[*ref].block)) return;
    touch(turn.agent, turn.holds[*ref].block, false);
    has_version = has_version || turn.holds[*ref].is_version;
    c.refs.push_back(*ref);
  }
  c.queue = *queue;
  c.wait_ms = kPutWaits;
  if (tensors > 1 || has_version || random_.one_in(2)) {
    c.tag = static_cast<std::uint32_t>(next_id());
    c.size = random_.one_in(10) ? 500 : random_.below(64);
  } else {  // so that the same block in the queue twice can be told apart
    c.size = 1 + next_id() % 1000;
  }
  ++turn.awaits[*queue];
  turn.add(c, true);
}

/// Waits where there is certainly something.
void Planner::plan_get(Turn& turn) {
  const auto queue = any_queue(turn);
  if (!queue || turn.holds.size() >= kMaxHeld) return;
  const auto& items = model_.queues.at(*queue).items;
  for (const Item& item : items)
    for (const Id block : item.blocks)
      if (!may_read(turn.agent, block)) return;
  for (const Item& item : items)
    for (const Id block : item.blocks) touch(turn.agent, block, false);
  Command c = command(Op::get, next_id());
  for (int i = 0; i < 16; ++i) next_id();
  c.queue = *queue;
  const auto gets = std::count_if(turn.batch.begin(), turn.batch.end(), [&](const Planned& p) {
    return p.command.op == Op::get && p.command.queue == *queue;
  });
  const auto certain =
      std::count_if(items.begin(), items.end(), [](const Item& i) { return !i.is_perhaps; });
  c.wait_ms = gets < certain ? kGetWaits : 0;
  turn.add(c, gets < certain);
}

void Planner::plan_leave(Turn& turn) {
  const auto queue = any_queue(turn);
  if (!queue) return;
  const bool used = std::any_of(turn.batch.begin(), turn.batch.end(),
                                [&](const Planned& p) { return p.command.queue == *queue; });
  if (used) return;
  Command c = command(Op::leave);
  c.queue = *queue;
  turn.add(c, true);
  queues_in_use_[*queue] = 0;  // without a holder, from here on
}

std::optional<Id> Planner::any_ref(const Turn& turn, bool with_handles) {
  if (turn.holds.empty()) return {};
  const auto& [ref, holding] = random_.pick(turn.holds);
  if (holding.is_handle && !with_handles) return {};
  return ref;
}

/// One that this agent has open, and no other uses in this round.
std::optional<Id> Planner::any_queue(const Turn& turn) {
  std::vector<Id> choices;
  for (const auto& [id, queue] : model_.queues) {
    const auto at = queues_in_use_.find(id);
    if (queue.users.contains(turn.agent) && (at == queues_in_use_.end() || at->second == turn.agent))
      choices.push_back(id);
  }
  if (choices.empty()) return {};
  const Id chosen = random_.pick(choices);
  queues_in_use_[chosen] = turn.agent;
  return chosen;
}

bool Planner::may_read(Id agent, Id block) const {
  const auto at = touched_.find(block);
  return at == touched_.end() || !at->second.is_exclusive || at->second.agent == agent;
}

bool Planner::may_change(Id agent, Id block) const {
  const auto at = touched_.find(block);
  return at == touched_.end() || (!at->second.is_shared && at->second.agent == agent);
}

void Planner::touch(Id agent, Id block, bool exclusively) {
  const auto [at, is_new] = touched_.try_emplace(block, Touch{agent, false, exclusively});
  at->second.is_exclusive = at->second.is_exclusive || exclusively;
  at->second.is_shared = at->second.is_shared || at->second.agent != agent;
}

}  // namespace onecopy::soak
