/* SPDX-License-Identifier: Apache-2.0 */
/* Objects and arrays. See form_schema.h. */
#include "guide/form_schema.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_NAME = 128 };

static uint32_t put_word(dsi_form_schema *s, uint32_t at, const char *word)
{
    return dsi_grammar_text(s->g, at, word, strlen(word));
}

/* ---- keys that are not listed ---- */
/* The character at text, as it stands in a string without an escape; 0: it needs one, or the text
 * ends. *size_out: its bytes. */
static uint32_t plain_at(const char *text, size_t *size_out)
{
    const unsigned char *p = (const unsigned char *)text;
    const size_t size = p[0] < 0x80 ? 1 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    uint32_t point = size == 1 ? p[0] : p[0] & (0x7Fu >> size);
    for (size_t i = 1; i < size; ++i) {
        point = point << 6 | (p[i] & 63u);
    }
    *size_out = size;
    return p[0] < 0x20 || p[0] == '"' || p[0] == '\\' ? 0 : point;
}

static void add_plain(dsi_chars *set)
{
    dsi_chars_add(set, ' ', '!');
    dsi_chars_add(set, '#', '[');
    dsi_chars_add(set, ']', 0x10FFFF);
}

/* names[0..n) are those that begin as the key does so far; each stands where it goes on. A key that
 * leaves all of them goes to `other`. */
static void put_unlisted(dsi_form_schema *s, uint32_t at, const char **names, size_t n,
                         uint32_t other, uint32_t closed)
{
    dsi_chars leaves = {0};
    bool is_name = false;
    size_t size = 0;
    for (size_t i = 0; i < n; ++i) {
        is_name = is_name || names[i][0] == '\0';
    }
    if (!is_name) {
        dsi_grammar_byte(s->g, at, closed, '"', '"');
    }
    dsi_chars_add(&leaves, 0, ' ' - 1);
    dsi_chars_add(&leaves, '"', '"');
    dsi_chars_add(&leaves, '\\', '\\');
    for (size_t done = 0; done < n && dsi_grammar_work(s->g);) {
        const uint32_t point = plain_at(names[done], &size);
        size_t same = done;
        for (size_t i = done; i < n; ++i) { /* those with the same character come first */
            if (strncmp(names[i], names[done], size) == 0) {
                const char *swapped = names[i];
                names[i] = names[same];
                names[same++] = swapped;
            }
        }
        if (point != 0) {
            dsi_chars one = {0};
            dsi_chars_add(&one, point, point);
            dsi_chars_add(&leaves, point, point);
            for (size_t i = done; i < same; ++i) {
                names[i] += size;
            }
            put_unlisted(s, dsi_chars_put(s->g, at, &one, false), names + done, same - done, other,
                         closed);
        }
        done = same;
    }
    dsi_chars_invert(&leaves, 0x10FFFF);
    dsi_grammar_empty(s->g, dsi_chars_put(s->g, at, &leaves, false), other);
}

/* A key that is none of the properties, without escapes. */
static uint32_t put_other_key(dsi_form_schema *s, uint32_t at, json_t *properties)
{
    dsi_grammar *g = s->g;
    const size_t n = json_object_size(properties);
    const char **names = calloc(n + 1, sizeof *names);
    const uint32_t other = dsi_grammar_state(g);
    const uint32_t closed = dsi_grammar_state(g);
    const char *key = NULL;
    json_t *value = NULL;
    size_t i = 0;
    dsi_chars plain = {0};
    if (names == NULL) {
        return dsi_grammar_fail(g, "no memory for a JSON schema");
    }
    json_object_foreach(properties, key, value)
    {
        names[i++] = key;
        if (strlen(key) > MOST_NAME) {
            (void)dsi_grammar_fail(g, "JSON schema: additionalProperties: not supported beside a "
                                      "property whose name has more than 128 bytes");
        }
    }
    if (!g->failed) {
        put_unlisted(s, put_word(s, at, "\""), names, n, other, closed);
    }
    add_plain(&plain);
    dsi_grammar_empty(g, dsi_chars_put(g, other, &plain, false), other);
    dsi_grammar_byte(g, other, closed, '"', '"');
    free(names);
    return closed;
}

/* ---- objects ---- */
typedef struct object {
    json_t *properties, *required, *others; /* others: a schema or NULL: there are none */
    const dsi_place *place;
} object;

static bool is_required(const object *o, const char *name)
{
    for (size_t i = 0; i < json_array_size(o->required); ++i) {
        const char *one = json_string_value(json_array_get(o->required, i));
        if (one != NULL && strcmp(one, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Reads the keywords. Names that are required and not listed become properties of what others are;
 * `properties` is a new reference. */
static void read_object(dsi_form_schema *s, json_t *node, object *o)
{
    json_t *listed = json_object_get(node, "properties");
    json_t *others = json_object_get(node, "additionalProperties");
    o->required = json_object_get(node, "required");
    o->others = others != NULL ? others : listed != NULL ? json_false() : json_true();
    o->properties = listed != NULL ? json_copy(listed) : json_object();
    if ((listed != NULL && !json_is_object(listed)) ||
        (o->required != NULL && !json_is_array(o->required))) {
        (void)dsi_form_schema_fail(
            s, o->place, listed != NULL && !json_is_object(listed) ? "properties" : "required",
            "expected an object of schemas, and an array of names");
        return;
    }
    json_t *unlisted = others != NULL ? others : json_true();
    for (size_t i = 0; i < json_array_size(o->required); ++i) {
        const char *name = json_string_value(json_array_get(o->required, i));
        if (name == NULL) {
            (void)dsi_form_schema_fail(s, o->place, "required", "expected an array of names");
        } else if (json_object_get(o->properties, name) == NULL && json_is_false(unlisted)) {
            (void)dsi_form_schema_fail(s, o->place, "required",
                                       "it names a property that additionalProperties forbids");
        } else if (json_object_get(o->properties, name) == NULL) {
            (void)json_object_set(o->properties, name, unlisted);
        }
    }
    o->others = json_is_false(o->others) ? NULL : o->others;
}

/* Behind a key. */
static uint32_t put_value(dsi_form_schema *s, uint32_t at, json_t *node, const dsi_place *place)
{
    at = dsi_form_schema_space(s, put_word(s, at, ":"));
    return dsi_grammar_call(s->g, at, dsi_form_schema_rule(s, node, place));
}

static uint32_t put_comma(dsi_form_schema *s, uint32_t at)
{
    return dsi_form_schema_space(s, put_word(s, at, ","));
}

/* One of the properties, from a state where none stands yet and one behind others; both may be 0:
 * there is no such way. */
typedef struct ways {
    uint32_t none, some;
} ways;

static ways put_property(dsi_form_schema *s, ways at, const char *name, const object *o)
{
    dsi_grammar *g = s->g;
    json_t *key = json_string(name);
    const dsi_place within = {o->place, "properties"};
    const dsi_place place = {&within, name};
    const uint32_t start = dsi_grammar_state(g);
    const ways next = {dsi_grammar_state(g), dsi_grammar_state(g)};
    dsi_grammar_empty(g, at.none, start);
    dsi_grammar_empty(g, put_comma(s, at.some), start);
    const uint32_t behind = dsi_form_schema_literal(s, start, key);
    dsi_grammar_empty(g, put_value(s, behind, json_object_get(o->properties, name), &place),
                      next.some);
    if (!is_required(o, name)) {
        dsi_grammar_empty(g, at.none, next.none);
        dsi_grammar_empty(g, at.some, next.some);
    }
    json_decref(key);
    return next;
}

static void put_others(dsi_form_schema *s, ways at, const object *o)
{
    const dsi_place place = {o->place, "additionalProperties"};
    const uint32_t start = dsi_grammar_state(s->g);
    dsi_grammar_empty(s->g, at.none, start);
    dsi_grammar_empty(s->g, put_comma(s, at.some), start);
    const uint32_t behind = put_other_key(s, start, o->properties);
    dsi_grammar_empty(s->g, put_value(s, behind, o->others, &place), at.some);
}

uint32_t dsi_form_schema_object(dsi_form_schema *s, uint32_t at, json_t *node,
                                const dsi_place *place)
{
    dsi_grammar *g = s->g;
    object o = {.place = place};
    const char *key = NULL;
    json_t *value = NULL;
    read_object(s, node, &o);
    const uint32_t begun = dsi_form_schema_space(s, put_word(s, at, "{"));
    const uint32_t done = dsi_grammar_state(g);
    ways here = {dsi_grammar_state(g), dsi_grammar_state(g)};
    dsi_grammar_empty(g, begun, here.none);
    json_object_foreach(o.properties, key, value)
    {
        if (!g->failed) {
            here = put_property(s, here, key, &o);
        }
    }
    if (o.others != NULL && !g->failed) {
        put_others(s, here, &o);
    }
    dsi_grammar_empty(g, put_word(s, here.none, "}"), done);
    dsi_grammar_empty(g, put_word(s, dsi_form_schema_space(s, here.some), "}"), done);
    json_decref(o.properties);
    return done;
}

/* ---- arrays ---- */
typedef struct array {
    json_t *first, *rest; /* schemas of the first elements, an array or NULL; of the others */
    int64_t least, most, n_first;
} array;

static bool read_array(dsi_form_schema *s, json_t *node, const dsi_place *place, array *a)
{
    json_t *items = json_object_get(node, "items");
    json_t *prefix = json_object_get(node, "prefixItems");
    a->first = json_is_array(items) ? items : prefix;
    a->rest = items == NULL || json_is_array(items) ? json_true() : items;
    a->n_first = (int64_t)json_array_size(a->first);
    a->least = dsi_form_schema_count(s, node, "minItems", 0, place);
    a->most = dsi_form_schema_count(s, node, "maxItems", -1, place);
    if (json_is_array(items) && prefix != NULL) {
        (void)dsi_form_schema_fail(s, place, "items",
                                   "an array is not supported beside prefixItems");
    } else if (prefix != NULL && !json_is_array(prefix)) {
        (void)dsi_form_schema_fail(s, place, "prefixItems", "expected an array of schemas");
    } else if (a->most >= 0 && a->most < a->least) {
        (void)dsi_form_schema_fail(s, place, "maxItems", "it is less than minItems");
    }
    return !s->g->failed;
}

uint32_t dsi_form_schema_array(dsi_form_schema *s, uint32_t at, json_t *node,
                               const dsi_place *place)
{
    dsi_grammar *g = s->g;
    array a = {0};
    const dsi_place first = {place, "prefixItems"};
    const dsi_place rest = {place, "items"};
    if (!read_array(s, node, place, &a)) {
        return 0;
    }
    uint32_t here = dsi_form_schema_space(s, put_word(s, at, "["));
    const uint32_t done = dsi_grammar_state(g);
    uint32_t before = 0; /* an element of the rest, to come back to */
    if (a.least == 0) {
        dsi_grammar_empty(g, put_word(s, here, "]"), done);
    }
    for (int64_t i = 0; i != a.most && dsi_grammar_work(g); ++i) {
        const bool of_first = i < a.n_first;
        const bool loops = !of_first && a.most < 0 && i + 1 >= a.least;
        before = dsi_grammar_state(g);
        dsi_grammar_empty(g, here, before);
        here = dsi_grammar_call(
            g, before,
            dsi_form_schema_rule(s, of_first ? json_array_get(a.first, (size_t)i) : a.rest,
                                 of_first ? &first : &rest));
        if (i + 1 >= a.least) {
            dsi_grammar_empty(g, put_word(s, dsi_form_schema_space(s, here), "]"), done);
        }
        here = put_comma(s, here);
        if (loops) {
            dsi_grammar_empty(g, here, before);
            break;
        }
    }
    return done;
}
