// SPDX-License-Identifier: Apache-2.0
#include "explorer/explorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>

#include "core/point.h"
#include "explorer/fiber.h"

namespace onecopy::explorer {
namespace {

constexpr std::size_t kMaxThreads = 8;
using Threads = std::uint32_t;  ///< a set of threads, one bit each
using Clock = std::array<std::uint32_t, kMaxThreads>;

constexpr Threads only(std::size_t thread) { return Threads{1} << thread; }

void join(Clock& into, const Clock& other) {
  for (std::size_t t = 0; t < kMaxThreads; ++t) into[t] = std::max(into[t], other[t]);
}

struct Operation {
  Kind kind = Kind::read;
  ObjectId object = kNoObject;
  ObjectId process = kNoObject;  ///< read by every operation of its threads, written by a kill
  const std::function<bool()>* possible = nullptr;
};

bool touches(const Operation& a, const Operation& b) {
  return (a.object == b.object && (a.kind != Kind::read || b.kind != Kind::read)) ||
         (a.object == b.process && a.kind != Kind::read);
}
bool dependent(const Operation& a, const Operation& b) { return touches(a, b) || touches(b, a); }

/// A point of choice on the current path.
struct Node {
  Threads enabled = 0;
  Threads backtrack = 0;  ///< to be tried
  Threads done = 0;       ///< tried, everything below included
  Threads sleep = 0;      ///< tried elsewhere, and nothing since depends on them
  std::size_t choice = 0;
  std::array<Operation, kMaxThreads> pending{};
};

struct Event {
  std::size_t thread;
  Operation operation;
  Clock clock;  ///< by thread: one past the depth of its last event that happened before or is this one
};

struct Thread {
  std::string name;
  ObjectId process = kNoObject;
  std::function<void()> body;
  Operation pending;
  Clock clock{};
  bool killed = false;
};

struct Order {  ///< of the accesses to one object
  Clock written{};
  Clock read{};
};

struct Passed {
  std::size_t thread;
  const char* point;  ///< null: an operation
  Operation operation;
};

class Search {
 public:
  Search(const MakeScenario& make, Limits limits) : make_(make), limits_(limits) {
    if (running) throw std::logic_error("one exploration at a time");
    running = this;
    point_hook = [](const char* name) noexcept { running->pass(name); };
  }
  ~Search() {
    point_hook = nullptr;
    running = nullptr;
  }

  Result run() {
    do {
      run_one();
      if (!result_.violation.empty()) return result_;
      if (result_.executions + result_.redundant >= limits_.executions) return result_;
    } while (advance());
    result_.complete = true;
    return result_;
  }

  ObjectId new_object() {
    orders_.emplace_back();
    return static_cast<ObjectId>(orders_.size() - 1);
  }
  void add(const char* name, ObjectId process, std::function<void()> body) {
    if (threads_.size() == kMaxThreads) throw std::logic_error("too many virtual threads");
    threads_.push_back({name, process, std::move(body), {}, {}, false});
  }
  void step(Kind kind, ObjectId object, const std::function<bool()>* possible) {
    if (!current_) return;
    threads_[*current_].pending = {kind, object, threads_[*current_].process, possible};
    fibers_[*current_].yield();
  }
  void unlocked(ObjectId object) {
    if (current_) join(orders_[object].written, threads_[*current_].clock);
  }
  /// The running thread has seen everything that has happened to the object.
  void learn(ObjectId object) {
    if (!current_) return;
    Clock& clock = threads_[*current_].clock;
    join(clock, orders_[object].written);
    join(clock, orders_[object].read);
    events_.back().clock = clock;
  }
  void kill(ObjectId process) {
    for (Thread& t : threads_)
      if (t.process == process) t.killed = true;
  }
  bool is_gone(ObjectId process) const {
    for (std::size_t t = 0; t < threads_.size(); ++t)
      if (threads_[t].process == process && !threads_[t].killed && !fibers_[t].finished()) return false;
    return true;
  }
  void fail(const char* what) {
    if (result_.violation.empty()) result_.violation = what;
    if (current_) fibers_[*current_].yield();
  }

  static Search* running;

 private:
  void pass(const char* point) {
    if (current_) passed_.push_back({*current_, point, {}});
  }

  void run_one() {
    threads_.clear();
    events_.clear();
    passed_.clear();
    orders_.assign(1, Order{});  // the first is kNoObject
    const std::unique_ptr<Scenario> scenario = make_();
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      fibers_[t].start(std::move(threads_[t].body));
      resume(t);
    }
    bool redundant = false;
    while (result_.violation.empty()) {
      const Threads enabled = enabled_now();
      if (enabled == 0) break;
      const std::optional<std::size_t> choice = choose(enabled);
      if (!choice) {
        redundant = true;
        break;
      }
      execute(*choice);
    }
    ++(redundant ? result_.redundant : result_.executions);
    result_.longest = std::max<std::uint64_t>(result_.longest, events_.size());
    if (!redundant) finish(*scenario);
    if (!result_.violation.empty()) describe();
  }

  void finish(Scenario& scenario) {
    for (std::size_t t = 0; t < threads_.size(); ++t)
      if (result_.violation.empty() && !threads_[t].killed && !fibers_[t].finished())
        result_.violation = threads_[t].name + " waits for ever";
    if (result_.violation.empty()) scenario.finish();
  }

  Threads enabled_now() const {
    Threads enabled = 0;
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      const Thread& thread = threads_[t];
      if (thread.killed || fibers_[t].finished()) continue;
      if (!thread.pending.possible || (*thread.pending.possible)()) enabled |= only(t);
    }
    return enabled;
  }

  std::optional<std::size_t> choose(Threads enabled) {
    const std::size_t depth = events_.size();
    if (depth < path_.size()) return path_[depth].choice;
    Node node;
    node.enabled = enabled;
    for (std::size_t t = 0; t < threads_.size(); ++t) node.pending[t] = threads_[t].pending;
    if (limits_.reduce && depth > 0) node.sleep = still_asleep(path_[depth - 1]);
    const Threads awake = enabled & ~node.sleep;
    if (awake == 0) return {};
    node.choice = first(awake);
    node.backtrack = limits_.reduce ? only(node.choice) : enabled;
    path_.push_back(node);
    return node.choice;
  }

  static Threads still_asleep(const Node& before) {
    Threads asleep = 0;
    for (std::size_t t = 0; t < kMaxThreads; ++t)
      if (((before.sleep | before.done) & ~only(before.choice) & only(t)) != 0 &&
          !dependent(before.pending[t], before.pending[before.choice]))
        asleep |= only(t);
    return asleep;
  }

  static std::size_t first(Threads set) { return static_cast<std::size_t>(__builtin_ctz(set)); }

  void execute(std::size_t chosen) {
    Thread& thread = threads_[chosen];
    const Operation op = thread.pending;
    const std::size_t depth = events_.size();
    if (limits_.reduce && depth >= new_from_ && op.kind != Kind::wait) find_races(chosen, op);
    Clock& clock = thread.clock;
    clock[chosen] = static_cast<std::uint32_t>(depth + 1);
    join(clock, orders_[op.object].written);
    join(clock, orders_[op.process].written);
    if (op.kind != Kind::read) join(clock, orders_[op.object].read);
    join(op.kind == Kind::read ? orders_[op.object].read : orders_[op.object].written, clock);
    join(orders_[op.process].read, clock);
    events_.push_back({chosen, op, clock});
    passed_.push_back({chosen, nullptr, op});
    ++result_.steps;
    resume(chosen);
  }

  void resume(std::size_t t) {
    current_ = t;
    fibers_[t].resume();
    current_.reset();
  }

  static bool before(const Event& event, std::size_t depth, const Clock& clock) {
    return clock[event.thread] > depth;
  }

  /// For every earlier event that `op` could also come before, makes sure that this will be tried.
  void find_races(std::size_t thread, const Operation& op) {
    Clock seen = threads_[thread].clock;
    for (std::size_t depth = events_.size(); depth-- > 0;) {
      const Event& event = events_[depth];
      if (before(event, depth, seen) || !dependent(event.operation, op)) continue;
      reverse(depth, thread, seen);
      join(seen, event.clock);
    }
  }

  /// Threads that may take the step at `depth` first so that `thread` comes to its operation before that event.
  void reverse(std::size_t depth, std::size_t thread, const Clock& clock) {
    Node& node = path_[depth];
    const std::size_t rival = events_[depth].thread;
    Threads initials = 0;
    Threads met = 0;
    std::vector<std::size_t> between;
    const auto meet = [&](std::size_t t, const Clock& c) {
      if ((met & only(t)) == 0 && std::none_of(between.begin(), between.end(),
                                               [&](std::size_t d) { return before(events_[d], d, c); }))
        initials |= only(t);
      met |= only(t);
    };
    for (std::size_t d = depth + 1; d < events_.size(); ++d) {
      if (events_[d].clock[rival] > depth) continue;
      meet(events_[d].thread, events_[d].clock);
      between.push_back(d);
    }
    meet(thread, clock);
    if ((node.backtrack & initials) != 0) return;
    if (const Threads possible = initials & node.enabled; possible != 0)
      node.backtrack |= (possible & only(thread)) != 0 ? only(thread) : only(first(possible));
    else node.backtrack |= node.enabled;
  }

  /// Goes to the next path. False: there is none.
  bool advance() {
    while (!path_.empty()) {
      Node& node = path_.back();
      node.done |= only(node.choice);
      if (const Threads left = node.backtrack & ~node.done & ~node.sleep; left != 0) {
        node.choice = first(left);
        new_from_ = path_.size() - 1;
        return true;
      }
      path_.pop_back();
    }
    return false;
  }

  void describe() {
    static constexpr const char* kVerbs[] = {"reads", "writes", "waits for"};
    for (const Passed& p : passed_) {
      const std::string what =
          p.point
              ? std::string(p.point)
              : fmt::format("{} object {}", kVerbs[static_cast<int>(p.operation.kind)], p.operation.object);
      result_.trace.push_back(threads_[p.thread].name + ": " + what);
    }
  }

  const MakeScenario& make_;
  const Limits limits_;
  Result result_;
  std::vector<Node> path_;
  std::size_t new_from_ = 0;  ///< depth from which the current path is new
  std::array<Fiber, kMaxThreads> fibers_;
  std::vector<Thread> threads_;
  std::vector<Event> events_;
  std::vector<Order> orders_;
  std::vector<Passed> passed_;
  std::optional<std::size_t> current_;
};

Search* Search::running = nullptr;

Search& search() {
  if (!Search::running) throw std::logic_error("objects of the explorer live in a scenario only");
  return *Search::running;
}

}  // namespace

ObjectId new_object() noexcept { return search().new_object(); }
void step(Kind kind, ObjectId object, const std::function<bool()>* possible) {
  search().step(kind, object, possible);
}
void fail(const char* what) { search().fail(what); }

void Lock::lock() {
  step(Kind::write, id_, &free_);
  held_ = true;
}
void Lock::unlock() {
  held_ = false;
  search().unlocked(id_);
}

void Process::kill() {
  step(Kind::write, id_);
  search().kill(id_);
}
bool Process::is_gone() const { return search().is_gone(id_); }
void Process::wait_until_gone() {
  const std::function<bool()> gone = [this] { return is_gone(); };
  step(Kind::wait, id_, &gone);
}

void Mailbox::send() {
  step(Kind::write, id_);
  ++sent_;
}
bool Mailbox::receive() {
  step(Kind::wait, id_, &ready_);
  if (sent_ != 0) return --sent_, true;
  search().learn(sender_.id());
  return false;
}

void thread(const char* name, const Process& process, std::function<void()> body) {
  search().add(name, process.id(), std::move(body));
}

Result explore(const MakeScenario& make, Limits limits) { return Search(make, limits).run(); }

std::string Result::text() const {
  std::string text = fmt::format("{} executions, {} redundant, {} steps, longest {}{}", executions,
                                 redundant, steps, longest, complete ? ", complete" : "");
  if (!violation.empty()) text += "\nviolation: " + violation;
  for (const std::string& line : trace) text += "\n  " + line;
  return text;
}

}  // namespace onecopy::explorer
