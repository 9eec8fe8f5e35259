#pragma once

#include <c10/util/Logging.h>

#include <cstdlib>

namespace cotune {

/// While it lives, c10d writes no warnings of its own (with stack traces) about what an exception tells as well, unless
/// the user asked for a level of warnings.
class QuietC10d {
 public:
  QuietC10d() {
    if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  }
  ~QuietC10d() { FLAGS_caffe2_log_level = level_; }
  QuietC10d(const QuietC10d&) = delete;
  QuietC10d& operator=(const QuietC10d&) = delete;

 private:
  const int level_ = FLAGS_caffe2_log_level;
};

}  // namespace cotune
