/// What a call says when it refuses its input.
#pragma once

#include <string>

#include "base/error.h"

namespace cotune {

/// The message of the UserError that `call` throws; "" when it throws none.
template <typename Call>
std::string user_error_of(Call&& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace cotune
