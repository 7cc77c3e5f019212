// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace onecopy {

// Lines on stderr, "[onecopy] [warning] ..." with the pid. ONECOPY_LOG = off, error, warning (the
// default), info or debug says how much. Thread safety: may be called concurrently. Nothing throws.

/// Reads ONECOPY_LOG now, where the first line would. False when it is no level, which is said once, or was.
bool start_log() noexcept;

void log_error(const std::string& message) noexcept;
void log_warning(const std::string& message) noexcept;
void log_info(const std::string& message) noexcept;
void log_debug(const std::string& message) noexcept;

}  // namespace onecopy
