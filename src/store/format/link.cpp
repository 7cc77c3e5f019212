// SPDX-License-Identifier: Apache-2.0
#include "store/format/link.h"

#include <cerrno>
#include <filesystem>

#include "onecopy/core/error.h"

namespace onecopy::store {
namespace {

constexpr std::chrono::microseconds kAwake{200};  // usually an answer arrives sooner than a thread wakes up

Digest read_secret(const StoreDirectory& directory) {
  try {
    return directory.secret();
  } catch (const Error& error) {
    if (error.vendor_code() == ENOENT) throw Error(ErrorCode::peer_died, "the store has no keeper yet");
    throw;
  }
}

/// Returns the path of the directory in which the keeper listens to which a link in this one leads.
std::string home_of(const StoreDirectory& directory) {
  std::error_code error;
  const auto socket = std::filesystem::canonical(directory.socket().text, error);
  return error ? directory.path() : socket.parent_path().string();
}

}  // namespace

/// Tries the directories in order. Asks a keeper whose files were removed to make them again, before giving up.
Link Link::connect(const StoreDirectories& directories, Deadline deadline) {
  for (bool has_rung = false;; has_rung = true) {
    for (const StoreDirectory& directory : directories.all()) {
      try {
        return connect_in(directory, deadline);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::peer_died) throw;
        const bool is_last = &directory == &directories.all().back();
        if (is_last && (has_rung || !directories.ring(deadline))) throw;
      }
    }
  }
}

/// Connects and proves the secret. Tries again if the worker is killed during the handshake, because its guard has the
/// same listener and starts another worker.
Link Link::connect_in(const StoreDirectory& directory, Deadline deadline) {
  for (;;) {
    const Digest secret = read_secret(directory);
    Link link(UnixSocket::connect(directory.socket(), deadline.whole_ms_left(kLongest)));
    try {
      link.greet(std::as_bytes(std::span(secret)), deadline);
      link.home_ = home_of(directory);
      return link;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_died || deadline.has_passed()) throw;
    }
  }
}

void Link::greet(ByteSpan secret, Deadline deadline) {
  if (const auto peer = socket_.peer(); !peer.is_our_user)
    throw Error(ErrorCode::other_user, "the keeper of the store" + describe_other_user(peer.uid));
  const peer::Greeting greeting(kProtocol);
  const Packet challenge = request(greeting.hello(), {}, deadline);
  welcome_ = unpack<Welcome>(request(greeting.prove(challenge.bytes, secret), {}, deadline).bytes);
}

Packet Link::request(const Bytes& question, std::span<const int> fds, Deadline deadline) {
  send_in_packets(question, fds, [&](ByteSpan bytes, std::span<const int> some) {
    socket_.send(bytes, some, deadline.whole_ms_left(kLongest));
  });
  if (auto packet = socket_.try_receive_for(kAwake))
    if (auto answer = joiner_.add(std::move(*packet))) return std::move(*answer);
  return receive(deadline);
}

Packet Link::receive(Deadline deadline) {
  for (;;)
    if (auto answer = joiner_.add(socket_.receive(deadline.whole_ms_left(kLongest))))
      return std::move(*answer);
}

std::optional<KeptLimits> ask_limits(const StoreDirectories& directories, Deadline deadline) {
  try {
    return unpack<KeptLimits>(
        Link::connect(directories, deadline).request(pack(AskLimits{}), {}, deadline).bytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_died) throw;
    return std::nullopt;
  }
}

}  // namespace onecopy::store
