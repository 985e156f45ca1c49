/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of hosts as text, DeepSpeed's world info. See hosts.h. */
#include "launch/base64.h"
#include "launch/hosts.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

ds_status dsi_hosts_encode(ds_ctx *ctx, const dsi_hosts *hosts, dsi_buf *buf)
{
    dsi_buf text = dsi_buf_make(16 << 20);
    dsi_buf_putc(&text, '{');
    for (size_t i = 0; i < hosts->n; ++i) {
        const dsi_host *host = &hosts->items[i];
        dsi_buf_printf(&text, "%s\"%s\": [", i > 0 ? ", " : "", host->name);
        for (uint32_t k = 0; k < host->n_slots; ++k) {
            dsi_buf_printf(&text, "%s%" PRIu32, k > 0 ? ", " : "", host->slots[k]);
        }
        dsi_buf_putc(&text, ']');
    }
    dsi_buf_putc(&text, '}');
    dsi_base64_encode(buf, dsi_buf_text(&text), text.size);
    const bool failed = text.failed || buf->failed;
    dsi_buf_free(&text);
    return failed ? ds_fail(ctx, DS_ERR_NOMEM, "no memory for the list of hosts") : DS_OK;
}

static ds_status read_host(ds_ctx *ctx, const char *name, const json_t *slots, dsi_hosts *hosts)
{
    const size_t n = json_array_size(slots);
    if (dsi_host_name_fault(name, strlen(name)) != NULL || n == 0 || n > DSI_MAX_SLOTS) {
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "--world_info: expected a host with 1 to %d slots, found '%.80s' with %zu",
                       DSI_MAX_SLOTS, name, n);
    }
    DS_TRY(dsi_hosts_add(ctx, hosts, name, (uint32_t)n));
    uint32_t *out = hosts->items[hosts->n - 1].slots;
    for (size_t i = 0; i < n; ++i) {
        const json_t *slot = json_array_get(slots, i);
        const json_int_t value = json_integer_value(slot);
        if (!json_is_integer(slot) || value < 0 || value >= DSI_MAX_SLOTS ||
            (i > 0 && (uint32_t)value <= out[i - 1])) {
            return ds_fail(ctx, DS_ERR_FORMAT,
                           "--world_info: expected rising slot numbers below %d for host %.80s",
                           DSI_MAX_SLOTS, name);
        }
        out[i] = (uint32_t)value;
    }
    return DS_OK;
}

static ds_status read_object(ds_ctx *ctx, json_t *root, dsi_hosts *hosts)
{
    const char *name;
    json_t *slots;
    if (!json_is_object(root) || json_object_size(root) == 0) {
        return ds_fail(
            ctx, DS_ERR_FORMAT,
            "--world_info: expected base64 of {\"host\": [slots]}, found something else");
    }
    json_object_foreach(root, name, slots)
    {
        DS_TRY(read_host(ctx, name, slots, hosts));
    }
    return DS_OK;
}

ds_status dsi_hosts_decode(ds_ctx *ctx, const char *text, dsi_hosts *hosts_out)
{
    dsi_buf json = dsi_buf_make(16 << 20);
    dsi_hosts hosts = {0};
    json_t *root = NULL;
    if (dsi_base64_decode(&json, text, strlen(text))) {
        root = json_loadb(dsi_buf_text(&json), json.size, JSON_REJECT_DUPLICATES, NULL);
    }
    const ds_status status = read_object(ctx, root, &hosts);
    json_decref(root);
    dsi_buf_free(&json);
    if (status < 0) {
        dsi_hosts_free(&hosts);
        return status;
    }
    *hosts_out = hosts;
    return DS_OK;
}
