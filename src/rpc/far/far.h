// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "channel/ring/ring_wait.h"
#include "os/mutex.h"
#include "os/poller.h"
#include "rpc/address.h"
#include "rpc/far/far_client.h"
#include "rpc/far/far_link.h"

namespace onecopy {
class EventLoop;
}

namespace onecopy::rpc {

/// How this process reaches members on other hosts, and is reached.
struct FarOptions {
  Bytes key;               ///< the group's; without one it listens on loopback alone
  std::string listen;      ///< "10.0.0.1:0"; empty: nowhere
  bool is_forced = false;  ///< also members of this host are called this way

  /// As ONECOPY_RPC_KEY, ONECOPY_RPC_LISTEN and ONECOPY_RPC_LINK say. Throws invalid_argument.
  static FarOptions of_environment();
};

/// A member's connections to members on other hosts. One thread sends the bytes that sockets did not take at
/// once, receives, and lets clients prove themselves; it starts with the first connection.
///
/// Thread safety: all members may be called concurrently, but for the destructor.
/// Invariants: a link is delivered to only after its hello. The thread waits for no single client or link.
class Far {
 public:
  /// Where the messages of a link go. Run on the far thread.
  struct Delivery {
    std::function<void(Message&&)> message;
    std::function<void()> ended;  ///< no message comes any more
  };
  /// A process has proved itself, and says which member it is. Run on the far thread.
  using Opened = std::function<Delivery(const Address& from, const FarLinkRef& link)>;
  /// Throws invalid_argument for a listener beyond loopback without a key, system when the address is taken.
  Far(FarOptions options, EventLoop& loop, std::function<Address()> own, Opened opened);
  ~Far() { stop(); }
  Far(const Far&) = delete;
  Far& operator=(const Far&) = delete;

  /// Ends all links, and the thread. In a forked child there is none, and the connections are the parent's.
  void stop() noexcept;
  bool is_forced() const noexcept { return options_.is_forced; }
  /// Where it listens, as "10.0.0.1:4711"; empty: nowhere.
  const std::string& endpoint() const noexcept { return endpoint_; }
  /// Connects to another member, and sends this one's address. Throws peer_died, timeout, bad_secret, unsupported when it
  /// listens nowhere.
  FarLinkRef connect(const Address& to, Deadline deadline);
  /// From here on the link is read.
  void read(const FarLinkRef& link, Delivery delivery);
  /// Gives the links' last messages a second to arrive.
  void flush() noexcept;

 private:
  struct Link {
    FarLinkRef link;
    Delivery delivery{};           ///< empty before its hello
    Deadline deadline = kForever;  ///< for its hello
    bool wants_room = false;
  };

  void listen();
  void start();
  void run() noexcept;
  void turn();
  void handle(std::uint64_t token);
  void take_new_links();
  void serve_clients();
  void add(Link&& link);
  void look_at(std::uint64_t token);
  void receive(Link& at);
  void take_hello(Link& at, ByteSpan hello);
  void send_all(bool is_due);
  bool send(std::uint64_t token, Link& at, bool is_due);
  void end(std::uint64_t token, const char* why) noexcept;
  void end_all() noexcept;

  const FarOptions options_;
  EventLoop& loop_;
  const std::function<Address()> own_;
  const Opened opened_;
  const int pid_;
  const std::shared_ptr<Event> wake_;  ///< the links have it, too
  StreamSocket listener_;
  UnsharedDescriptor unshared_;  ///< the listener's
  std::string endpoint_;
  std::atomic<bool> is_over_{false};
  /// The watch thread calls it at the first client, and may be about to when this object ends.
  struct Starter {
    Mutex mutex;
    Far* far GUARDED_BY(mutex) = nullptr;
  };
  const std::shared_ptr<Starter> starter_ = std::make_shared<Starter>();

  Mutex mutex_;
  bool has_thread_ GUARDED_BY(mutex_) = false;
  bool has_ended_ GUARDED_BY(mutex_) = false;  ///< the thread: it takes no further links
  std::vector<Link> new_links_ GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<FarLink>> all_links_ GUARDED_BY(mutex_);
  std::thread thread_;

  // The far thread's.
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<FarClients> clients_;
  std::map<std::uint64_t, Link> links_;
  std::uint64_t last_token_ = 0;
  Deadline next_beat_ = TimePoint{};
};

}  // namespace onecopy::rpc
