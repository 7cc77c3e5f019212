// SPDX-License-Identifier: Apache-2.0
#include "soak/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace onecopy::soak {
namespace {

constexpr std::size_t kRemembered = 20'000;
constexpr std::size_t kPrintedLast = 25;
constexpr std::size_t kPrintedAbout = 60;
constexpr std::uint64_t kMaxPrinted = 40;

bool means_gone(ErrorCode code) noexcept {
  return code == ErrorCode::stale_handle || code == ErrorCode::owner_died || code == ErrorCode::peer_died;
}

bool mentions(const std::string& line, const std::string& what) {
  for (auto at = line.find(what); at != std::string::npos; at = line.find(what, at + 1)) {
    const std::size_t end = at + what.size();
    if (end == line.size() || line[end] < '0' || line[end] > '9') return true;
  }
  return false;
}

std::string block_name(Id block) { return fmt::format("block {}", block); }

}  // namespace

std::string Counters::str() const {
  return fmt::format(
      "steps {}, processes {}, deaths {}, stops {}, opens {}, puts {}, gets {}, versions {}, received "
      "tensors of versions {}, deaths of the keeper's halves {}, "
      "reads by a card {}, "
      "slowest command {:.1f} s\n"
      "right: refusals {}, lost with all that kept it {} (of these another process had open {})\n"
      "wrong: refusals {}, lost {}, torn {}, left behind {}, crashes {}, hangs {}",
      steps, processes, deaths, stops, opens, puts, gets, versions, sent_versions, keeper_deaths,
      card_reads, static_cast<double>(slowest_micros) / 1e6, right_refusals, right_losses, unasked_losses,
      wrong_refusals, wrong_losses, torn, left_behind, crashes, hangs);
}

void Judge::note(std::string line) {
  history_.push_back(std::move(line));
  if (history_.size() > kRemembered) history_.pop_front();
}

void Judge::fault(std::uint64_t& counter, const std::string& what, const std::vector<std::string>& about) {
  ++counter;
  if (++printed_ > kMaxPrinted) return;
  std::printf("FAULT (seed %llu, step %llu): %s\n", static_cast<unsigned long long>(seed_),
              static_cast<unsigned long long>(counters_.steps), what.c_str());
  std::vector<std::string> lines;
  for (const std::string& line : history_)
    if (std::any_of(about.begin(), about.end(), [&](const auto& a) { return mentions(line, a); }))
      lines.push_back(line);
  const std::size_t skipped = lines.size() - std::min(lines.size(), kPrintedAbout);
  for (std::size_t i = skipped; i < lines.size(); ++i) std::printf("    %s\n", lines[i].c_str());
  std::printf("  the last commands:\n");
  const std::size_t first = history_.size() - std::min(history_.size(), kPrintedLast);
  for (std::size_t i = first; i < history_.size(); ++i) std::printf("    %s\n", history_[i].c_str());
  std::fflush(stdout);
}

void Judge::answered(Id agent, const Planned& planned, const Result& result) {
  const Command& c = planned.command;
  ++counters_.steps;
  if (c.op != Op::settle) counters_.slowest_micros = std::max(counters_.slowest_micros, result.micros);
  note(
      fmt::format("agent {}: {} -> {}{}", agent, c.str(), result.str(), planned.must ? "" : " (may fail)"));
  if (result.kind == Result::Kind::refused && c.op != Op::get) return refused(agent, planned, result);
  auto& holds = model_.agents.at(agent).holds;
  switch (c.op) {
    case Op::allocate:
      holds[c.ref] = {c.block, false};
      model_.blocks[c.block] = {agent, c.size, 0, {}};
      break;
    case Op::share: {
      auto& handles = model_.blocks.at(c.block).handles;
      if (handles.size() >= 6) handles.erase(handles.begin());
      handles.push_back({agent, result.bytes});
      break;
    }
    case Op::keep: holds[c.other] = {c.block, true}; break;
    case Op::open: opened(agent, planned, result); break;
    case Op::check_by_card: counters_.card_reads += result.data_bytes; [[fallthrough]];
    case Op::check: compare(agent, c, result.seen.at(0), c.block); break;
    case Op::write: model_.blocks.at(c.block).version = c.version; break;
    case Op::drop: holds.erase(c.ref); break;
    case Op::create_queue: model_.queues[c.queue] = {agent, {{agent, result.bytes}}, {}}; break;
    case Op::connect: model_.queues.at(c.queue).users[agent] = result.bytes; break;
    case Op::put: put(agent, c, result); break;
    case Op::get: got(agent, planned, result); break;
    case Op::leave: model_.queues.at(c.queue).users.erase(agent); break;
    case Op::publish: published(agent, c, result); break;
    case Op::open_version: opened_version(agent, c, result); break;
    case Op::unpin:
    case Op::trim:
    case Op::fork:
    case Op::exec:
    case Op::exit:
    case Op::exit_at_once:
    case Op::linger:
    case Op::settle: break;
  }
}

void Judge::refused(Id agent, const Planned& planned, const Result& result) {
  const Command& c = planned.command;
  if (!planned.must && means_gone(result.code)) {
    ++counters_.right_refusals;
    return;
  }
  std::string what = fmt::format("agent {}: {} is refused: {}", agent, c.str(), result.str());
  if (c.op == Op::open)
    what += fmt::format("; block of {}, handle of {}, agent {} {} it",
                        model_.story_of(model_.blocks.at(c.block).owner), model_.story_of(c.other), agent,
                        model_.holds(agent, c.block) ? "holds" : "does not hold");
  if (c.op == Op::connect)
    what += fmt::format("; queue of {}, handle of {}", model_.story_of(model_.queues.at(c.queue).creator),
                        model_.story_of(c.other));
  fault(counters_.wrong_refusals, what,
        {block_name(c.block), fmt::format("queue {}", c.queue), fmt::format("agent {}", agent),
         fmt::format("agent {}", c.other)});
}

void Judge::opened(Id agent, const Planned& planned, const Result& result) {
  ++counters_.opens;
  model_.agents.at(agent).holds[planned.command.ref] = {planned.command.block, false};
  compare(agent, planned.command, result.seen.at(0), planned.command.block);
}

void Judge::published(Id agent, const Command& c, const Result& result) {
  ++counters_.versions;
  model_.blocks[c.block] = {0, c.size, 0, {}};
  ObjectModel& object = model_.objects[c.other];
  const std::uint64_t number = result.numbers.at(0);
  if (number <= object.last_number)
    fault(
        counters_.torn,
        fmt::format("agent {}: {} gets the number {} after {}", agent, c.str(), number, object.last_number),
        {fmt::format("other {}", c.other)});
  object.ever.insert(c.block);
  object = {{c.block}, std::move(object.ever), false, false, number};
}

void Judge::opened_version(Id agent, const Command& c, const Result& result) {
  ++counters_.opens;
  const Seen& seen = result.seen.at(0);
  const ObjectModel& object = model_.objects[c.other];
  if (!(object.may_be_older ? object.ever : object.current).contains(seen.block))
    return fault(
        counters_.torn,
        fmt::format("agent {}: {} sees block {}, which is not current", agent, c.str(), seen.block),
        {fmt::format("other {}", c.other), block_name(seen.block)});
  model_.blocks.try_emplace(seen.block);  // an older one may be forgotten
  model_.agents.at(agent).holds[c.ref] = {seen.block, false, true, {agent}};
  compare(agent, c, seen, seen.block);
}

void Judge::compare(Id agent, const Command& command, const Seen& seen, Id block) {
  const std::uint64_t version = model_.blocks.at(block).version;
  if (seen.whole && seen.block == block && seen.version == version) return;
  fault(counters_.torn,
        fmt::format("agent {}: {} sees {}block {} version {} instead of block {} version {}", agent,
                    command.str(), seen.whole ? "" : "torn ", seen.block, seen.version, block, version),
        {block_name(block), block_name(seen.block)});
}

Item Judge::item_of(Id agent, const Command& c) const {
  Item item{agent, c.tag, c.size, {}, {}, false, false};
  for (const std::uint64_t ref : c.refs) {
    const Holding& holding = model_.agents.at(agent).holds.at(ref);
    item.blocks.push_back(holding.block);
    if (!holding.is_version) continue;
    item.lenders.insert(agent);
    item.lenders.insert(holding.lenders.begin(), holding.lenders.end());
  }
  return item;
}

void Judge::put(Id agent, const Command& c, const Result& result) {
  ++counters_.puts;
  if (result.kind == Result::Kind::nothing)
    return fault(counters_.wrong_refusals, fmt::format("agent {}: {} waits for space", agent, c.str()),
                 {fmt::format("queue {}", c.queue)});
  Item item = item_of(agent, c);
  QueueModel& queue = model_.queues.at(c.queue);
  item.is_kept = result.unkept == 0 && model_.is_firm(queue.creator) && queue.users.contains(queue.creator);
  queue.items.push_back(std::move(item));
}

/// The queue's answer must be its first item that is certainly there, or an item before it that is perhaps there.
void Judge::got(Id agent, const Planned& planned, const Result& result) {
  const Command& c = planned.command;
  ++counters_.gets;
  QueueModel& queue = model_.queues.at(c.queue);
  if (result.kind == Result::Kind::refused) return lost(agent, queue, planned, result);
  std::string name = fmt::format("queue {}", c.queue);
  std::vector<Id> blocks;
  for (const Seen& seen : result.seen) blocks.push_back(seen.block);
  const bool is_nothing = result.kind == Result::Kind::nothing;
  while (!queue.items.empty()) {
    const Item item = queue.items.front();
    if (!is_nothing && item.blocks == blocks && item.tag == result.tag &&
        item.data_bytes == result.data_bytes) {
      model_.pass_first(queue);
      std::uint64_t ref = c.ref;
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const bool is_version = model_.blocks.at(item.blocks[i]).owner == 0;
        counters_.sent_versions += is_version ? 1 : 0;
        model_.agents.at(agent).holds[ref++] = {item.blocks[i], false, is_version,
                                                is_version ? item.lenders : std::set<Id>{}};
        compare(agent, c, result.seen[i], item.blocks[i]);
      }
      return;
    }
    if (!item.is_perhaps) break;
    model_.pass_first(queue);
  }
  if (is_nothing && queue.items.empty()) return;
  std::string what = fmt::format("agent {}: {} -> {}", agent, c.str(), result.str());
  if (!queue.items.empty())
    what += fmt::format("; the first that is in the queue was put by agent {}, with tag {} and block {}",
                        queue.items.front().putter, queue.items.front().tag,
                        queue.items.front().blocks.front());
  std::vector<std::string> about{name};
  if (!queue.items.empty()) about.push_back(block_name(queue.items.front().blocks.front()));
  fault(is_nothing ? counters_.wrong_losses : counters_.torn, what, about);
}

void Judge::lost(Id agent, QueueModel& queue, const Planned& planned, const Result& result) {
  const Command& c = planned.command;
  if (result.code == ErrorCode::timeout && c.wait_ms == 0)
    return;  // it had to be asked for, and is still there
  std::vector<Item> candidates;
  for (const Item& item : queue.items) {
    candidates.push_back(item);
    if (!item.is_perhaps) break;
  }
  const bool must = std::all_of(candidates.begin(), candidates.end(),
                                [&](const Item& item) { return model_.must_deliver(agent, queue, item); });
  if (candidates.size() == 1) model_.pass_first(queue);
  else
    for (std::size_t i = 0; i < candidates.size(); ++i) queue.items[i].is_perhaps = true;
  if (!must && means_gone(result.code)) {
    ++counters_.right_losses;
    const auto is_elsewhere = [&](const Item& item) { return model_.is_held_elsewhere(item); };
    if (std::all_of(candidates.begin(), candidates.end(), is_elsewhere)) ++counters_.unasked_losses;
    return;
  }
  std::vector<std::string> about{fmt::format("queue {}", c.queue), fmt::format("agent {}", agent)};
  std::string what = fmt::format("agent {}: {} -> {}", agent, c.str(), result.str());
  for (const Item& item : candidates) {
    what += fmt::format("; put by {}{}{}, queue made by {}", model_.story_of(item.putter),
                        item.is_elsewhere() ? ", long" : "", item.is_kept ? ", kept" : "",
                        model_.story_of(queue.creator));
    for (const Id block : item.blocks) {
      const Id owner = model_.blocks.at(block).owner;
      what += fmt::format(", block {} of {}", block, model_.story_of(owner));
      about.push_back(block_name(block));
      about.push_back(fmt::format("agent {}", owner));
    }
    about.push_back(fmt::format("agent {}", item.putter));
  }
  fault(counters_.wrong_losses, what, about);
}

void Judge::cut(Id agent, const Planned& planned) {
  const Command& c = planned.command;
  note(fmt::format("agent {}: {} -> killed meanwhile", agent, c.str()));
  auto& holds = model_.agents.at(agent).holds;
  if (c.op == Op::allocate) {  // it may have put it
    holds[c.ref] = {c.block, false};
    model_.blocks[c.block] = {agent, c.size, 0, {}};
  }
  if (c.op == Op::publish) {
    model_.blocks[c.block] = {0, c.size, 0, {}};
    model_.objects[c.other].current.insert(c.block);
    model_.objects[c.other].ever.insert(c.block);
  }
  if (c.op == Op::open_version && c.block != 0) holds[c.ref] = {c.block, false, true, {agent}};
  if (!model_.queues.contains(c.queue)) return;
  QueueModel& queue = model_.queues.at(c.queue);
  if (c.op == Op::put) {
    Item item = item_of(agent, c);
    item.is_perhaps = true;
    queue.items.push_back(std::move(item));
  }
  if (c.op != Op::get) return;
  const auto first =
      std::find_if(queue.items.begin(), queue.items.end(), [](const Item& i) { return !i.is_perhaps; });
  if (first != queue.items.end()) first->is_perhaps = true;
}

void Judge::settled(Id agent, const Result& result, std::size_t others, bool is_pinned) {
  const auto of = [&](Left left) { return result.numbers.at(static_cast<std::size_t>(left)); };
  std::string why;
  const auto expect = [&](Left left, std::uint64_t most) {
    if (of(left) > most) why += fmt::format(" {} {} (at most {})", name(left), of(left), most);
  };
  expect(Left::leases, 0), expect(Left::deposits, 0), expect(Left::live_blocks, 0);
  if (!is_pinned) expect(Left::limbo, 0), expect(Left::in_transit, 0);
  expect(Left::owners, others), expect(Left::borrowers, kWaysToKnow * others);
  // A driver has threads, pipes and mappings of its own; pins and late releases have a thread each.
  const std::uint64_t of_card = has_card_ ? 16 : 0;
  expect(Left::descriptors, 24 + 8 * others + of_card), expect(Left::mappings, 24 + 8 * others + of_card),
      expect(Left::threads, 3 + of_card);
  if (why.empty()) return;
  fault(counters_.left_behind,
        fmt::format("agent {} has let go of everything, and has still{}{}", agent, why, result.text),
        {fmt::format("agent {}", agent)});
}

}  // namespace onecopy::soak
