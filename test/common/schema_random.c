/* SPDX-License-Identifier: Apache-2.0 */
/* Random JSON schemas. See schema_valid.h. */
#include "common/schema_valid.h"

#include <stdio.h>

typedef struct maker {
    uint64_t seed;
    int left; /* parts that may still be made */
} maker;

static json_t *make(maker *m, int depth);

uint32_t schema_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 33) % n);
}

static uint32_t below(maker *m, uint32_t n)
{
    return schema_below(&m->seed, n);
}

static json_t *scalar(maker *m)
{
    static const char *const texts[] = {"",  "a",         "red", "x\"y", "\\",
                                        "é", "line\nend", "{",   "日本"};
    static const double numbers[] = {0.5, -1.25, 0.1, 1e10, 3.0};
    switch (below(m, 5)) {
    case 0:
        return json_integer((json_int_t)below(m, 2000) - 1000);
    case 1:
        return json_real(numbers[below(m, 5)]);
    case 2:
        return below(m, 2) ? json_null() : json_boolean(below(m, 2));
    default:
        return json_string(texts[below(m, 9)]);
    }
}

/* An enum or a const, alone or with a type or a list of types; one of the values is of it. */
static json_t *values(maker *m)
{
    static const char *const types[] = {"string", "null", "boolean", "integer", "array", "object"};
    json_t *s = below(m, 3) != 0
                    ? json_pack("{s:[o,o,o,s]}", "enum", scalar(m), scalar(m), scalar(m), "own")
                    : json_pack("{s:s}", "const", "own");
    json_t *list = json_pack("[s]", "string");
    switch (below(m, 3)) {
    case 0:
        (void)json_object_set(s, "type", json_array_get(list, 0));
        break;
    case 1:
        for (uint32_t n = below(m, 3), first = below(m, 5); n > 0; --n) {
            (void)json_array_append_new(list, json_string(types[1 + (first + n) % 5]));
        }
        (void)json_object_set(s, "type", list);
        break;
    default:
        break;
    }
    json_decref(list);
    return s;
}

static json_t *string(maker *m)
{
    static const char *const patterns[] = {
        "^[a-z]{2,5}$", "^\\d{3}-\\d{4}$",   "ab+c",
        "^(foo|bar)",   "[^x]y?$",           "^\\w+\\s\\S$",
        "a|^b$",        "^[\"\\\\/é]{1,3}$", "^(?:a(?:b|c){2,3})*$",
        "^.{2}$"};
    static const char *const formats[] = {"date", "date-time", "uuid", "ipv4", "email",
                                          "time", "hostname",  "uri",  "ipv6"};
    json_t *s = json_pack("{s:s}", "type", "string");
    const json_int_t least = below(m, 4);
    switch (below(m, 5)) {
    case 0:
        (void)json_object_set_new(s, "minLength", json_integer(least));
        (void)json_object_set_new(s, "maxLength", json_integer(least + below(m, 9)));
        break;
    case 1:
        (void)json_object_set_new(s, "pattern", json_string(patterns[below(m, 10)]));
        break;
    case 2:
        (void)json_object_set_new(s, "format", json_string(formats[below(m, 9)]));
        break;
    case 3:
        (void)json_object_set_new(s, "minLength", json_integer(least));
        break;
    default:
        break;
    }
    return s;
}

static json_t *number(maker *m)
{
    const bool whole = below(m, 2);
    json_t *s = json_pack("{s:s}", "type", whole ? "integer" : "number");
    const double scale = whole || below(m, 2) ? 1.0 : below(m, 2) ? 10.0 : 1000.0;
    const int low = (int)below(m, 4000) - 2000;
    const int high = low + 2 + (int)below(m, below(m, 2) ? 20 : 3000);
    if (below(m, 4) != 0) {
        (void)json_object_set_new(s, below(m, 2) ? "minimum" : "exclusiveMinimum",
                                  scale == 1.0 ? json_integer(low) : json_real(low / scale));
    }
    if (below(m, 4) != 0) {
        (void)json_object_set_new(s, below(m, 2) ? "maximum" : "exclusiveMaximum",
                                  scale == 1.0 ? json_integer(high) : json_real(high / scale));
    }
    return s;
}

static json_t *array(maker *m, int depth)
{
    json_t *s = json_pack("{s:s}", "type", "array");
    const json_int_t least = below(m, 3);
    if (below(m, 3) == 0) {
        (void)json_object_set_new(s, "prefixItems",
                                  json_pack("[o,o]", make(m, depth), make(m, depth)));
    }
    (void)json_object_set_new(s, "items",
                              below(m, 6) == 0 && json_object_get(s, "prefixItems") != NULL &&
                                      least < 3
                                  ? json_false()
                                  : make(m, depth));
    if (below(m, 2)) {
        (void)json_object_set_new(s, "minItems", json_integer(least));
    }
    if (below(m, 3) != 0) {
        (void)json_object_set_new(s, "maxItems", json_integer(least + below(m, 4)));
    }
    return s;
}

static json_t *object(maker *m, int depth)
{
    static const char *const names[] = {"a",   "ab", "abc", "id", "naïve",
                                        "x y", "\"", "\\",  "b",  "list"};
    json_t *s = json_pack("{s:s}", "type", "object");
    json_t *properties = json_object();
    json_t *required = json_array();
    const uint32_t n = below(m, 5);
    for (uint32_t i = 0; i < n; ++i) {
        const char *name = names[below(m, 10)];
        const bool is_new = json_object_get(properties, name) == NULL;
        (void)json_object_set_new(properties, name, make(m, depth));
        if (is_new && below(m, 2)) {
            (void)json_array_append_new(required, json_string(name));
        }
    }
    (void)json_object_set_new(s, "properties", properties);
    (void)json_object_set_new(s, "required", required);
    switch (below(m, 3)) {
    case 0:
        (void)json_object_set_new(s, "additionalProperties", json_false());
        break;
    case 1:
        (void)json_object_set_new(s, "additionalProperties", below(m, 2) ? json_true() : number(m));
        break;
    default:
        break;
    }
    return s;
}

static json_t *tagged(maker *m, const char *tag, int depth)
{
    json_t *s = object(m, depth);
    (void)json_object_set_new(json_object_get(s, "properties"), "kind",
                              json_pack("{s:s}", "const", tag));
    (void)json_array_append_new(json_object_get(s, "required"), json_string("kind"));
    return s;
}

/* Alternatives beside what holds for all of them. */
static json_t *beside(maker *m)
{
    const int low = (int)below(m, 50);
    switch (below(m, 4)) {
    case 0:
        return json_pack("{s:[s,s],s:i,s:[o,o]}", "type", "integer", "null", "minimum", low,
                         "anyOf", json_pack("{s:s,s:i}", "type", "number", "maximum", low + 9),
                         json_pack("{s:[s,s]}", "type", "string", "null"));
    case 1:
        return json_pack("{s:[s,s],s:[o,o]}", "type", "string", "integer", "oneOf", string(m),
                         number(m));
    case 2:
        return json_pack("{s:s,s:{s:o,s:o},s:[{s:[s]},{s:[s]}]}", "type", "object", "properties",
                         "a", number(m), "b", string(m), "anyOf", "required", "a", "required", "b");
    default:
        return json_pack("{s:[s,s,s,i,i,n],s:i,s:i,s:i}", "enum", "", "é", "red", low, 60,
                         "minLength", 1, "maxLength", 2, "minimum", 50);
    }
}

static json_t *combined(maker *m, int depth)
{
    switch (below(m, 5)) {
    case 4:
        return beside(m);
    case 0:
        return json_pack("{s:[o,o]}", "anyOf", make(m, depth), make(m, depth));
    case 1:
        return json_pack("{s:[o,o]}", "oneOf", tagged(m, "p", depth), tagged(m, "q", depth));
    case 2:
        return json_pack("{s:[o,o]}", "oneOf", string(m), number(m));
    default:
        return json_pack("{s:[{s:s,s:i},{s:i}]}", "allOf", "type", "integer", "minimum",
                         (int)below(m, 50), "maximum", 50 + (int)below(m, 50));
    }
}

static json_t *make(maker *m, int depth)
{
    const bool may_nest = depth < 3 && --m->left > 0;
    switch (below(m, may_nest ? 12 : 5)) {
    case 0:
        return number(m);
    case 1:
        return values(m);
    case 2:
        return below(m, 3) == 0 ? json_pack("{s:[s,s]}", "type", "null", "boolean") : string(m);
    case 3:
        return below(m, 3) == 0 ? json_pack("{s:o}", "const", scalar(m)) : string(m);
    case 4:
        return below(m, 4) == 0 ? json_pack("{s:s}", "$ref", "#/$defs/tree") : number(m);
    case 5:
    case 6:
        return array(m, depth + 1);
    case 7:
        return combined(m, depth + 1);
    case 8:
        return below(m, 4) == 0 ? json_true() : object(m, depth + 1);
    default:
        return object(m, depth + 1);
    }
}

json_t *schema_random(uint64_t seed)
{
    maker m = {.seed = seed * 0x9e3779b97f4a7c15u + 1, .left = 12};
    json_t *s = make(&m, 0);
    json_t *tree = json_pack("{s:s,s:{s:{s:s},s:{s:s,s:{s:s},s:i}},s:[s,s],s:b}", "type", "object",
                             "properties", "value", "type", "integer", "children", "type", "array",
                             "items", "$ref", "#/$defs/tree", "maxItems", 2, "required", "value",
                             "children", "additionalProperties", 0);
    if (json_is_boolean(s)) {
        s = json_object();
    }
    if (json_object_get(s, "$ref") != NULL) {
        json_decref(s);
        s = json_pack("{s:s,s:{s:s}}", "type", "array", "items", "$ref", "#/$defs/tree");
    }
    (void)json_object_set_new(s, "$defs", json_pack("{s:o}", "tree", tree));
    return s;
}
