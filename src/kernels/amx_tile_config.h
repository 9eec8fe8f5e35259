/// Inside the AMX kernels: what `ldtilecfg` reads. Eight registers of 16 rows of 64 bytes unless changed.
#pragma once

#include <cstdint>

namespace cotune::kernels {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

}  // namespace cotune::kernels
