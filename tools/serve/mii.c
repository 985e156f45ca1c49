/* SPDX-License-Identifier: Apache-2.0 */
/* POST /mii/NAME, as DeepSpeed-MII's REST gateway: its body as that of a completion, and the answer
 * as its list; of a stream a list of one a frame, with what is new, as MII's streaming function is
 * given them. Defaults are MII's: sampling with top_p 0.9, texts of up to 1024 tokens with their
 * prompts. See front.h. */
#include "front.h"

#include <string.h>

enum { MII_LENGTH = 1024 };

static bool wrong(api_error *e, const char *name, const char *expected)
{
    return api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, name, "%s: expected %s", name, expected);
}

/* One field into the completion's body; false: *e. */
static bool take(json_t *out, job *j, const char *key, json_t *v, api_error *e)
{
    static const struct {
        const char *mii, *own;
    } same[] = {{"prompts", "prompt"},
                {"max_new_tokens", "max_tokens"},
                {"min_new_tokens", "min_tokens"},
                {"ignore_eos", "ignore_eos"},
                {"return_full_text", "echo"},
                {"top_p", "top_p"},
                {"top_k", "top_k"},
                {"temperature", "temperature"},
                {"stop", "stop"},
                {"stream", "stream"}};
    if (strcmp(key, "max_length") == 0) {
        if (!json_is_integer(v) || json_integer_value(v) < 2) {
            return wrong(e, key, "a whole number of at least 2");
        }
        j->most_together = json_integer_value(v);
        return true;
    }
    if (strcmp(key, "do_sample") == 0) {
        return json_is_boolean(v) || wrong(e, key, "true or false");
    }
    for (size_t i = 0; i < sizeof same / sizeof same[0]; ++i) {
        if (strcmp(key, same[i].mii) == 0) {
            return json_object_set(out, same[i].own, v) == 0;
        }
    }
    return api_fail(e, MHD_HTTP_BAD_REQUEST, "unknown_field", key,
                    "%.60s is no field that this path knows", key);
}

/* do_sample false, beside which nothing that draws has an effect. */
static bool take_likeliest(json_t *out, json_t *body, dsi_buf *ignored)
{
    static const char *const draws[] = {"temperature", "top_p", "top_k"};
    for (size_t i = 0; i < sizeof draws / sizeof draws[0]; ++i) {
        json_t *value = json_object_get(body, draws[i]);
        if (value != NULL && !json_is_null(value)) {
            api_ignore(ignored, draws[i]);
        }
    }
    return json_object_set_new(out, "temperature", json_integer(0)) == 0;
}

json_t *mii_body(json_t *body, const char *name, job *j, dsi_buf *ignored, api_error *e)
{
    json_t *out = json_pack("{s:s,s:f}", "model", name, "top_p", 0.9);
    const char *key = NULL;
    json_t *value = NULL;
    bool ok = out != NULL;
    j->of_mii = true;
    j->most_together = MII_LENGTH < j->f->max_length ? MII_LENGTH : j->f->max_length;
    json_object_foreach(body, key, value)
    {
        ok = ok && (json_is_null(value) || take(out, j, key, value, e));
    }
    json_t *prompts = json_object_get(out, "prompt");
    if (ok && !json_is_string(prompts) && !json_is_string(json_array_get(prompts, 0))) {
        ok = wrong(e, "prompts", "a text, or a list of texts");
    }
    if (ok && json_is_true(json_object_get(out, "stream")) && json_array_size(prompts) > 1) {
        ok = wrong(e, "prompts", "one text beside stream: what comes is of one");
    }
    if (ok && j->most_together > j->f->max_length) {
        ok = api_fail(e, MHD_HTTP_BAD_REQUEST, "context_length_exceeded", "max_length",
                      "max_length: this server's context holds %lld", (long long)j->f->max_length);
    }
    if (ok && json_is_false(json_object_get(body, "do_sample"))) {
        ok = take_likeliest(out, body, ignored);
    }
    if (!ok) {
        json_decref(out);
        return NULL;
    }
    return out;
}

static void put_response(dsi_buf *out, const choice *c, const char *text, size_t n,
                         const char *finish)
{
    dsi_buf_puts(out, "{\"generated_text\":");
    put_clean(out, text, n);
    dsi_buf_printf(out,
                   ",\"prompt_length\":%zu,\"generated_length\":%lld,\"finish_reason\":\"%s\"}",
                   c->n_ids, (long long)c->n_new, finish);
}

void mii_frame(job *j, const choice *c, const char *text, size_t n, const char *finish)
{
    dsi_buf_puts(&j->out, "data: [");
    put_response(&j->out, c, text, n, finish != NULL ? finish : "none");
    dsi_buf_puts(&j->out, "]\n\n");
}

void mii_end(job *j)
{
    dsi_buf *out = &j->out;
    if (j->streams) {
        dsi_buf_puts(out, "data: [DONE]\n\n");
        return;
    }
    dsi_buf_putc(out, '[');
    for (size_t i = 0; i < j->n_choices; ++i) {
        const choice *c = &j->choices[i];
        dsi_buf_puts(out, i > 0 ? "," : "");
        put_response(out, c, dsi_buf_text(&c->text), c->text.size, c->finish);
    }
    dsi_buf_puts(out, "]\n");
}
