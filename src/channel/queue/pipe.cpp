// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/pipe.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "channel/queue/channel.h"
#include "channel/queue/look_around.h"
#include "channel/ring/role_lock.h"
#include "core/base64.h"
#include "core/moved_from.h"
#include "core/throw_error.h"

namespace onecopy {
namespace {

constexpr std::string_view kPrefix = "onecopy-pipe:";
constexpr std::uint32_t kPipeMagic = 0x45504950;  // "PIPE"
constexpr std::uint16_t kPipeVersion = 1;

/// The first bytes of a pipe's handle. The handles of both queues follow, first the one that end 0 sends into.
struct PipeHead {
  std::uint32_t magic = kPipeMagic;
  std::uint16_t version = kPipeVersion;
  std::uint16_t end = 0;
  std::uint32_t first_bytes = 0;
};
static_assert(sizeof(PipeHead) == 12);

Role role_of(unsigned end) noexcept { return end == 0 ? Role::end_0 : Role::end_1; }

struct LeaveChannel {
  void operator()(Channel* channel) const noexcept { channel->leave(); }
};
using ChannelRef = std::unique_ptr<Channel, LeaveChannel>;

[[noreturn]] void refuse_pipe(const char* problem) {
  throw_error(ErrorCode::bad_handle, "This handle of a pipe {}.", problem);
}

}  // namespace

struct PipeHandle::Parts {
  unsigned end;
  std::array<Handle, 2> queues;  ///< the queue that end 0 sends into, and the one that end 1 sends into
  Fd role;                       ///< empty if the handle arrived as bytes
};

/// The end of a pipe in this process.
struct Pipe::End {
  End(unsigned which, ChannelRef first, ChannelRef second)
      : number(which),
        queues{std::move(first), std::move(second)},
        role(hold_role(file(), role_of(which))) {}
  ~End();

  const Fd& file() const noexcept { return queues[0]->ring().fd(); }
  Channel& out() const noexcept { return *queues[number]; }
  Channel& in() const noexcept { return *queues[1 - number]; }
  /// Closes both queues for all processes if no process has one of the ends. Returns false also while a stopped process
  /// holds a queue's lock.
  bool close_if_deserted() const;
  template <class Item>
  void send(const Item& item, Stream stream);
  template <class Take>
  auto take(Deadline deadline, Take&& take) const;
  /// Takes an item by Receiver::get() or get_tensor().
  template <class Get>
  auto receive(Get get, Deadline deadline, Stream stream) const {
    return take(deadline,
                [&](Deadline pause) { return (in().receiver().*get)(in().session(pause), pause, stream); });
  }
  int ready_fd() const;

  unsigned number;
  std::array<ChannelRef, 2> queues;
  Fd role;
  std::atomic<std::uint32_t> sent{0};
};

/// Calls use(). If it throws because the queue is closed, the error names the pipe instead of its queue.
template <class Use>
auto in_words_of_pipes(Use&& use) {
  try {
    return use();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::closed) throw;
    throw Error(ErrorCode::closed, "the pipe is closed: no process has its other end any more");
  }
}

template <class Item>
void Pipe::End::send(const Item& item, Stream stream) {
  // Otherwise a sender would not notice that all receivers have died.
  constexpr std::uint32_t kLookEvery = 16;
  if (sent.fetch_add(1, std::memory_order_relaxed) % kLookEvery == 0) close_if_deserted();
  in_words_of_pipes([&] { out().sender().put(out().session(), item, kForever, stream); });
  out().note_change();  // this process may have the other end, too
}

bool Pipe::End::close_if_deserted() const {
  return !is_role_held(file(), role_of(1 - number)) && in().try_close() && out().try_close();
}

/// Closes the queues if this was the last holder of the end, so that others need not wait until they look around.
Pipe::End::~End() {
  role.reset();
  if (is_role_held(file(), role_of(number))) return;
  try {
    for (const ChannelRef& queue : queues) queue->ring().close(kNow);
  } catch (const Error&) {  // a damaged ring, or a lock that a stopped process holds: others look around
  }
}

template <class Take>
auto Pipe::End::take(Deadline deadline, Take&& take) const {
  const auto take_until = [&](Deadline pause) {
    auto taken = in_words_of_pipes([&] { return take(pause); });
    in().note_change();
    return taken;
  };
  return take_looking_around(deadline, take_until,
                             [&] { return in().ring().is_closed() || close_if_deserted(); });
}

/// Returns the queue's descriptor. The function that looks around may outlive this object, if another object of this
/// process has the end, so it keeps what it needs.
int Pipe::End::ready_fd() const {
  const auto roles = std::make_shared<Fd>(file().duplicate());
  Ring& incoming = in().ring();
  return in().ready_fd([roles, &incoming, other = role_of(1 - number)] {
    if (is_role_held(*roles, other)) return;
    try {
      incoming.close(kNow);
    } catch (const Error&) {  // a stopped process holds the lock; tries again at the next look
    }
  });
}

Pipe::Pipe(std::unique_ptr<End> end) noexcept : end_(std::move(end)) {}
Pipe::Pipe(Pipe&&) noexcept = default;
Pipe& Pipe::operator=(Pipe&&) noexcept = default;
Pipe::~Pipe() = default;

std::pair<Pipe, Pipe> Pipe::create() {
  Channel& first = Channel::create({});
  ChannelRef mine(&first);
  Channel& second = Channel::create({});
  ChannelRef yours(&second);
  auto end = std::make_unique<End>(0, ChannelRef(&first.enter_again()), ChannelRef(&second.enter_again()));
  return {Pipe(std::move(end)), Pipe(std::make_unique<End>(1, std::move(mine), std::move(yours)))};
}

Pipe Pipe::connect(const PipeHandle& handle, std::chrono::nanoseconds timeout) {
  const PipeHandle::Parts& parts = handle.parts();
  const Deadline deadline = Deadline::after(timeout);
  ChannelRef first(&Channel::connect(parts.queues[0], deadline));
  ChannelRef second(&Channel::connect(parts.queues[1], deadline));
  return Pipe(std::make_unique<End>(parts.end, std::move(first), std::move(second)));
}

Pipe::End& Pipe::end() const {
  if (!end_) throw Error(ErrorCode::closed, "this end of the pipe is closed");
  return *end_;
}

PipeHandle Pipe::handle() const {
  const End& e = end();
  auto parts = std::make_unique<PipeHandle::Parts>();
  parts->end = e.number;
  parts->queues = {e.queues[0]->handle(), e.queues[1]->handle()};
  parts->role = e.role.duplicate();
  return PipeHandle(std::move(parts));
}

void Pipe::send(const Tensor& tensor, Stream stream) { end().send(tensor, stream); }

void Pipe::send(const Message& message, Stream stream) { end().send(message, stream); }

Message Pipe::recv(Stream stream) { return *end().receive(&Receiver::get, kForever, stream); }

std::optional<Message> Pipe::try_recv(std::chrono::nanoseconds timeout, Stream stream) {
  return end().receive(&Receiver::get, Deadline::after(timeout), stream);
}

Tensor Pipe::recv_tensor(Stream stream) { return *end().receive(&Receiver::get_tensor, kForever, stream); }

std::optional<Tensor> Pipe::try_recv_tensor(std::chrono::nanoseconds timeout, Stream stream) {
  return end().receive(&Receiver::get_tensor, Deadline::after(timeout), stream);
}

bool Pipe::poll(std::chrono::nanoseconds timeout) {
  End& e = end();
  return e.take(Deadline::after(timeout), [&](Deadline deadline) { return e.in().ring().wait(deadline); });
}

std::uint64_t Pipe::size() const { return end().in().ring().size(); }

int Pipe::ready_fd() const { return end().ready_fd(); }

void Pipe::close() noexcept { end_.reset(); }

PipeHandle::PipeHandle(std::unique_ptr<Parts> parts) noexcept : parts_(std::move(parts)) {}
PipeHandle::PipeHandle(PipeHandle&&) noexcept = default;
PipeHandle& PipeHandle::operator=(PipeHandle&&) noexcept = default;
PipeHandle::~PipeHandle() = default;

const PipeHandle::Parts& PipeHandle::parts() const { return of_object(parts_, "PipeHandle"); }

Bytes PipeHandle::to_bytes() const {
  const Bytes first = parts().queues[0].to_bytes();
  const Bytes second = parts().queues[1].to_bytes();
  const PipeHead head{kPipeMagic, kPipeVersion, static_cast<std::uint16_t>(parts().end),
                      static_cast<std::uint32_t>(first.size())};
  Bytes bytes(sizeof head + first.size() + second.size());
  write_value(bytes.data(), head);
  std::copy(second.begin(), second.end(),
            std::copy(first.begin(), first.end(), bytes.begin() + sizeof head));
  return bytes;
}

PipeHandle PipeHandle::from_bytes(ByteSpan bytes) {
  if (bytes.size() < sizeof(PipeHead)) refuse_pipe("is cut off");
  const auto head = load<PipeHead>(bytes.data());
  const ByteSpan rest = bytes.subspan(sizeof head);
  if (head.magic != kPipeMagic) refuse_pipe("does not begin with \"PIPE\"");
  if (head.version != kPipeVersion)
    throw_error(ErrorCode::version_mismatch,
                "This handle of a pipe has format version {}, this program reads version {}.", head.version,
                kPipeVersion);
  if (head.end > 1) refuse_pipe("names an end that does not exist");
  if (head.first_bytes > rest.size()) refuse_pipe("is cut off");
  auto parts = std::make_unique<Parts>();
  parts->end = head.end;
  parts->queues = {Handle::from_bytes(rest.first(head.first_bytes)),
                   Handle::from_bytes(rest.subspan(head.first_bytes))};
  if (!parts->queues[0].fields().is_queue() || !parts->queues[1].fields().is_queue())
    refuse_pipe("names something that is not a queue");
  return PipeHandle(std::move(parts));
}

std::string PipeHandle::to_text() const {
  std::string text(kPrefix);
  append_base64url(to_bytes(), text);
  return text;
}

PipeHandle PipeHandle::from_text(std::string_view text) {
  if (text.substr(0, kPrefix.size()) != kPrefix) refuse_pipe("does not begin with \"onecopy-pipe:\"");
  Bytes bytes;
  if (decode_base64url(text.substr(kPrefix.size()), bytes) != std::string_view::npos)
    refuse_pipe("has a character that cannot be there");
  return from_bytes(bytes);
}

}  // namespace onecopy
