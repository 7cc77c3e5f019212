// SPDX-License-Identifier: Apache-2.0
// A camera passes frames to a viewer. The memory of a frame is written once, read in place, and reused for a later frame
// once the viewer has dropped it. The viewer learns that the camera has ended.
#include <onecopy/onecopy.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <thread>

namespace {

struct Header {  // what a frame has besides its pixels
  std::uint64_t number;
  double exposure;
};

int camera(const char* text) {
  onecopy::Queue frames = onecopy::Queue::connect(onecopy::Handle::from_text(text));
  for (std::uint64_t number = 0; number < 100; ++number) {
    const onecopy::Tensor frame = onecopy::empty({onecopy::DType::u8, {720, 1280, 3}});
    std::memset(frame.data(), static_cast<int>(number), frame.nbytes());
    const Header header{number, 0.01};
    const auto bytes = std::as_bytes(std::span(&header, 1));
    frames.put(
        {.data = {bytes.begin(), bytes.end()}, .tensors = {frame}});  // waits while 4 frames are not taken
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) return camera(argv[1]);
  onecopy::Queue frames = onecopy::Queue::create({.maxsize = 4, .ends_with_producers = true});
  const std::string command = argv[0] + (" " + frames.handle().to_text());
  std::thread other([&] { std::system(command.c_str()); });
  int count = 0, right = 0;
  try {
    for (;; ++count) {
      const onecopy::Message message = frames.get();
      const auto header = onecopy::load<Header>(message.data.data());
      const onecopy::Tensor& frame = message.tensors.at(0);
      const auto* pixels = frame.as<std::uint8_t>();
      right += std::all_of(pixels, pixels + frame.nbytes(),
                           [&](int pixel) { return pixel == int(header.number); });
    }
  } catch (const onecopy::Error& error) {
    if (error.code() != onecopy::ErrorCode::closed) throw;
  }
  other.join();
  std::printf("%d frames, %d right, and the camera has ended\n", count, right);
}
