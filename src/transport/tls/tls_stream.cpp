// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/tls_stream.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/throw_error.h"

namespace onecopy::transport {

using namespace openssl;

/// The functions by which OpenSSL reads and writes the stream's buffers. The socket BIO of OpenSSL would raise SIGPIPE, and
/// would make a system call for each record.
struct TlsStream::Callbacks {
  static TlsStream& of(BIO* bio) { return *static_cast<TlsStream*>(Library::get().BIO_get_data(bio)); }

  static int read(BIO* bio, char* into, int size) {
    const Library& library = Library::get();
    library.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    const int got = of(bio).take(into, size);
    if (got < 0) library.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
    return got;
  }
  static int write(BIO* bio, const char* bytes, int size) { return of(bio).put(bytes, size); }
  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  static const BIO_METHOD* method() {
    static const BIO_METHOD* const made = [] {
      const Library& library = Library::get();
      BIO_METHOD* const method = library.BIO_meth_new(BIO_TYPE_SOURCE_SINK, "onecopy");
      if (!method) throw Error(ErrorCode::out_of_memory, "OpenSSL has no memory");
      library.BIO_meth_set_read(method, &read);
      library.BIO_meth_set_write(method, &write);
      library.BIO_meth_set_ctrl(method, &control);
      return method;
    }();
    return made;
  }
};

TlsStream::TlsStream(std::shared_ptr<const TlsContext> context, StreamSocket socket, Side side)
    : context_(std::move(context)),
      library_(context_->library()),
      socket_(std::move(socket)),
      ssl_(context_->make(side)) {
  bio_ = library_.BIO_new(Callbacks::method());
  if (!bio_) {
    library_.SSL_free(ssl_);
    throw Error(ErrorCode::out_of_memory, "OpenSSL has no memory for a connection");
  }
  library_.BIO_set_data(bio_, this);
  library_.BIO_set_init(bio_, 1);
  library_.SSL_set_bio(ssl_, bio_, bio_);
}

/// Copies received bytes into `into` and returns how many; -1 if none have arrived, 0 at the end of the connection.
int TlsStream::take(char* into, int size) noexcept {
  if (in_begin_ == in_end_) {
    if (turns_left_ == 0) return -1;
    const std::size_t room = is_open_ ? kBufferBytes : kMaxRecordBytes;  // a stranger gets less
    if (in_.size() < room) in_.resize(room);
    ssize_t got = 0;
    do got = ::recv(socket_.fd(), in_.data(), room, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN) return -1;
    if (got <= 0) {
      has_ended_ = true;
      error_ = got < 0 ? errno : 0;
      return 0;
    }
    --turns_left_;
    in_begin_ = 0;
    in_end_ = static_cast<std::size_t>(got);
  }
  const std::size_t part = std::min(in_end_ - in_begin_, static_cast<std::size_t>(size));
  std::memcpy(into, in_.data() + in_begin_, part);
  in_begin_ += part;
  return static_cast<int>(part);
}

int TlsStream::put(const char* bytes, int size) noexcept {
  try {
    if (out_begin_ == out_.size()) {
      out_.clear();
      out_begin_ = 0;
      out_.reserve(2 * kBufferBytes);
    } else if (out_begin_ >= kBufferBytes) {
      out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(out_begin_));
      out_begin_ = 0;
    }
    const auto* const begin = reinterpret_cast<const std::byte*>(bytes);
    out_.insert(out_.end(), begin, begin + size);
    return size;
  } catch (const std::exception&) {  // no memory
    return 0;
  }
}

/// Throws the error of the socket, or of the record that OpenSSL refused.
void TlsStream::throw_failed(int result) {
  const int kind = library_.SSL_get_error(ssl_, result);
  unsigned long code = 0;
  const std::string text = library_.take_error(&code);
  if (has_ended_ || kind == SSL_ERROR_ZERO_RETURN)
    throw Error(ErrorCode::peer_died, "the connection to another host has ended", error_,
                error_ != 0 ? ErrorDomain::posix : ErrorDomain::none);
  constexpr unsigned long kReasonBits = 0x7f'ffff;
  const bool is_alert = (code & kReasonBits) >= static_cast<unsigned long>(SSL_AD_REASON_OFFSET);
  if (!is_open_ && is_alert)
    throw_error(ErrorCode::bad_secret, "{} ({})", context_->protocol().wrong_key, text);
  throw Error(
      ErrorCode::protocol,
      is_open_
          ? fmt::format("a connection to another host brought bytes that its member did not send: {}", text)
          : fmt::format("the process at the other end of a connection is not a member of the group: {}",
                        text));
}

/// Tells the other side why this one ends the connection, if it is still there.
void TlsStream::send_alert() noexcept {
  try {
    flush();
  } catch (const Error&) {
  }
}

bool TlsStream::handshake() {
  begin_turn();
  library_.ERR_clear_error();
  const int result = library_.SSL_do_handshake(ssl_);
  try {
    if (result == 1) {
      if (library_.SSL_session_reused(ssl_) != 1)
        throw Error(ErrorCode::protocol, "a process was about to join without the group's key");
      is_open_ = true;
    } else if (library_.SSL_get_error(ssl_, result) != SSL_ERROR_WANT_READ) {
      throw_failed(result);
    }
  } catch (const Error&) {
    send_alert();
    throw;
  }
  flush();
  return is_open_;
}

void TlsStream::handshake(Deadline deadline) {
  while (!handshake()) {
    const bool is_sent = out_begin_ == out_.size();
    if (!deadline.wait_for(socket_.fd(), is_sent ? POLLIN : POLLIN | POLLOUT))
      throw Error(ErrorCode::timeout, "the member on another host has not answered in time");
  }
}

std::size_t TlsStream::read(std::span<std::byte> into) {
  library_.ERR_clear_error();
  const int wanted = static_cast<int>(std::min<std::size_t>(into.size(), 1 << 30));
  const int got = library_.SSL_read(ssl_, into.data(), wanted);
  if (got > 0) return static_cast<std::size_t>(got);
  if (!has_ended_ && library_.SSL_get_error(ssl_, got) == SSL_ERROR_WANT_READ) return 0;
  throw_failed(got);
}

void TlsStream::write(ByteSpan record) {
  library_.ERR_clear_error();
  if (++records_ % kRecordsOfAKey == 0) library_.SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED);
  const int put = library_.SSL_write(ssl_, record.data(), static_cast<int>(record.size()));
  if (put != static_cast<int>(record.size())) throw_failed(put);
}

bool TlsStream::flush() {
  while (out_begin_ < out_.size()) {
    const ssize_t sent = ::send(socket_.fd(), out_.data() + out_begin_, out_.size() - out_begin_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      out_begin_ += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      return false;
    } else if (errno != EINTR) {
      throw Error(ErrorCode::peer_died, "the connection to another host has ended", errno,
                  ErrorDomain::posix);
    }
  }
  return true;
}

}  // namespace onecopy::transport
