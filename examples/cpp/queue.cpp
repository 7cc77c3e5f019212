// SPDX-License-Identifier: Apache-2.0
// A worker process takes tensors from one queue and answers through another. Nothing is copied on the
// way, and what the worker put arrives although it has exited by then.
#include <onecopy/onecopy.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>

namespace {

constexpr std::uint32_t kNoMoreWork = 1;

onecopy::Queue connect(const char* text) {
  return onecopy::Queue::connect(onecopy::Handle::from_text(text));
}

int worker(const char* jobs_text, const char* sums_text) {
  onecopy::Queue jobs = connect(jobs_text);
  onecopy::Queue sums = connect(sums_text);
  for (onecopy::Message job = jobs.get(); job.tag != kNoMoreWork; job = jobs.get()) {
    const float* numbers = job.tensors[0].as<float>();
    onecopy::Tensor sum = onecopy::empty(onecopy::Layout(onecopy::DType::f32));
    *sum.as<float>() = std::accumulate(numbers, numbers + job.tensors[0].layout().numel(), 0.0f);
    sums.put(sum);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) return worker(argv[1], argv[2]);
  onecopy::Queue jobs = onecopy::Queue::create();
  onecopy::Queue sums = onecopy::Queue::create();
  for (int size = 10; size <= 1000; size *= 10) {
    onecopy::Tensor job = onecopy::empty({onecopy::DType::f32, {size}});
    std::iota(job.as<float>(), job.as<float>() + size, 1.0f);
    jobs.put(job);
  }
  jobs.put({kNoMoreWork, {}, {}});
  const std::string command =
      std::string(argv[0]) + " " + jobs.handle().to_text() + " " + sums.handle().to_text();
  if (std::system(command.c_str()) != 0) return 1;
  while (!sums.empty()) std::printf("sum %g\n", *sums.get_tensor().as<float>());
}
