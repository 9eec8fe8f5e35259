/// Any bytes as metrics.jsonl are events that a view and a page show, or a UserError; any bytes as an event file of TensorBoard are
/// whole records, of which each is an event or a UserError.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "formats/tensorboard_events.h"
#include "watch/run_log.h"
#include "watch/run_page.h"
#include "watch/run_screen.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cotune;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  RunLog log;
  log.folder = "/run";
  log.jobs.resize(1);
  log.jobs[0].spec.name = "a";
  try {
    add_metrics(log, text, "metrics.jsonl");
    for (const std::string& line : run_screen(view_of(log, false), {.columns = 60, .rows = 20})) {
      COTUNE_CHECK(line.find_first_of("\x1b\n") == std::string::npos);
    }
    COTUNE_CHECK(run_page(log, "killed").ends_with("</html>\n"));
  } catch (const UserError&) {
  }
  for (const std::string_view record : whole_records(text)) {
    try {
      const TensorBoardEvent event = parse_record(record);
      COTUNE_CHECK(to_record(parse_record(to_record(event))) == to_record(event));
    } catch (const UserError&) {
    }
  }
  return 0;
}
