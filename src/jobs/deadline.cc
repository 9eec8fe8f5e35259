#include "jobs/deadline.h"

#include <chrono>

namespace cotune {
namespace {

/// Takes parts of a time off the front of a text.
class TimeReader {
 public:
  explicit TimeReader(std::string_view text) : rest_(text) {}

  bool at_end() const { return rest_.empty(); }
  bool literal(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  /// A number of exactly `count` digits.
  bool number(size_t count, int low, int high, int& value) {
    if (rest_.size() < count) return false;
    value = 0;
    for (size_t i = 0; i < count; ++i) {
      if (rest_[i] < '0' || rest_[i] > '9') return false;
      value = 10 * value + (rest_[i] - '0');
    }
    rest_.remove_prefix(count);
    return low <= value && value <= high;
  }

 private:
  std::string_view rest_;
};

}  // namespace

std::optional<int64_t> parse_deadline(std::string_view text) {
  TimeReader reader(text);
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  const bool is_date = reader.number(4, 1, 9999, year) && reader.literal('-') && reader.number(2, 1, 12, month) &&
                       reader.literal('-') && reader.number(2, 1, 31, day);
  if (!is_date) return std::nullopt;
  using namespace std::chrono;
  const year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                            std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return std::nullopt;
  const int64_t midnight = int64_t{86400} * sys_days(date).time_since_epoch().count();
  if (reader.at_end()) return midnight + 86400;
  const bool is_time = reader.literal('T') && reader.number(2, 0, 23, hour) && reader.literal(':') && reader.number(2, 0, 59, minute);
  if (!is_time || (reader.literal(':') && !reader.number(2, 0, 60, second))) return std::nullopt;
  const int64_t time = midnight + 3600 * hour + 60 * minute + second;
  if (reader.at_end()) return time;
  if (reader.literal('Z')) return reader.at_end() ? std::optional(time) : std::nullopt;
  const bool east = reader.literal('+');
  if (!east && !reader.literal('-')) return std::nullopt;
  int zone_hour = 0, zone_minute = 0;
  const bool is_zone = reader.number(2, 0, 23, zone_hour) && reader.literal(':') && reader.number(2, 0, 59, zone_minute) && reader.at_end();
  if (!is_zone) return std::nullopt;
  const int64_t offset = 3600 * zone_hour + 60 * zone_minute;
  return east ? time - offset : time + offset;
}

}  // namespace cotune
