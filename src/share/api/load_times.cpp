// SPDX-License-Identifier: Apache-2.0
#include "share/api/load_times.h"

#include <fmt/format.h>

namespace onecopy {

std::string LoadTimes::text() const {
  const auto ms = [](const Nanoseconds& sum) { return static_cast<double>(sum.load()) / 1e6; };
  return fmt::format(
      "{:.1f} ms for the ring; all threads together read for {:.1f} ms and waited for the card for {:.1f} "
      "ms; {} "
      "bytes past the page cache",
      ms(prepared), ms(read), ms(waited), direct.load());
}

}  // namespace onecopy
