// SPDX-License-Identifier: Apache-2.0
#include "soak/model.h"

#include <algorithm>

namespace onecopy::soak {

bool Model::is_firm(Id agent) const {
  const auto at = agents.find(agent);
  return at != agents.end() && !at->second.is_dying;
}

bool Model::holds(Id agent, Id block) const {
  const auto at = agents.find(agent);
  return at != agents.end() && std::any_of(at->second.holds.begin(), at->second.holds.end(),
                                           [&](const auto& each) { return each.second.block == block; });
}

bool Model::is_held(Id block) const {
  return std::any_of(agents.begin(), agents.end(),
                     [&](const auto& each) { return is_firm(each.first) && holds(each.first, block); });
}

bool Model::is_used(Id block) const {
  const auto has = [&](const auto& queue) {
    return std::any_of(queue.second.items.begin(), queue.second.items.end(), [&](const Item& item) {
      return std::find(item.blocks.begin(), item.blocks.end(), block) != item.blocks.end();
    });
  };
  return std::any_of(agents.begin(), agents.end(),
                     [&](const auto& each) { return holds(each.first, block); }) ||
         std::any_of(queues.begin(), queues.end(), has) ||
         std::any_of(objects.begin(), objects.end(),
                     [&](const auto& object) { return object.second.current.contains(block); });
}

std::string Model::story_of(Id agent) const {
  const auto at = ended.find(agent);
  if (at != ended.end()) return "agent " + std::to_string(agent) + " (which " + at->second + ")";
  return "agent " + std::to_string(agent) + (is_firm(agent) ? " (alive)" : " (dying)");
}

bool Model::must_open(Id agent, Id block, Id maker) const {
  const Id owner = blocks.at(block).owner;
  if (is_firm(owner)) return is_held(block);
  return holds(agent, block) || (maker != owner && is_firm(maker) && holds(maker, block));
}

bool Model::must_connect(Id queue, Id maker) const {
  const auto at = queues.find(queue);
  if (at == queues.end()) return false;
  const auto has_it = [&](Id agent) { return is_firm(agent) && at->second.users.contains(agent); };
  return has_it(maker) || has_it(at->second.creator);
}

bool Model::serves(Id agent, const QueueModel& queue, const Item& item, Id owner) const {
  if (is_firm(item.putter) || is_firm(owner)) return true;
  const bool creator_is_there = is_firm(queue.creator) && queue.users.contains(queue.creator);
  return agent == owner || agent == item.putter || (item.is_kept && creator_is_there);
}

bool Model::must_deliver(Id agent, const QueueModel& queue, const Item& item) const {
  const bool blocks_are_served = std::all_of(item.blocks.begin(), item.blocks.end(), [&](Id block) {
    const Id owner = blocks.at(block).owner;
    return serves(agent, queue, item, owner) || (owner != 0 && holds(agent, block));
  });
  return blocks_are_served && (!item.is_elsewhere() || serves(agent, queue, item, item.putter));
}

bool Model::is_held_elsewhere(const Item& item) const {
  return std::all_of(item.blocks.begin(), item.blocks.end(), [&](Id block) { return is_held(block); });
}

std::set<Id> Model::owners_of(const Item& item) const {
  std::set<Id> owners = item.lenders;
  for (const Id block : item.blocks)
    if (const auto at = blocks.find(block); at != blocks.end()) owners.insert(at->second.owner);
  return owners;
}

std::set<Id> Model::owners_that_wait_for(Id putter) const {
  std::set<Id> owners;
  for (const auto& [name, queue] : queues)
    for (const Item& item : queue.items)
      if (item.putter == putter) owners.merge(owners_of(item));
  for (const Passed& passed : passed_)
    if (passed.putter == putter && round_began_ - passed.since <= kPutterLooksWithin)
      owners.insert(passed.owners.begin(), passed.owners.end());
  return owners;
}

void Model::pass_first(QueueModel& queue) {
  while (!passed_.empty() && round_began_ - passed_.front().since > kPutterLooksWithin) passed_.pop_front();
  const Item& item = queue.items.front();
  passed_.push_back({std::chrono::steady_clock::now(), item.putter, owners_of(item)});
  queue.items.pop_front();
}

void Model::fork(Id parent, Id child) {
  AgentModel copy = agents.at(parent);
  copy.forks += 1;
  copy.is_dying = false;
  agents[child] = std::move(copy);
  for (auto& [id, queue] : queues)
    if (const auto at = queue.users.find(parent); at != queue.users.end()) queue.users[child] = {};
}

void Model::end(Id agent, const std::string& how) {
  agents.erase(agent);
  ended[agent] = how;
  for (auto& [id, queue] : queues) queue.users.erase(agent);
  std::erase_if(queues, [](const auto& queue) { return queue.second.users.empty(); });
}

void Model::lose_store() {
  for (auto& [id, object] : objects) object.may_be_absent = object.may_be_older = true;
}

std::size_t Model::held_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [id, block] : blocks)
    if (is_used(id)) bytes += block.size;
  return bytes;
}

void Model::forget_old_blocks(std::size_t keep) {
  std::vector<Id> unused;
  for (const auto& [id, block] : blocks)
    if (!is_used(id)) unused.push_back(id);
  if (unused.size() <= keep) return;
  unused.resize(unused.size() - keep);
  for (const Id id : unused) blocks.erase(id);
}

}  // namespace onecopy::soak
