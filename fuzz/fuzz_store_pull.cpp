// SPDX-License-Identifier: Apache-2.0
// The messages between two hosts about a version, as a host that knows the key sends them. The input is each message in turn, and
// an answer whose table has the right checksum.
#include "core/fields.h"
#include "fuzz_input.h"
#include "store/ferry/messages.h"

namespace onecopy::fuzz {
namespace {

using namespace store;
using namespace store::ferry;

/// Checks that a message that was read and written has the same bytes after another round.
template <class Message>
std::optional<Message> check_message(ByteSpan bytes) {
  const auto read = [](ByteSpan from) {
    return read_fields<Message>(from, ErrorCode::protocol, "a message");
  };
  auto message = accepted({ErrorCode::protocol}, [&] { return read(bytes); });
  if (!message) return message;
  const Bytes written = write_fields(*message);
  require(write_fields(read(written)) == written, "a message survives being written and read");
  return message;
}

/// Checks that the chunks cover all tensors and lie in the memory.
void check_chunks(const Table& table) {
  const std::uint64_t bytes = bytes_to_send(table), chunks = chunks_of(bytes);
  require(bytes <= table.size, "what travels lies in the memory");
  for (const Row& row : table.rows)
    require(row.offset + row.layout.nbytes() <= bytes, "all tensors travel");
  require((chunks == 0) == (bytes == 0), "a version with bytes has chunks");
  if (chunks == 0) return;
  const std::uint64_t last = bytes_of_chunk(chunks - 1, bytes);
  require(last > 0 && last <= kChunkBytes, "the last chunk is neither empty nor too long");
  require((chunks - 1) * kChunkBytes + last == bytes, "the chunks are all that travels");
}

void check_told(Told told) {
  const auto error = told.error();
  require(!error || *error <= kLastErrorCode, "an error has a known code");
  constexpr std::size_t kCheckedFrom = 12, kCrc = 8;
  if (told.table.size() >= kCheckedFrom)
    write_value(told.table.data() + kCrc, crc32c(ByteSpan(told.table).subspan(kCheckedFrom)));
  const auto table = accepted({ErrorCode::bad_handle}, [&] { return decode_table(told.table); });
  if (table) check_chunks(*table);
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy;
  using namespace onecopy::store::ferry;
  const ByteSpan input = fuzz::span_of(data, size);
  fuzz::check_message<Poll>(input);
  fuzz::check_message<Take>(input);
  fuzz::check_message<Carry>(input);
  fuzz::check_message<Carried>(input);
  fuzz::check_message<Chunk>(input);
  fuzz::check_message<Checksum>(input);
  if (const auto told = fuzz::check_message<Told>(input)) fuzz::check_told(*told);
  Told of_table;
  of_table.table.assign(input.begin(), input.end());
  fuzz::check_told(of_table);
  return 0;
}
