// SPDX-License-Identifier: Apache-2.0
#include "soak/agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "device/backend.h"
#include "onecopy/core/error.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/stats.h"
#include "os/log.h"
#include "share/runtime/runtime.h"
#include "soak/pattern.h"
#include "support/proc_entries.h"

namespace onecopy::soak {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAnyTime{-1};
constexpr milliseconds kAnswerTakes{60'000};

std::string object_name(std::uint64_t object) { return fmt::format("object {}", object); }

Layout row(std::uint64_t bytes) { return {DType::u8, {static_cast<std::int64_t>(bytes)}}; }

/// The bytes so many times: a number that goes with a tensor through a queue.
Tensor repeated(const Tensor& tensor, std::uint64_t times) {
  const std::int64_t bytes = tensor.shape()[0];
  return tensor.with_layout({DType::u8, {static_cast<std::int64_t>(times), bytes}, {0, 1}});
}

/// The card's copy of the block's pages. A forked child cannot use the card, nor can a process at its limit of pins.
Seen read_by_card(const Tensor& tensor, std::uint64_t& times) {
  constexpr Device kCard{DeviceType::cuda, 0};
  try {
    pin(tensor, kCard);
    const std::span<std::byte> bytes = storage(tensor);
    const Tensor there = empty(row(bytes.size()), kCard);
    copy_bytes_and_wait({there.data(), kCard, bytes.data(), kCpu, bytes.size()});
    const Tensor back = empty(row(bytes.size()));
    copy_bytes_and_wait({back.data(), kCpu, there.data(), kCard, bytes.size()});
    ++times;
    return read(back);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::out_of_memory) throw;
    return read(tensor);
  }
}

std::vector<Crash> reap_children() {
  std::vector<Crash> crashes;
  int status = 0;
  for (int pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
    if (WIFSIGNALED(status)) crashes.push_back({pid, WTERMSIG(status)});
  return crashes;
}

/// How many descriptors lead to each kind of file: links without the numbers in them.
std::map<std::string, std::uint64_t> descriptors_by_kind() {
  std::map<std::string, std::uint64_t> kinds;
  std::error_code ignored;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::string kind = std::filesystem::read_symlink(fd.path(), ignored).string();
    std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
    ++kinds[kind];
  }
  return kinds;
}

bool is_drivers(const std::string& kind) { return kind.rfind("/dev/nvidia", 0) == 0; }

std::uint64_t count_descriptors() {
  std::uint64_t count = 0;
  for (const auto& [kind, descriptors] : descriptors_by_kind()) count += is_drivers(kind) ? 0 : descriptors;
  return count;
}

std::string list_descriptors() {
  std::string text;
  for (const auto& [kind, descriptors] : descriptors_by_kind())
    text += fmt::format("; {} x {}", descriptors, kind);
  return text;
}

std::uint64_t count_threads() {
  std::uint64_t threads = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    (void)task;
    ++threads;
  }
  return threads;
}

std::uint64_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::uint64_t mappings = 0;
  for (std::string line; std::getline(maps, line);)
    mappings += line.find("onecopy-") != std::string::npos ? 1 : 0;
  return mappings;
}

/// The blocks of others of which this process still has leases, with the state in their owners' tables.
std::string leases_of_others() {
  std::string text;
  for (const auto& peer : Runtime::current().peers().list()) {
    if (peer->is_closed() || peer->blocks().leases().count() == 0) continue;
    text +=
        fmt::format("; of {}{}{}:", peer->process().name().substr(0, 8), peer->is_gone() ? " (gone)" : "",
                    peer->broker().is_over() ? " (disconnected)" : "");
    for (const LeaseInfo& lease : peer->blocks().leases().list())
      text += fmt::format(" block {} x {} state {} of {} bytes in segment {}", lease.block, lease.count,
                          static_cast<int>(lease.state), lease.size, lease.segment);
  }
  return text;
}

/// Which processes play a part in some queue, as the kernel lists their locks.
std::string players() {
  std::string text;
  for (const auto& process : testing::proc_entries("/proc"))
    for (const auto& fd : testing::proc_entries(process / "fdinfo")) {
      std::ifstream info(fd);
      std::string inode;
      for (std::string line; std::getline(info, line);)
        if (line.rfind("ino:", 0) == 0) inode = line.substr(5);
        else if (line.find("OFDLCK") != std::string::npos)
          text += fmt::format("; pid {} plays in file {}", process.filename().string(), inode);
    }
  return text;
}

std::string who_has_what() {
  const OwnerInfo self = this_owner();
  std::string text = leases_of_others() + list_descriptors();
  if (!self.in_transit.empty()) text += players();
  for (const BorrowerInfo& b : self.borrowers)
    text += fmt::format("; pid {} has {} blocks", b.pid, b.claims);
  for (const TransitInfo& t : self.in_transit)
    text += fmt::format("; {} blocks in {} for {:.1f} s", t.blocks, t.where, t.age_seconds);
  return text;
}

/// Returns the counters in the order of Left.
std::vector<std::uint64_t> what_is_left() {
  const Stats s = stats();
  return {s.owners,         s.leases,       s.limbo,     s.deposits,
          s.in_transit,     s.live_blocks,  s.borrowers, count_descriptors(),
          count_mappings(), count_threads()};
}

std::vector<std::uint64_t> settle(milliseconds patience, std::uint64_t others) {
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;; std::this_thread::sleep_for(milliseconds(5))) {
    collect();
    const Stats s = stats();
    const bool is_alone = s.leases + s.limbo + s.deposits + s.in_transit + s.live_blocks == 0;
    if (is_alone && s.borrowers <= kWaysToKnow * others && s.owners <= others) break;
    if (std::chrono::steady_clock::now() > end) break;
  }
  return what_is_left();
}

}  // namespace

void Agent::serve() {
  say_hello();
  try {
    while (!has_ended_) run_batch(director_.receive(kAnyTime));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_died)
      std::fprintf(stderr, "agent %d: %s\n", ::getpid(), error.what());
    ::_exit(error.code() == ErrorCode::peer_died ? 0 : 3);
  }
}

void Agent::run_batch(Packet packet) {
  const std::vector<Command> batch = decode_batch(packet.bytes);
  Answer answer;
  is_child_ = false;
  for (const Command& command : batch) {
    answer.results.push_back(try_run(command, packet.fds));
    if (is_child_) return say_hello();
  }
  answer.crashes = reap_children();
  director_.send(encode(answer), {}, kAnswerTakes);
  if (!batch.empty()) end_as(batch.back());
}

Result Agent::try_run(const Command& command, std::vector<Fd>& fds) {
  const auto begin = std::chrono::steady_clock::now();
  Result result;
  try {
    result = run(command, fds);
  } catch (const Error& error) {
    result.kind = Result::Kind::refused;
    result.code = error.code();
    result.text = error.what();
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  result.micros =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(took).count());
  return result;
}

Result Agent::run(const Command& c, std::vector<Fd>& fds) {
  Result result;
  switch (c.op) {
    case Op::allocate: {
      set_strategy(c.named ? Strategy::file_system : Strategy::file_descriptor);
      const Tensor made = empty(row(c.size));
      fill(made, c.block, 0);
      tensors_[c.ref] = made;
      break;
    }
    case Op::share: result.bytes = onecopy::share(tensors_.at(c.ref)).to_bytes(); break;
    case Op::keep: handles_[c.other] = onecopy::share(tensors_.at(c.ref)); break;
    case Op::open: {
      // By way of the text, as a user would: both forms are decoded.
      const Handle handle = Handle::from_text(Handle::from_bytes(c.bytes).to_text());
      tensors_[c.ref] = onecopy::open(handle);
      result.seen.push_back(read(tensors_[c.ref]));
      break;
    }
    case Op::check: result.seen.push_back(read(tensors_.at(c.ref))); break;
    case Op::check_by_card:
      result.seen.push_back(read_by_card(tensors_.at(c.ref), result.data_bytes));
      break;
    case Op::unpin: unpin(tensors_.at(c.ref)); break;
    case Op::trim: onecopy::trim(); break;
    case Op::publish: {
      const std::vector<store::TensorSpec> tensors{{"w", row(c.size)}};
      store::Draft draft = store_at_hand().draft(object_name(c.other), tensors, kCpu, {.keep = 1});
      fill(draft.tensor(0), c.block, 0);
      result.numbers.push_back(draft.publish());
      break;
    }
    case Op::open_version:
      tensors_[c.ref] = store_at_hand().open(object_name(c.other)).tensor(0);
      result.seen.push_back(read(tensors_[c.ref]));
      break;
    case Op::write: fill(tensors_.at(c.ref), c.block, c.version); break;
    case Op::drop:
      if (tensors_.erase(c.ref) == 0) handles_.erase(c.ref);
      break;
    case Op::create_queue:
      queues_.insert_or_assign(c.queue, Queue::create());
      result.bytes = queues_.at(c.queue).handle().to_bytes();
      break;
    case Op::connect:
      queues_.insert_or_assign(c.queue, Queue::connect(Handle::from_bytes(c.bytes)));
      result.bytes = queues_.at(c.queue).handle().to_bytes();
      break;
    case Op::put: put(c, result); break;
    case Op::get: get(c, result); break;
    case Op::leave: queues_.erase(c.queue); break;
    case Op::fork: is_child_ = fork_with(fds); break;
    case Op::settle:
      store_.reset();
      result.numbers = settle(milliseconds(c.wait_ms), c.size);
      result.text = who_has_what();
      break;
    case Op::exec:
    case Op::exit:
    case Op::exit_at_once:
    case Op::linger: break;  // once it has answered
  }
  return result;
}

store::Store& Agent::store_at_hand() {
  if (!store_) store_.emplace(store::Store::connect({.autostart = false}));
  return *store_;
}

void Agent::put(const Command& c, Result& result) {
  Queue& queue = queues_.at(c.queue);
  bool is_put = false;
  if (c.tag == 0) {
    is_put = queue.try_put(repeated(tensors_.at(c.refs.front()), c.size), milliseconds(c.wait_ms));
  } else {
    Message message{c.tag, Bytes(c.size), {}};
    for (const std::uint64_t ref : c.refs) message.tensors.push_back(tensors_.at(ref));
    is_put = queue.try_put(message, milliseconds(c.wait_ms));
  }
  if (!is_put) result.kind = Result::Kind::nothing;
  result.unkept = stats().unkept;
}

void Agent::get(const Command& c, Result& result) {
  auto message = queues_.at(c.queue).try_get(milliseconds(c.wait_ms));
  if (!message) {
    result.kind = Result::Kind::nothing;
    return;
  }
  result.tag = message->tag;
  const auto& tensors = message->tensors;
  const bool is_plain = message->tag == 0 && tensors.size() == 1;
  result.data_bytes = is_plain ? static_cast<std::uint64_t>(tensors[0].shape()[0]) : message->data.size();
  std::uint64_t ref = c.ref;
  for (const Tensor& tensor : tensors) {
    result.seen.push_back(read(tensor));
    tensors_[ref++] = tensor.with_layout(row(bytes_of(tensor).size()));
  }
}

/// Returns true in the child. Its socket to the director is the one that came with the command.
bool Agent::fork_with(std::vector<Fd>& fds) {
  UnixSocket socket(std::move(fds.at(0)));
  std::fflush(nullptr);
  const int pid = ::fork();
  if (pid < 0) throw_errno("fork", errno);
  if (pid == 0) director_ = std::move(socket);
  return pid == 0;
}

void Agent::say_hello() {
  const Hello hello{::getpid()};
  director_.send(std::as_bytes(std::span(&hello, 1)), {}, kAnswerTakes);
}

void Agent::end_as(const Command& last) {
  const Op op = last.op;
  if (op == Op::exit_at_once) ::_exit(0);
  if (op == Op::linger) {
    set_log_sink([](LogLevel, std::string_view) {
    });  // the library reports the descriptors that it misses from now on
    ::syscall(SYS_close_range, 3U, ~0U, 0U);
    std::this_thread::sleep_for(milliseconds(last.wait_ms));
    ::_exit(0);
  }
  if (op == Op::exit) has_ended_ = true;
  if (op != Op::exec) return;
  const int fd = director_.fd();
  ::fcntl(fd, F_SETFD, 0);
  std::string program = "/proc/self/exe", argument = "--agent=" + std::to_string(fd);
  char* const argv[] = {program.data(), argument.data(), nullptr};
  ::execv(program.c_str(), argv);
  std::perror("execv of the soak");
  ::_exit(3);
}

}  // namespace onecopy::soak
