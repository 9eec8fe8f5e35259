#!/usr/bin/env python3
"""Writes or checks tests/data/jinja_reference.json: what transformers renders for the templates of the test run.

  template_reference.py          writes the file
  template_reference.py --live   renders again with the installed transformers and compares; exit status 1 on a difference

Needs transformers and jinja2. A case is {template | source, messages, tools, variables, add_generation_prompt} with
`expected`, or `fails: true` where rendering raises.
"""

import argparse
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import render_jinja_template

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "tests/data/templates"
REFERENCE = ROOT / "tests/data/jinja_reference.json"

TOKENS = {
    "llama2": ("<s>", "</s>"), "mistral": ("<s>", "</s>"), "mistral_v3": ("<s>", "</s>"), "zephyr": ("<s>", "</s>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"), "llama31": ("<|begin_of_text|>", "<|eot_id|>"),
}

def user(text): return {"role": "user", "content": text}
def assistant(text, **more): return {"role": "assistant", "content": text, **more}
def system(text): return {"role": "system", "content": text}

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a <city> & \"region\"; ünïcode 天気",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "the 'city'"},
            "days": {"type": "integer", "minimum": 1, "default": 1.5, "enum": [1, 2, True, None]}},
            "required": ["city"], "additionalProperties": {}}, "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
CALL = {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich\n\"x\"", "days": 2}}}
CHATS = {
    "one question": [user("Hello")],
    "one turn": [user("What is 1+1?"), assistant("2")],
    "with a system message": [system("Be brief."), user("  padded  \n"), assistant("\n answer \u00a0\u3000")],
    "many turns": [user("a"), assistant("b"), user("c"), assistant("d"), user("e")],
    "unicode": [user("héllo 👩‍👩‍👧 天 \u0301 <b>&amp;</b> {{ x }} {% if %}"), assistant("<|im_end|>\t\\n 'q' \"q\"")],
    "empty content": [user(""), assistant("")],
    "starts with the assistant": [assistant("hi"), user("yo")],
    "two users": [user("a"), user("b")],
    "thinking": [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c"), assistant("<think>\nwell\n</think>\n\nd")],
    "reasoning field": [user("a"), assistant("b", reasoning_content="because"), user("c"), assistant("d", reasoning="so")],
}
TOOL_CHATS = {
    "tool call": [user("Weather?"), assistant(None, tool_calls=[CALL]),
                  {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "{\"t\": 20}"}, assistant("20 degrees")],
    "tools but no call": [system("S"), user("Weather?"), assistant("Where?"), user("Bern")],
    "text with call": [user("Weather?"), assistant("Let me see.", tool_calls=[CALL]),
                       {"role": "tool", "tool_call_id": "call12345", "content": "sunny"},
                       {"role": "tool", "tool_call_id": "call12345", "content": "windy"}, assistant("ok")],
}

# Small templates, one piece of the language each; `v` holds variables.
V = {"s": "  Hé llo wörld ", "n": 7, "f": 2.5, "neg": -3, "l": [3, 1, 2], "d": {"b": 1, "a": [1, "x", None, True]},
     "none": None, "t": True, "people": [{"name": "Ann", "age": 3}, {"name": "bob", "age": 1}, {"name": "Cy"}],
     "words": ["b", "A", "c", "a"], "empty": [], "lines": "one\ntwo\n\nthree\r\nfour", "q": "it's \"quoted\" \\ \x07 \x7f \u200b"}
SNIPPETS = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a  {%- if true -%}  \n b \n {%- endif %} c", "x {{- ' y ' -}} z", "  {{ 1 }}\n  {# c #}\n d",
    "{#- c -#}  a", "a\n\t {#+ c #}\nb", "  {%+ if true %}x{% endif %}", "{% if true +%}\nx{% endif +%}\n", "{% raw %}{{ x }}{% if %}{% endraw %}|",
    "{%- raw -%}  {{ y }}  {%- endraw -%}  |", "a\r\nb\rc\n", "a\n\n", "{% if t %}\n\n{% endif %}\n",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ x }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l %}{{ loop.cycle('a','b') }}{% endfor %}",
    "{% for x in l if x != 1 %}{{ loop.index }}:{{ x }},{{ loop.last }} {% endfor %}", "{% for x in empty %}x{% else %}none{% endfor %}", "{% for x in nothing %}x{% else %}undef{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}", "{% for c in 'héy' %}{{ c }}.{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for i in range(3) %}{% for j in range(2) %}{{ loop.depth }}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% if true %}{% set y = 2 %}{% endif %}{{ y }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set z %}block {{ n }}{% endset %}[{{ z }}]",
    "{% macro m(a, b='x', c=n) %}<{{ a }}|{{ b }}|{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}", "{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% with a = 1, b = n %}{{ a + b }}{% endwith %}{{ a }}", "{% generation %}gen {{ n }}{% endgeneration %}!",
    "{{ n + 2 }} {{ n - 2 }} {{ n * 2 }} {{ n / 2 }} {{ n // 2 }} {{ n % 4 }} {{ n ** 2 }} {{ neg // 2 }} {{ neg % 2 }} {{ -n }} {{ +n }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** -1 }}",
    "{{ 1.0 }} {{ 1e20 }} {{ 1e-7 }} {{ 0.1 + 0.2 }} {{ 100000000000000000.0 }} {{ 1_000 }} {{ 1e16 }} {{ 123456.789 }}", "{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ (1,) == [1] }}",
    "{{ 'a' ~ 1 ~ none ~ 2.0 ~ [1] }} {{ 'a' 'b' }} {{ 'x' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }}", "{{ 'a' in 'cat' }} {{ 1 in l }} {{ 9 not in l }} {{ 'b' in d }} {{ not 1 in l }} {{ 'x' in nothing }}",
    "{{ 1 if t else 2 }} {{ 1 if false }}| {{ 1 if false else 2 if false else 3 }} {{ none or 'x' }} {{ 0 and 1 }} {{ '' or 0 or [] }}",
    "{{ l[0] }}{{ l[-1] }}{{ l[1:] }}{{ l[:-1] }}{{ l[::-1] }}{{ l[::2] }}{{ l[5:] }}{{ l[-9:2] }} {{ s[2:5] }} {{ s[-3] }} {{ s[::-1] }} {{ l[9] }}|{{ d['zz'] }}|{{ l[1:][0] }}{{ 'abc'[0] }}",
    "{{ d.a }} {{ d['a'][1] }} {{ d.get('b') }} {{ d.get('z') }} {{ d.get('z', 5) }} {{ d.keys()|list }} {{ d.values()|list }} {{ l.0 }}", "{{ people[0].name }} {{ people[2].age }}|",
    "[{{ s.strip() }}][{{ s.lstrip() }}][{{ s.rstrip() }}][{{ s|trim }}][{{ 'xxaxx'.strip('x') }}][{{ 'abcab'.lstrip('ab') }}][{{ 'héé'.rstrip('é') }}]",
    "{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s|upper }} {{ s|lower }} {{ s|title }} {{ s|capitalize }} {{ 'ÀÉ ПРИВЕТ Σ'.lower() }}",
    "{{ \"don't stop-me (NOW) a/b {x} [y] <z>\"|title }} {{ \"don't stop-me (NOW) a/b\".title() }}",
    "{{ s.split() }} {{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b c '.split(none, 1) }} {{ 'a<x>b'.split('<x>')[-1] }} {{ ''.split() }} {{ ''.split(',') }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x','c')) }} {{ 'aXbX'.replace('X', '--') }} {{ 'aaa'.replace('a','b',2) }} {{ 'abc'.find('c') }} {{ 'banana'.count('an') }} {{ '-'.join(['a','b']) }} {{ 'ab'.replace('', '.') }}",
    "{{ 'abc'.removesuffix('c') }} {{ 'abc'.removesuffix('x') }} {{ 'abc'.removeprefix('ab') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') }} {{ 'abc'.rpartition('=') }}",
    "{{ 'é天😀\\n<'|tojson(ensure_ascii=true) }} {{ {'é': ['ü']}|tojson(true) }} {{ {'é': 1}|tojson(ensure_ascii=false) }}",
    "{{ lines.splitlines() }} {{ '12'.isdigit() }} {{ 'aB'|replace('a', 'c') }}", "{{ l|length }} {{ s|length }} {{ d|length }} {{ nothing|length }} {{ s|count }}",
    "{{ l|first }} {{ l|last }} {{ empty|first }}| {{ 'héy'|last }} {{ l|join }} {{ l|join(', ') }} {{ people|join(',', attribute='name') }} {{ 'abc'|join('-') }}",
    "{{ nothing|default('x') }} {{ ''|default('x') }} {{ ''|default('x', true) }} {{ none|default('x') }} {{ nothing|d(3) }}", "{{ 5|string + 'a' }} {{ '12'|int + 1 }} {{ 'x'|int }} {{ 'x'|int(-1) }} {{ 3.9|int }} {{ '3.7'|int }} {{ '2.5'|float }} {{ 'abc'|list }} {{ 2.567|round(1) }} {{ 2.5|round }} {{ -3|abs }}",
    "{{ 42|round }} {{ 42|round(1) }} {{ 45|round(-1) }} {{ 45.0|round(-1) }} {{ 0.15|round(1) }} {{ 2.675|round(2) }} {{ 1.25|round(1) }} {{ -0.5|round }} {{ 42|round(0, 'ceil') }} {{ 0.21|round(1, 'ceil') }} {{ '0x10'|int }} {{ '0x10'|float }} {{ '1e3'|int }} {{ ' +7 '|int }} {{ 'nan'|int(5) }} {{ '1p3'|float }} {{ 'inf'|int(7) }} {{ '-.5'|float }}",
    "{{ people|selectattr('age')|map(attribute='name')|list }} {{ people|selectattr('name', 'equalto', 'bob')|list|length }} {{ people|rejectattr('age', 'defined')|map(attribute='name')|join(',') }} {{ people|map(attribute='age', default=0)|list }}",
    "{{ l|select('odd')|list }} {{ l|reject('gt', 1)|list }} {{ ['', 'a']|select|list }} {{ words|map('upper')|list }} {{ words|map('replace', 'a', 'z')|join }}",
    "{{ l|sort }} {{ l|sort(reverse=true) }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ words|unique|list }} {{ l|reverse|list }} {{ 'abc'|reverse }} {{ l|sum }} {{ l|min }} {{ l|max }} {{ people[:2]|sort(attribute='age')|map(attribute='name')|list }}",
    "{{ lines|indent }}|{{ lines|indent(2, true) }}|{{ lines|indent(2, blank=true) }}|{{ lines|indent('> ') }}", "{{ '<a href=\"x\">&\\'</a>'|e }} {{ '<b>'|safe }}",
    "{{ d|tojson }} {{ d|tojson(indent=2) }} {{ q|tojson }} {{ [1.0, 1e-9, none, true, {}, []]|tojson }} {{ {'x': [], 'y': {}}|tojson(indent=4) }} {{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }} {{ [1,2]|tojson(separators=(',', ':')) }} {{ '<é天>'|tojson }}",
    "{{ q }} {{ [q] }} {{ ['it\\'s', 'a\"b', 'x\\ny', '\\t\\\\'] }} {{ d }} {{ (1, 2) }} {{ (1,) }} {{ () }} {{ {} }} {{ {'a': 'b', 'c': none} }} {{ [1.5, true] }}",
    "{{ nothing is defined }} {{ n is defined }} {{ nothing is undefined }} {{ none is none }} {{ s is string }} {{ d is mapping }} {{ l is iterable }} {{ s is iterable }} {{ n is iterable }} {{ l is sequence }} {{ d is sequence }} {{ n is number }} {{ t is number }} {{ n is integer }} {{ t is integer }} {{ f is float }} {{ t is boolean }} {{ t is true }} {{ t is false }} {{ n is true }}",
    "{{ n is equalto 7 }} {{ n is eq(7) }} {{ n is ne 8 }} {{ n is gt 3 }} {{ n is in [7] }} {{ n is not in [7] }} {{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ s is not none }} {{ n is not defined }} {{ 'a' is lower }} {{ 'A' is upper }} {{ none is sameas none }}",
    "{{ n is defined and n is number or false }} {{ 'yes' if n is defined else 'no' }} {{ (n is string) == false }} {{ not n is string }}", "{{ nothing }}|{{ nothing ~ 'x' }}|{{ nothing == nothing2 }}|{{ nothing|trim }}",
    "{{ 'a\\x41\\u00e9\\101\\q\\'' }} {{ \"\\\"\" }} {{ '\\U0001F600' }}", "{{ {'a': {'b': 1}}['a']['b'] }} {{ {'a': 1,}.a }} {{ [1, 2,] }} {{ '}}' }} {{ '%}' }} {{ {'k': {}} }}",
    "{{ range(5)|list }} {{ range(1, 10, 3)|list }} {{ range(5, 0, -2)|list }} {{ dict(a=1, b=2) }}", "{{ n | string | length }} {{ -n|abs }} {{ (1 + 2) * 3 }} {{ 2 * 3 + 4 ~ 5 }} {{ 10 - 2 - 3 }} {{ 2 ** 3 ** 2 }} {{ 'a' + 'b' | upper }}",
    "{% set messages = messages[1:] %}{{ messages|length }}", "{{ messages[0].content }}{{ messages[0]['role'] }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}",
    "{%- set x = namespace(found=false, items=[]) -%}{% for m in l %}{% set x.items = x.items + [m * 2] %}{% endfor %}{{ x.items }}", "{{ loop is defined }}{% for a, b in [[1, 2], (3, 4)] %}{{ a + b }} {% endfor %}",
    # these raise
    "{{ nothing.x }}", "{{ nothing['x'] }}", "{{ none.x.y }}", "{{ 'a' + 1 }}", "{{ 'a' + nothing }}", "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 'x' + none }}", "{{ l|nofilter }}", "{{ l is notest }}", "{{ nothing() }}",
    "{{ s.nomethod() }}", "{{ raise_exception('no') }}", "{% if %}{% endif %}", "{% if t %}", "{{ 1", "{% for x %}{% endfor %}", "{{ [1, 2 }}", "{% endif %}", "{{ 'open }}", "{# open", "{% unknown %}", "{{ l.append(1) }}", "{{ d.update({}) }}",
    "{{ 1 < 'a' }}", "{{ n() }}", "{% for a, b in [1] %}{% endfor %}", "{{ range(1000000) }}", "{{ [1][1].x }}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set n.x = 1 %}", "{% break %}", "{{ s[::0] }}", "{{ 5|length }}", "{{ nothing|tojson }}",
]


def cases():
    for name in sorted(path.stem for path in TEMPLATES.glob("*.jinja")):
        bos, eos = TOKENS.get(name, (None, "<|im_end|>"))
        tokens = {"eos_token": eos} | ({"bos_token": bos} if bos else {})
        for title, chat in CHATS.items():
            for generation in (False, True):
                yield {"title": title, "template": name, "messages": chat, "add_generation_prompt": generation, "variables": tokens}
        if name in ("llama31", "mistral_v3", "qwen25"):
            for title, chat in TOOL_CHATS.items():
                yield {"title": title, "template": name, "messages": chat, "tools": TOOLS, "add_generation_prompt": True, "variables": tokens}
            yield {"title": "tools not in the user message", "template": name, "messages": TOOL_CHATS["tools but no call"], "tools": TOOLS,
                   "add_generation_prompt": False, "variables": tokens | {"tools_in_user_message": False}}
    for source in SNIPPETS:
        yield {"title": "snippet", "source": source, "messages": [user("hi")], "add_generation_prompt": False, "variables": V}


def render(case):
    source = case.get("source")
    if source is None:
        source = (TEMPLATES / f"{case['template']}.jinja").read_text()
    if "date_string" not in case["variables"] and "strftime_now" in source:
        # cotune gives no clock to templates while training; the template then takes the date that it holds
        source = "{%- set date_string = '26 Jul 2024' %}" + source
    try:
        rendered, _ = render_jinja_template([case["messages"]], tools=case.get("tools"), chat_template=source,
                                            add_generation_prompt=case["add_generation_prompt"], **case["variables"])
        return {"expected": rendered[0]}
    except Exception:
        return {"fails": True}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", action="store_true", help="compare with the installed transformers, write nothing")
    arguments = parser.parse_args()
    rendered = [case | render(case) for case in cases()]
    text = "[\n" + ",\n".join(json.dumps(case, ensure_ascii=True) for case in rendered) + "\n]\n"
    if not arguments.live:
        REFERENCE.write_text(text)
        print(f"{REFERENCE}: {len(rendered)} cases, {sum('fails' in case for case in rendered)} of them fail")
        return 0
    stored = json.loads(REFERENCE.read_text())
    different = [new for new, old in zip(rendered, stored) if new != old]
    for case in different:
        print("differs:", case.get("template", case.get("source")), case["title"])
    print(f"{len(rendered)} cases rendered, {len(different)} differ")
    return 1 if different or len(rendered) != len(stored) else 0


if __name__ == "__main__":
    sys.exit(main())
