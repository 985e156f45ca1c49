/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/embeddings: the body of a request, and its answer. See front.h. */
#include "api.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the body; of the HTTP thread ---- */
static bool read_encoding(api_reader *r, json_t *v)
{
    const char *name = json_string_value(v);
    if (name == NULL || (strcmp(name, "float") != 0 && strcmp(name, "base64") != 0)) {
        return api_wrong(r, "encoding_format", "\"float\" or \"base64\"");
    }
    r->j->base64 = strcmp(name, "base64") == 0;
    return true;
}

static bool read_dimensions(api_reader *r, json_t *v)
{
    return api_whole(r, "dimensions", v, 1, r->f->width, &r->j->dimensions);
}

static bool read_fields(api_reader *r, json_t *body)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(body, key, value)
    {
        bool ok = true;
        if (json_is_null(value) && strcmp(key, "input") != 0) {
            continue;
        }
        if (strcmp(key, "model") == 0) {
            ok = api_check_model(r, value);
        } else if (strcmp(key, "encoding_format") == 0) {
            ok = read_encoding(r, value);
        } else if (strcmp(key, "dimensions") == 0) {
            ok = read_dimensions(r, value);
        } else if (strcmp(key, "user") == 0) {
            api_ignore(r->ignored, "user");
        } else if (strcmp(key, "input") != 0) {
            ok = api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unknown_field", key,
                          "%.60s is no field that this server knows", key);
        }
        if (!ok) {
            return false;
        }
    }
    return true;
}

static bool fit(api_reader *r)
{
    job *j = r->j;
    for (size_t i = 0; i < j->n_choices; ++i) {
        choice *c = &j->choices[i];
        c->vector = dsi_buf_make((size_t)r->f->width * sizeof(float) + 1);
        if (c->n_ids == 0) {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, "input", "an input has no token");
        }
        if ((int64_t)c->n_ids > r->f->max_length) {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "context_length_exceeded", "input",
                            "input %zu has %zu tokens; this server takes up to %lld", i, c->n_ids,
                            (long long)r->f->max_length);
        }
    }
    return true;
}

bool embed_read(front *f, json_t *body, job *j, dsi_buf *ignored, api_error *e)
{
    api_reader r = {.f = f, .j = j, .ignored = ignored, .e = e, .n = 1};
    json_t *input = json_object_get(body, "input");
    j->f = f;
    j->dimensions = f->width;
    j->created = (int64_t)time(NULL);
    if (f->width == 0) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, "unsupported", "",
                        "this server was started with --no_embeddings");
    }
    if (!json_is_string(json_object_get(body, "model"))) {
        return api_wrong(&r, "model", "the name of a model, as /v1/models lists it");
    }
    if (input == NULL || json_is_null(input)) {
        return api_wrong(&r, "input",
                         "a text, an array of texts, of token ids, or of arrays of ids");
    }
    return read_fields(&r, body) && api_take_prompts(&r, input) && fit(&r);
}

/* ---- the answer; with the lock ---- */
static void put_base64(dsi_buf *out, const unsigned char *data, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const unsigned bits = (unsigned)data[i] << 16 |
                              (left > 1 ? (unsigned)data[i + 1] << 8 : 0u) |
                              (left > 2 ? (unsigned)data[i + 2] : 0u);
        dsi_buf_putc(out, digits[bits >> 18]);
        dsi_buf_putc(out, digits[bits >> 12 & 63]);
        dsi_buf_putc(out, (char)(left > 1 ? digits[bits >> 6 & 63] : '='));
        dsi_buf_putc(out, (char)(left > 2 ? digits[bits & 63] : '='));
    }
}

void embed_take(job *j, choice *c, const float *vector)
{
    const bool normalize = j->f->sentence.normalize;
    double square = 0.0;
    for (int64_t i = 0; i < j->dimensions; ++i) {
        square += (double)vector[i] * (double)vector[i];
    }
    const double scale = normalize && square > 0.0 ? 1.0 / sqrt(square) : 1.0;
    for (int64_t i = 0; i < j->dimensions; ++i) {
        const float x = (float)((double)vector[i] * scale);
        dsi_buf_append(&c->vector, &x, sizeof x);
    }
    c->finish = "stop";
}

static void put_vector(const job *j, const choice *c, dsi_buf *out)
{
    if (j->base64) { /* as on all machines that this builds for: little-endian */
        dsi_buf_putc(out, '"');
        put_base64(out, (const unsigned char *)c->vector.data, c->vector.size);
        dsi_buf_putc(out, '"');
        return;
    }
    dsi_buf_putc(out, '[');
    for (int64_t i = 0; i < j->dimensions; ++i) {
        float x = 0.0f;
        memcpy(&x, c->vector.data + (size_t)i * sizeof x, sizeof x);
        dsi_buf_printf(out, i > 0 ? ",%.9g" : "%.9g", (double)x);
    }
    dsi_buf_putc(out, ']');
}

void embed_end(job *j)
{
    dsi_buf *out = &j->out;
    size_t tokens = 0;
    dsi_buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < j->n_choices; ++i) {
        dsi_buf_printf(
            out, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i > 0 ? "," : "", i);
        put_vector(j, &j->choices[i], out);
        dsi_buf_putc(out, '}');
        tokens += j->choices[i].n_ids;
    }
    dsi_buf_puts(out, "],\"model\":");
    const char *name = j->model != NULL ? j->model : j->f->name;
    put_clean(out, name, strlen(name));
    dsi_buf_printf(out, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}\n", tokens,
                   tokens);
}
