// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "onecopy/memory/tensor.h"
#include "support/peer.h"
#include "support/report.h"

namespace onecopy::bench {

inline constexpr Device kFirstCard{DeviceType::cuda, 0};
inline constexpr Device kSecondCard{DeviceType::cuda, 1};

/// Returns the wanted number of bytes, but at most one `part`-th of the card.
std::int64_t large_bytes(std::int64_t wanted, int part);
std::size_t cards();
Tensor card_bytes(std::int64_t bytes, Device device = kFirstCard);

// Each function measures a line of the table for GPUs.
Row hand_over_on_a_card(int rounds);
Row open_first_on_a_card(int processes);
Row open_a_state_dict();
Row copy_between_cards(int rounds);
Row rest_on_a_card();

// The functions below run in the other processes.
void follow_on_a_card(Parent& parent);
void open_on_a_card(Parent& parent);
void import_on_a_card(Parent& parent);
void open_many_on_a_card(Parent& parent);

}  // namespace onecopy::bench
