# SPDX-License-Identifier: Apache-2.0
"""Writes jinja.json: templates of one construct each, the variables that they are rendered with, and what transformers' renderer of
chat templates makes of them: the text and the ranges of {% generation %} in characters, or null where it raises."""
import json
import pathlib

from transformers.utils import chat_template_utils as chat

HERE = pathlib.Path(__file__).parent
VARIABLES = {
    "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "documents": None,
    "messages": [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "Hé\n\"llo\" <b> 日本 👍"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": {
            "name": "get", "arguments": {"city": "Paris", "n": None, "f": 1.5, "b": True, "l": [1, -2, 1e-7, 1e18, 100000.0]}}}]},
        {"role": "tool", "content": "it's 'sunny'", "name": "get"},
        {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nDone."},
    ],
    "tools": [{"type": "function", "function": {"name": "get", "description": "d\u2028\x7f\x01", "parameters": {"type": "object", "properties": {
        "z": {"type": "string"}, "a": {"type": ["integer", "null"]}}, "required": []}}}],
    "n": 7, "x": 2.5, "s": "a-b c_d", "e": "", "no": None, "yes": True, "l": [3, 1, 2], "m": [[1, 2], [3, 4]], "words": ["b", "A", "c", "B"],
    "d": {"b": 1, "a": {"c": [1, "x"]}, "items": "key"}, "people": [{"n": "x", "a": 3}, {"n": "Y", "a": 1}, {"n": "z"}],
}
# one a line; \n stands for a line break of the template
CASES = r"""
a{# c #}b{#- c -#} d
{{ 1 }}\n{{ 2 }}\n
  {% if yes %}\n x\n  {% endif %}\ny
  {%- if yes -%}\n x\n  {%- endif -%}\n y
  {%+ if yes +%}\n x\n  {%+ endif %}\ny
{{- n -}}  z\n
x  {{- n -}}  z
{% raw %}{{ n }} {% if %}{% endraw %}|{%- raw -%}  a  {%- endraw -%}  b
{{ "a" 'b' "\n\t\x41\u00e9\\\'\q" }}
{{ 'é日本'|length }} {{ 'é日本'[1] }} {{ 'é日本'[::-1] }} {{ 'abcdef'[1:-1:2] }} {{ 'abc'[5:] }}|{{ 'abc'[-2:] }}
{{ l[::-1] }} {{ l[1:] }} {{ l[-1] }} {{ l[5] }}|{{ l[:2][0] }} {{ m[0][1] }} {{ m.0.1 }} {{ (1, 2, 3)[1:] }}
{{ l['a'] }}|{{ d['a'] }} {{ d.a.c[1] }} {{ d['items'] }} {{ d.nope }}|{{ d.nope is defined }}
{{ d.nope.x }}
{{ nope }}|{{ nope|length }}|{{ nope|default('q') }}|{{ nope or 'w' }}
{{ nope.x }}
{{ nope + 1 }}
{{ no.x }}|{{ no }}|{{ no['x'] }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 'a' + 1 }}
{{ 'a' * 3 }} {{ 2 * 'ab' }} {{ [1] * 2 }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'a' ~ 1 ~ none ~ 1.0 ~ true ~ [1] }}
{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 123456789.125 }} {{ 1e-5 }} {{ 0.0001 }} {{ 1.5e300 }} {{ 0.1 + 0.2 }} {{ 1e400 }} {{ -1e400 }} {{ 100.0 }} {{ 3.0e-10 }}
{{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1_0.5_0 }} {{ true }} {{ True }} {{ none }} {{ None }} {{ false }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 != 2 }} {{ none == nope }} {{ nope == nopes }}
{{ 1 < 'a' }}
{{ 2 in l }} {{ 9 not in l }} {{ 'b' in d }} {{ 'a-' in s }} {{ '' in s }} {{ (1, 2) in [(1, 2)] }} {{ 1 in nope }}
{{ 1 in 'a' }}
{{ not 1 == 2 }} {{ not n in l }} {{ 1 and 0 or 'x' }} {{ '' or none }} {{ n and s }}
{{ 'y' if yes else 'n' }} {{ 'y' if not yes }}|{{ 'a' if no else 'b' if yes else 'c' }}
{{ [1, 'a', none, true, 1.5, [], {}, (), (1,), "it's", 'q"', "\n\\", 'é\u200b\x7f'] }}
{{ {'a': 1, "b": [2], 1: none, true: 3} }} {{ {} }} {{ {'a': {'b': 'c'}} }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d2) = [3, 4] %}{{ c }}{{ d2 }}{% set t = 1, %}{{ t }}
{% set a, b = [1] %}
{% set v = 1 %}{% for i in l %}{% set v = i %}{{ v }}{% endfor %}{{ v }}
{% set v = 1 %}{% for i in l %}{{ v }}{% set v = v + i %}{{ v }},{% endfor %}{{ v }}
{% set v = 1 %}{% if yes %}{% set v = 2 %}{% endif %}{{ v }}
{% set ns = namespace(a=1, b=[]) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }} {{ ns.b }} {{ ns.c }}|{{ ns }}
{% set ns = namespace({'q': 1}, z=2) %}{{ ns.q }}{{ ns.z }}{{ ns['q'] }}
{% set d.b = 1 %}
{% set ns = namespace(_a=1) %}
{% set b %} x {{ n }} {% endset %}[{{ b }}]{% set c | upper | trim %} y {% endset %}[{{ c }}]
{% set b %}{% set inner = 1 %}{% endset %}{{ inner is defined }}
{% for i in l %}{{ loop.index }}/{{ loop.length }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }} {{ loop.previtem }} {{ loop.nextitem }};{% endfor %}
{% for i in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}
{% for i in [] %}x{% else %}none{% endfor %}{% for i in l %}x{% else %}none{% endfor %}
{% for i in l if i > 1 %}{{ i }}{{ loop.index }}{{ loop.last }}{{ loop.length }} {% endfor %}
{% for i in l if i > 1 %}{{ loop.index }}{% if not loop.last %},{% endif %}{% endfor %}
{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %} {% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% break %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }}{% endfor %} {% for k, v in d|items %}{{ k }}{% endfor %} {% for k, v in d|dictsort %}{{ k }}{% endfor %}
{% for a, b in m %}{{ a }}{{ b }}{% endfor %} {% for c in 'aé' %}[{{ c }}]{% endfor %} {% for i in range(3) %}{{ i }}{% endfor %}
{% for a, b in l %}{% endfor %}
{% for i in n %}{% endfor %}
{% for i in nope %}x{% else %}e{% endfor %}
{% for x in [[1, [2]], [3, []]] recursive %}{{ x[0] }}{{ loop.depth }}{% if x[1] %}({{ loop([[x[1][0], []]]) }}){% endif %}{% endfor %}
{% for i in l %}{% for k in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{% for i in l %}{{ loop }}{% endfor %}
{% macro f(a, b=2, c=a) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=5, a=4) }}{{ f() }}
{% macro f(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, z=4) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}
{% macro f(a) %}{{ caller(a) }}!{% endmacro %}{% call(x) f(3) %}[{{ x }}{{ n }}]{% endcall %}
{% macro f() %}{{ caller is defined }}{{ g }}{% endmacro %}{% set g = 5 %}{{ f() }}
{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(3) }}{{ f }}
{% macro f(k) %}{% set z = k %}{{ z }}{% endmacro %}{{ f(3) }}{{ z is defined }}
{% filter upper %}abc {{ s }}{% endfilter %}{% filter replace('a', 'b')|trim %} aaa {% endfilter %}
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
{% print n, s %}
a{% generation %}b{{ n }}é{% endgeneration %}c{% generation %}d{% endgeneration %}
{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}\n{% endfor %}
{% generation %}{% set q = 1 %}{% endgeneration %}{{ q is defined }}
{{ raise_exception('stop') }}
{{ strftime_now('%Y')|length }}
{{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ dict(d, z=1).z }} {{ range(1, 10, 3)|list }} {{ range(5, 0, -2)|list }} {{ range(3) }} {{ range(1, 9, 2) }} {{ range(4)[1] }}
{{ tools|tojson }}
{{ tools|tojson(indent=2) }}
{{ messages|tojson(indent=4) }}
{{ tools[0].function|tojson(indent=0, sort_keys=true) }}|{{ d|tojson(separators=(',', ':')) }}|{{ d|tojson(indent='--', separators=(', ', ' = ')) }}
{{ messages[1].content|tojson }} {{ messages[1].content|tojson(ensure_ascii=true) }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ (1, 2)|tojson }} {{ []|tojson(indent=2) }} {{ {}|tojson(indent=2) }} {{ 1e400|tojson }}
{{ messages[2].tool_calls[0].function.arguments|tojson }} {{ messages[2].tool_calls[0].function.arguments }}
{{ nope|tojson }}
{{ range(3)|tojson }}
{{ ' a '|trim }}|{{ 'xxaxx'|trim('x') }}|{{ 'aBc'|upper }}{{ 'aBc'|lower }}{{ 'hELLO wORLD'|capitalize }}{{ "hello-wORLD (x"|title }} {{ 'é'|upper }}{{ none|upper }}
{{ 'a b a'|replace('a', 'x') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'ab'|replace('', '-') }} {{ 'ab'|replace('', '-', 2) }} {{ 12|replace(1, 3) }}
{{ l|join }} {{ l|join(', ') }} {{ people|join('-', attribute='n') }} {{ 'abc'|join('.') }} {{ d|join }}
{{ l|first }} {{ l|last }} {{ []|first }}|{{ 'abc'|first }} {{ l|sum }} {{ people[:2]|sum(attribute='a') }} {{ l|min }} {{ l|max }} {{ words|min }} {{ words|max(case_sensitive=true) }} {{ people[:2]|max(attribute='a') }} {{ []|sum }} {{ []|max }}|{{ [[1], [2]]|sum(start=[]) }}
{{ l|sort }} {{ l|sort(reverse=true) }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ people[:2]|sort(attribute='a')|map(attribute='n')|list }} {{ people|sort(attribute='n')|map(attribute='n')|join }}
{{ people|sort(attribute='a') }}
{{ l|reverse|list }} {{ 'abc'|reverse }} {{ words|unique|list }} {{ d|reverse|list }} {{ l|batch(2)|list }} {{ l|batch(2, 0)|list }} {{ range(7)|slice(3)|list }} {{ range(7)|slice(3, 'x')|list }}
{{ l|map('string')|list }} {{ words|map('upper')|join }} {{ people|map(attribute='a')|list }} {{ people|map(attribute='a', default=0)|list }} {{ m|map('first')|list }} {{ m|map(attribute=1)|list }} {{ words|map('replace', 'b', 'q')|list }}
{{ l|select('odd')|list }} {{ l|reject('odd')|list }} {{ l|select('>', 1)|list }} {{ l|select|list }} {{ people|selectattr('a')|list }} {{ people|selectattr('a', 'defined')|map(attribute='n')|list }} {{ people|rejectattr('a', 'eq', 3)|list|length }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|rejectattr('role', 'in', ['user', 'system'])|map(attribute='role')|join(' ') }}
{{ l|map('nofilter')|list }}
{{ l|map('nofilter')|first|length }}
{% set g = l|select('odd') %}{{ g|list }}{{ g|list }}{{ g is iterable }}{{ g is sequence }}
{{ l|select|length }}
{% set g = l|map('string') %}{{ g|first }}{{ g|first }}{{ g|list }}
{{ people|groupby('n')|length }}{% for k, v in [{'c': 'b', 'v': 1}, {'c': 'a', 'v': 2}, {'c': 'B', 'v': 3}]|groupby('c') %}{{ k }}:{{ v|map(attribute='v')|list }}{% endfor %}
{% for g in [{'c': 1}, {'c': 2}, {'c': 1}]|groupby('c') %}{{ g.grouper }}{{ g.list }}{{ g }}{% endfor %}
{{ '3'|int }} {{ ' -4 '|int }} {{ '3.7'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 3.9|int }} {{ none|int }} {{ '1_000'|int }} {{ true|int }} {{ '1.5'|float }} {{ 'x'|float }} {{ 'x'|float(2.5) }} {{ 3|float }} {{ '1e3'|float }} {{ 'inf'|float }}
{{ 2.5|round }} {{ 3.5|round }} {{ 2.567|round(2) }} {{ 2.5|round(0, 'ceil') }} {{ 2.599|round(2, 'floor') }} {{ 7|round }} {{ -3|abs }} {{ -2.5|abs }} {{ 1.005|round(2) }} {{ 7.0|round|int }}
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent('> ', blank=true) }}|{{ ''|indent(first=true) }}
{{ 'x'|center(5) }}|{{ 'ab'|center(5) }}|{{ "%s and %d, %5.2f%% %r %-4s| %04d"|format('a', 3, 2.345, 'q', 'z', 7) }} {{ "%(a)s"|format(a=1) }}
{{ 'a'|default('b') }} {{ ''|default('b') }}|{{ ''|default('b', true) }} {{ no|d('x') }} {{ no|d('x', boolean=true) }} {{ e|default('q', boolean=true) }}
{{ '<a&"b\'>'|e }} {{ '<b>'|safe }} {{ 3|string + '4' }} {{ ('<'|safe) ~ '<' }} {{ '<'|escape|length }} {{ '<'|safe is escaped }}
{{ s|nofilter }}
{% if no %}{{ s|nofilter }}{% endif %}ok
{{ s is notest }}
{{ s|length(1) }}
{{ s|join(x=1) }}
{{ n is defined }} {{ nope is undefined }} {{ no is none }} {{ s is string }} {{ d is mapping }} {{ l is sequence }} {{ l is iterable }} {{ n is number }} {{ n is integer }} {{ x is float }} {{ yes is boolean }} {{ yes is true }} {{ no is false }} {{ true is integer }} {{ true is number }} {{ d is sequence }} {{ s is iterable }} {{ n is iterable }} {{ nope is iterable }} {{ nope is sequence }} {{ 'a' is sequence }} {{ range(2) is sequence }}
{{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ n is divisibleby(2) }} {{ n is eq 7 }} {{ n is equalto 8 }} {{ n is gt 6 }} {{ n is lessthan 6 }} {{ n is in [7] }} {{ n is not in [7] }} {{ no is sameas none }} {{ yes is sameas true }} {{ d is sameas d }} {{ 'a' is lower }} {{ 'A' is upper }} {{ '1' is upper }} {{ raise_exception is callable }} {{ s is callable }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ 'q' is filter }}
{{ s.split('-') }} {{ s.split() }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c '.split(none, 1) }} {{ 'a\nb\r\nc'.splitlines() }} {{ 'a\nb'.splitlines(true) }} {{ ''.split('x') }} {{ ''.split() }} {{ 'aXbXc'.split('X')[-1] }}
{{ s.split('') }}
{{ '  x '.strip() }}|{{ '  x '.lstrip() }}|{{ '  x '.rstrip() }}|{{ 'xyax'.strip('xy') }}|{{ '\n\na\n'.lstrip('\n') }}|{{ 'éaé'.strip('é') }}
{{ s.upper() }} {{ 'ABC'.lower() }} {{ 'hello world'.title() }} {{ 'hELLO'.capitalize() }} {{ s.replace('-', '+') }} {{ 'aaa'.replace('a', 'b', 1) }} {{ s.startswith('a') }} {{ s.endswith(('x', 'd')) }} {{ s.startswith(('q',)) }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ s.find('b') }} {{ 'éab'.find('b') }} {{ s.find('q') }} {{ 'abab'.rfind('b') }} {{ 'abab'.count('ab') }} {{ ','.join(['a', 'b']) }} {{ ','.join('ab') }} {{ 'a.b'.partition('.') }} {{ 'a.b.c'.rpartition('.') }}
{{ ','.join([1]) }}
{{ s.index('q') }}
{{ '1'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'a'.isalpha() }} {{ ' '.isspace() }} {{ ''.isdigit() }} {{ 'a'.islower() }} {{ 'A1'.isupper() }} {{ 'a'.center(5) }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '0') }}
{{ '{} {} {a} {{}}'.format(1, 'b', a=none) }} {{ '{0}{1}{0}'.format(1, 2) }} {{ '%s|%s' % (1, [2]) }} {{ '%d' % 3.9 }} {{ '%s' % none }} {{ '%(b)s' % d }} {{ 'x' % () }} {{ '%.3f' % 2 }} {{ '%+d' % 3 }}
{{ '%s %s' % 1 }}
{{ '%d' % 'a' }}
{{ '{}'.format() }}
{{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 1) }} {{ d.keys()|list }} {{ d.values()|list|length }} {{ l.index(1) }} {{ l.count(1) }} {{ (1, 1).count(1) }} {{ {'a': 1}.keys() }} {{ {'a': 1}.items() }} {{ {'a': 1}.values() }} {{ l.copy() }}
{{ l.append(1) }}
{{ d.update({}) }}
{{ d.pop }}|{{ l.append is defined }}
{{ s.nope }}|{{ s.nope is defined }}|{{ n.nope }}
{{ s.nope() }}
{{ n() }}
{{ '' is defined and n }} {{ (n) }} {{ (n,) }} {{ () }} {{ n if n is defined else 1 }} {{ -n }} {{ +n }} {{ - n|abs }} {{ not n is string }}
{{ [1, 2, 3,] }} {{ {'a': 1,} }} {{ (1, 2,) }} {{ range(1, 3,)|list }} {{ dict(**{'a': 1}) }} {{ range(*[1, 4])|list }}
{% set content = messages[4].content %}{% if '</think>' in content %}{{ content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}|{{ content.split('</think>')[-1].lstrip('\n') }}{% endif %}
{%- for message in messages -%}{%- if message.role == 'tool' -%}[{{ message.name }}]{{ message['content'] }}{%- elif 'tool_calls' in message and message.tool_calls -%}{%- for c in message.tool_calls -%}{{ c.function.name }}({{ c.function.arguments|tojson }}){%- endfor -%}{%- else -%}{{ message.content|trim }}{%- endif -%}{{ '\n' }}{%- endfor -%}
{{ messages[-1].content[:3] }} {{ messages[::-1]|map(attribute='role')|join(',') }} {{ messages[1:]|length }} {{ (messages|last).role }} {{ messages[0]['role'] == 'system' }}
{{ n
{% if n %}
{% endif %}
{% unknown %}
{{ 'a }}
{{ [1 }}
{{ (1] }}
{% set 1 = 2 %}
{% set none = 2 %}
{% for loop in l %}{% endfor %}
{% for i in l %}{% set loop = 1 %}{% endfor %}
{{ f(a=1, 2) }}
{{ f(a=1, a=2) }}
{% macro f(a=1, b) %}{% endmacro %}
{% call n %}{% endcall %}
{{ a.1.b }}|{{ 1 is string is string }}
{{ }}
{{ n ! }}
{% if n %}{% elif s %}{% else %}{% endif %}{% if not n %}a{% elif s %}b{% else %}c{% endif %}
{{ {'a': 1}['a'] }}{{ {'a': 1}.a }}{{ 'a' in {'a': 1} }}{{ [[1, 2], [3]]|map('length')|list }}
{{ [l] }} {{ l == [3, 1, 2] }} {{ {'a': 1} == {'a': 1.0} }} {{ [] == () }} {{ 'a' == 1 }}
{{ {[1]: 2} }}
{{ d[[1]] }}|{{ l[1.0] }}|{{ l[true] }}
{{ no[1:] }}
{{ n[:1] }}
{{ 'abc'[::0] }}
{{ s['a':] }}
{{ self.X }}|{{ self.X is defined }}|{{ self.X or 'q' }}|{{ self.a == nope }}{% macro f() %}[{{ self.a }}]{% endmacro %}{{ f() }}
{{ self.x.y }}
{{ self.x() }}
"""


def one(template):
    variables = json.loads(json.dumps(VARIABLES))
    try:
        compiled = chat._compile_jinja_template(template)
        blocks, ranges = [], []
        with compiled.environment.activate_tracker(blocks, ranges):
            for block in compiled.generate(**variables):
                blocks.append(block)
        return {"template": template, "want": "".join(blocks), "generated": ranges}
    except Exception:
        return {"template": template, "want": None}


def main():
    cases = [one(line.replace(r"\n", "\n") if not any(q in line for q in ("'\\n", "\\n'", '"\\n')) else line) for line in CASES.strip("\n").split("\n")]
    out = ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases)
    (HERE / "jinja.json").write_text('{"variables": %s,\n"cases": [\n%s\n]}\n' % (json.dumps(VARIABLES, ensure_ascii=False), out))
    print(len(cases), "cases,", sum(c["want"] is None for c in cases), "errors")


main()
