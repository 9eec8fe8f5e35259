/// Two kinds of failure, never confused: the user's mistake (UserError: the message helps to mend the input) and our
/// own bug (InternalError: the message says where in the source).
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace cotune {

/// The user can mend this: a wrong file, option or value. The message names the file, the place in it, what was found
/// and what is accepted. Shown without a stack trace; the program exits with status 2.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The machine refused something at run time (disk full, file vanished). Shown without a stack trace; exit status 1.
class SystemError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A bug in cotune. The message holds the source position.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <typename... Args>
[[noreturn]] void throw_user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

namespace detail {
inline std::string describe() { return {}; }
template <typename... Args>
std::string describe(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
[[noreturn]] void throw_internal_error(const char* file, int line, const char* condition, const std::string& message);
}  // namespace detail

}  // namespace cotune

/// Checks an invariant of our own code; throws InternalError when it does not hold.
/// Usage: COTUNE_CHECK(a == b) or COTUNE_CHECK(a == b, "rows {} and {}", a, b).
#define COTUNE_CHECK(condition, ...)                                                       \
  do {                                                                                     \
    if (!(condition)) [[unlikely]] {                                                       \
      ::cotune::detail::throw_internal_error(__FILE__, __LINE__, #condition,               \
                                             ::cotune::detail::describe(__VA_ARGS__)); \
    }                                                                                      \
  } while (false)
