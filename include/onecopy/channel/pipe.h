// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "onecopy/channel/queue.h"
#include "onecopy/core/bytes.h"
#include "onecopy/device/stream.h"

namespace onecopy {

/// A handle of one end of a pipe, to which another process connects. An object made by Pipe::handle() counts as a
/// holder of that end while it lives; bytes or text do not. Thread safety: as a value; move-only.
class PipeHandle {
 public:
  PipeHandle(PipeHandle&&) noexcept;
  PipeHandle& operator=(PipeHandle&&) noexcept;
  ~PipeHandle();

  Bytes to_bytes() const;
  /// Throws bad_handle or version_mismatch.
  static PipeHandle from_bytes(ByteSpan bytes);
  /// Returns "onecopy-pipe:...", for command lines and environment variables.
  std::string to_text() const;
  static PipeHandle from_text(std::string_view text);

 private:
  friend class Pipe;
  struct Parts;
  explicit PipeHandle(std::unique_ptr<Parts> parts) noexcept;
  std::unique_ptr<Parts> parts_;
};

/// An end of a connection between two ends, each of which receives the other's messages, as queues do. Several
/// processes may have one end: the first to receive gets the message.
///
/// The other end is gone when all processes with it, forked children among them, have closed it, exited or been killed.
/// Then recv() still delivers sent messages, and throws closed afterwards. send() throws closed soon: a death may be
/// noticed some messages late.
///
/// Thread safety: all members may be called concurrently, but for moving and close(). Move-only.
class Pipe {
 public:
  /// Returns both ends. Throws out_of_memory, out_of_descriptors, out_of_mappings.
  static std::pair<Pipe, Pipe> create();
  /// Throws as open() does.
  static Pipe connect(const PipeHandle& handle);
  /// Returns a handle for another process that is to use this end, too or instead.
  PipeHandle handle() const;

  Pipe(Pipe&&) noexcept;
  Pipe& operator=(Pipe&&) noexcept;
  ~Pipe();

  /// Throws closed, out_of_memory, invalid_argument for memory of other libraries. Streams as in queues.
  void send(const Tensor& tensor, Stream stream = {});
  void send(const Message& message, Stream stream = {});
  /// Waits for a message, also while a stopped process holds it up. Throws closed, and as Queue::get() does but
  /// timeout.
  Message recv(Stream stream = {});
  /// Returns an empty optional if no message came until the timeout; zero: does not wait. Throws as Queue::try_get()
  /// does.
  std::optional<Message> try_recv(std::chrono::nanoseconds timeout = {}, Stream stream = {});
  /// Receives one tensor, as Queue::get_tensor() does.
  Tensor recv_tensor(Stream stream = {});
  /// Returns true if recv() would not wait now: there is a message, or there will never be one.
  bool poll(std::chrono::nanoseconds timeout = {});
  /// Messages that have been sent to this end and not been received; others may change the number at any time.
  std::uint64_t size() const;
  /// A descriptor that select, poll and epoll find readable while poll() is true; a little longer, too, so use
  /// try_recv() then. The other end's death makes it readable within about a tenth of a second. The first call starts
  /// one thread in this process. Do not read or close it.
  int ready_fd() const;
  /// This process gives up this end; all other members throw closed.
  void close() noexcept;
  bool is_closed() const noexcept { return !end_; }

 private:
  struct End;
  explicit Pipe(std::unique_ptr<End> end) noexcept;
  End& end() const;

  std::unique_ptr<End> end_;
};

}  // namespace onecopy
