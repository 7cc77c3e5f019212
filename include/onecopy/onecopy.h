// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __cplusplus <= 201703L
#error "onecopy needs C++20: compile with -std=c++20, or with CMake link onecopy::onecopy"
#endif

/// Includes everything that a program needs to share tensors. Each header can also be included alone.
#include "onecopy/channel/listener.h"
#include "onecopy/channel/pipe.h"
#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/graph/arena.h"
#include "onecopy/memory/copy.h"
#include "onecopy/memory/dlpack.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/rpc/value_message.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/load.h"
#include "onecopy/share/object.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "onecopy/share/to_device.h"
#include "onecopy/store/store.h"
