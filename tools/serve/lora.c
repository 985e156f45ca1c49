/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters by name: of the command line, and loaded and unloaded by requests (--lora_updates),
 * under vLLM's paths and fields. The engine's thread does it between two steps. See front.h. */
#include "open.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

const front_adapter *lora_find(const front *f, const char *name)
{
    for (size_t i = 0; i < f->n_adapters; ++i) {
        if (strcmp(f->adapters[i].name, name) == 0) {
            return &f->adapters[i];
        }
    }
    return NULL;
}

static bool add(front *f, const char *name, size_t n, uint64_t id)
{
    front_adapter *all = realloc(f->adapters, (f->n_adapters + 1) * sizeof *all);
    if (all == NULL) {
        return false;
    }
    f->adapters = all;
    all[f->n_adapters] =
        (front_adapter){.name = strndup(name, n), .id = id, .created = (int64_t)time(NULL)};
    f->n_adapters += all[f->n_adapters].name != NULL;
    return all[f->n_adapters - 1].name != NULL;
}

ds_status lora_open(ds_ctx *ctx, front *f)
{
    const dsi_arg_list *list = &f->options->lora;
    for (size_t i = 0; i < list->n; ++i) {
        const char *text = list->items[i];
        const char *equals = strchr(text, '=');
        char name[256];
        uint64_t id = 0;
        if (equals == NULL || equals == text || equals[1] == '\0' ||
            (size_t)(equals - text) >= sizeof name) {
            return ds_fail(ctx, DS_ERR_ARG, "--lora %s: expected NAME=FOLDER", text);
        }
        (void)snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
        if (strcmp(name, f->name) == 0 || lora_find(f, name) != NULL) {
            return ds_fail(ctx, DS_ERR_ARG, "--lora %s: the name is taken", text);
        }
        DS_TRY(ds_serve_adapter_load(f->server, equals + 1, &id));
        id = lora_slot_add(f, equals + 1, id);
        if (id == 0 || !add(f, name, strlen(name), id)) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory for adapters");
        }
    }
    return DS_OK;
}

void lora_close(front *f)
{
    for (size_t i = 0; i < f->n_adapters; ++i) {
        free(f->adapters[i].name);
    }
    free(f->adapters);
    for (size_t i = 0; i < f->n_slots; ++i) {
        free(f->slots[i].folder);
    }
    free(f->slots);
}

/* ---- the engine's side ---- */
uint64_t lora_slot_add(front *f, const char *folder, uint64_t now)
{
    front_slot *all = realloc(f->slots, (f->n_slots + 1) * sizeof *all);
    char *copy = strdup(folder);
    f->slots = all != NULL ? all : f->slots;
    if (all == NULL || copy == NULL) {
        free(copy);
        return 0;
    }
    all[f->n_slots++] = (front_slot){.id = ++f->last_slot, .now = now, .folder = copy};
    return f->last_slot;
}

void lora_slot_remove(front *f, uint64_t id)
{
    for (size_t i = 0; i < f->n_slots; ++i) {
        if (f->slots[i].id == id) {
            free(f->slots[i].folder);
            f->slots[i] = f->slots[--f->n_slots];
            return;
        }
    }
}

uint64_t lora_slot_now(const front *f, uint64_t id)
{
    for (size_t i = 0; i < f->n_slots; ++i) {
        if (f->slots[i].id == id) {
            return f->slots[i].now;
        }
    }
    return id;
}

ds_status lora_slots_load(front *f, served *s)
{
    uint64_t *now = calloc(f->n_slots + 1, sizeof *now);
    ds_status status = now == NULL ? ds_fail(s->ctx, DS_ERR_NOMEM, "no memory") : DS_OK;
    for (size_t i = 0; i < f->n_slots && status >= 0; ++i) {
        status = ds_serve_adapter_load(s->server, f->slots[i].folder, &now[i]);
    }
    for (size_t i = 0; i < f->n_slots && status >= 0; ++i) {
        f->slots[i].now = now[i];
    }
    free(now);
    return status;
}

/* Has the engine's thread do it. */
static bool run(front *f, front_command *c, api_error *e)
{
    (void)pthread_mutex_lock(&f->lock);
    if (f->comm != NULL && f->loading) { /* the engine's own thread loads: nobody waits for that */
        (void)pthread_mutex_unlock(&f->lock);
        return api_fail(e, MHD_HTTP_CONFLICT, "conflict", "",
                        "another model is being loaded; ask again behind that");
    }
    f->command = c;
    (void)pthread_cond_signal(&f->wake);
    while (!c->done && (c->taken || !f->stop)) {
        (void)pthread_cond_wait(&f->answered, &f->lock);
    }
    f->command = NULL;
    const bool done = c->done;
    (void)pthread_mutex_unlock(&f->lock);
    if (!done) {
        return api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "the server ends");
    }
    return c->status >= 0 ||
           api_fail(e, MHD_HTTP_BAD_REQUEST, "adapter",
                    c->folder != NULL ? "lora_path" : "lora_name", "%s", c->error);
}

/* The name, and of what is loaded the path; no other field. */
static bool read_body(front *f, json_t *body, const char **name, const char **path, api_error *e)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (!f->options->lora_updates) {
        return api_fail(e, MHD_HTTP_FORBIDDEN, "not_allowed", "",
                        "adapters are loaded and unloaded only with --lora_updates");
    }
    json_object_foreach(body, key, value)
    {
        const bool is_path = path != NULL && strcmp(key, "lora_path") == 0;
        if (!is_path && strcmp(key, "lora_name") != 0) {
            return api_fail(e, MHD_HTTP_BAD_REQUEST, "unknown_field", key,
                            "%.60s is no field that this server knows", key);
        }
    }
    *name = json_string_value(json_object_get(body, "lora_name"));
    if (path != NULL) {
        *path = json_string_value(json_object_get(body, "lora_path"));
    }
    if (*name == NULL || **name == '\0' || strlen(*name) > 255) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, "lora_name", "lora_name: expected a name");
    }
    return path == NULL || *path != NULL ||
           api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, "lora_path", "lora_path: expected a folder");
}

bool lora_load(front *f, json_t *body, api_error *e)
{
    const char *name = NULL;
    const char *path = NULL;
    if (!read_body(f, body, &name, &path, e)) {
        return false;
    }
    if (f->server == NULL || f->options->max_loras == 0) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, "unsupported", "lora_name",
                        "this server has no slots for adapters (--max_loras)");
    }
    if (strcmp(name, f->name) == 0 || lora_find(f, name) != NULL) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, "lora_name",
                        "lora_name: %.200s is there already", name);
    }
    if (no_pipes(f->http_ctx, path) < 0) { /* the engine would wait for it */
        return api_fail(e, MHD_HTTP_BAD_REQUEST, "adapter", "lora_path", "%.400s",
                        ds_ctx_error(f->http_ctx));
    }
    front_command c = {.folder = path};
    if (!run(f, &c, e)) {
        return false;
    }
    return add(f, name, strlen(name), c.id) ||
           api_fail(e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, "", "no memory");
}

bool lora_unload(front *f, json_t *body, api_error *e)
{
    const char *name = NULL;
    if (!read_body(f, body, &name, NULL, e)) {
        return false;
    }
    const front_adapter *found = lora_find(f, name);
    if (found == NULL) {
        return api_fail(e, MHD_HTTP_NOT_FOUND, "model_not_found", "lora_name",
                        "the adapter %.200s is not here", name);
    }
    front_command c = {.id = found->id};
    if (!run(f, &c, e)) {
        return false;
    }
    const size_t at = (size_t)(found - f->adapters);
    free(f->adapters[at].name);
    f->adapters[at] = f->adapters[--f->n_adapters];
    return true;
}
