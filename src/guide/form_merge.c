/* SPDX-License-Identifier: Apache-2.0 */
/* Schemas of which a value has all, and whether two have a value together. See form_schema.h. */
#include "guide/form_schema.h"

#include <stdio.h>
#include <string.h>

/* ---- allOf ---- */
static bool merge_properties(json_t *into, json_t *from)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(from, key, value)
    {
        json_t *there = json_object_get(into, key);
        const int failed =
            there == NULL || json_equal(there, value)
                ? json_object_set(into, key, value)
                : json_object_set_new(into, key, json_pack("{s:[O,O]}", "allOf", there, value));
        if (failed != 0) {
            return false;
        }
    }
    return true;
}

/* Which of two bounds is tighter: the larger of those that begin so. */
static bool is_lower_bound(const char *key)
{
    return strncmp(key, "min", 3) == 0 || strcmp(key, "exclusiveMinimum") == 0;
}

static bool is_upper_bound(const char *key)
{
    return strncmp(key, "max", 3) == 0 || strcmp(key, "exclusiveMaximum") == 0;
}

static const char *type_at(const json_t *types, size_t i)
{
    return json_is_array(types) ? json_string_value(json_array_get(types, i))
           : i == 0             ? json_string_value(types)
                                : NULL;
}

/* The types of which a value may be by both. */
static bool merge_types(dsi_form_schema *s, json_t *into, json_t *other, const dsi_place *place)
{
    json_t *own = json_object_get(into, "type");
    json_t *both = json_array();
    bool made = both != NULL;
    const char *a = NULL;
    const char *b = NULL;
    for (size_t i = 0; (a = type_at(own, i)) != NULL; ++i) {
        for (size_t k = 0; (b = type_at(other, k)) != NULL; ++k) {
            const bool wider = strcmp(a, "number") == 0 && strcmp(b, "integer") == 0;
            const bool same =
                strcmp(a, b) == 0 || (strcmp(a, "integer") == 0 && strcmp(b, "number") == 0);
            if (same || wider) {
                made = made && json_array_append_new(both, json_string(wider ? b : a)) == 0;
            }
        }
    }
    if (made && json_array_size(both) == 0) {
        (void)dsi_form_schema_fail(s, place, "type", "no value is of both types");
        made = false;
    }
    return json_object_set_new(into, "type", both) == 0 && made;
}

/* Items behind prefixItems are others where these stand in another schema. */
static bool are_items_apart(const json_t *into, const json_t *node)
{
    return (json_object_get(into, "prefixItems") != NULL &&
            json_object_get(node, "items") != NULL &&
            json_object_get(node, "prefixItems") == NULL) ||
           (json_object_get(into, "items") != NULL &&
            json_object_get(into, "prefixItems") == NULL &&
            json_object_get(node, "prefixItems") != NULL);
}

static bool merge_key(dsi_form_schema *s, json_t *into, const char *key, json_t *value,
                      const dsi_place *place)
{
    json_t *there = json_object_get(into, key);
    const bool words = strcmp(key, "title") == 0 || strcmp(key, "description") == 0 ||
                       strcmp(key, "default") == 0 || strcmp(key, "examples") == 0 ||
                       key[0] == '$' || strcmp(key, "definitions") == 0;
    if (strcmp(key, "additionalProperties") == 0 && !json_is_true(value)) {
        (void)dsi_form_schema_fail(s, place, key, "not supported within allOf of several schemas");
        return false;
    }
    if (there == NULL || words || json_equal(there, value)) {
        const bool grows = strcmp(key, "properties") == 0 || strcmp(key, "required") == 0;
        return json_object_set_new(into, key, grows ? json_copy(value) : json_incref(value)) == 0;
    }
    if (strcmp(key, "type") == 0) {
        return merge_types(s, into, value, place);
    }
    if (strcmp(key, "properties") == 0 && json_is_object(there)) {
        return merge_properties(there, value);
    }
    if (strcmp(key, "required") == 0 && json_is_array(there)) {
        return json_array_extend(there, value) == 0;
    }
    if ((is_lower_bound(key) || is_upper_bound(key)) && json_is_number(there)) {
        const bool larger = json_number_value(value) > json_number_value(there);
        return larger != is_lower_bound(key) || json_object_set(into, key, value) == 0;
    }
    (void)dsi_form_schema_fail(s, place, key, "two values of it within allOf are not supported");
    return false;
}

static bool merge_all(dsi_form_schema *s, json_t *into, json_t *node, const dsi_place *place,
                      int depth)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (depth > 32 || !dsi_grammar_work(s->g)) {
        (void)dsi_form_schema_fail(s, place, "allOf", "too deep, or it contains itself");
        return false;
    }
    node = dsi_form_schema_refer(s, node, place);
    if (node == NULL || json_is_true(node)) {
        return node != NULL;
    }
    if (!json_is_object(node)) {
        (void)dsi_form_schema_fail(s, place, "allOf", "expected an array of schemas");
        return false;
    }
    if (are_items_apart(into, node)) {
        (void)dsi_form_schema_fail(s, place, "prefixItems",
                                   "not supported within allOf beside items of another schema");
        return false;
    }
    json_object_foreach(node, key, value)
    {
        if (strcmp(key, "allOf") != 0 && !merge_key(s, into, key, value, place)) {
            return false;
        }
    }
    json_t *parts = json_object_get(node, "allOf");
    if (parts != NULL && !json_is_array(parts)) {
        (void)dsi_form_schema_fail(s, place, "allOf", "expected an array of schemas");
        return false;
    }
    for (size_t i = 0; i < json_array_size(parts); ++i) {
        if (!merge_all(s, into, json_array_get(parts, i), place, depth + 1)) {
            return false;
        }
    }
    return true;
}

json_t *dsi_form_schema_merge(dsi_form_schema *s, json_t *node, const dsi_place *place)
{
    static const char *const words[] = {"title",   "description", "default",
                                        "$schema", "$defs",       "definitions",
                                        "$id",     "$comment",    "examples"};
    json_t *parts = json_object_get(node, "allOf");
    size_t beside = json_object_size(node) - 1;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) {
        beside -= json_object_get(node, words[i]) != NULL;
    }
    if (json_array_size(parts) == 1 && beside == 0) { /* one alone is itself */
        json_t *to = dsi_form_schema_refer(s, json_array_get(parts, 0), place);
        if (to == NULL || (json_is_object(to) && json_object_get(to, "allOf") == NULL)) {
            return to;
        }
    }
    json_t *all = json_object();
    if (all == NULL || json_array_append_new(s->made, all) != 0) {
        (void)dsi_grammar_fail(s->g, "no memory for a JSON schema");
        return NULL;
    }
    return merge_all(s, all, node, place, 0) ? all : NULL;
}

/* ---- oneOf ---- */
enum {
    NONE = 0,
    NULLS = 1,
    BOOLEANS = 2,
    NUMBERS = 4,
    STRINGS = 8,
    ARRAYS = 16,
    OBJECTS = 32,
    ALL = 63
};

static int type_of(const json_t *v)
{
    return json_is_null(v)      ? NULLS
           : json_is_boolean(v) ? BOOLEANS
           : json_is_number(v)  ? NUMBERS
           : json_is_string(v)  ? STRINGS
           : json_is_array(v)   ? ARRAYS
                                : OBJECTS;
}

static int type_named(const char *name)
{
    static const struct {
        const char *name;
        int type;
    } all[] = {{"null", NULLS},      {"boolean", BOOLEANS}, {"number", NUMBERS},
               {"integer", NUMBERS}, {"string", STRINGS},   {"array", ARRAYS},
               {"object", OBJECTS}};
    for (size_t i = 0; name != NULL && i < sizeof all / sizeof all[0]; ++i) {
        if (strcmp(all[i].name, name) == 0) {
            return all[i].type;
        }
    }
    return ALL;
}

/* The constants of a schema as an array (a new reference), NULL: it is of others. */
static json_t *constants(json_t *node)
{
    json_t *only = json_object_get(node, "const");
    json_t *values = json_object_get(node, "enum");
    return only != NULL            ? json_pack("[O]", only)
           : json_is_array(values) ? json_incref(values)
                                   : NULL;
}

static int types_of(json_t *node)
{
    json_t *type = json_object_get(node, "type");
    json_t *values = constants(node);
    int types = values != NULL || type != NULL ? NONE : ALL;
    for (size_t i = 0; i < json_array_size(values); ++i) {
        types |= type_of(json_array_get(values, i));
    }
    json_decref(values);
    if (values == NULL && json_is_string(type)) {
        types = type_named(json_string_value(type));
    }
    for (size_t i = 0; values == NULL && i < json_array_size(type); ++i) {
        types |= type_named(json_string_value(json_array_get(type, i)));
    }
    return types;
}

static bool share_constant(json_t *a, json_t *b)
{
    for (size_t i = 0; i < json_array_size(a); ++i) {
        for (size_t k = 0; k < json_array_size(b); ++k) {
            json_t *x = json_array_get(a, i);
            json_t *y = json_array_get(b, k);
            if (json_equal(x, y) || (json_is_number(x) && json_is_number(y) &&
                                     json_number_value(x) == json_number_value(y))) {
                return true;
            }
        }
    }
    return false;
}

static bool requires(json_t *node, const char *name)
{
    json_t *all = json_object_get(node, "required");
    for (size_t i = 0; i < json_array_size(all); ++i) {
        const char *one = json_string_value(json_array_get(all, i));
        if (one != NULL && strcmp(one, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether a property that both require has different constants in them. */
static bool differ_in_property(dsi_form_schema *s, json_t *a, json_t *b, const dsi_place *place)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_t *others = json_object_get(b, "properties");
    json_object_foreach(json_object_get(a, "properties"), key, value)
    {
        json_t *other = json_object_get(others, key);
        if (other == NULL || !requires(a, key) || !requires(b, key)) {
            continue;
        }
        json_t *own = dsi_form_schema_refer(s, value, place);
        other = dsi_form_schema_refer(s, other, place);
        json_t *mine = constants(own);
        json_t *theirs = constants(other);
        const bool differ = mine != NULL && theirs != NULL && !share_constant(mine, theirs);
        json_decref(mine);
        json_decref(theirs);
        if (differ || (own != NULL && other != NULL && (types_of(own) & types_of(other)) == 0)) {
            return true;
        }
    }
    return false;
}

bool dsi_form_schema_disjoint(dsi_form_schema *s, json_t *a, json_t *b, const dsi_place *place)
{
    a = json_is_object(a) ? dsi_form_schema_refer(s, a, place) : a;
    b = json_is_object(b) ? dsi_form_schema_refer(s, b, place) : b;
    if (!json_is_object(a) || !json_is_object(b)) {
        return json_is_false(a) || json_is_false(b);
    }
    const int both = types_of(a) & types_of(b);
    json_t *mine = constants(a);
    json_t *theirs = constants(b);
    const bool constant = mine != NULL && theirs != NULL;
    const bool differ = constant && !share_constant(mine, theirs);
    json_decref(mine);
    json_decref(theirs);
    return both == 0 || differ || (both == OBJECTS && differ_in_property(s, a, b, place));
}
