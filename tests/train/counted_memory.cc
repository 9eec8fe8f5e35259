// All tests of this program count the bytes of their tensors, from blocks of 4 KiB on: its models have kilobytes. Before any makes a tensor.

#include "ops/memory.h"

namespace cotune::testing {
namespace {

[[maybe_unused]] const bool installed = (install_counting_allocator(size_t{1} << 12), true);

}  // namespace
}  // namespace cotune::testing
