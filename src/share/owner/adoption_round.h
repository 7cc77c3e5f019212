// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace onecopy {

/// While a round lives, adopt() on its thread asks the driver about an allocation once, and not for each tensor in it.
/// A caller that encodes a value meets its tensors one by one, so adopt() takes no list of them. Rounds nest.
///
/// Thread safety: a round belongs to its thread. REQUIRES: memory adopted meanwhile was allocated before, and stays
/// allocated until the end.
class AdoptionRound {
 public:
  AdoptionRound() noexcept;
  ~AdoptionRound();
  AdoptionRound(const AdoptionRound&) = delete;
  AdoptionRound& operator=(const AdoptionRound&) = delete;

 private:
  const std::uint64_t outer_;
};

}  // namespace onecopy
