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
#include "common/plan_order.h"
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
/* Updated there, beside a device with memory of its own. */
#define BESIDE        ",\"sub_group_size\":5000,\"offload_optimizer\":{" HOST ",\"cpuadam_cores_perc\":1}"
#define AHEAD         ",\"offload_optimizer\":{" HOST ",\"cpuadam_cores_perc\":1,\"super_offload\":true}"
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
    {"zero1 updated on the host", gpt2, "{" ADAM BF16 CLIP ZERO("1", SMALL BESIDE) "}", 2},
    {"zero3 updated on the host, parameters there", llama,
     "{" ADAM BF16 CLIP ZERO("3", SMALL BESIDE PARAMS(HOST)) "}", 4},
    {"zero3 early updates on the host", llama, "{" ADAM EARLY ZERO("3", SMALL BESIDE) "}", 2},
    {"one rank, updated on the host ahead of the norm", gpt2,
     "{" ADAM BF16 CLIP ZERO("3", SMALL AHEAD) "}", 1},
    {"zero3 updated on the host ahead of the norm", llama,
     "{" ADAM BF16 CLIP ZERO("3", SMALL AHEAD PARAMS(HOST)) "}", 2},
    {"zero1 zenflow beside, updated on the host", gpt2,
     "{" ADAM BF16 CLIP ZERO("1", SMALL BESIDE ZENFLOW) "}", 2},
    {"zero3 zenflow beside, updated on the host, parameters there", llama,
     "{" ADAM BF16 CLIP ZERO("3", SMALL BESIDE PARAMS(HOST) ZENFLOW) "}", 2},
};

enum { PLANS = sizeof plans / sizeof plans[0], SEQ = 32 };

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
    k.steps = plan_order_must(malloc((plan->n_steps + 1) * sizeof *k.steps));
    k.events = plan_order_must(malloc((plan->n_events + 1) * sizeof *k.events));
    k.waits = plan_order_must(malloc((plan->n_waits + 1) * sizeof *k.waits));
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
static void try_without_wait(plan_order *g, dsi_plan *plan, uint32_t s, const char *name, tally *t)
{
    const bool wait = plan->steps[s].kind == DSI_STEP_WAIT;
    const uint32_t n = plan->steps[s].n_waits;
    plan->steps[s].n_waits = 0;
    const bool racy = plan_order_is_racy(g);
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
static void try_delayed(plan_order *g, dsi_plan *plan, const kept *k, uint32_t s, const char *name,
                        tally *t)
{
    const uint32_t last = plan->phase_begin[plan->steps[s].phase + 1] - 1;
    if (s == last || plan->steps[s].event != DS_NONE) {
        return; /* who waits for it would wait for a later step */
    }
    move_step(plan, s, last);
    g->moved = s; /* it touches nothing, so the pairs stay */
    g->to = last;
    const bool racy = plan_order_is_racy(g);
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
    plan_order g = plan_order_make(plan, false);
    const kept k = keep(plan);
    if (plan_order_is_racy(&g) || is_refused(plan)) {
        complain(t, name, plan, 0, "the plan as it is has a hazard");
    }
    for (uint32_t s = 0; s < k.n_steps; ++s) {
        if (plan->steps[s].n_waits > 0) {
            try_without_wait(&g, plan, s, name, t);
        }
        if (plan->steps[s].kind == DSI_STEP_WAIT) {
            try_delayed(&g, plan, &k, s, name, t);
            if (plan->steps[s].on_host) {
                continue; /* an update, of which nobody can tell that it ought to be there */
            }
            drop_copy(plan, plan->steps[s].start, s);
            const bool refused = is_refused(plan);
            put_back(plan, &k);
            t->copies += 1;
            if (!refused) {
                complain(t, name, plan, s, "a missing copy not found");
            }
        }
    }
    plan_order_free(&g);
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
                              .seq_length = SEQ,
                              .accelerator =
                                  strstr(plans[number].config, "cpuadam_cores_perc") != NULL
                                      ? "sim" /* its memory is apart */
                                      : NULL};
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
