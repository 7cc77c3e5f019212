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
#include "onecopy/core/api.h"
#include "onecopy/core/bytes.h"
#include "onecopy/device/stream.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// A handle of one end of a pipe, to which another process connects. A handle made by Pipe::handle() keeps that end
/// open while the handle lives; its bytes or text do not. Thread safety: as a value; move-only, and the members of a
/// PipeHandle that was moved from throw closed.
class PipeHandle {
 public:
  PipeHandle(PipeHandle&&) noexcept;
  PipeHandle& operator=(PipeHandle&&) noexcept;
  ~PipeHandle();

  Bytes to_bytes() const;
  /// Decodes the bytes of to_bytes(). Throws bad_handle or version_mismatch.
  static PipeHandle from_bytes(ByteSpan bytes);
  /// Returns "onecopy-pipe:...", for command lines and environment variables.
  std::string to_text() const;
  static PipeHandle from_text(std::string_view text);

 private:
  friend class Pipe;
  struct Parts;
  explicit PipeHandle(std::unique_ptr<Parts> parts) noexcept;
  const Parts& parts() const;
  std::unique_ptr<Parts> parts_;
};

/// An end of a connection between two ends, each of which receives the messages that the other end sends. Several
/// processes may hold one end: each message goes to one of them.
///
/// The other end is gone once every process that holds it, forked children included, has closed it, exited or been
/// killed. recv() still delivers the messages sent before and then throws closed. send() throws closed as well, though
/// a few messages may be accepted before the death is noticed.
///
/// Thread safety: all members may be called concurrently, except moving and close(). Move-only; the members of a Pipe
/// that was moved from throw closed.
class Pipe {
 public:
  /// Creates a pipe and returns both ends. Throws out_of_memory, out_of_descriptors, out_of_mappings.
  static std::pair<Pipe, Pipe> create();
  /// Opens the end that the handle names. Throws what open() throws; `timeout` limits the time to wait for a stopped
  /// process, as OpenOptions::timeout does.
  static Pipe connect(const PipeHandle& handle,
                      std::chrono::nanoseconds timeout = std::chrono::seconds(10));
  /// Returns a handle with which another process opens this end, in addition to this process or in its place.
  PipeHandle handle() const;

  Pipe(Pipe&&) noexcept;
  Pipe& operator=(Pipe&&) noexcept;
  ~Pipe();

  /// Sends a message, and does not wait for the receiver. Throws closed, out_of_memory, invalid_argument for memory of
  /// other libraries, and timeout after ten seconds if a process that must be asked is stopped. `stream` means what it
  /// means in Queue::put().
  void send(const Tensor& tensor, Stream stream = {});
  void send(const Message& message, Stream stream = {});
  /// Waits for a message, without a limit even if a stopped process blocks the pipe. Throws closed, and what
  /// Queue::get() throws except timeout.
  Message recv(Stream stream = {});
  /// Returns an empty optional if no message came within the timeout; a timeout of zero does not wait. Throws what
  /// Queue::try_get() throws.
  std::optional<Message> try_recv(std::chrono::nanoseconds timeout = {}, Stream stream = {});
  /// Receives a message that was sent as one tensor. See Queue::get_tensor().
  Tensor recv_tensor(Stream stream = {});
  std::optional<Tensor> try_recv_tensor(std::chrono::nanoseconds timeout = {}, Stream stream = {});
  /// Returns whether recv() would return or throw without waiting.
  bool poll(std::chrono::nanoseconds timeout = {});
  /// Returns the number of messages that were sent to this end and not yet received. Other processes may change it at
  /// any time.
  std::uint64_t size() const;
  /// Returns a descriptor that select, poll and epoll report as readable while poll() is true. The descriptor may
  /// stay readable a little longer, so call try_recv() then, and becomes readable within about a tenth of a second of
  /// the other end's death. The first call starts a thread in this process. The caller must not read from or close the
  /// descriptor.
  int ready_fd() const;
  /// Gives up this process's hold on this end. All other members throw closed afterwards.
  void close() noexcept;
  bool is_closed() const noexcept { return !end_; }

 private:
  struct End;
  explicit Pipe(std::unique_ptr<End> end) noexcept;
  End& end() const;

  std::unique_ptr<End> end_;
};

}  // namespace onecopy
ONECOPY_API_END
