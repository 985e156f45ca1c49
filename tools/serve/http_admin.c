/* SPDX-License-Identifier: Apache-2.0 */
/* What changes a server that runs: adapters, other weights. See http.h. */
#include "http.h"

#include <string.h>

static enum MHD_Result update_lora(exchange *x, bool loads)
{
    api_error e = {0};
    json_t *body = door_json(x, &e);
    const bool ok = body != NULL && (loads ? lora_load : lora_unload)(front_of(x), body, &e);
    json_decref(body);
    if (!ok) {
        return reply_error(x, &e);
    }
    dsi_buf text = dsi_buf_make(256);
    dsi_buf_puts(&text, "{\"status\":\"ok\"}\n");
    return reply_json(x, MHD_HTTP_OK, &text);
}

enum MHD_Result http_load(exchange *x, const char *behind)
{
    (void)behind;
    return update_lora(x, true);
}

enum MHD_Result http_unload(exchange *x, const char *behind)
{
    (void)behind;
    return update_lora(x, false);
}

/* Other weights: {"model": a folder or file of this machine}, or {} for what is served. */
enum MHD_Result http_reload(exchange *x, const char *behind)
{
    front *f = front_of(x);
    api_error e = {0};
    const char *key = NULL;
    json_t *value = NULL;
    (void)behind;
    json_t *body = x->body.size > 0 ? door_json(x, &e) : json_object();
    json_t *model = json_object_get(body, "model");
    bool ok = body != NULL;
    json_object_foreach(body, key, value)
    {
        if (ok && strcmp(key, "model") != 0) {
            ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, "unknown_field", key, "expected model alone");
        }
    }
    if (ok && model != NULL && !json_is_string(model)) {
        ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, NULL, "model", "model: expected a folder or file");
    }
    if (ok && f->door.n_keys == 0) {
        ok = api_fail(&e, MHD_HTTP_FORBIDDEN, "not_allowed", "",
                      "requests may reload only where clients have keys (--api_key_file); SIGHUP "
                      "reloads what is served");
    }
    job *j = ok ? http_make_job(x, "reload") : NULL;
    ok = ok && (j != NULL || api_fail(&e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "no memory"));
    ok = ok && reload_begin(f, json_string_value(model), j, &e);
    json_decref(body);
    door_drop_body(x);
    if (!ok) {
        if (j != NULL) {
            http_drop(j);
        }
        return reply_error(x, &e);
    }
    x->waits = j;
    return MHD_YES;
}
