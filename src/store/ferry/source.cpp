// SPDX-License-Identifier: Apache-2.0
#include "store/ferry/source.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <thread>
#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/event_loop.h"
#include "os/log.h"
#include "os/mutex.h"
#include "store/ferry/changes.h"
#include "store/ferry/host_key.h"
#include "store/ferry/offered_version.h"
#include "store/ferry/pace.h"
#include "store/ferry/stream.h"
#include "transport/fabric.h"
#include "transport/tls/tls_listener.h"

namespace onecopy::store::ferry {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxHosts = 64;
constexpr std::chrono::milliseconds kPatience{30'000}, kChunkPatience{500};

/// A connection of another host, which a thread serves until the connection ends.
class HostServed {
 public:
  HostServed(Stream stream, Pace& pace) : stream_(std::move(stream)), pace_(pace) {}

  void run(const std::atomic<bool>& is_over) {
    while (!is_over) {
      const Bytes question = stream_.receive_frame(kPatience, kMaxQuestion);
      FieldReader reader(question, ErrorCode::protocol, "a question of another host");
      std::uint32_t protocol = 0;
      Question kind{};
      reader(protocol, kind);
      if (protocol != kProtocol) return refuse(protocol);
      if (kind == Question::poll) poll(decode<Poll>(question), is_over);
      else if (kind == Question::take) take(decode<Take>(question));
      else if (kind == Question::carry) carry(decode<Carry>(question));
      else reader.refuse("is of no known kind");
    }
  }

 private:
  template <class Message>
  static Message decode(ByteSpan bytes) {
    return read_fields<Message>(bytes, ErrorCode::protocol, "a question of another host");
  }

  void refuse(std::uint32_t protocol) {
    const std::string text = fmt::format(
        "this host pulls by protocol {}, and that one by {}: install one version of onecopy on both",
        protocol, kProtocol);
    stream_.send_message(Told::refused(ErrorCode::version_mismatch, text), kPatience);
  }

  /// Answers once the version is not the one that the other host knows, or the time is over.
  void poll(const Poll& wanted, const std::atomic<bool>& is_over) {
    const Deadline until = Deadline::after(std::chrono::milliseconds(wanted.wait_ms));
    Told told = tell_of(wanted);
    while (!is_news(told) && !until.has_passed() && !is_over) {
      wait_for_change(wanted.name, until);
      told = tell_of(wanted);
    }
    stream_.send_message(told, kPatience);
  }

  static bool is_news(const Told& told) noexcept {
    const auto error = told.error();
    return !told.is_known && error != ErrorCode::stale_handle && error != ErrorCode::peer_died;
  }

  /// Waits until another version is current or begins to arrive, for a second at most, or returns at once if that may have been before.
  void wait_for_change(const std::string& name, Deadline until) {
    try {
      if (changes_ && changes_->name() == name) return changes_->wait(std::min(until, Deadline::after(1s)));
      changes_.emplace(*client_, name);
    } catch (const Error&) {  // there is no keeper now
      changes_.reset();
      std::this_thread::sleep_for(until.left(Changes::kLookAgain));
    }
  }

  Told tell_of(const Poll& wanted) {
    try {
      if (!store_) store_ = Store::connect({.autostart = false});
      OfferedVersion found = OfferedVersion::find(*store_, *client_, wanted.name, wanted.number);
      if (found.origin() == wanted.known) {
        Told told = found.told();
        told.is_known = true;
        told.table.clear();
        return told;
      }
      if (pipe_) pipe_->read_from({});
      offered_ = std::move(found);
      return offered_->told();
    } catch (const Error& error) {
      return Told::refused(error.code(), error.what());
    }
  }

  void take(const Take& wanted) {
    if (!offered_ || wanted.chunk >= offered_->chunks())
      throw Error(ErrorCode::protocol, "another host asked for a chunk that is not offered");
    const Deadline until = Deadline::after(kChunkPatience);
    while (!offered_->has(wanted.chunk) && !until.has_passed()) std::this_thread::sleep_for(1ms);
    if (!offered_->has(wanted.chunk)) return stream_.send_message(Chunk{wanted.chunk, 0}, kPatience);
    const ByteSpan bytes = offered_->chunk(wanted.chunk);
    point("store.serve.chunk");
    stream_.send_message(Chunk{wanted.chunk, static_cast<std::uint32_t>(bytes.size())}, kPatience);
    stream_.send_message(Checksum{send(bytes)}, kPatience);
  }

  std::uint32_t send(ByteSpan bytes) {
    std::uint32_t crc = 0;
    if (pipe_) pipe_->read_from(offered_->sealed());
    if (pipe_ && offered_->sealed().empty()) {  // while a network card has its pages, memory is not sealed
      copy_.assign(bytes.begin(), bytes.end());
      bytes = copy_;
    }
    while (!bytes.empty()) {
      const std::size_t max = pipe_ ? transport::FabricPipe::kMaxPiece : bytes.size();
      const ByteSpan piece = bytes.first(std::min({bytes.size(), max, pace_.piece()}));
      pace_.wait_for(piece.size());
      crc = pipe_ ? pipe_->send(piece, kPatience, crc) : stream_.send(piece, kPatience, crc);
      bytes = bytes.subspan(piece.size());
    }
    if (pipe_) pipe_->flush(kPatience);
    return crc;
  }

  /// Lets the bytes of chunks go over UCX from now on, if the user of this host allows that, too.
  void carry(const Carry& wanted) {
    if (!is_over_ucx())
      return stream_.send_message(Carried{" sends over TLS alone: set ONECOPY_STORE_FABRIC to one "
                                          "value on all hosts",
                                          {}},
                                  kPatience);
    pipe_ = transport::make_pipe(kFabric, stream_.fd());
    pipe_->connect(wanted.address);
    stream_.send_message(Carried{{}, pipe_->address()}, kPatience);
  }

  Stream stream_;
  Pace& pace_;
  const std::shared_ptr<Client> client_ = std::make_shared<Client>(
      StoreDirectories::of_this_user(), ConnectOptions{.autostart = false});  // shared with its readings
  std::optional<Store> store_;
  std::optional<OfferedVersion> offered_;
  Bytes copy_;                                   ///< of a chunk of a version that arrives
  std::unique_ptr<transport::FabricPipe> pipe_;  ///< ends before the memory that it sends
  std::optional<Changes> changes_;
};

/// The threads of the hosts that are connected.
/// Thread safety: all members may be called concurrently.
class HostsServed {
 public:
  explicit HostsServed(std::uint64_t rate) noexcept : pace_(rate) {}
  /// Ends the connections, and waits for their threads.
  ~HostsServed() {
    is_over_ = true;
    const LockGuard lock(mutex_);
    for (const Served& served : threads_)
      if (!served.has_ended->load()) ::shutdown(served.fd, SHUT_RDWR);
    threads_.clear();
  }

  void add(std::unique_ptr<transport::TlsStream> stream) {
    const LockGuard lock(mutex_);
    threads_.remove_if([](const Served& served) { return served.has_ended->load(); });
    if (threads_.size() >= kMaxHosts)
      throw Error(ErrorCode::out_of_descriptors,
                  fmt::format("{} hosts pull from this one already", kMaxHosts));
    const int fd = stream->fd();
    auto ended = std::make_shared<std::atomic<bool>>(false);  // shared with the thread
    threads_.push_back({ended, fd, std::jthread([this, ended, s = std::move(stream)]() mutable {
                          serve(std::move(s), *ended);
                        })});
  }

 private:
  struct Served {
    std::shared_ptr<std::atomic<bool>> has_ended;
    int fd;
    std::jthread thread;
  };

  void serve(std::unique_ptr<transport::TlsStream> stream, std::atomic<bool>& has_ended) noexcept {
    try {
      HostServed(Stream(std::move(stream)), pace_).run(is_over_);
    } catch (const std::exception& error) {
      log_info("a host pulls no longer: {}", error.what());
    }
    has_ended = true;
  }

  std::atomic<bool> is_over_{false};
  Pace pace_;
  Mutex mutex_;
  std::list<Served> threads_ GUARDED_BY(mutex_);
};

}  // namespace

void serve_hosts(StreamSocket socket, ByteSpan key, std::uint64_t rate,
                 const std::function<bool()>& is_over) {
  HostsServed hosts(rate);
  EventLoop loop("onecopy-ferry");
  std::optional<transport::TlsListener> listener;
  Timer looks(loop, [&] {
    listener->poll();
    return listener->has_more_to_do() ? Timer::Pause(1000ms) : Timer::Pause();
  });
  listener.emplace(
      loop, std::move(socket),
      transport::TlsListener::Options{
          std::make_shared<const transport::TlsContext>(key, kStoreProtocol), [&] { looks.request(); },
          [&](std::unique_ptr<transport::TlsStream> stream) { hosts.add(std::move(stream)); }});
  while (!is_over()) continue;
  loop.stop();
  listener.reset();
}

}  // namespace onecopy::store::ferry
