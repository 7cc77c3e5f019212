// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace onecopy::cli {

class FerryProcess;

/// Runs the store's keeper in child processes, and returns its exit status when the last of them has ended. The keeper goes on
/// when one of its processes is killed, and so does this process, which may be the first of a container.
///
/// Starts `ferry` again, if there is one, when it is killed.
///
/// SIGTERM and SIGHUP end the keeper, and so does SIGINT. On a terminal the first Ctrl-C only says what would be lost, if
/// there is anything. Also returns in the child, when `keeper` does: the caller exits with the status in both processes.
/// REQUIRES: this process has one thread.
int supervise(const std::function<void()>& keeper, FerryProcess* ferry = nullptr);

}  // namespace onecopy::cli
