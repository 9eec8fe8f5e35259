/// Text in the columns of a terminal: UTF-8 in any bytes, of which East Asian characters take two columns and combining marks none.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cotune {

/// Columns of a character; 0 of marks that join the one before.
size_t columns_of(char32_t code_point);

/// Without what would move the cursor or change the screen: control characters become spaces, ill-formed bytes U+FFFD.
std::string printable(std::string_view text);

/// Of printable text.
size_t columns_of(std::string_view printable);

enum class Align { left, right };
/// Printable text in exactly so many columns: padded with spaces, or cut, the last column then being `…` (`.` where unicode is
/// false).
std::string in_columns(std::string_view printable, size_t columns, Align align = Align::left, bool unicode = true);

/// Printable text in at most so many columns, both its ends kept: names of a sweep's candidates differ at theirs.
std::string with_both_ends(std::string_view printable, size_t columns, bool unicode = true);

/// The fewest columns, from least to widest, in which with_both_ends() keeps printable names apart.
size_t distinct_width(const std::vector<std::string>& names, size_t least, size_t widest, bool unicode = true);

/// Printable text in lines of at most so many columns, cut between words, or within words that are longer. A number of bytes stays with its unit.
std::vector<std::string> wrapped(std::string_view printable, size_t columns);
/// The same in at most `most` lines (1 or more), the last one then cut as by in_columns().
std::vector<std::string> wrapped(std::string_view printable, size_t columns, size_t most, bool unicode = true);

/// A curve in at most so many columns, from the lowest value (▁) to the highest (█); in ASCII `_.-=*#`. Values that are not finite are
/// left out. "" where there are fewer than two.
std::string sparkline(std::span<const double> values, size_t columns, bool unicode = true);

/// A bar of so many columns, of which a share is full. share: cut to 0…1.
std::string bar(double share, size_t columns, bool unicode = true);

}  // namespace cotune
