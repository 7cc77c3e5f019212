// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/iceoryx.h"
#include "support/peer.h"
#include "support/report.h"

namespace onecopy::bench {

/// The amount of measurements.
struct Effort {
  bool quick = false;

  int rounds(int usual) const { return quick ? (usual + 4) / 5 : usual; }
};

// Each function measures a promise of the core, in the order of docs/benchmarks.md.
Row hand_over_spinning(const Effort& effort, Iceoryx& iceoryx);
Row hand_over_blocking(const Effort& effort, Iceoryx& iceoryx);
Row wait_idle(const Effort& effort);
Row send_one_way(const Effort& effort, Iceoryx& iceoryx);
Row hand_over_large(const Effort& effort);
Row share_and_open(const Effort& effort);
Row allocate_and_fill(const Effort& effort);
Row open_first(const Effort& effort);
Row share_a_million(const Effort& effort);
Row load_file(const Effort& effort);
// The following rows measure promises of rpc.
Row call_spinning(const Effort& effort);
Row call_asleep(const Effort& effort);
Row call_hosts(const Effort& effort);
Row call_hosts_over_ucx(const Effort& effort);
Row cut_off_hosts(const Effort& effort);

// The functions below run in the other processes.
void follow_exchanges(Parent& parent);
void wait_for_items(Parent& parent);
void open_handles(Parent& parent);
void open_one_handle(Parent& parent);
void own_a_million(Parent& parent);
void open_a_million(Parent& parent);
void answer_calls(Parent& parent);
void answer_calls_of_a_host(Parent& parent);
void call_a_host(Parent& parent);
void attack_a_host(Parent& parent);

}  // namespace onecopy::bench
