// SPDX-License-Identifier: Apache-2.0
#pragma once

// The visibility of the names between the two macros: the shared library exports the names of public headers alone. A
// program that links the archives chooses by itself, with -fvisibility=hidden.
#if defined(ONECOPY_BUILDING) || defined(ONECOPY_SHARED)
#define ONECOPY_API_BEGIN _Pragma("GCC visibility push(default)")
#define ONECOPY_API_END _Pragma("GCC visibility pop")
#else
#define ONECOPY_API_BEGIN
#define ONECOPY_API_END
#endif

/// Declares a constant, of which each program and plug-in has one of its own.
#define ONECOPY_CONSTANT [[gnu::visibility("hidden")]] inline constexpr
