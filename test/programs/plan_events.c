/* SPDX-License-Identifier: Apache-2.0 */
/* Takes events and copies out of plans, one at a time, and asks the checker whether it finds it.
 *
 *     plan_events          all plans
 *     plan_events N…       plans of these numbers
 *
 * A line a plan. What the checker ought to say is known from elsewhere: a graph of the steps of two
 * training steps, what each can know to have ended when it begins, as bits, and all pairs of steps
 * that touch the same bytes, found pair by pair. Mutations:
 *
 *     a START does not wait for its event
 *     a WAIT waits for nothing, or for its event at the end of its phase only
 *     a swap or collective, START and WAIT, is gone
 *
 * Fails when a plan is refused as it is, when checker and graph disagree about an event, when a
 * wait that was placed is redundant, or when a copy is missing and not missed.
 */
#include "common/config_plan.h"
#include "op/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the plans ------------------------------------------------------------------------------- */

static const char gpt2[] =
    "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],\"vocab_size\":211,"
    "\"n_positions\":64,\"n_embd\":48,\"n_layer\":3,\"n_head\":4,\"resid_pdrop\":0.1,"
    "\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}";
static const char llama[] =
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":131,"
    "\"hidden_size\":48,\"intermediate_size\":88,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"max_position_embeddings\":64,"
    "\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";

#define ADAM                                                                                       \
    "\"train_micro_batch_size_per_gpu\":2,\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":"   \
    "1e-3}},"
#define BF16  "\"bf16\":{\"enabled\":true},"
#define EARLY "\"bf16\":{\"enabled\":true,\"check_grad_overflow\":false},"
#define CLIP  "\"gradient_clipping\":1.0,"
#define SMALL                                                                                      \
    ",\"reduce_bucket_size\":20000,\"allgather_bucket_size\":20000,"                               \
    "\"stage3_prefetch_bucket_size\":20000,\"stage3_param_persistence_threshold\":0,"              \
    "\"stage3_max_live_parameters\":0,\"stage3_max_reuse_distance\":0"
#define HOST "\"device\":\"cpu\""
#define DISK "\"device\":\"nvme\",\"nvme_path\":\".\""
#define STATES(where)                                                                              \
    ",\"sub_group_size\":5000,\"offload_optimizer\":{" where                                       \
    ",\"pipeline_read\":true,\"pipeline_write\":true}"
#define PARAMS(where) ",\"offload_param\":{" where "}"
#define ZERO(n, more) "\"zero_optimization\":{\"stage\":" n ",\"overlap_comm\":true" more "}"
#define ZENFLOW                                                                                    \
    ",\"zenflow\":{\"select_strategy\":\"step\",\"select_interval\":4,\"update_interval\":2,"      \
    "\"topk_ratio\":0.1,\"overlap_step\":true}"
#define ROOM "\"device_memory\":400000000,"

static const struct {
    const char *name, *model, *config;
    uint32_t n_ranks;
} plans[] = {
    {"zero3", gpt2, "{" ADAM CLIP ZERO("3", SMALL) "}", 4},
    {"zero3 states and parameters on disk", gpt2,
     "{" ADAM BF16 CLIP ROOM ZERO("3", SMALL STATES(DISK) PARAMS(DISK)) "}", 2},
    {"zero2 early updates, states on disk", gpt2,
     "{" ADAM EARLY ROOM ZERO("2", SMALL STATES(DISK)) "}", 2},
    {"zero3 zenflow beside, states on disk", llama,
     "{" ADAM BF16 ROOM ZERO("3", SMALL STATES(DISK) ZENFLOW) "}", 2},
    {"zero3 MiCS", llama, "{" ADAM BF16 CLIP ZERO("3", SMALL ",\"mics_shard_size\":2") "}", 4},
    {"zero3 hpZ", llama, "{" ADAM BF16 CLIP ZERO("3", SMALL ",\"zero_hpz_partition_size\":2") "}",
     4},
    {"zero0", gpt2, "{" ADAM BF16 CLIP ZERO("0", SMALL) "}", 2},
    {"zero1", llama, "{" ADAM BF16 CLIP ZERO("1", SMALL) "}", 3},
    {"zero2", llama, "{" ADAM BF16 CLIP ZERO("2", SMALL) "}", 8},
    {"zero3 llama", llama, "{" ADAM BF16 ZERO("3", SMALL) "}", 8},
    {"zero3 large buckets", gpt2, "{" ADAM BF16 CLIP ZERO("3", "") "}", 2},
    {"zero1 states on the host", gpt2, "{" ADAM BF16 CLIP ROOM ZERO("1", SMALL STATES(HOST)) "}",
     2},
    {"zero2 states on the host", llama, "{" ADAM BF16 CLIP ROOM ZERO("2", SMALL STATES(HOST)) "}",
     4},
    {"zero3 states on disk, parameters on the host", llama,
     "{" ADAM BF16 ROOM ZERO("3", SMALL STATES(DISK) PARAMS(HOST)) "}", 4},
    {"one rank, states on disk", gpt2, "{" ADAM BF16 CLIP ROOM ZERO("2", SMALL STATES(DISK)) "}",
     1},
    {"one rank, early updates, states and parameters on disk", llama,
     "{" ADAM EARLY ROOM ZERO("3", SMALL STATES(DISK) PARAMS(DISK)) "}", 1},
    {"zero1 zenflow beside, states on the host", gpt2,
     "{" ADAM BF16 CLIP ROOM ZERO("1", SMALL STATES(HOST) ZENFLOW) "}", 2},
    {"zero2 zenflow beside, states on disk", gpt2,
     "{" ADAM BF16 ROOM ZERO("2", SMALL STATES(DISK) ZENFLOW) "}", 4},
    {"zero3 early updates, MiCS, states on disk", llama,
     "{" ADAM EARLY ROOM ZERO("3", SMALL STATES(DISK) ",\"mics_shard_size\":2") "}", 4},
    {"zero3 fp16, 4 micro-batches, hpZ", gpt2,
     "{" ADAM "\"fp16\":{\"enabled\":true},\"gradient_accumulation_steps\":4," ZERO(
         "3", SMALL ",\"zero_hpz_partition_size\":2") "}",
     4},
};

enum { PLANS = sizeof plans / sizeof plans[0], SEQ = 32 };

/* ---- what is reachable from what --------------------------------------------------------------
 */

/* Steps of two training steps, numbered through: t is step t % n of the plan. */
typedef struct pair {
    uint32_t before, behind;
} pair;

typedef struct graph {
    const dsi_plan *plan;
    uint32_t n;      /* of the plan */
    size_t words;    /* of a set of steps */
    uint64_t *known; /* per step: which have ended when it begins */
    pair *pairs;     /* of steps that touch the same bytes */
    size_t n_pairs, room;
    uint32_t moved, to; /* the step that has gone from the one place to the other, if any */
} graph;

static void *must(void *memory)
{
    if (memory == NULL) {
        (void)fprintf(stderr, "plan_events: no memory\n");
        exit(1);
    }
    return memory;
}

/* Where an operand lies, as [begin, end) of a line on which no two storages meet. */
static bool bytes_of(const dsi_plan *plan, const dsi_step *step, uint32_t i, size_t *begin,
                     size_t *end)
{
    const size_t apart = (size_t)1 << 40;
    const dsi_ref *ref =
        &plan->refs[i < step->n_in ? step->in_at + i : step->out_at + i - step->n_in];
    size_t bytes = ds_meta_bytes(ref->meta);
    if (ref->space == DSI_SPACE_NONE || bytes == 0 || (step->op->flags & DS_OP_VIEW) != 0) {
        return false;
    }
    if (ref->space == DSI_SPACE_CELL) {
        const ds_cell parent = plan->cell_parent[ref->cell];
        *begin =
            apart * (2 + (parent != DS_NONE ? parent : ref->cell)) + plan->cell_offset[ref->cell];
    } else {
        *begin = (ref->space == DSI_SPACE_SHARED ? apart : 0) + ref->offset;
        bytes = (step->op->flags & DS_OP_SWAP) != 0 ? dsi_swap_block_bytes(bytes) : bytes;
    }
    *end = *begin + bytes;
    return true;
}

static bool is_hazard(const dsi_plan *plan, const dsi_step *a, const dsi_step *b)
{
    size_t from[2];
    size_t to[2];
    for (uint32_t i = 0; i < a->n_in + a->n_out; ++i) {
        if (!bytes_of(plan, a, i, &from[0], &to[0])) {
            continue;
        }
        for (uint32_t j = 0; j < b->n_in + b->n_out; ++j) {
            if ((i >= a->n_in || j >= b->n_in) && bytes_of(plan, b, j, &from[1], &to[1]) &&
                from[0] < to[1] && from[1] < to[0]) {
                return true;
            }
        }
        if (b->work_bytes > 0 && from[0] < b->work_offset + b->work_bytes &&
            b->work_offset < to[0]) {
            return true;
        }
    }
    return false;
}

static bool is_side(const dsi_plan *plan, uint32_t s)
{
    return plan->streams[plan->steps[s].stream].side;
}

/* All pairs of steps of one set, one of them a START, that touch the same bytes. */
static void find_pairs(graph *g)
{
    const dsi_plan *plan = g->plan;
    for (uint32_t a = 0; a < g->n; ++a) {
        for (uint32_t b = 0; b < g->n && plan->steps[a].kind == DSI_STEP_START; ++b) {
            const dsi_step *other = &plan->steps[b];
            if (other->kind == DSI_STEP_WAIT || is_side(plan, a) != is_side(plan, b) ||
                !is_hazard(plan, &plan->steps[a], other)) {
                continue;
            }
            if (g->n_pairs + 3 > g->room) {
                g->room = 2 * g->room + 1024;
                g->pairs = must(realloc(g->pairs, g->room * sizeof *g->pairs));
            }
            if (a != b) {
                g->pairs[g->n_pairs++] = a < b ? (pair){a, b} : (pair){b, a};
            }
            g->pairs[g->n_pairs++] = (pair){a, g->n + b};
            g->pairs[g->n_pairs++] = (pair){b, g->n + a};
        }
    }
}

static void learn(graph *g, uint32_t t, uint32_t from, bool ended)
{
    uint64_t *known = g->known + t * g->words;
    for (size_t w = 0; w < g->words; ++w) {
        known[w] |= g->known[from * g->words + w];
    }
    known[from / 64] |= (uint64_t)ended << from % 64;
}

static bool is_known(const graph *g, uint32_t t, uint32_t by)
{
    return (g->known[by * g->words + t / 64] >> t % 64 & 1) != 0;
}

/* The last step before t on the same stream, or on the computing stream of its set; 2n: none. */
static uint32_t last_before(const graph *g, uint32_t t, bool computing)
{
    const dsi_plan *plan = g->plan;
    const uint32_t s = t % g->n;
    for (uint32_t u = t; u-- > 0;) {
        const uint32_t other = u % g->n;
        const bool same = plan->steps[other].stream == plan->steps[s].stream;
        const bool computes =
            plan->steps[other].kind != DSI_STEP_START && is_side(plan, other) == is_side(plan, s);
        if (computing ? computes : same) {
            return u;
        }
    }
    return 2 * g->n;
}

static void find_known(graph *g)
{
    const dsi_plan *plan = g->plan;
    memset(g->known, 0, 2 * (size_t)g->n * g->words * sizeof *g->known);
    for (uint32_t t = 0; t < 2 * g->n; ++t) {
        const uint32_t s = t % g->n;
        const dsi_step *step = &plan->steps[s];
        const bool starts = step->kind == DSI_STEP_START;
        const uint32_t before = last_before(g, t, !starts);
        if (before < 2 * g->n) {
            learn(g, t, before, !starts);
        }
        const uint32_t first = t - s + plan->phase_begin[step->phase];
        for (uint32_t u = first; starts && u-- > 0;) { /* the last that its set has computed */
            if (plan->steps[u % g->n].kind != DSI_STEP_START &&
                is_side(plan, u % g->n) == is_side(plan, s)) {
                learn(g, t, u, true);
                break;
            }
        }
        for (uint32_t i = 0; i < step->n_waits; ++i) {
            const uint32_t e = plan->events[plan->waits[step->wait_at + i]];
            if (e < s) {
                learn(g, t, t - s + e, true);
            } else if (t >= g->n) {
                learn(g, t, e, true);
            }
        }
    }
}

/* Where a step stands now. */
static uint32_t place_of(const graph *g, uint32_t t)
{
    const uint32_t s = t % g->n;
    return s == g->moved ? t - s + g->to : s > g->moved && s <= g->to ? t - 1 : t;
}

/* Whether two steps that touch the same bytes are without order. */
static bool is_racy(graph *g)
{
    find_known(g);
    for (size_t i = 0; i < g->n_pairs; ++i) {
        const pair p = g->pairs[i];
        if (!is_known(g, place_of(g, p.before), place_of(g, p.behind))) {
            return true;
        }
    }
    return false;
}

/* ---- mutations ------------------------------------------------------------------------------- */

/* The parts of a plan that mutations change, to put back. */
typedef struct kept {
    dsi_step *steps;
    uint32_t *events, *waits;
    uint32_t n_steps, phase_begin[DS_MAX_PHASES + 1];
} kept;

static kept keep(const dsi_plan *plan)
{
    kept k = {.n_steps = plan->n_steps};
    k.steps = must(malloc((plan->n_steps + 1) * sizeof *k.steps));
    k.events = must(malloc((plan->n_events + 1) * sizeof *k.events));
    k.waits = must(malloc((plan->n_waits + 1) * sizeof *k.waits));
    memcpy(k.steps, plan->steps, plan->n_steps * sizeof *k.steps);
    memcpy(k.events, plan->events, plan->n_events * sizeof *k.events);
    memcpy(k.waits, plan->waits, plan->n_waits * sizeof *k.waits);
    memcpy(k.phase_begin, plan->phase_begin, sizeof k.phase_begin);
    return k;
}

static void put_back(dsi_plan *plan, const kept *k)
{
    memcpy(plan->steps, k->steps, k->n_steps * sizeof *k->steps);
    memcpy(plan->events, k->events, plan->n_events * sizeof *k->events);
    memcpy(plan->waits, k->waits, plan->n_waits * sizeof *k->waits);
    memcpy(plan->phase_begin, k->phase_begin, sizeof k->phase_begin);
    plan->n_steps = k->n_steps;
}

/* Step s goes to place `to` behind it, or away where that is the end of the plan; all that counts
 * steps follows. */
static void move_step(dsi_plan *plan, uint32_t s, uint32_t to)
{
    const bool away = to >= plan->n_steps;
    const uint32_t last = away ? plan->n_steps - 1 : to;
    const dsi_step moved = plan->steps[s];
    memmove(&plan->steps[s], &plan->steps[s + 1], (last - s) * sizeof moved);
    plan->steps[last] = moved;
    for (uint32_t i = 0; i < plan->n_steps; ++i) {
        uint32_t *start = &plan->steps[i].start;
        *start = *start == s ? last : *start > s && *start <= last ? *start - 1 : *start;
    }
    for (uint32_t i = 0; i < plan->n_events; ++i) {
        uint32_t *e = &plan->events[i];
        *e = *e == s ? last : *e > s && *e <= last ? *e - 1 : *e;
    }
    for (uint32_t p = 0; p <= DS_MAX_PHASES && away; ++p) {
        plan->phase_begin[p] -= plan->phase_begin[p] > s ? 1 : 0;
    }
    plan->n_steps -= away ? 1 : 0;
}

/* Who waits for the event behind a WAIT that goes away waits for the step before it. */
static void pass_event_on(dsi_plan *plan, uint32_t s)
{
    const uint32_t event = plan->steps[s].event;
    uint32_t before = s;
    while (before > plan->phase_begin[plan->steps[s].phase] &&
           (before == s || plan->steps[before].kind == DSI_STEP_START)) {
        --before;
    }
    const bool none = before == s || plan->steps[before].kind == DSI_STEP_START;
    for (uint32_t i = 0; i < plan->n_steps && event != DS_NONE; ++i) {
        dsi_step *step = &plan->steps[i];
        if (step->n_waits == 1 && plan->waits[step->wait_at] == event) {
            step->n_waits = none ? 0 : 1;
            plan->waits[step->wait_at] =
                none || plan->steps[before].event == DS_NONE ? event : plan->steps[before].event;
        }
    }
    if (!none && event != DS_NONE && plan->steps[before].event == DS_NONE) {
        plan->steps[before].event = event;
        plan->events[event] = before;
    }
}

static void drop_copy(dsi_plan *plan, uint32_t start, uint32_t wait)
{
    pass_event_on(plan, wait);
    move_step(plan, wait > start ? wait : start, plan->n_steps);
    move_step(plan, wait > start ? start : wait, plan->n_steps);
}

/* ---- a plan ---------------------------------------------------------------------------------- */

typedef struct tally {
    uint32_t starts, redundant; /* waits of STARTs; those without which all is in order */
    uint32_t waits, lost;       /* WAITs; those without which bytes are without order */
    uint32_t delayed, late;     /* WAITs moved to the end of their phase; those refused then */
    uint32_t copies;
    uint32_t wrong;
} tally;

static bool is_refused(const dsi_plan *plan)
{
    return dsi_plan_check(plan) < 0;
}

static void complain(tally *t, const char *name, const dsi_plan *plan, uint32_t s, const char *what)
{
    const dsi_step *step = &plan->steps[s];
    (void)printf("%s: step %u (%s, %s): %s\n", name, s, step->op->name, step->scope, what);
    t->wrong += 1;
}

/* Step s does not wait. */
static void try_without_wait(graph *g, dsi_plan *plan, uint32_t s, const char *name, tally *t)
{
    const bool wait = plan->steps[s].kind == DSI_STEP_WAIT;
    const uint32_t n = plan->steps[s].n_waits;
    plan->steps[s].n_waits = 0;
    const bool racy = is_racy(g);
    const bool refused = is_refused(plan);
    plan->steps[s].n_waits = n;
    t->starts += wait ? 0 : 1;
    t->waits += wait ? 1 : 0;
    t->lost += wait && racy ? 1 : 0;
    t->redundant += !wait && !racy ? 1 : 0;
    if (refused != (racy || wait)) {
        complain(t, name, plan, s,
                 refused ? "refused without a reason" : "a missing wait not found");
    }
}

/* WAIT s stands at the end of its phase. */
static void try_delayed(graph *g, dsi_plan *plan, const kept *k, uint32_t s, const char *name,
                        tally *t)
{
    const uint32_t last = plan->phase_begin[plan->steps[s].phase + 1] - 1;
    if (s == last || plan->steps[s].event != DS_NONE) {
        return; /* who waits for it would wait for a later step */
    }
    move_step(plan, s, last);
    g->moved = s; /* it touches nothing, so the pairs stay */
    g->to = last;
    const bool racy = is_racy(g);
    const bool refused = is_refused(plan);
    g->moved = g->to = 0;
    t->delayed += 1;
    t->late += refused ? 1 : 0;
    put_back(plan, k);
    if (refused != racy) {
        complain(t, name, plan, s, racy ? "a late wait not found" : "refused without a reason");
    }
}

static void try_plan(dsi_plan *plan, const char *name, tally *t)
{
    graph g = {.plan = plan, .n = plan->n_steps, .words = 2 * (size_t)plan->n_steps / 64 + 1};
    g.known = must(malloc(2 * (size_t)g.n * g.words * sizeof *g.known));
    const kept k = keep(plan);
    find_pairs(&g);
    if (is_racy(&g) || is_refused(plan)) {
        complain(t, name, plan, 0, "the plan as it is has a hazard");
    }
    for (uint32_t s = 0; s < k.n_steps; ++s) {
        if (plan->steps[s].n_waits > 0) {
            try_without_wait(&g, plan, s, name, t);
        }
        if (plan->steps[s].kind == DSI_STEP_WAIT) {
            try_delayed(&g, plan, &k, s, name, t);
            drop_copy(plan, plan->steps[s].start, s);
            const bool refused = is_refused(plan);
            put_back(plan, &k);
            t->copies += 1;
            if (!refused) {
                complain(t, name, plan, s, "a missing copy not found");
            }
        }
    }
    free(g.known);
    free(g.pairs);
    free(k.steps);
    free(k.events);
    free(k.waits);
}

static int run(ds_ctx *ctx, uint32_t number)
{
    dsi_rank_plan plan = {.ctx = ctx};
    ds_model *model = NULL;
    tally t = {0};
    const config_plan what = {.name = plans[number].name,
                              .config = plans[number].config,
                              .n_ranks = plans[number].n_ranks,
                              .seq_length = SEQ};
    if (config_plan_model(ctx, plans[number].model, &model) < 0 ||
        config_plan_build(ctx, model, &what, &plan) < 0) {
        (void)fprintf(stderr, "plan_events: %s: %s\n", what.name, ds_ctx_error(ctx));
        ds_model_destroy(&model);
        return 1;
    }
    const dsi_plan *train = plan.train_plan;
    try_plan(plan.train_plan, what.name, &t);
    (void)printf(
        "%2u %s: %u steps, %u streams; waits of starts %u, redundant %u; waits for ends %u, "
        "found %u, %u of them by their bytes; late %u, refused %u; copies %u; wrong %u\n",
        number, what.name, train->n_steps, train->n_streams, t.starts, t.redundant, t.waits,
        t.waits, t.lost, t.delayed, t.late, t.copies, t.wrong);
    dsi_rank_plan_free(&plan);
    ds_model_destroy(&model);
    return t.wrong + t.redundant > 0 ? 1 : 0;
}

int main(int argc, char **argv)
{
    ds_ctx_params params = ds_ctx_params_default();
    ds_ctx *ctx = NULL;
    int failed = 0;
    params.level = DS_LOG_ERROR;
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    for (int i = 1; i < argc || (argc == 1 && i <= PLANS); ++i) {
        const uint32_t number = argc == 1 ? (uint32_t)i - 1 : (uint32_t)atoi(argv[i]);
        failed |= number < PLANS ? run(ctx, number) : 2;
    }
    ds_ctx_destroy(&ctx);
    return failed;
}
