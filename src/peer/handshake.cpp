// SPDX-License-Identifier: Apache-2.0
#include "peer/handshake.h"

namespace onecopy::peer {

Bytes Greeting::prove(ByteSpan challenge, ByteSpan secret) const {
  const auto theirs = unpack<Challenge>(*protocol_, challenge);
  if (!is_proof(theirs.proof, onecopy::prove(secret, protocol_->listener, ours_, theirs.nonce)))
    throw Error(ErrorCode::bad_secret, protocol_->impostor);
  return pack(*protocol_, Prove{onecopy::prove(secret, protocol_->caller, ours_, theirs.nonce)});
}

Bytes Gate::challenge(ByteSpan hello, ByteSpan secret) {
  theirs_ = unpack<Hello>(*protocol_, hello).nonce;
  ours_ = random_value<Nonce>();
  is_challenged_ = true;
  return pack(*protocol_, Challenge{ours_, onecopy::prove(secret, protocol_->listener, theirs_, ours_)});
}

void Gate::check(ByteSpan proof, ByteSpan secret) const {
  const auto theirs = unpack<Prove>(*protocol_, proof);
  if (!is_challenged_ || !is_proof(theirs.proof, onecopy::prove(secret, protocol_->caller, theirs_, ours_)))
    throw Error(ErrorCode::bad_secret, protocol_->stranger);
}

}  // namespace onecopy::peer
