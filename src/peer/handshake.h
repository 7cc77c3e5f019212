// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/core/bytes.h"
#include "os/random.h"
#include "peer/message.h"
#include "peer/mutual_proof.h"

/// The handshake of two processes: hello, challenge, proof, welcome. Both sides prove that they know the secret of the
/// listener (peer/mutual_proof.h), and nothing is served before. The caller also checks the user of the other side,
/// see UnixSocket::peer().
namespace onecopy::peer {

using Nonce = NonceOf<16>;

struct Hello {
  static constexpr First kType = First::hello;
  Nonce nonce{};
  void fields(auto& f) { f(nonce); }
};
struct Challenge {
  static constexpr First kType = First::challenge;
  Nonce nonce{};
  Digest proof{};
  void fields(auto& f) { f(nonce, proof); }
};
struct Prove {
  static constexpr First kType = First::prove;
  Digest proof{};
  void fields(auto& f) { f(proof); }
};

/// The caller's side of a handshake. Thread safety: none.
class Greeting {
 public:
  /// Constructs the side of a protocol that lives longer.
  explicit Greeting(const Protocol& protocol) : protocol_(&protocol), ours_(random_value<Nonce>()) {}

  Bytes hello() const { return pack(*protocol_, Hello{ours_}); }
  /// Returns the proof that answers a challenge. Throws bad_secret if the listener does not know the secret, and its
  /// refusal.
  Bytes prove(ByteSpan challenge, ByteSpan secret) const;

 private:
  const Protocol* protocol_;
  Nonce ours_;
};

/// The listener's side of a handshake. Thread safety: none.
class Gate {
 public:
  /// Constructs the side of a protocol that lives longer.
  explicit Gate(const Protocol& protocol) noexcept : protocol_(&protocol) {}

  /// Returns the challenge that answers a hello.
  Bytes challenge(ByteSpan hello, ByteSpan secret);
  /// Checks a proof. Throws bad_secret if the caller does not know the secret or was not challenged.
  void check(ByteSpan proof, ByteSpan secret) const;
  bool is_challenged() const noexcept { return is_challenged_; }

 private:
  const Protocol* protocol_;
  bool is_challenged_ = false;
  Nonce theirs_{}, ours_{};
};

}  // namespace onecopy::peer
