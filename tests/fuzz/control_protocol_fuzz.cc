/// Fuzz target: any bytes as a request or a reply of the control socket are one that comes back from its line, or a UserError.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "control/protocol.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cotune;
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  try {
    const ControlRequest request = parse_request(line);
    COTUNE_CHECK(parse_request(to_line(request)) == request);
  } catch (const BadRequest& error) {
    const ControlReply refusal{ControlError{ControlErrorCode::bad_request, error.what(), {}}, {}, {}};
    COTUNE_CHECK(parse_reply(to_line(refusal, error.id())).error.has_value());
  }
  try {
    const std::string written = to_line(parse_reply(line), "");
    COTUNE_CHECK(to_line(parse_reply(written), "") == written);
  } catch (const UserError&) {
  }
  return 0;
}
