// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "os/deadline.h"
#include "os/event_loop.h"
#include "os/host_port.h"
#include "transport/tls/tls_stream.h"

namespace onecopy::transport {

/// A listener that processes of other hosts connect to. A process that has not yet proved that it knows the group's key is a
/// stranger. Strangers are limited in number, in total and for each address, and each stranger has five seconds. The
/// kernel holds a connection back until its first bytes arrive.
///
/// Thread safety: the event loop's thread alone calls the members. Any thread may construct a listener, and destroy it
/// once the loop has stopped.
class TlsListener {
 public:
  static constexpr std::size_t kMaxStrangers = 256, kMaxOfAnAddress = 64;

  struct Options {
    std::shared_ptr<const TlsContext> context;
    /// Reports that has_more_to_do(): poll() must be called within seconds.
    std::function<void()> watch;
    /// Gets each connection whose two ends have proved the key.
    std::function<void(std::unique_ptr<TlsStream>)> proved;
  };
  /// Makes the socket of a listener. Throws system when the address is taken.
  static StreamSocket listen(const HostPort& at);
  /// Listens at a socket of listen(). A process that shares the socket may listen after this one has ended.
  TlsListener(EventLoop& loop, StreamSocket socket, Options options);
  ~TlsListener();

  /// Returns the address to which other hosts connect, as "10.0.0.1:4711": of a listener at all addresses the first one
  /// of this host. Throws invalid_argument if there is none.
  std::string endpoint() const;
  /// Drops strangers whose time is over, and accepts connections that a lack of descriptors has kept out.
  void poll() noexcept;
  /// Returns whether poll() must be called.
  bool has_more_to_do() const noexcept { return !strangers_.empty() || is_short_; }

 private:
  struct Stranger {
    std::unique_ptr<TlsStream> stream;
    std::string host;
    bool has_spoken;
    Deadline grace, deadline;
  };
  using At = std::list<Stranger>::iterator;

  void accept() noexcept;
  void greet(StreamSocket socket);
  bool make_room_for(const std::string& host, bool has_spoken);
  void receive(At stranger) noexcept;
  void give(std::unique_ptr<TlsStream> stream) const noexcept;
  std::unique_ptr<TlsStream> drop(At stranger) noexcept;

  EventLoop& loop_;
  const Options options_;
  StreamSocket socket_;
  const UnsharedDescriptor unshared_;
  std::list<Stranger> strangers_;
  std::uint64_t refused_ = 0;
  bool is_short_ = false;  ///< a connection waits until there is a descriptor for it
};

}  // namespace onecopy::transport
