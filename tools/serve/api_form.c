/* SPDX-License-Identifier: Apache-2.0 */
/* Which form a text has: response_format, and vLLM's structured_outputs. See api.h. */
#include "api.h"

#include <stdlib.h>
#include <string.h>

/* The bytes of tokens, when the first request needs them. */
bool api_find_words(api_reader *r)
{
    front *f = r->f;
    return f->words != NULL || dsi_vocabulary_create(f->http_ctx, f->tokenizer, &f->words) >= 0 ||
           api_fail(r->e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, "", "%.400s",
                    ds_ctx_error(f->http_ctx));
}

bool api_end_form(api_reader *r, const char *name, ds_status status)
{
    if (status < 0) {
        return api_fail(
            r->e, status == DS_ERR_NOMEM ? MHD_HTTP_INTERNAL_SERVER_ERROR : MHD_HTTP_BAD_REQUEST,
            "invalid_form", name, "%s: %.400s", name, ds_ctx_error(r->f->http_ctx));
    }
    if (dsi_guide_where_bytes(r->j->guide, "", 0) == DSI_GUIDE_ENDS) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "invalid_form", name,
                        "%s: the empty text alone has this form", name);
    }
    r->j->request.guide = job_guide;
    r->j->request.guide_user = r->j;
    return true;
}

static bool make(api_reader *r, const char *name, dsi_guide_kind kind, const char *form, size_t n)
{
    return api_find_words(r) &&
           api_end_form(r, name,
                        dsi_guide_create(r->f->http_ctx, r->f->words, kind, form, n, &r->j->guide));
}

static bool make_schema(api_reader *r, const char *name, json_t *schema)
{
    char *text = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    const bool ok = text != NULL ? make(r, name, DSI_GUIDE_SCHEMA, text, strlen(text))
                                 : api_wrong(r, name, "a JSON schema");
    free(text);
    return ok;
}

static bool make_object(api_reader *r, const char *name)
{
    static const char any[] = "{\"type\":\"object\"}";
    return make(r, name, DSI_GUIDE_SCHEMA, any, sizeof any - 1);
}

/* ---- response_format ---- */
static bool read_json_schema(api_reader *r, json_t *v)
{
    static const char name[] = "response_format";
    json_t *schema = json_object_get(v, "schema");
    const char *key = NULL;
    json_t *value = NULL;
    if (!api_is_name(json_string_value(json_object_get(v, "name")))) {
        return api_wrong(r, name, "json_schema.name of 1 to 64 letters, digits, _ and -");
    }
    if (!json_is_object(schema)) {
        return api_wrong(r, name, "json_schema.schema, a JSON schema");
    }
    json_object_foreach(v, key, value)
    {
        const bool strict = strcmp(key, "strict") == 0;
        if (strict && !json_is_boolean(value) && !json_is_null(value)) {
            return api_wrong(r, name, "json_schema.strict of true or false");
        }
        if (strict && json_is_false(value)) {
            api_ignore(r->ignored, "response_format.json_schema.strict");
        } else if (strcmp(key, "description") == 0) {
            api_ignore(r->ignored, "response_format.json_schema.description");
        } else if (!strict && strcmp(key, "name") != 0 && strcmp(key, "schema") != 0) {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unknown_field", name,
                            "response_format.json_schema.%.40s is not known", key);
        }
    }
    return make_schema(r, name, schema);
}

static bool read_format(api_reader *r, json_t *v)
{
    static const char name[] = "response_format";
    const char *type = json_string_value(json_object_get(v, "type"));
    const bool plain = json_object_size(v) == 1;
    if (type != NULL && strcmp(type, "text") == 0 && plain) {
        return true;
    }
    if (type != NULL && strcmp(type, "json_object") == 0 && plain) {
        return make_object(r, name);
    }
    if (type != NULL && strcmp(type, "json_schema") == 0 && json_object_size(v) == 2) {
        return read_json_schema(r, json_object_get(v, "json_schema"));
    }
    return api_wrong(r, name,
                     "{\"type\": \"text\"}, {\"type\": \"json_object\"} or {\"type\": "
                     "\"json_schema\", \"json_schema\": {\"name\": …, \"schema\": …}}");
}

/* ---- structured_outputs ---- */
enum { MOST_TEXTS = 4096 };

static bool read_choice(api_reader *r, json_t *v)
{
    static const char name[] = "structured_outputs";
    const size_t n = json_array_size(v);
    const char **texts = calloc(n + 1, sizeof *texts);
    size_t *sizes = calloc(n + 1, sizeof *sizes);
    bool ok = n > 0 && n <= MOST_TEXTS && texts != NULL && sizes != NULL;
    for (size_t i = 0; i < n && ok; ++i) {
        texts[i] = json_string_value(json_array_get(v, i));
        sizes[i] = json_string_length(json_array_get(v, i));
        ok = texts[i] != NULL && sizes[i] > 0;
    }
    ok = ok ? api_find_words(r) && api_end_form(r, name,
                                                dsi_guide_of_texts(r->f->http_ctx, r->f->words,
                                                                   texts, sizes, n, &r->j->guide))
            : api_wrong(r, name, "choice of 1 to 4096 texts that are not empty");
    free(texts);
    free(sizes);
    return ok;
}

static bool read_structured(api_reader *r, json_t *v)
{
    static const char name[] = "structured_outputs";
    json_t *schema = json_object_get(v, "json");
    json_t *regex = json_object_get(v, "regex");
    json_t *texts = json_object_get(v, "choice");
    json_t *grammar = json_object_get(v, "grammar");
    json_t *object = json_object_get(v, "json_object");
    if (json_object_size(v) != 1) {
        return api_wrong(r, name,
                         "an object with one of json, regex, choice, grammar, json_object");
    }
    if (json_is_object(schema) || json_is_boolean(schema)) {
        return make_schema(r, name, schema);
    }
    if (json_is_string(schema)) {
        return make(r, name, DSI_GUIDE_SCHEMA, json_string_value(schema),
                    json_string_length(schema));
    }
    if (json_is_string(regex)) {
        return make(r, name, DSI_GUIDE_REGEX, json_string_value(regex), json_string_length(regex));
    }
    if (json_is_array(texts)) {
        return read_choice(r, texts);
    }
    if (json_is_string(grammar)) {
        return make(r, name, DSI_GUIDE_GBNF, json_string_value(grammar),
                    json_string_length(grammar));
    }
    if (json_is_true(object)) {
        return make_object(r, name);
    }
    return api_wrong(r, name,
                     "json: a schema, regex: a text, choice: texts, grammar: a text in GBNF, or "
                     "json_object: true");
}

bool api_take_form(api_reader *r)
{
    if (r->format != NULL && r->structured != NULL) {
        return api_unsupported(r, "structured_outputs", "not possible beside response_format");
    }
    return (r->format == NULL || read_format(r, r->format)) &&
           (r->structured == NULL || read_structured(r, r->structured));
}
