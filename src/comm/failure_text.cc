#include "comm/failure_text.h"

namespace cotune {

std::string failure_text(const std::exception& error) {
  std::string text = error.what();
  text = text.substr(0, text.find('\n'));
  // `[/path/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4000`
  if (text.starts_with('[') && text.find("] ") != std::string::npos) text.erase(0, text.find("] ") + 2);
  return text.empty() ? "an error without a text" : text;
}

std::string ended_text(const std::string& description, const std::string& failure) {
  return description + ": " + failure;
}

}  // namespace cotune
