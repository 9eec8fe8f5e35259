#include <unordered_map>

#include "data/template/jinja_runtime.h"

namespace cotune::jinja {
namespace {

using Test = bool (*)(Runtime&, const Value&, const Arguments&);

const Value& operand(Runtime& runtime, const Arguments& arguments) {
  if (arguments.positional.empty()) runtime.fail("a test misses its argument");
  return arguments.positional[0];
}

template <char first, char second>
bool compares(Runtime& runtime, const Value& value, const Arguments& arguments) {
  constexpr char symbol[] = {first, second, '\0'};
  return runtime.compare(symbol, value, operand(runtime, arguments));
}

bool is_text_in_case(Runtime& runtime, const Value& value, const std::string& method) {
  const Value text(runtime.str(value));
  return runtime.truthy(call_method(runtime, text, method, {}));
}

bool same(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value& other = operand(runtime, arguments);
  return value.storage().index() == other.storage().index() && runtime.equal(value, other);
}

const std::unordered_map<std::string, Test>& tests() {
  static const std::unordered_map<std::string, Test> table = {
      {"defined", [](Runtime&, const Value& v, const Arguments&) { return !v.is_undefined(); }},
      {"undefined", [](Runtime&, const Value& v, const Arguments&) { return v.is_undefined(); }},
      {"none", [](Runtime&, const Value& v, const Arguments&) { return v.is_none(); }},
      {"string", [](Runtime&, const Value& v, const Arguments&) { return v.as_text() != nullptr; }},
      {"mapping", [](Runtime&, const Value& v, const Arguments&) { return v.as_dict() != nullptr; }},
      {"iterable", [](Runtime&, const Value& v, const Arguments&) {
         return v.as_text() || v.as_list() || v.as_dict() || v.as_loop() || v.is_undefined();
       }},
      {"sequence", [](Runtime&, const Value& v, const Arguments&) {
         return v.as_text() || v.as_list() || v.as_dict() || v.is_undefined();
       }},
      {"number", [](Runtime&, const Value& v, const Arguments&) { return v.is_number(); }},
      {"integer", [](Runtime&, const Value& v, const Arguments&) { return v.is<int64_t>(); }},
      {"float", [](Runtime&, const Value& v, const Arguments&) { return v.is<double>(); }},
      {"boolean", [](Runtime&, const Value& v, const Arguments&) { return v.is<bool>(); }},
      {"true", [](Runtime&, const Value& v, const Arguments&) { return v.is<bool>() && v.integer() == 1; }},
      {"false", [](Runtime&, const Value& v, const Arguments&) { return v.is<bool>() && v.integer() == 0; }},
      {"callable", [](Runtime&, const Value& v, const Arguments&) { return v.as_function() != nullptr; }},
      {"even", [](Runtime& r, const Value& v, const Arguments&) { return r.integer_of(v, "even") % 2 == 0; }},
      {"odd", [](Runtime& r, const Value& v, const Arguments&) { return r.integer_of(v, "odd") % 2 != 0; }},
      {"divisibleby", [](Runtime& r, const Value& v, const Arguments& a) {
         return !r.truthy(r.arithmetic("%", v, operand(r, a)));
       }},
      {"equalto", compares<'=', '='>},
      {"eq", compares<'=', '='>},
      {"==", compares<'=', '='>},
      {"ne", compares<'!', '='>},
      {"!=", compares<'!', '='>},
      {"lt", compares<'<', '\0'>},
      {"lessthan", compares<'<', '\0'>},
      {"<", compares<'<', '\0'>},
      {"le", compares<'<', '='>},
      {"<=", compares<'<', '='>},
      {"gt", compares<'>', '\0'>},
      {"greaterthan", compares<'>', '\0'>},
      {">", compares<'>', '\0'>},
      {"ge", compares<'>', '='>},
      {">=", compares<'>', '='>},
      {"in", [](Runtime& r, const Value& v, const Arguments& a) { return r.contains(operand(r, a), v); }},
      {"sameas", same},
      {"upper", [](Runtime& r, const Value& v, const Arguments&) { return is_text_in_case(r, v, "isupper"); }},
      {"lower", [](Runtime& r, const Value& v, const Arguments&) { return is_text_in_case(r, v, "islower"); }},
  };
  return table;
}

}  // namespace

bool is_test(const std::string& name) { return tests().contains(name); }

bool apply_test(Runtime& runtime, const std::string& name, const Value& value, const Arguments& arguments) {
  runtime.charge(1);
  const auto found = tests().find(name);
  if (found == tests().end()) runtime.fail(fmt::format("no test named '{}'", name));
  return found->second(runtime, value, arguments);
}

}  // namespace cotune::jinja
