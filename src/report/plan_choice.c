/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration with some values replaced. See plan_choice.h. */
#include "report/plan_choice.h"

#include "base/buf.h"
#include "config/config_impl.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_CEILING = 1 << 20 };

typedef struct keys {
    dsi_setting *items;
    bool *done; /* printed */
    size_t n;
} keys;

static bool given(const ds_config_item *item)
{
    return item->origin == DS_ORIGIN_FILE || item->origin == DS_ORIGIN_ALIAS ||
           item->origin == DS_ORIGIN_AUTO;
}

static void set(keys *k, dsi_setting setting)
{
    for (size_t i = 0; i < k->n; ++i) {
        if (strcmp(k->items[i].path, setting.path) == 0) {
            k->items[i].value = setting.value;
            return;
        }
    }
    k->items[k->n++] = setting;
}

static ds_status gather(ds_ctx *ctx, const ds_config *config, const dsi_setting *settings,
                        size_t n_settings, keys *k)
{
    const size_t n_items = ds_config_n_items(config);
    k->items = calloc(n_items + n_settings + 1, sizeof *k->items);
    k->done = calloc(n_items + n_settings + 1, sizeof *k->done);
    if (k->items == NULL || k->done == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a configuration");
    }
    for (size_t i = 0; i < n_items; ++i) {
        const ds_config_item *item = ds_config_item_at(config, i);
        if (given(item)) {
            set(k, (dsi_setting){item->path, item->value});
        }
    }
    for (size_t i = 0; i < n_settings; ++i) {
        set(k, settings[i]);
    }
    return DS_OK;
}

/* Prints all keys that begin with `prefix` (n bytes, its dot included) as an object. */
static void print_object(dsi_buf *text, keys *k, const char *prefix, size_t n, int depth)
{
    bool any = false;
    dsi_buf_putc(text, '{');
    for (size_t i = 0; i < k->n; ++i) {
        const char *path = k->items[i].path;
        if (k->done[i] || k->items[i].value == NULL || strncmp(path, prefix, n) != 0) {
            continue;
        }
        const char *dot = strchr(path + n, '.');
        dsi_buf_printf(text, "%s\n%*s\"", any ? "," : "", 2 * (depth + 1), "");
        any = true;
        if (dot != NULL) {
            const size_t end = (size_t)(dot - path);
            dsi_buf_json(text, path + n, end - n);
            dsi_buf_puts(text, "\": ");
            print_object(text, k, path, end + 1, depth + 1);
        } else {
            dsi_buf_json(text, path + n, strlen(path + n));
            dsi_buf_printf(text, "\": %s", k->items[i].value);
            k->done[i] = true;
        }
    }
    dsi_buf_printf(text, any ? "\n%*s}" : "}", any ? 2 * depth : 0, "");
}

ds_status dsi_config_text_with(ds_ctx *ctx, const ds_config *config, const dsi_setting *settings,
                               size_t n_settings, char **text_out)
{
    keys k = {0};
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    ds_status status = gather(ctx, config, settings, n_settings, &k);
    if (status >= 0) {
        print_object(&text, &k, "", 0, 0);
        dsi_buf_putc(&text, '\n');
        if (text.failed) {
            status = ds_fail(ctx, DS_ERR_LIMIT, "no memory for the text of a configuration");
        }
    }
    free(k.items);
    free(k.done);
    if (status < 0) {
        dsi_buf_free(&text);
        return status;
    }
    *text_out = text.data;
    return DS_OK;
}

ds_status dsi_config_with(ds_ctx *ctx, const ds_config *config, const dsi_setting *settings,
                          size_t n_settings, uint32_t world_size, int64_t hidden_size,
                          ds_config **config_out)
{
    ds_trainer_values trainer = {0};
    ds_config *made = NULL;
    char *text = NULL;
    if (hidden_size > 0) {
        trainer.hidden_size = ds_known((double)hidden_size);
    }
    DS_TRY(dsi_config_text_with(ctx, config, settings, n_settings, &text));
    ds_status status = dsi_config_load_made(ctx, config, text, &made);
    free(text);
    status = status < 0 ? status : ds_config_resolve(made, world_size, &trainer);
    if (status < 0) {
        ds_config_destroy(&made);
        return status;
    }
    *config_out = made;
    return DS_OK;
}
