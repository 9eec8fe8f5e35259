#include "base/error.h"

namespace cotune::detail {

void throw_internal_error(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(fmt::format("bug in cotune at {}:{}: {} does not hold{}{}", file, line, condition,
                                  message.empty() ? "" : ": ", message));
}

}  // namespace cotune::detail
