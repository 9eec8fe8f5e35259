#include "base/running_checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>

namespace cotune {

void RunningChecksum::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

RunningChecksum::RunningChecksum() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

void RunningChecksum::add(std::span<const std::byte> bytes) { XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()); }

std::array<uint64_t, 2> RunningChecksum::value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return {hash.high64, hash.low64};
}

std::string RunningChecksum::text() const {
  const auto [high, low] = value();
  return fmt::format("{:016x}{:016x}", high, low);
}

}  // namespace cotune
