/* SPDX-License-Identifier: Apache-2.0 */
/* One configuration beside the given one. See plan_candidate.h. */
#include "report/plan_candidate.h"

#include "config/config_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const recompute_names[] = {[DS_RECOMPUTE_NONE] = "\"none\"",
                                              [DS_RECOMPUTE_SELECTIVE] = "\"selective\"",
                                              [DS_RECOMPUTE_FULL] = "\"full\"",
                                              [DS_RECOMPUTE_AUTO] = "\"auto\""};

const char *dsi_candidate_value(const dsi_candidate *candidate, uint32_t i)
{
    return candidate->texts[i] != NULL ? candidate->texts[i] : candidate->values[i];
}

uint32_t dsi_candidate_settings(const dsi_candidate *candidate, dsi_setting *settings)
{
    for (uint32_t i = 0; i < candidate->n_settings; ++i) {
        const char *value = dsi_candidate_value(candidate, i);
        settings[i] = (dsi_setting){candidate->paths[i], value[0] != '\0' ? value : NULL};
    }
    return candidate->n_settings;
}

void dsi_candidate_set(dsi_candidate *c, const char *path, const char *value)
{
    for (uint32_t i = 0; i < c->n_settings; ++i) {
        if (strcmp(c->paths[i], path) == 0 && c->texts[i] == NULL) {
            (void)snprintf(c->values[i], sizeof c->values[0], "%s", value);
            return;
        }
    }
    if (c->n_settings < DSI_CANDIDATE_SETTINGS) {
        c->paths[c->n_settings] = path;
        (void)snprintf(c->values[c->n_settings], sizeof c->values[0], "%s", value);
        c->n_settings += 1;
    }
}

static void set_borrowed(dsi_candidate *c, const char *path, const char *text)
{
    if (c->n_settings < DSI_CANDIDATE_SETTINGS) {
        c->texts[c->n_settings] = text;
    }
    dsi_candidate_set(c, path, "");
}

static void set_number(dsi_candidate *c, const char *path, int64_t value)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    dsi_candidate_set(c, path, text);
}

void dsi_candidate_set_stage(dsi_candidate *c, int64_t stage)
{
    set_number(c, "zero_optimization.stage", stage);
}

void dsi_candidate_set_recompute(dsi_candidate *c, ds_recompute how)
{
    dsi_candidate_set(c, "activation_checkpointing.recompute", recompute_names[how]);
}

void dsi_candidate_set_batch(dsi_candidate *c, int64_t micro, int64_t rows)
{
    set_number(c, "train_micro_batch_size_per_gpu", micro);
    set_number(c, "gradient_accumulation_steps", rows / micro);
}

static const char tp_key[] = "tensor_parallel.autotp_size";
static const char sp_key[] = "sequence_parallel_size";
static const char pp_key[] = "pipeline.stages";
static const char schedule_key[] = "pipeline.schedule";
static const char domino_key[] = "tensor_parallel.domino";

static bool is_open(const ds_config *config, const char *key)
{
    const ds_config_item *item = ds_config_find(config, key);
    return item == NULL || item->origin == DS_ORIGIN_DEFAULT;
}

bool dsi_is_silent_on_stages(const ds_config *config)
{
    return is_open(config, pp_key) && is_open(config, schedule_key);
}

bool dsi_is_silent_on_domino(const ds_config *config)
{
    return is_open(config, domino_key);
}

uint32_t dsi_share_ranks(dsi_share share)
{
    return share.tp * share.sp * share.pp;
}

/* Whether an axis may be shared by n ranks. */
static bool may_share(bool open, uint32_t n, uint32_t most)
{
    return n == 1 || (open && n <= most && (n & (n - 1)) == 0);
}

uint32_t dsi_shares(const dsi_report_request *request, dsi_share out[DSI_SHARES])
{
    const ds_config_values *v = dsi_config_values(request->config);
    const uint32_t nodes = request->n_nodes > 0 ? request->n_nodes : 1;
    const uint32_t given = (uint32_t)(v->tensor_parallel * v->sequence_parallel);
    const uint32_t per_node = request->n_ranks / nodes / (given > 0 ? given : 1);
    const uint32_t all = request->n_ranks / (given > 0 ? given : 1) /
                         (v->pipeline_stages > 1 ? v->pipeline_stages : 1);
    const bool tp_open = is_open(request->config, tp_key);
    const bool sp_open = is_open(request->config, sp_key);
    const bool pp_open = dsi_is_silent_on_stages(request->config);
    uint32_t n = 0;
    for (uint32_t ranks = 2; ranks <= all && ranks <= DSI_MOST_SHARED * DSI_STAGES_MOST;
         ranks *= 2) {
        for (uint32_t pp = 1; pp <= ranks && all % ranks == 0; pp *= 2) {
            const uint32_t inner = ranks / pp;
            for (uint32_t sp = 1; sp <= inner && n < DSI_SHARES; sp *= 2) {
                if (may_share(pp_open, pp, DSI_STAGES_MOST) && inner <= DSI_MOST_SHARED &&
                    per_node % inner == 0 && may_share(sp_open, sp, inner) &&
                    may_share(tp_open, inner / sp, inner)) {
                    out[n++] = (dsi_share){inner / sp, sp, pp};
                }
            }
        }
    }
    return n;
}

void dsi_candidate_set_share(dsi_candidate *c, dsi_share share)
{
    if (share.tp > 1) {
        set_number(c, tp_key, share.tp);
    }
    if (share.sp > 1) {
        set_number(c, sp_key, share.sp);
    }
    if (share.pp > 1) {
        set_number(c, pp_key, share.pp);
    }
}

bool dsi_has_own_memory(const dsi_device *device)
{
    return device != NULL && !device->shared;
}

static void take_figures(dsi_candidate *c, const dsi_plan_report *r)
{
    const ds_config_zero *zero = &dsi_config_values(r->request.config)->zero;
    c->planned = true;
    c->need = dsi_report_need(r);
    c->activations = r->peak[DSI_RESIDENCY_DEVICE][DSI_MEMORY_ACTIVATION];
    c->host = r->total[DSI_RESIDENCY_HOST];
    c->disk = r->total[DSI_RESIDENCY_DISK];
    c->fits = !dsi_report_lacks(r, NULL);
    c->states = zero->offload_optimizer.device;
    c->params = zero->offload_param.device;
    c->stage = r->spec.zero.stage;
    c->tp = r->spec.zero.mesh.size[DSI_AXIS_TP];
    c->sp = r->spec.zero.mesh.size[DSI_AXIS_SP];
    c->pp = r->spec.zero.mesh.size[DSI_AXIS_PP];
    c->schedule = dsi_rank_schedule(&r->spec).kind;
    c->domino = dsi_config_values(r->request.config)->tp_domino;
    c->recompute = r->plan.choice.recompute;
    c->micro_batch = r->spec.train.batch;
    c->accumulation = r->spec.train.accumulation;
    c->model_flops = r->model_flops;
    c->hardware_flops = r->hardware_flops;
    c->seconds = r->timeline != NULL ? r->step_time : 0.0;
    c->row_cost = r->step_time / ((double)c->micro_batch * (double)c->accumulation *
                                  dsi_mesh_data_size(&r->spec.zero.mesh));
    for (uint32_t i = 0; i < r->n_comm; ++i) {
        c->sent += r->comm[i].sent;
    }
}

/* What the planner chose for a pipeline's "auto" is a setting as well. */
static void take_choice(dsi_candidate *c, const dsi_plan_report *r)
{
    const dsi_schedule s = dsi_rank_schedule(&r->spec);
    char schedule[32];
    if (r->chosen != NULL) {
        (void)snprintf(schedule, sizeof schedule, "\"%s\"", dsi_schedule_name(s.kind));
        set_number(c, "pipeline.stages", s.n_ranks);
        dsi_candidate_set(c, "pipeline.schedule", schedule);
        set_number(c, "pipeline.chunks", s.n_chunks);
    }
}

ds_status dsi_candidate_plan(ds_ctx *ctx, const dsi_report_request *request, dsi_candidate *c)
{
    dsi_setting settings[DSI_CANDIDATE_SETTINGS];
    const uint32_t n = dsi_candidate_settings(c, settings);
    const int64_t hidden = ds_model_get_info(request->model)->hidden_size;
    dsi_report_request changed = *request;
    dsi_plan_report report;
    ds_config *config = NULL;
    ds_status status =
        dsi_config_with(ctx, request->config, settings, n, request->n_ranks, hidden, &config);
    if (status >= 0) {
        changed.config = config;
        status = dsi_report_make(ctx, &changed, &report);
    }
    if (status >= 0) {
        take_figures(c, &report);
        take_choice(c, &report);
        dsi_report_free(&report);
    }
    ds_config_destroy(&config);
    c->refused = status < 0 ? status : DS_OK;
    return status == DS_ERR_NOMEM ? status : DS_OK;
}

/* Less is better. */
static double cost_of(const dsi_candidate *c)
{
    return c->model_flops > 0.0 ? c->row_cost : INFINITY;
}

int dsi_candidate_by_cost(const dsi_candidate *a, const dsi_candidate *b)
{
    const double x = cost_of(a);
    const double y = cost_of(b);
    if (fabs(x - y) > 1e-6 * fabs(x)) {
        return x < y ? -1 : 1;
    }
    const double sent_a = a->sent / a->model_flops;
    const double sent_b = b->sent / b->model_flops;
    if (fabs(sent_a - sent_b) > 1e-3 * fabs(sent_a)) {
        return sent_a < sent_b ? -1 : 1;
    }
    if (a->micro_batch != b->micro_batch) {
        return a->micro_batch > b->micro_batch ? -1 : 1;
    }
    return a->n_settings < b->n_settings ? -1 : a->n_settings > b->n_settings;
}

uint32_t dsi_micro_batches(int64_t n, int64_t *out)
{
    uint32_t count = 0;
    for (int64_t d = n < DSI_LARGEST_BATCH ? n : DSI_LARGEST_BATCH; d >= 1; --d) {
        if (n % d == 0) {
            out[count++] = d;
        }
    }
    return count;
}

const int64_t dsi_in_hand[DSI_N_IN_HAND] = {0, 100000000, 10000000};

void dsi_candidate_set_offload(dsi_candidate *c, ds_offload_device where, bool params,
                               int64_t elements, const char *folder, const ds_offload_device had[2])
{
    static const char *const keys[2][2] = {
        {"zero_optimization.offload_optimizer.device",
         "zero_optimization.offload_optimizer.nvme_path"},
        {"zero_optimization.offload_param.device", "zero_optimization.offload_param.nvme_path"}};
    for (int i = 0; i <= (params ? 1 : 0); ++i) {
        if (had[i] == where) {
            continue;
        }
        dsi_candidate_set(c, keys[i][0], where == DS_OFFLOAD_CPU ? "\"cpu\"" : "\"nvme\"");
        if (where == DS_OFFLOAD_NVME) {
            set_borrowed(c, keys[i][1], folder);
        }
    }
    if (elements > 0) {
        set_number(c, "zero_optimization.sub_group_size", elements);
    }
    if (elements > 0 && params) {
        set_number(c, "zero_optimization.stage3_max_live_parameters", elements);
        set_number(c, "zero_optimization.stage3_max_reuse_distance", elements);
        set_number(c, "zero_optimization.stage3_prefetch_bucket_size", elements / 2);
    }
    if (elements > 0 && params && where == DS_OFFLOAD_NVME) { /* its default keeps 1e9 in memory */
        set_number(c, "zero_optimization.offload_param.max_in_cpu", 0);
    }
}
