/// Template source → syntax tree. Grammar and precedence: jinja2 3.1 `parser.py`.
#pragma once

#include <string>
#include <string_view>

#include "data/template/jinja_syntax.h"

namespace cotune::jinja {

/// Throws UserError `name:line: reason` for syntax errors, for tags that chat templates cannot use (include, import,
/// extends, block, call, filter) and for expressions or blocks nested deeper than 150 levels.
Block parse_template(std::string_view source, const std::string& name);

}  // namespace cotune::jinja
