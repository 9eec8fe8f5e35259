#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "data/template/jinja_python_text.h"
#include "data/template/jinja_runtime.h"

namespace cotune::jinja {
namespace {

Text quoted_repr(const Text& text) {
  const std::string quoted = python_repr(text.bytes());
  const Origin origin = text.empty() ? template_origin : text.origin_at(0);
  return Text(quoted, origin);
}

/// `\uXXXX`, two of them beyond U+FFFF.
std::string escaped_unicode(char32_t c) {
  const auto value = static_cast<uint32_t>(c);
  if (value < 0x10000) return fmt::format("\\u{:04x}", value);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((value - 0x10000) >> 10), 0xdc00 + ((value - 0x10000) & 0x3ff));
}

/// The text as a JSON string, each byte keeping its origin.
Text quoted_json(const Text& text, bool ascii) {
  Text out;
  out.append("\"", template_origin);
  size_t begin = 0;
  for (const Run& run : text.runs()) {
    std::string escaped;
    for (size_t i = begin; i < run.end; ++i) {
      const char c = text.bytes()[i];
      if (ascii && static_cast<unsigned char>(c) >= 0x80) {
        const CodePoint point = code_point_at(text.bytes(), i);
        escaped += escaped_unicode(point.value);
        i += point.size - 1;
        continue;
      }
      switch (c) {
        case '"': escaped += "\\\""; break;
        case '\\': escaped += "\\\\"; break;
        case '\n': escaped += "\\n"; break;
        case '\r': escaped += "\\r"; break;
        case '\t': escaped += "\\t"; break;
        case '\b': escaped += "\\b"; break;
        case '\f': escaped += "\\f"; break;
        default:
          if (static_cast<unsigned char>(c) < 0x20) {
            escaped += escaped_unicode(static_cast<unsigned char>(c));
          } else {
            escaped += c;
          }
      }
    }
    out.append(escaped, run.origin);
    begin = run.end;
  }
  out.append("\"", template_origin);
  return out;
}

std::string json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return python_float(value);
}

}  // namespace

void Runtime::write(Text& out, const Value& value, bool quoted) {
  charge(1);
  const auto plain = [&](std::string_view text) { append(out, Text(std::string(text))); };
  if (value.is_none()) {
    plain("None");
  } else if (value.is<bool>()) {
    plain(value.integer() ? "True" : "False");
  } else if (value.is<int64_t>()) {
    plain(fmt::format("{}", value.integer()));
  } else if (value.is<double>()) {
    plain(python_float(value.number()));
  } else if (const Text* text = value.as_text()) {
    append(out, quoted ? quoted_repr(*text) : *text);
  } else if (const List* list = value.as_list()) {
    plain(list->is_tuple ? "(" : "[");
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) plain(", ");
      write(out, list->items[i], true);
    }
    plain(!list->is_tuple ? "]" : list->items.size() == 1 ? ",)" : ")");
  } else if (const Dict* dict = value.as_dict()) {
    plain("{");
    bool first = true;
    for (const auto& [key, item] : dict->entries) {
      if (!first) plain(", ");
      first = false;
      append(out, quoted_repr(key));
      plain(": ");
      write(out, item, true);
    }
    plain("}");
  } else if (value.is_undefined()) {
    if (quoted) plain("Undefined");
  } else {
    fail(fmt::format("a {} cannot be printed", type_name(value)));
  }
}

Text Runtime::str(const Value& value) {
  if (const Text* text = value.as_text()) {
    charge(steps_of(*text));
    return *text;
  }
  Text out;
  write(out, value, false);
  return out;
}

Text Runtime::repr(const Value& value) {
  Text out;
  write(out, value, true);
  return out;
}

struct Runtime::JsonStyle {
  int indent;
  Text item_separator;
  Text key_separator;
  bool sort_keys, ascii;
};

Text Runtime::to_json(const Value& value, int indent, std::string_view item_separator,
                      std::string_view key_separator, bool sort_keys, bool ascii) {
  const JsonStyle style{indent,
                        Text(!item_separator.empty() ? std::string(item_separator) : indent < 0 ? ", " : ","),
                        Text(!key_separator.empty() ? std::string(key_separator) : ": "), sort_keys, ascii};
  Text out;
  write_json(out, value, style, 0);
  return out;
}

void Runtime::write_json(Text& out, const Value& value, const JsonStyle& style, int level) {
  charge(1);
  const auto plain = [&](std::string_view text) { append(out, Text(std::string(text))); };
  const auto new_line = [&](int depth) {
    if (style.indent < 0) return;
    std::string line(1 + static_cast<size_t>(style.indent) * static_cast<size_t>(depth), ' ');
    line.front() = '\n';
    append(out, Text(std::move(line)));
  };
  if (value.is_none()) {
    plain("null");
  } else if (value.is<bool>()) {
    plain(value.integer() ? "true" : "false");
  } else if (value.is<int64_t>()) {
    plain(fmt::format("{}", value.integer()));
  } else if (value.is<double>()) {
    plain(json_number(value.number()));
  } else if (const Text* text = value.as_text()) {
    append(out, quoted_json(*text, style.ascii));
  } else if (const List* list = value.as_list()) {
    plain("[");
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) append(out, style.item_separator);
      new_line(level + 1);
      write_json(out, list->items[i], style, level + 1);
    }
    if (!list->items.empty()) new_line(level);
    plain("]");
  } else if (const Dict* dict = value.as_dict()) {
    std::vector<const std::pair<Text, Value>*> entries;
    for (const auto& entry : dict->entries) entries.push_back(&entry);
    if (style.sort_keys) {
      std::sort(entries.begin(), entries.end(),
                [](const auto* a, const auto* b) { return a->first.bytes() < b->first.bytes(); });
    }
    plain("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) append(out, style.item_separator);
      new_line(level + 1);
      append(out, quoted_json(entries[i]->first, style.ascii));
      append(out, style.key_separator);
      write_json(out, entries[i]->second, style, level + 1);
    }
    if (!entries.empty()) new_line(level);
    plain("}");
  } else {
    require_defined(value);
    fail(fmt::format("tojson: a {} has no JSON form", type_name(value)));
  }
}

}  // namespace cotune::jinja
