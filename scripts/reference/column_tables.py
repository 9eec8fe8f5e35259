#!/usr/bin/env python3
"""Writes src/watch/column_tables.cc: which characters take no column of a terminal, and which take two, from Python's unicodedata.

Usage: column_tables.py > src/watch/column_tables.cc
"""
import unicodedata


def ranges(points):
    out = []
    for point in points:
        if out and out[-1][1] == point - 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def takes_none(point):
    # U+00AD is shown by terminals; Hangul vowels and finals join the consonant before them.
    return (unicodedata.category(chr(point)) in ("Mn", "Me", "Cf") and point != 0xAD) or 0x1160 <= point <= 0x11FF


def takes_two(point):
    # Unassigned code points of the ideographic planes count as wide there.
    return unicodedata.east_asian_width(chr(point)) in ("W", "F") and not takes_none(point)


def table(name, points):
    items = [f"{{0x{first:X}, 0x{last:X}}}" for first, last in ranges(points)]
    print(f"constexpr CodePointRange {name}_ranges[] = {{")
    for i in range(0, len(items), 6):
        print("    " + ", ".join(items[i:i + 6]) + ",")
    print("};")


print('#include "watch/column_tables.h"\n')
print("namespace cotune::column_tables {\nnamespace {\n")
every = [point for point in range(0x300, 0x110000) if not 0xD800 <= point < 0xE000]
table("no_columns", filter(takes_none, every))
print()
table("two_columns", filter(takes_two, every))
print("\n}  // namespace\n")
print("const std::span<const CodePointRange> no_columns(no_columns_ranges);")
print("const std::span<const CodePointRange> two_columns(two_columns_ranges);\n")
print("}  // namespace cotune::column_tables")
