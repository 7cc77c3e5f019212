// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "onecopy/core/bytes.h"
#include "soak/commands.h"

namespace onecopy::soak {

using Id = std::uint64_t;

/// Of bytes: nothing is kept by them.
struct TextHandle {
  Id maker = 0;
  Bytes bytes;
};

struct Block {
  Id owner = 0;  ///< 0: the store
  std::uint64_t size = 0;
  std::uint64_t version = 0;
  std::vector<TextHandle> handles;
};

struct Item {
  Id putter = 0;
  std::uint32_t tag = 0;
  std::uint64_t data_bytes = 0;
  std::vector<Id> blocks;
  std::set<Id> lenders;     ///< agents whose blocks the tensors of versions may be
  bool is_kept = false;     ///< the queue's creator has all that it needs
  bool is_perhaps = false;  ///< its putter or a getter was killed in the middle: it may not be there
  bool is_elsewhere() const { return tag != 0 && 12 + 28 * blocks.size() + data_bytes > 240; }
};

struct QueueModel {
  Id creator = 0;
  std::map<Id, Bytes> users;  ///< each with its own handle
  std::deque<Item> items;
};

/// A name in the store.
struct ObjectModel {
  std::set<Id> current;  ///< blocks of which one is the current version, if there is a version
  std::set<Id> ever;     ///< blocks of all versions, which have the number 0 of the owner
  bool may_be_absent =
      true;  ///< each publish so far was killed in the middle, or the keeper has lost its memory
  bool may_be_older = false;  ///< since the keeper has lost its memory: what readers have given back
  std::uint64_t last_number = 0;
};

struct Holding {
  Id block = 0;
  bool is_handle = false;   ///< a Handle object, which holds and cannot be read
  bool is_version = false;  ///< a tensor of a version, opened by name or received
  std::set<Id> lenders{};   ///< of such a tensor
};

struct AgentModel {
  int forks = 0;          ///< from the program that was started
  bool is_dying = false;  ///< in this round, at no known point
  std::map<Id, Holding> holds;
};

/// The expected state: the holders of each block, the items of each queue, and the processes that could serve a
/// block.
///
/// Thread safety: used by one thread. Invariants: a dead agent is not in `agents`, in no queue's users and in no
/// block's holders.
class Model {
 public:
  std::map<Id, AgentModel> agents;
  std::map<Id, Block> blocks;
  std::map<Id, QueueModel> queues;
  std::map<Id, ObjectModel> objects;
  std::map<Id, std::string> ended;  ///< how each agent has ended

  /// For people: whether it lives, or how it ended.
  std::string story_of(Id agent) const;
  /// It lives until the end of this round.
  bool is_firm(Id agent) const;
  bool holds(Id agent, Id block) const;
  /// A process that outlives this round has it.
  bool is_held(Id block) const;
  bool is_used(Id block) const;

  // The library's promise. While the owner lives it serves a block that any process holds. Afterwards a process that
  // holds it opens it itself, and serves the openers of handles that it made.
  bool must_open(Id agent, Id block, Id maker) const;
  /// A living process that has the queue open serves it if it made the handle, or the queue.
  bool must_connect(Id queue, Id maker) const;
  /// An item is delivered while its putter lives; or the owner of each of its blocks; or the queue's creator, which
  /// keeps items put while it lived. An item too long for its slot is a block of the putter.
  bool must_deliver(Id agent, const QueueModel& queue, const Item& item) const;
  /// Returns whether a live process that the getter cannot know holds all blocks of the item.
  bool is_held_elsewhere(const Item& item) const;

  void begin_round() { round_began_ = std::chrono::steady_clock::now(); }
  /// Owners of blocks that the dead putter's page may still count as under way: of its items in queues, and of items
  /// taken too short a time before this round for it to have looked, since it may have been stopped when the round began.
  /// The owner waits ten minutes for a queue that it does not have open.
  std::set<Id> owners_that_wait_for(Id putter) const;

  // The outcome.
  /// The first item is out of the queue.
  void pass_first(QueueModel& queue);
  void fork(Id parent, Id child);
  void end(Id agent, const std::string& how);
  /// Both halves of the keeper died: whoever has a tensor of a version keeps it, and each object may be lost.
  void lose_store();
  std::size_t held_bytes() const;
  /// Of blocks without a holder, a few stay: their handles must not open anything else.
  void forget_old_blocks(std::size_t keep);

 private:
  /// A putter looks every 160 ms at the latest, if its background thread gets a processor.
  static constexpr std::chrono::seconds kPutterLooksWithin{1};
  struct Passed {
    std::chrono::steady_clock::time_point since;
    Id putter;
    std::set<Id> owners;  ///< of the item's blocks, which may be forgotten before the putter dies
  };

  bool serves(Id agent, const QueueModel& queue, const Item& item, Id owner) const;
  std::set<Id> owners_of(const Item& item) const;

  std::chrono::steady_clock::time_point round_began_;
  std::deque<Passed> passed_;
};

}  // namespace onecopy::soak
