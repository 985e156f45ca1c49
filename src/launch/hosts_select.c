/* SPDX-License-Identifier: Apache-2.0 */
/* --include and --exclude. See hosts.h. */
#include "launch/hosts.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What the text names: for each host of the list, all slots or some. */
typedef struct choice {
    ds_ctx *ctx;
    const char *flag;
    const dsi_hosts *hosts;
    bool *all;  /* hosts.n */
    bool *some; /* hosts.n × DSI_MAX_SLOTS, by position in slots */
} choice;

static size_t host_index(const choice *c, const char *name, size_t n)
{
    size_t i = 0;
    while (i < c->hosts->n &&
           (strncmp(c->hosts->items[i].name, name, n) != 0 || c->hosts->items[i].name[n] != '\0')) {
        ++i;
    }
    return i;
}

static ds_status read_slot(const choice *c, size_t host, const char *text, size_t n)
{
    const dsi_host *h = &c->hosts->items[host];
    uint32_t slot = 0;
    for (size_t i = 0; i < n && slot <= DSI_MAX_SLOTS * 10; ++i) {
        if (!isdigit((unsigned char)text[i])) {
            n = 0;
        } else {
            slot = 10 * slot + (uint32_t)(text[i] - '0');
        }
    }
    if (n == 0) {
        return ds_fail(c->ctx, DS_ERR_ARG,
                       "%s: expected slots as numbers between commas after '%s:', found '%s'",
                       c->flag, h->name, text);
    }
    for (uint32_t i = 0; i < h->n_slots; ++i) {
        if (h->slots[i] == slot) {
            c->some[host * DSI_MAX_SLOTS + i] = true;
            return DS_OK;
        }
    }
    return ds_fail(
        c->ctx, DS_ERR_ARG,
        "%s: host '%s' has no slot %.*s; it has %" PRIu32 " slots, from %" PRIu32 " to %" PRIu32,
        c->flag, h->name, (int)n, text, h->n_slots, h->slots[0], h->slots[h->n_slots - 1]);
}

static ds_status read_node(const choice *c, const char *node, size_t n)
{
    const char *colon = memchr(node, ':', n);
    const size_t n_name = colon != NULL ? (size_t)(colon - node) : n;
    const size_t host = host_index(c, node, n_name);
    if (host == c->hosts->n) {
        return ds_fail(c->ctx, DS_ERR_ARG, "%s: expected a host of the hostfile, found '%.*s'%s",
                       c->flag, (int)n_name, node,
                       n_name == 0 ? "; the form is NAME[:SLOT,SLOT…][@NAME…]" : "");
    }
    if (colon == NULL) {
        c->all[host] = true;
        return DS_OK;
    }
    const char *at = colon + 1;
    const char *end = node + n;
    for (;;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma != NULL ? comma : end;
        DS_TRY(read_slot(c, host, at, (size_t)(stop - at)));
        if (comma == NULL) {
            return DS_OK;
        }
        at = comma + 1;
    }
}

static ds_status read_choice(const choice *c, const char *text)
{
    for (;;) {
        const size_t n = strcspn(text, "@");
        DS_TRY(read_node(c, text, n));
        if (text[n] == '\0') {
            return DS_OK;
        }
        text += n + 1;
    }
}

/* Keeps the chosen slots, or the others. */
static void apply(const choice *c, dsi_hosts *hosts, bool keep)
{
    size_t kept = 0;
    for (size_t i = 0; i < hosts->n; ++i) {
        dsi_host *host = &hosts->items[i];
        const bool *some = c->some + i * DSI_MAX_SLOTS;
        bool any = false;
        uint32_t n = 0;
        for (uint32_t k = 0; k < host->n_slots; ++k) {
            any = any || some[k];
        }
        const bool whole = c->all[i] && (!any || !keep); /* "w0:1@w0" does not widen */
        for (uint32_t k = 0; k < host->n_slots; ++k) {
            if ((whole || some[k]) == keep) {
                host->slots[n++] = host->slots[k];
            }
        }
        host->n_slots = n;
        if (n == 0) {
            dsi_host_free(host);
        } else {
            hosts->items[kept++] = *host;
        }
    }
    hosts->n = kept;
}

ds_status dsi_hosts_select(ds_ctx *ctx, dsi_hosts *hosts, const char *include, const char *exclude)
{
    const bool keep = include != NULL && include[0] != '\0';
    const bool drop = exclude != NULL && exclude[0] != '\0';
    if (keep && drop) {
        return ds_fail(ctx, DS_ERR_ARG, "--include and --exclude exclude one another: give one");
    }
    if (!keep && !drop) {
        return DS_OK;
    }
    choice c = {.ctx = ctx,
                .flag = keep ? "--include" : "--exclude",
                .hosts = hosts,
                .all = calloc(hosts->n, sizeof *c.all),
                .some = calloc(hosts->n, DSI_MAX_SLOTS * sizeof *c.some)};
    ds_status status = DS_OK;
    if (c.all == NULL || c.some == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "%s: no memory", c.flag);
    } else {
        status = read_choice(&c, keep ? include : exclude);
    }
    if (status >= 0) {
        apply(&c, hosts, keep);
        if (hosts->n == 0) {
            status = ds_fail(ctx, DS_ERR_ARG, "%s '%s' leaves no slot", c.flag,
                             keep ? include : exclude);
        }
    }
    free(c.all);
    free(c.some);
    return status;
}
