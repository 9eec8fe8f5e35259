#include "comm/host_buffer.h"

#include <ATen/ATen.h>

#include <cstdlib>
#include <new>

namespace cotune {

at::Tensor host_buffer(at::IntArrayRef sizes, at::ScalarType dtype) {
  constexpr size_t alignment = 64;
  size_t bytes = c10::elementSize(dtype);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  void* memory = std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return at::from_blob(memory, sizes, [](void* each) { std::free(each); }, at::TensorOptions().dtype(dtype));
}

}  // namespace cotune
