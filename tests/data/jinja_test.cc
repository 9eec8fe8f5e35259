#include "data/template/jinja.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "support/source_folder.h"

namespace cotune::jinja {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

std::string data_path(const std::string& name) { return (source_folder() / "tests/data" / name).string(); }

std::string render(const std::string& source, const Variables& variables = {}) {
  return Template(source, "t").render(variables).bytes();
}

std::string error_of(const std::string& source) {
  try {
    render(source);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Jinja, RendersWhatTransformersRenders) {
  const ordered_json cases = ordered_json::parse(read_file(data_path("jinja_reference.json")));
  ASSERT_GT(cases.size(), 200u);
  for (const ordered_json& test : cases) {
    const bool is_file = test.contains("template");
    const std::string source =
        is_file ? read_file(data_path("templates/" + test["template"].get<std::string>() + ".jinja"))
                : test["source"].get<std::string>();
    SCOPED_TRACE((is_file ? test["template"].get<std::string>() : source) + ": " + test["title"].get<std::string>());
    ordered_json messages = test["messages"];
    for (ordered_json& message : messages) {  // transformers renames these before it renders
      if (message.contains("reasoning")) message["reasoning_content"] = message["reasoning"];
      if (message.contains("reasoning_content")) message["thinking"] = message["reasoning_content"];
    }
    Variables variables = {{"messages", from_json(messages, 1)},
                           {"tools", test.contains("tools") ? from_json(test["tools"], 2) : Value(None{})},
                           {"documents", None{}},
                           {"add_generation_prompt", test["add_generation_prompt"].get<bool>()}};
    for (const auto& [name, value] : test["variables"].items()) variables.emplace_back(name, from_json(value, 0));
    try {
      const Text text = Template(source, "t").render(variables);
      if (test.contains("fails")) {
        ADD_FAILURE() << "expected an error, got: " << text.bytes();
      } else {
        EXPECT_EQ(text.bytes(), test["expected"].get<std::string>());
      }
    } catch (const UserError& error) {
      EXPECT_TRUE(test.contains("fails")) << error.what();
    }
  }
}

TEST(Jinja, ErrorsNameTemplateLineAndReason) {
  EXPECT_EQ(error_of("a\nb {{ x.y }}"), "t:2: 'x' is undefined");
  EXPECT_EQ(error_of("\n\n{% if true %}"), "t:3: the template ends inside a block: expected endif");
  EXPECT_EQ(error_of("{{ raise_exception('roles must alternate') }}"), "t:1: roles must alternate");
  EXPECT_EQ(error_of("{% include '/etc/passwd' %}"), "t:1: the tag 'include' is not available in chat templates");
  EXPECT_EQ(error_of("{% for x in 5 %}{% endfor %}"), "t:1: cannot iterate over int");
  EXPECT_EQ(error_of("{{ 9223372036854775807 + 1 }}"), "t:1: an integer leaves the range of 64 bits");
}

TEST(Jinja, EndsWithinItsLimits) {
  const std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  EXPECT_THAT(error_of(loops), HasSubstr("too many steps"));
  EXPECT_THAT(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("recurses too deeply"));
  const std::string doubling = "{% set n = namespace(x='xxxxxxxx') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}";
  EXPECT_THAT(error_of(doubling), HasSubstr("too"));
  EXPECT_THAT(error_of("{{ 'x' * 9999999999 }}"), HasSubstr("too long a text"));
  EXPECT_THAT(error_of("{{ [0] * 9999999999 }}"), HasSubstr("too many steps"));
  const std::string nesting = "{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = [n.x] %}{% endfor %}";
  EXPECT_THAT(error_of(nesting), HasSubstr("nested deeper"));
  const std::string shared = "{% set n = namespace(x=[]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}";
  EXPECT_THAT(error_of(shared), HasSubstr("too"));
  EXPECT_THAT(error_of("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"), HasSubstr("nested deeper"));
  EXPECT_THAT(error_of("{{ 1" + [] {
                std::string sum;
                for (int i = 0; i < 5000; ++i) sum += "+1";
                return sum;
              }() + " }}"), HasSubstr("nested deeper"));
  EXPECT_THAT(error_of("{{ 'x'|tojson(indent=99999999) }}"), HasSubstr("indent"));
}

TEST(Jinja, SelectionsAndMapTakeTheirArgumentsByPlace) {
  EXPECT_EQ(error_of("{{ [] | selectattr(attribute='role') | list }}"), "t:1: selectattr: the argument 'attribute' cannot be given by name");
  EXPECT_EQ(error_of("{{ [] | rejectattr(attribute='role') | list }}"), "t:1: rejectattr: the argument 'attribute' cannot be given by name");
  EXPECT_EQ(error_of("{{ [1] | select(test='odd') | list }}"), "t:1: select: the argument 'test' cannot be given by name");
  EXPECT_EQ(error_of("{{ [] | selectattr | list }}"), "t:1: selectattr misses the name of an attribute");
  EXPECT_EQ(error_of("{{ [] | map(filter='upper') | list }}"), "t:1: map: the argument 'filter' cannot be given by name");
  EXPECT_EQ(error_of("{{ [] | map | list }}"), "t:1: map misses the name of a filter, or attribute=");
  EXPECT_EQ(render("{{ [{'a': 'x'}, {}] | map(attribute='a', default='-') | join }}"), "x-");
  EXPECT_EQ(render("{{ ['a', 'b'] | map('replace', old='a', new='c') | join }}"), "cb");
  EXPECT_EQ(render("{{ [1, 2, 3] | reject('gt', 2) | join }}{{ [{'a': 0}, {'a': 1}] | selectattr('a') | list | length }}"), "121");
}

TEST(Jinja, LongChainsOfValuesAreRefusedOrFreedOneByOne) {
  const std::string loops = "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% for x in [ns.l] %}{% set ns.l = loop %}{% endfor %}{% endfor %}";
  EXPECT_THAT(error_of(loops), HasSubstr("nested deeper"));
  const std::string macros =
      "{% set ns = namespace(f=none) %}{% for i in range(100000) %}{% set g = ns.f %}{% with %}{% macro f() %}{% endmacro %}"
      "{% set ns.f = f %}{% endwith %}{% endfor %}ok";
  EXPECT_EQ(render(macros), "ok");
  std::string maps = "{{ 'x' | map(";
  for (int i = 0; i < 1000; ++i) maps += "'map', ";
  EXPECT_THAT(error_of(maps + "'upper') }}"), HasSubstr("recurses too deeply"));
}

TEST(Jinja, StepsCountTheBytesThatAreCopiedOrCompared) {
  const std::string begin = "{% set x = ('x' * 1000) * 1000 %}{% set y = x ~ 'y' %}{% set d = {x: 1} %}{% for i in range(1000) %}{% set z = ";
  const auto error_of_many = [&](const std::string& expression) -> std::string {
    try {
      Template(begin + expression + " %}{% endfor %}", "t").render({}, std::nullopt, Limits{150'000, size_t{64} << 20, 400});
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of_many("i"), "no error");
  for (const char* expression : {"x | string", "x + ''", "x.removeprefix('')", "{x: 1}", "d.keys()", "d.items()", "d | list", "dict(d)", "{}[x]",
                                 "x in d", "d.get(x)", "d == d", "x.startswith([x, x])", "x.count(y)", "y in x", "x.rfind(y)", "x.split(y)",
                                 "x | replace(y, '')", "'a' | indent(x)"}) {
    EXPECT_THAT(error_of_many(expression), HasSubstr("too many steps")) << expression;
  }
}

TEST(Jinja, MessagesShowTheBeginningOfWhatIsLong) {
  EXPECT_THAT(error_of("{{ {}['x' * 5000] + 1 }}"), testing::AllOf(HasSubstr("has no attribute xxx"), HasSubstr("…"), testing::SizeIs(testing::Lt(300u))));
  EXPECT_THAT(error_of("{{ raise_exception('é' * 5000) }}"), testing::AllOf(HasSubstr("éé…"), testing::SizeIs(testing::Lt(1100u))));
  EXPECT_EQ(error_of("{{ " + std::string(1001, 'a') + " }}"), "t:1: found a name of 1001 bytes; accepted: at most 1000");
}

TEST(Jinja, NegativeCountsAreAllOfThem) {
  EXPECT_EQ(render("{% set all = -9223372036854775807 - 1 %}{{ 'a,b'.split(',', all) }}{{ 'a,b'.rsplit(',', all) }}"
                   "{{ 'aa'.replace('a', 'b', all) }}{{ 'aa' | replace('a', 'c', all) }}{{ 1 | tojson(indent=all) }}"),
            "['a', 'b']['a', 'b']bbcc1");
}

TEST(Jinja, RenderingsMayShareTheirSteps) {
  const Template loop("{% for i in range(100) %}{{ i }}{% endfor %}", "t");
  uint64_t steps = 5000;
  loop.render({}, std::nullopt, {}, &steps);
  EXPECT_GT(steps, 0u);
  EXPECT_LT(steps, 4900u);
  EXPECT_THROW(for (int i = 0; i < 5; ++i) loop.render({}, std::nullopt, {}, &steps), StepsSpent);
  steps = 5000;
  try {
    loop.render({}, std::nullopt, Limits{100, size_t{1} << 20, 400}, &steps);
    ADD_FAILURE() << "was rendered";
  } catch (const StepsSpent& error) {
    ADD_FAILURE() << error.what();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("too many steps"));
  }
  EXPECT_GE(steps, 4900u);
}

TEST(Jinja, ReferencesInACircleAreFreed) {
  const std::string circle =
      "{% set n = namespace() %}{% set n.n = [n] %}{% macro f() %}{{ n.f }}{% endmacro %}{% set n.f = f %}ok";
  EXPECT_EQ(render(circle), "ok");  // the leak checker of the sanitizer build watches this
  const std::string through_parent =
      "{% set n = namespace() %}{% with %}{% macro f() %}{% endmacro %}{% set n.f = f %}{% endwith %}{% set g = n.f %}ok";
  EXPECT_EQ(render(through_parent), "ok");
}

TEST(Jinja, GivesTheClockOnlyWhenToldTo) {
  const Template date("{{ strftime_now('%d %b %Y') if strftime_now is defined else 'fixed' }}", "t");
  std::tm day{};
  day.tm_year = 124;
  day.tm_mon = 6;
  day.tm_mday = 26;
  EXPECT_EQ(date.render({}).bytes(), "fixed");
  EXPECT_EQ(date.render({}, day).bytes(), "26 Jul 2024");
}

TEST(Jinja, EveryByteKeepsItsOrigin) {
  const Variables variables = {{"a", Text("  Héllo ", 7)}, {"b", Text("x\"y", 9)}};
  const auto origins = [&](const std::string& source) {
    const Text text = Template(source, "t").render(variables);
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) out += static_cast<char>('0' + text.origin_at(i));
    return text.bytes() + "|" + out;
  };
  EXPECT_EQ(origins("<{{ a.strip() }}>"), "<Héllo>|07777770");
  EXPECT_EQ(origins("{{ '<' + a|trim|upper ~ b }}"), "<HÉLLOx\"y|0777777999");
  EXPECT_EQ(origins("{{ {'k': b}|tojson }}"), "{\"k\": \"x\\\"y\"}|00000009999" + std::string("00"));
  EXPECT_EQ(origins("{{ a[2:4] }}{{ b[::-1] }}{{ b.split('\"')|join('-') }}"), "Héy\"xx-y|777999909");
}

}  // namespace
}  // namespace cotune::jinja
