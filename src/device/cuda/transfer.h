// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy::cuda {

/// Implements the functions of Backend with these names.
void enqueue(const Transfer& transfer, Stream stream);
void synchronize(int ordinal, Stream stream);

bool is_captured(int ordinal, Stream stream);
bool has_work(int ordinal, Stream stream) noexcept;
std::optional<Error> failure(int ordinal);
bool register_words(int ordinal, void* words, std::size_t bytes);
void write_word(int ordinal, Stream stream, std::atomic<std::uint64_t>& word, std::uint64_t value);
bool write_word_by_host(int ordinal, Stream stream, std::atomic<std::uint64_t>& word, std::uint64_t value);
void wait_for_word(int ordinal, Stream stream, const std::atomic<std::uint64_t>& word, std::uint64_t value);

}  // namespace onecopy::cuda
