/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that are in memory only around their uses (ZeRO-Inference: Aminabadi et al., "DeepSpeed
 * Inference", arXiv 2207.00032, section 5): the residencies and the swaps of training's offloaded
 * parameters, in the plans of each piece. The same kernels read the same weights: no bit changes.
 */
#include "compile/offload_disks.h"
#include "compile/run_spec.h"
#include "infer/generator.h"

#include <stdlib.h>
#include <string.h>

struct dsi_generator_offload {
    dsi_offload_spec spec;
    dsi_residencies residencies; /* of logical cells, which the rank's own have the ids of */
    dsi_swap_source *sources;    /* of each of them: in the model's files */
    size_t sourced;              /* bytes of those */
    bool keys;                   /* and values, where the parameters are */
    bool in_place;               /* those that can be are read from the model's files */
    bool found;
};

ds_status dsi_generator_offload_open(ds_generator *g, const ds_generator_params *params)
{
    if (params->offload_kv && (params->config == NULL || g->paged.blocks == 0)) {
        return ds_fail(g->ctx, DS_ERR_ARG,
                       "ds_generator_params: offload_kv is of a server of many sequences (one "
                       "sequence's are small), beside config");
    }
    if (params->config == NULL) {
        return DS_OK;
    }
    const ds_config_values *values = dsi_config_values(params->config);
    if (values == NULL) {
        return ds_fail(g->ctx, DS_ERR_ARG,
                       "ds_generator_params: config is not resolved: ds_config_resolve first");
    }
    const ds_offload_device device = values->zero.offload_param.device;
    if (params->offload_kv && device == DS_OFFLOAD_NONE) {
        return ds_fail(g->ctx, DS_ERR_ARG,
                       "ds_generator_params: offload_kv puts keys and values where the parameters "
                       "are, but offload_param.device is none");
    }
    if (params->engine != NULL) {
        return ds_fail(g->ctx, DS_ERR_ARG,
                       "ds_generator_params: an engine's weights are where its own configuration "
                       "says; leave config NULL");
    }
    dsi_generator_offload *o = calloc(1, sizeof *o);
    if (o == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for a generator");
    }
    o->keys = params->offload_kv;
    o->spec = dsi_offload_read(values, false);
    enum { PATIENCE = 270 }; /* seconds; as of training where no timeout is given */
    o->spec.patience = PATIENCE;
    o->spec.states = o->spec.chosen = o->spec.how.activations = DSI_RESIDENCY_DEVICE;
    o->in_place = params->weights != NULL && strcmp(params->weights, o->spec.param_folders) == 0;
    g->offload = o;
    if (device == DS_OFFLOAD_CPU && o->spec.params == DSI_RESIDENCY_DEVICE && !g->plans_only) {
        ds_log(g->ctx, DS_LOG_WARN,
               "zero_optimization.offload_param moves nothing: the device's memory is the host's; "
               "nvme takes weights to disk");
    }
    return DS_OK;
}

static bool is_on(const ds_generator *g)
{
    return g->offload != NULL && dsi_offload_is_on(&g->offload->spec);
}

/* In the first piece, which has all weights. */
static ds_status find_residencies(ds_generator *g)
{
    dsi_generator_offload *o = g->offload;
    char why[DSI_OFFLOAD_SECTIONS][DSI_OFFLOAD_WHY_BYTES];
    if (o->found) {
        return DS_OK;
    }
    if (dsi_offload_rules(&o->spec, g->cells, NULL, &o->residencies) < 0) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for residencies");
    }
    dsi_offload_idle(&o->spec, g->cells, &o->residencies, why);
    if (why[DSI_OFFLOAD_PARAMS][0] != '\0' && !g->plans_only) {
        ds_log(g->ctx, DS_LOG_WARN, "%s", why[DSI_OFFLOAD_PARAMS]);
    }
    for (ds_cell c = 0; c < o->residencies.n; ++c) {
        if (o->keys && ds_cells_get(g->cells, c)->kind == DS_CELL_KV) {
            o->residencies.items[c].where = o->spec.params;
        }
        if (!dsi_generator_has_stage_of(g, c)) {
            o->residencies.items[c].where = DSI_RESIDENCY_DEVICE;
        }
    }
    o->found = true;
    o->sources = calloc((size_t)o->residencies.n + 1, sizeof *o->sources);
    return o->sources != NULL ? DS_OK : ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for residencies");
}

ds_status dsi_generator_offload_graph(ds_generator *g, dsi_plan_env *env, ds_graph **graph_inout)
{
    ds_graph *made = NULL;
    if (!is_on(g)) {
        return DS_OK;
    }
    DS_TRY(find_residencies(g));
    dsi_generator_offload *o = g->offload;
    DS_TRY(dsi_offload_graph(*graph_inout, &o->spec.how, g->local, &o->residencies, &made));
    ds_graph_destroy(graph_inout);
    *graph_inout = made;
    env->residencies = o->residencies.items;
    env->n_residencies = o->residencies.n;
    env->read_ahead = o->spec.read_ahead;
    env->write_behind = o->keys ? o->spec.read_ahead : 0;
    return DS_OK;
}

const dsi_residencies *dsi_generator_residencies(const ds_generator *g)
{
    return g->offload != NULL ? &g->offload->residencies : NULL;
}

bool dsi_generator_is_away(const ds_generator *g, ds_cell cell)
{
    return g->offload != NULL &&
           dsi_residency_of(&g->offload->residencies, cell).where != DSI_RESIDENCY_DEVICE;
}

bool dsi_generator_offload_source(ds_generator *g, ds_cell cell, const char *path, uint64_t offset)
{
    dsi_generator_offload *o = g->offload;
    if (!o->in_place || dsi_residency_of(&o->residencies, cell).where != DSI_RESIDENCY_DISK) {
        return false;
    }
    o->sources[cell] = (dsi_swap_source){path, offset};
    o->sourced += ds_meta_bytes(ds_cells_get(g->local, cell)->meta);
    return true;
}

ds_status dsi_generator_allocate(ds_generator *g)
{
    dsi_offload_disks disks;
    dsi_swap_params swap;
    if (!is_on(g)) {
        return dsi_exec_allocate(g->exec);
    }
    const dsi_generator_offload *o = g->offload;
    dsi_offload_swap_params(&o->spec, &disks, &swap);
    swap.sources = o->sources;
    dsi_exec_set_residencies(g->exec, o->residencies.items, o->residencies.n, &swap);
    DS_TRY(dsi_exec_allocate(g->exec));
    const size_t disk = dsi_exec_disk_bytes_of(g->exec, DSI_SWAP_PARAMS);
    if (o->sourced > 0) {
        ds_log(g->ctx, DS_LOG_JOB, "weights: %.0f MiB read from the model's files as they are used",
               (double)o->sourced / 1048576.0);
    }
    const size_t keys = dsi_exec_disk_bytes_of(g->exec, DSI_SWAP_KEYS);
    if (keys > 0) {
        ds_log(g->ctx, DS_LOG_JOB, "keys and values: %.0f MiB on disk in %s",
               (double)keys / 1048576.0, disks.of[DSI_SWAP_KEYS].text);
    }
    if (disk > 0) {
        ds_log(g->ctx, DS_LOG_JOB, "weights: %.0f MiB on disk in %s", (double)disk / 1048576.0,
               disks.of[DSI_SWAP_PARAMS].text);
    }
    return DS_OK;
}

void dsi_generator_offload_close(ds_generator *g)
{
    if (g->offload != NULL) {
        free(g->offload->residencies.items);
        free(g->offload->sources);
        free(g->offload);
        g->offload = NULL;
    }
}
