// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace onecopy {

/// Enters present pages of a shared mapping of this process into its page tables, by a few threads: a driver that pins them would
/// fault page by page, in one. Only for speed: has no effect before Linux 5.14. Thread safety: may be called
/// concurrently.
void fill_page_tables(std::byte* at, std::size_t bytes) noexcept;

}  // namespace onecopy
