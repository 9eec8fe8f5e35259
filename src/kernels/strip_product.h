/// Inside the matrix kernels: one strip of rows times a whole packed matrix, as the grouped products of
/// adapters need it.
#pragma once

#include <cstdint>

#include "kernels/matrix.h"
#include "kernels/matrix_blocks.h"
#include "kernels/matrix_kernels.h"

namespace cotune::kernels {

/// y[i, :] = round(scale · left[row + i, :]·B) for the rows of one or two tiles. y: stride in bytes;
/// zero_tail: its columns from b.n() to b.padded_n() are written as zero. Takes the slots `left` and
/// `partial` of the thread's scratch.
struct StripProduct {
  int64_t row = 0;
  int heights[2] = {0, 0};
  float scale = 1;
  bool zero_tail = false;
  char* y = nullptr;
  int64_t y_stride = 0;
};
void multiply_strip(const MatrixKernels& kernels, const LeftOperand& left, const PackedMatrix& b,
                    const StripProduct& rows);

}  // namespace cotune::kernels
