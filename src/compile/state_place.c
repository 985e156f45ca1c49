/* SPDX-License-Identifier: Apache-2.0 */
/* See state_place.h. Splits are between buckets of about as many elements each. All, none and a
 * quarter of the splits are planned and simulated, then those between the neighbours of the best.
 * What needs more than a split that is far from fitting is not planned.
 */
#include "compile/state_place.h"

#include "compile/rank_ledger.h"
#include "compile/rank_time.h"
#include "op/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUCKETS_MOST = 16 };

/* ---- the order of gradients ------------------------------------------------------------------ */

/* What is rounded, marked or stored as the gradient of a parameter was there before. */
static ds_node completed_by(const ds_graph *g, ds_value v)
{
    ds_node n = v != DS_NONE ? g->values[v].producer : DS_NONE;
    while (n != DS_NONE && (g->nodes[n].op == &dsi_op_cast || g->nodes[n].op == &dsi_op_gradient)) {
        const ds_value from = dsi_node_in(g, &g->nodes[n])[0];
        n = from != DS_NONE ? g->values[from].producer : DS_NONE;
    }
    return n;
}

void dsi_state_ends(const ds_graph *graph, uint32_t *ends_out)
{
    enum { IN_PARAM, IN_GRAD, STORED = 1 };
    for (ds_node n = 0; n < graph->n_nodes; ++n) {
        const dsi_node_info *node = &graph->nodes[n];
        const ds_value *in = dsi_node_in(graph, node);
        ds_cell param = DS_NONE;
        ds_value gradient = DS_NONE;
        if (node->op == &dsi_op_store || node->op == &dsi_op_accumulate) {
            const ds_cell cell = graph->values[dsi_node_out(graph, node)[0]].cell;
            const ds_cell_info *info = cell != DS_NONE ? ds_cells_get(graph->cells, cell) : NULL;
            param = info != NULL && info->kind == DS_CELL_GRAD ? info->of : DS_NONE;
            gradient = in[STORED];
        } else if (node->op->role == DS_ROLE_UPDATE && in[IN_PARAM] != DS_NONE &&
                   in[IN_GRAD] != DS_NONE && graph->values[in[IN_GRAD]].cell == DS_NONE) {
            param = graph->values[in[IN_PARAM]].cell;
            gradient = in[IN_GRAD];
        }
        const ds_node end = param != DS_NONE ? completed_by(graph, gradient) : DS_NONE;
        if (end != DS_NONE) {
            ends_out[param] = end;
        }
    }
}

ds_status dsi_state_residencies(dsi_rank_maker *m, const uint32_t *ends, double ratio)
{
    dsi_offload_spec spec = m->request->spec->offload;
    spec.ratio = ratio;
    free(m->plan.residencies.items);
    m->plan.residencies = (dsi_residencies){.items = NULL};
    if (dsi_offload_rules(&spec, m->plan.cells, ends, &m->plan.residencies) < 0) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
    }
    dsi_offload_idle(&spec, m->plan.cells, &m->plan.residencies, m->plan.idle);
    return DS_OK;
}

/* ---- splits ---------------------------------------------------------------------------------- */

typedef struct placer {
    dsi_rank_maker *m;
    const ds_graph *graph;
    uint32_t *ends;
    int64_t begin[BUCKETS_MOST + 1]; /* elements kept with so many buckets, the last first */
    uint32_t n_buckets;
    int64_t elements;
    double seconds[BUCKETS_MOST + 1]; /* NAN: not planned; INFINITY: does not fit */
    uint32_t at;                      /* the split of the plans that there are */
    uint32_t n_tried;
    size_t lacks;       /* bytes of the device, of the plans that there are */
    size_t cells[2];    /* bytes of the device's cells with none and all kept */
    uint32_t too_large; /* splits that keep so many or more exceed the device by far */
    uint32_t least;     /* those that keep fewer exceed the host */
} placer;

/* A bucket ends with the parameter that fills it. */
static ds_status make_buckets(placer *p)
{
    dsi_late_param *params = NULL;
    uint32_t n = 0;
    if (dsi_offload_last_first(&p->m->request->spec->offload, p->m->plan.cells, p->ends, &params,
                               &n) < 0) {
        return ds_fail(p->m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
    }
    for (uint32_t i = 0; i < n; ++i) {
        p->elements += params[i].count;
    }
    int64_t kept = 0;
    for (uint32_t i = 0; i < n; ++i) {
        kept += params[i].count;
        const double filled = (double)BUCKETS_MOST * (double)kept / (double)p->elements;
        if (p->n_buckets < BUCKETS_MOST && (i + 1 == n || filled >= (double)(p->n_buckets + 1))) {
            p->begin[++p->n_buckets] = kept;
        }
    }
    free(params);
    return DS_OK;
}

/* What the ranks of a node need of their host, as it is reported. */
static ds_status host_bytes(const dsi_rank_maker *m, double *bytes_out)
{
    const dsi_rank_request *r = m->request;
    size_t most = 0;
    uint32_t step = 0;
    dsi_ledger *ledger = NULL;
    DS_TRY(dsi_rank_ledger(&m->plan, r->spec->zero.mesh.n_ranks, true, &ledger));
    const ds_status status = dsi_ledger_peak(ledger, DSI_RESIDENCY_HOST, &step, &most);
    *bytes_out = (double)most * (double)(r->n_local > 0 ? r->n_local : 1);
    dsi_ledger_destroy(&ledger);
    return status;
}

/* Bytes that the plans lack of the device; whether they exceed the host. */
static ds_status find_lack(const dsi_rank_maker *m, size_t *lacks_out, bool *small_out)
{
    const dsi_rank_request *r = m->request;
    const size_t mapped = dsi_rank_mapped_bytes(&m->plan);
    const size_t all = r->memory > 0 ? r->memory : (size_t)r->device->memory_bytes;
    const size_t need = mapped + dsi_rank_context_bytes(r->spec->zero.mesh.n_ranks);
    const size_t limit = r->spec->device_memory;
    const size_t over = need > all ? need - all : 0;
    const size_t over_limit = limit > 0 && mapped > limit ? mapped - limit : 0;
    double host = 0.0;
    DS_TRY(host_bytes(m, &host));
    *small_out = r->device->host_memory_bytes > 0.0 && host > r->device->host_memory_bytes;
    *lacks_out = over > over_limit ? over : over_limit;
    return DS_OK;
}

static double ratio_of(const placer *p, uint32_t kept)
{
    return p->elements > 0 ? 1.0 - (double)p->begin[kept] / (double)p->elements : 1.0;
}

static ds_status lower(placer *p, uint32_t kept)
{
    DS_TRY(dsi_state_residencies(p->m, p->ends, ratio_of(p, kept)));
    DS_TRY(dsi_rank_lower_to_fit(p->m, p->graph));
    p->at = kept;
    return DS_OK;
}

static size_t device_cells(const dsi_rank_maker *m)
{
    const size_t train = m->plan.train_plan->arena_bytes;
    const size_t eval = m->plan.eval_plan->arena_bytes;
    return dsi_rank_mapped_bytes(&m->plan) - (train > eval ? train : eval);
}

/* Cells grow with what is kept, and arenas differ a little from split to split: by less than a
 * quarter of the states. So a lack of more than that is one of all splits that keep more. */
static bool exceeds_by_far(const placer *p)
{
    return p->cells[1] > p->cells[0] && p->lacks > (p->cells[1] - p->cells[0]) / 4;
}

/* A split that keeps more than one that exceeds the device by far is not planned, nor one that
 * keeps less than one that exceeds the host. */
static ds_status try_split(placer *p, uint32_t kept)
{
    const dsi_rank_request *r = p->m->request;
    dsi_sim_step *steps = NULL;
    dsi_timeline *timeline = NULL;
    bool small = false;
    if (!isnan(p->seconds[kept])) {
        return DS_OK;
    }
    p->seconds[kept] = INFINITY;
    if (kept >= p->too_large || kept < p->least) {
        return DS_OK;
    }
    DS_TRY(lower(p, kept));
    p->n_tried += 1;
    DS_TRY(find_lack(p->m, &p->lacks, &small));
    p->cells[1] = kept == p->n_buckets ? device_cells(p->m) : p->cells[1];
    p->cells[0] = kept == 0 ? device_cells(p->m) : p->cells[0];
    if (p->lacks > 0 || small) {
        p->too_large = kept < p->n_buckets && exceeds_by_far(p) ? kept : p->too_large;
        p->least = small ? kept + 1 : p->least;
        return DS_OK;
    }
    DS_TRY(
        dsi_rank_simulate(&p->m->plan, &p->m->spec, r->device, r->n_local, 0.0, &steps, &timeline));
    p->seconds[kept] = timeline->step.seconds;
    dsi_timeline_destroy(&timeline);
    free(steps);
    return DS_OK;
}

/* The fastest of those that are known; of equal ones that with least on the device. */
static uint32_t best_of(const placer *p)
{
    uint32_t best = 0;
    for (uint32_t k = 1; k <= p->n_buckets; ++k) {
        const double least = isnan(p->seconds[best]) ? INFINITY : p->seconds[best];
        if (!isnan(p->seconds[k]) && p->seconds[k] < least * (1.0 - 1e-9)) {
            best = k;
        }
    }
    return best;
}

static ds_status search(placer *p)
{
    const uint32_t n = p->n_buckets;
    dsi_state_place *place = &p->m->plan.place;
    p->too_large = n + 1;
    DS_TRY(try_split(p, n));
    place->lacks = p->lacks;
    DS_TRY(try_split(p, 0));
    for (uint32_t k = 1; k < 4; ++k) {
        DS_TRY(try_split(p, k * n / 4));
    }
    for (uint32_t step = (n + 7) / 8; step > 0; step /= 2) {
        const uint32_t best = best_of(p);
        DS_TRY(best >= step ? try_split(p, best - step) : DS_OK);
        DS_TRY(best + step <= n ? try_split(p, best + step) : DS_OK);
    }
    for (uint32_t k = 0; k <= n && !isfinite(p->seconds[best_of(p)]); ++k) {
        DS_TRY(try_split(p, k)); /* few fit */
    }
    const uint32_t best = best_of(p);
    const double known = p->seconds[best];
    DS_TRY(p->at != best ? lower(p, best) : DS_OK);
    place->on = true;
    place->n_buckets = n;
    place->n_kept = best;
    place->n_tried = p->n_tried;
    place->elements = p->elements;
    place->kept = p->begin[best];
    place->ratio = ratio_of(p, best);
    place->seconds = isfinite(known) ? known : 0.0;
    place->host_seconds = isfinite(p->seconds[0]) ? p->seconds[0] : 0.0;
    place->device_seconds = isfinite(p->seconds[n]) ? p->seconds[n] : 0.0;
    return DS_OK;
}

bool dsi_state_is_open(const dsi_rank_maker *m)
{
    const dsi_offload_spec *spec = &m->request->spec->offload;
    return m->request->device != NULL && spec->choose_ratio && spec->how.host &&
           spec->states == DSI_RESIDENCY_HOST && dsi_rank_n_stages(m) <= 1;
}

ds_status dsi_state_place_to_fit(dsi_rank_maker *m, const ds_graph *graph)
{
    placer p = {.m = m, .graph = graph};
    for (uint32_t k = 0; k <= BUCKETS_MOST; ++k) {
        p.seconds[k] = NAN;
    }
    p.ends = calloc((size_t)ds_cells_count(m->plan.cells) + 1, sizeof *p.ends);
    if (p.ends == NULL) {
        return ds_fail(m->plan.ctx, DS_ERR_NOMEM, "no memory for a plan");
    }
    dsi_state_ends(graph, p.ends);
    ds_status status = make_buckets(&p);
    if (status >= 0) {
        status = p.n_buckets > 0 ? search(&p) : dsi_rank_lower_to_fit(m, graph);
    }
    free(p.ends);
    return status;
}

/* "0.123 s", or why there is none. */
static void say_other(const char *what, double seconds, size_t lacks, char *text, size_t n)
{
    if (seconds > 0.0) {
        (void)snprintf(text, n, ", %.4g s with all on the %s", seconds, what);
    } else if (lacks > 1) {
        (void)snprintf(text, n, "; all on the %s lacks %.2f GiB", what,
                       (double)lacks / 1073741824.0);
    } else {
        (void)snprintf(text, n, "; all on the %s does not fit", what);
    }
}

void dsi_state_place_text(const dsi_state_place *place, char text_out[DSI_STATE_PLACE_BYTES])
{
    char host[400];
    char device[400];
    char own[64] = "does not fit";
    text_out[0] = '\0';
    if (!place->on) {
        return;
    }
    if (place->seconds > 0.0) {
        (void)snprintf(own, sizeof own, "%.4g s a step", place->seconds);
    }
    say_other("host", place->host_seconds, 0, host, sizeof host);
    say_other("device", place->device_seconds, place->lacks, device, sizeof device);
    (void)snprintf(
        text_out, DSI_STATE_PLACE_BYTES,
        "super_offload: optimizer states of %.2f M parameters (%u of %u buckets), whose "
        "gradients come last, stay on the device, those of %.2f M are the host's: %s%s%s; "
        "the same as offload_optimizer.ratio %.15g",
        (double)place->kept / 1e6, place->n_kept, place->n_buckets,
        (double)(place->elements - place->kept) / 1e6, own, host, device, place->ratio);
}
