#include "kernels/matrix_blocks.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace cotune::kernels {
namespace {

constexpr std::align_val_t alignment{64};
constexpr int64_t line_bytes = 64;

}  // namespace

ThreadScratch::~ThreadScratch() {
  for (char* memory : memory_) ::operator delete(memory, alignment);
}

char* ThreadScratch::get(Slot slot, int64_t bytes) {
  if (bytes_[slot] < bytes) {
    ::operator delete(memory_[slot], alignment);
    memory_[slot] = nullptr;
    bytes_[slot] = 0;
    memory_[slot] = static_cast<char*>(::operator new(static_cast<size_t>(bytes), alignment));
    bytes_[slot] = bytes;
  }
  return memory_[slot];
}

ThreadScratch& ThreadScratch::mine() {
  thread_local ThreadScratch scratch;
  return scratch;
}

LeftOperand::LeftOperand(const void* x, int64_t stride, int64_t k, const MatrixKernels& kernels)
    : kernels_(kernels),
      x_(static_cast<const char*>(x)),
      k_(k),
      stride_(stride * bytes_of(kernels.dtype)),
      row_bytes_(k * bytes_of(kernels.dtype)),
      padded_bytes_(padded_depth(k, kernels.depth_unit) * kernels.left_element_bytes) {
  copy_stride_ = spread(padded_bytes_);
  copies_ = padded_bytes_ != row_bytes_ || stride_ % 2048 == 0;
}

int64_t LeftOperand::spread(int64_t bytes) {
  const int64_t lines = (bytes + line_bytes - 1) / line_bytes;
  return (lines | 1) * line_bytes;
}

void LeftOperand::copy_columns(int64_t row, int64_t first, int64_t columns, char* target) const {
  const int64_t begin = first * kernels_.left_element_bytes, bytes = columns * kernels_.left_element_bytes;
  const int64_t there = std::clamp<int64_t>(row_bytes_ - begin, 0, bytes);
  std::memcpy(target, in_place(row) + begin, static_cast<size_t>(there));
  std::memset(target + there, 0, static_cast<size_t>(bytes - there));
}

void LeftOperand::copy_row(int64_t row, char* target) const {
  if (kernels_.convert_left != nullptr) {
    kernels_.convert_left(in_place(row), k_, target);
    return;
  }
  std::memcpy(target, in_place(row), static_cast<size_t>(row_bytes_));
  std::memset(target + row_bytes_, 0, static_cast<size_t>(padded_bytes_ - row_bytes_));
}

}  // namespace cotune::kernels
