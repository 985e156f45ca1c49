/* SPDX-License-Identifier: Apache-2.0 */
/* What a frame of OpenAI's streams says, or a whole answer: whether it has text, how many tokens
 * there were, an error. Everything else is skipped. See load.h. */
#include "load/load.h"

#include "data/json_scan.h"

#include <string.h>

typedef struct reader {
    load_frame *out;
    char *scratch;
} reader;

static bool is(const char *key, size_t n_key, const char *name)
{
    return strlen(name) == n_key && memcmp(key, name, n_key) == 0;
}

static ds_status take_number(dsi_json_scan *r, int64_t *out)
{
    int64_t value = 0;
    dsi_json_scan_space(r);
    const char *begin = r->p;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9' && value < INT64_MAX / 100) {
        value = value * 10 + (*r->p++ - '0');
    }
    if (r->p == begin) {
        return dsi_json_scan_skip(r); /* null */
    }
    *out = value;
    return DS_OK;
}

/* Text that is a string with something in it. */
static ds_status take_text(dsi_json_scan *r, reader *x)
{
    char *text = x->scratch;
    if (!dsi_json_scan_at(r, '"')) {
        return dsi_json_scan_skip(r);
    }
    DS_TRY(dsi_json_scan_string(r, &text));
    x->out->has_text = x->out->has_text || text > x->scratch;
    return DS_OK;
}

static ds_status take_details(dsi_json_scan *r, const char *key, size_t n, void *arg)
{
    reader *x = arg;
    return is(key, n, "cached_tokens") ? take_number(r, &x->out->n_cached) : dsi_json_scan_skip(r);
}

static ds_status take_usage(dsi_json_scan *r, const char *key, size_t n, void *arg)
{
    reader *x = arg;
    x->out->has_usage = true;
    if (is(key, n, "prompt_tokens")) {
        return take_number(r, &x->out->n_prompt);
    }
    if (is(key, n, "completion_tokens")) {
        return take_number(r, &x->out->n_output);
    }
    if (is(key, n, "prompt_tokens_details") && dsi_json_scan_at(r, '{')) {
        return dsi_json_scan_members(r, take_details, x);
    }
    return dsi_json_scan_skip(r);
}

static ds_status take_error(dsi_json_scan *r, const char *key, size_t n, void *arg)
{
    reader *x = arg;
    char *end = x->scratch;
    if (!is(key, n, "message") || !dsi_json_scan_at(r, '"')) {
        return dsi_json_scan_skip(r);
    }
    DS_TRY(dsi_json_scan_string(r, &end));
    size_t size = (size_t)(end - x->scratch);
    size = size < LOAD_ERROR_BYTES - 1 ? size : LOAD_ERROR_BYTES - 1;
    memcpy(x->out->error, x->scratch, size);
    x->out->error[size] = '\0';
    return DS_OK;
}

static ds_status take_delta(dsi_json_scan *r, const char *key, size_t n, void *arg)
{
    const bool text = is(key, n, "content") || is(key, n, "reasoning_content");
    return text ? take_text(r, arg) : dsi_json_scan_skip(r);
}

static ds_status take_choice(dsi_json_scan *r, const char *key, size_t n, void *arg)
{
    if (is(key, n, "text")) {
        return take_text(r, arg);
    }
    if ((is(key, n, "delta") || is(key, n, "message")) && dsi_json_scan_at(r, '{')) {
        return dsi_json_scan_members(r, take_delta, arg);
    }
    return dsi_json_scan_skip(r);
}

static ds_status take_choices(dsi_json_scan *r, reader *x)
{
    DS_TRY(dsi_json_scan_expect(r, '['));
    while (!dsi_json_scan_at(r, ']')) {
        DS_TRY(dsi_json_scan_members(r, take_choice, x));
        if (!dsi_json_scan_at(r, ']')) {
            DS_TRY(dsi_json_scan_expect(r, ','));
        }
    }
    return dsi_json_scan_expect(r, ']');
}

static ds_status take_member(dsi_json_scan *r, const char *key, size_t n, void *arg)
{
    reader *x = arg;
    if (is(key, n, "choices") && dsi_json_scan_at(r, '[')) {
        return take_choices(r, x);
    }
    if (is(key, n, "usage") && dsi_json_scan_at(r, '{')) {
        return dsi_json_scan_members(r, take_usage, x);
    }
    if (is(key, n, "error") && dsi_json_scan_at(r, '{')) {
        x->out->has_error = true;
        return dsi_json_scan_members(r, take_error, x);
    }
    return dsi_json_scan_skip(r);
}

ds_status load_frame_read(ds_ctx *ctx, const char *text, size_t n, char *scratch, load_frame *out)
{
    dsi_json_scan scan = {
        .ctx = ctx, .path = "the server's answer", .begin = text, .p = text, .end = text + n};
    reader x = {.out = out, .scratch = scratch};
    *out = (load_frame){0};
    DS_TRY(dsi_json_scan_members(&scan, take_member, &x));
    dsi_json_scan_space(&scan);
    return scan.p == scan.end ? DS_OK : dsi_json_scan_bad(&scan, "one object");
}
