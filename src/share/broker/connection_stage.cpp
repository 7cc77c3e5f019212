// SPDX-License-Identifier: Apache-2.0
#include "share/broker/connection_stage.h"

namespace onecopy {

Step Stranger::look(const Sight& sight, std::chrono::milliseconds silence) {
  if (!heard_since) heard_since = sight.now;
  return sight.now - *heard_since > silence && !sight.has_spoken ? Step::drop : Step::look_again;
}

Step Borrower::hang_up(const Sight& sight) {
  return !sight.has_pidfd || sight.has_exited ? Step::end : Step::look_again;
}

/// A process that has exec'ed another program has ended, too: it maps its page no more. That is no sign for one whose
/// device may still be at work.
Step HungUp::look(const Sight& sight) {
  if (sight.has_exited) return Step::end;
  if (sight.has_device_memory) return Step::wait;
  if (!looks.is_due()) return Step::look_again;
  looks.looked();
  return sight.maps_page() ? Step::look_again : Step::end;
}

Step MaybeForked::look(const Sight& sight) {
  if (!is_visible) return Step::wait;
  if (!sight.may_have_children) return Step::look_again;
  times_gone = *sight.may_have_children ? 0 : times_gone + 1;
  return times_gone >= 2 ? Step::release : Step::look_again;
}

}  // namespace onecopy
