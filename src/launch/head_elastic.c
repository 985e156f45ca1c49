/* SPDX-License-Identifier: Apache-2.0 */
/* --elastic_training: which hosts and slots a restart takes. See head_impl.h.
 *
 * A host that was not reached is left out; so is a slot that was the first to fail twice in a row.
 * Of what is left the job takes the largest number of ranks that the elasticity section allows:
 * slots are dropped from the end. Where nodes are counted (version 0.2 with several ranks a node)
 * whole nodes stay or go.
 */
#include "launch/head_impl.h"

#include <deepspeed/elasticity.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The value of --deepspeed_config among the program's words; NULL: none. */
static const char *program_config(const dsi_words *command)
{
    static const char flag[] = "--deepspeed_config";
    const size_t n = sizeof flag - 1;
    for (size_t i = 1; i < command->n; ++i) {
        const char *word = command->items[i];
        if (strncmp(word, flag, n) == 0 && word[n] == '=') {
            return word + n + 1;
        }
        if (strcmp(word, flag) == 0 && i + 1 < command->n) {
            return command->items[i + 1];
        }
    }
    return NULL;
}

static ds_status check_flags(const dsi_head *h)
{
    const dsi_launch_options *o = h->options;
    const bool nodes = o->min_elastic_nodes >= 0 || o->max_elastic_nodes >= 0;
    if (!o->elastic_training && (nodes || o->elastic_config != NULL)) {
        return ds_fail(h->ctx, DS_ERR_ARG, "%s needs --elastic_training: give both, or neither",
                       o->elastic_config != NULL   ? "--elastic_config"
                       : o->min_elastic_nodes >= 0 ? "--min_elastic_nodes"
                                                   : "--max_elastic_nodes");
    }
    if (o->elastic_training && o->no_ssh) {
        return ds_fail(h->ctx, DS_ERR_UNSUPPORTED,
                       "--elastic_training with --no_ssh: a node started by hand cannot leave the "
                       "others out; use --launcher pdsh or ssh");
    }
    if (o->elastic_training && h->multi && !h->runner->is_way) {
        return ds_fail(h->ctx, DS_ERR_UNSUPPORTED,
                       "--elastic_training with --launcher %s: it does not say which node failed; "
                       "use --launcher pdsh or ssh",
                       o->launcher);
    }
    if (o->max_elastic_nodes >= 0 && o->min_elastic_nodes > o->max_elastic_nodes) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "--min_elastic_nodes: expected at most --max_elastic_nodes %" PRId64
                       ", found %" PRId64,
                       o->max_elastic_nodes, o->min_elastic_nodes);
    }
    return DS_OK;
}

static bool allows(const dsi_head *h, const ds_elastic_params *p, uint32_t n_ranks)
{
    ds_elastic_result result = {0};
    (void)h;
    const bool allowed = n_ranks > 0 && ds_elastic_compute(NULL, p, n_ranks, &result) >= 0;
    ds_elastic_free(&result);
    return allowed;
}

static void drop_host(dsi_hosts *hosts, size_t i)
{
    dsi_host_free(&hosts->items[i]);
    --hosts->n;
    memmove(&hosts->items[i], &hosts->items[i + 1], (hosts->n - i) * sizeof *hosts->items);
}

static void drop_slot(dsi_hosts *hosts, size_t host, uint32_t slot)
{
    dsi_host *h = &hosts->items[host];
    --h->n_slots;
    memmove(&h->slots[slot], &h->slots[slot + 1], (h->n_slots - slot) * sizeof *h->slots);
    if (h->n_slots == 0) {
        drop_host(hosts, host);
    }
}

/* Ranks go from the end until their number is allowed. */
static ds_status fit(dsi_head *h, const ds_elastic_params *p)
{
    const uint32_t before = dsi_hosts_n_ranks(&h->hosts);
    const int64_t fewest = h->options->min_elastic_nodes > 0 ? h->options->min_elastic_nodes : 1;
    while (h->hosts.n > 0 && !allows(h, p, dsi_hosts_n_ranks(&h->hosts))) {
        const size_t last = h->hosts.n - 1;
        if (p->version == 2 && p->num_gpus_per_node > 1) {
            drop_host(&h->hosts, last);
        } else {
            drop_slot(&h->hosts, last, h->hosts.items[last].n_slots - 1);
        }
    }
    if ((int64_t)h->hosts.n < fewest) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "--elastic_training: of %" PRIu32
                       " ranks that are left no number is allowed by the elasticity section on at "
                       "least %" PRId64 " nodes; ds_elastic lists the allowed numbers",
                       before, fewest);
    }
    if (dsi_hosts_n_ranks(&h->hosts) < before) {
        ds_log(h->ctx, DS_LOG_WARN, "%" PRIu32 " ranks: the elasticity section allows no %" PRIu32,
               dsi_hosts_n_ranks(&h->hosts), before);
    }
    return DS_OK;
}

static ds_status with_params(dsi_head *h, ds_status (*use)(dsi_head *, const ds_elastic_params *))
{
    const dsi_launch_options *o = h->options;
    const char *path = o->elastic_config != NULL ? o->elastic_config : program_config(&o->command);
    const ds_config_params params = {.allow_unknown_keys = true};
    ds_config *config = NULL;
    if (path == NULL) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "--elastic_training: expected a configuration with the section elasticity "
                       "in the program's --deepspeed_config or in --elastic_config, found none");
    }
    DS_TRY(ds_config_load_file(h->ctx, path, &params, &config));
    const ds_elastic_params *p = ds_config_get_elasticity(config);
    const ds_status status =
        p != NULL
            ? use(h, p)
            : ds_fail(h->ctx, DS_ERR_CONFIG,
                      "--elastic_training: %s: expected elasticity.enabled true, found none", path);
    ds_config_destroy(&config);
    return status;
}

ds_status dsi_head_elastic_start(dsi_head *h)
{
    DS_TRY(check_flags(h));
    if (!h->options->elastic_training) {
        return DS_OK;
    }
    if (h->options->max_elastic_nodes > 0 && (int64_t)h->hosts.n > h->options->max_elastic_nodes) {
        DS_TRY(dsi_hosts_first(h->ctx, &h->hosts, (uint32_t)h->options->max_elastic_nodes));
    }
    return with_params(h, fit);
}

/* Takes out what failed. Returns whether anything went. */
static bool drop_failed(dsi_head *h, const dsi_outcome *outcome)
{
    enum { SSH_FAILED = 255 };
    const char *name =
        strncmp(outcome->label, "node ", 5) == 0 ? outcome->label + 5 : outcome->label;
    for (size_t i = 0; h->multi && i < h->hosts.n; ++i) {
        if (outcome->exit_code == SSH_FAILED && strcmp(h->hosts.items[i].name, name) == 0) {
            ds_log(h->ctx, DS_LOG_WARN, "node %s is left out", name);
            drop_host(&h->hosts, i);
            return true;
        }
    }
    const bool known = !h->multi && outcome->first < h->hosts.items[0].n_slots;
    const uint32_t slot = known ? h->hosts.items[0].slots[outcome->first] : UINT32_MAX;
    const bool again = known && slot == h->failed_slot;
    h->failed_slot = slot;
    if (again) {
        ds_log(h->ctx, DS_LOG_WARN, "slot %" PRIu32 " failed twice in a row and is left out", slot);
        drop_slot(&h->hosts, 0, (uint32_t)outcome->first);
        h->failed_slot = UINT32_MAX;
    }
    return again;
}

ds_status dsi_head_elastic_again(dsi_head *h, const dsi_outcome *outcome)
{
    if (!h->options->elastic_training || !drop_failed(h, outcome)) {
        return DS_OK;
    }
    DS_TRY(with_params(h, fit));
    return h->multi ? dsi_head_choose_address(h) : DS_OK; /* the first host may be another */
}
