/* SPDX-License-Identifier: Apache-2.0 */
/* The cut of models into the stages of a pipeline, for all stages at once: they have the same list
 * of messages, every parameter is on its layer's stage and its states with it, the heaviest stage
 * is as light as any cut makes it, and each stage stores what it sends and reads what it gets. */
#include "common/check.h"
#include "common/scratch.h"
#include "common/small_run.h"

#include "compile/rank_plan.h"
#include "op/ops.h"
#include "pipe/pipe_list.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

enum { MOST = 16 };

static const char tied[] = "{\"model_type\": \"gpt2\", \"vocab_size\": 211, \"n_embd\": 48, "
                           "\"n_layer\": 7, \"n_head\": 3, "
                           "\"n_positions\": 64}";
static const char untied[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 211, \"hidden_size\": 48, \"intermediate_size\": "
    "80, "
    "\"num_hidden_layers\": 5, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": false}";

static const char mixed[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 211, \"hidden_size\": 48, "
    "\"intermediate_size\": 80, \"moe_intermediate_size\": 16, \"num_hidden_layers\": 6, "
    "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"mlp_only_layers\": [0, 1, 2], "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 12, "
    "\"max_position_embeddings\": 64, \"tie_word_embeddings\": false}";

typedef struct cut {
    uint32_t n_stages, n_ranks;
    dsi_engine_spec spec;
    dsi_rank_plan plans[MOST];
} cut;

static void open_cut(cut *c, const ds_model *model, uint32_t pp, uint32_t dp, uint32_t stage,
                     dsi_stage_partition partition, uint32_t micro)
{
    const char *type = c->spec.train.partition_type; /* the caller's */
    *c = (cut){.n_stages = pp, .n_ranks = pp * dp, .spec = small_spec(DS_DTYPE_BF16)};
    c->spec.train.partition_type = type;
    c->spec.train.batch = 2;
    c->spec.train.seq_length = 32;
    c->spec.train.accumulation = micro;
    c->spec.train.partition = partition;
    c->spec.zero.pp = pp;
    c->spec.zero.stage = stage;
    c->spec.zero.comm_dtype = DS_DTYPE_BF16;
    c->spec.zero.reduce_bucket = c->spec.zero.gather_bucket = 100000;
    CHECK_OK(ctx, dsi_zero_set_ranks(ctx, &c->spec.zero, c->n_ranks));
    for (uint32_t s = 0; s < pp; ++s) {
        const dsi_rank_request request = {
            .model = model, .spec = &c->spec, .n_threads = 1, .stage = s};
        CHECK_OK(ctx, dsi_rank_plan_build(ctx, &request, &c->plans[s]));
    }
}

static void close_cut(cut *c)
{
    for (uint32_t s = 0; s < c->n_stages; ++s) {
        dsi_rank_plan_free(&c->plans[s]);
    }
}

static bool has(const cut *c, ds_cell cell, uint32_t stage)
{
    return dsi_place_on_has(c->plans[0].places[cell].at.on[DSI_AXIS_PP], stage);
}

/* Whether a plan reads a cell, or writes it. */
static bool touches(const dsi_plan *plan, ds_cell cell, bool out)
{
    bool any = false;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        const uint32_t at = out ? step->out_at : step->in_at;
        for (uint32_t i = 0; i < (out ? step->n_out : step->n_in); ++i) {
            const dsi_ref *ref = &plan->refs[at + i];
            any = any || (ref->space == DSI_SPACE_CELL && ref->cell == cell);
        }
    }
    return any;
}

static void check_messages(const cut *c, bool train)
{
    const dsi_stage_messages *all =
        train ? &c->plans[0].train_messages : &c->plans[0].eval_messages;
    const ds_phase update = c->plans[0].own.phases.update;
    assert_true(all->n > 0);
    for (uint32_t s = 1; s < c->n_stages; ++s) {
        const dsi_stage_messages *own =
            train ? &c->plans[s].train_messages : &c->plans[s].eval_messages;
        assert_int_equal(own->n, all->n);
        for (uint32_t i = 0; i < all->n; ++i) {
            assert_memory_equal(&own->items[i], &all->items[i], sizeof all->items[i]);
        }
    }
    for (uint32_t i = 0; i < all->n; ++i) {
        const dsi_stage_message *m = &all->items[i];
        const dsi_rank_plan *from = &c->plans[m->source];
        const dsi_rank_plan *to = &c->plans[m->target];
        const ds_meta sent = ds_cells_get(from->local, m->cell)->meta;
        const ds_meta got = ds_cells_get(to->local, m->cell)->meta;
        assert_true(sent.dtype == got.dtype && ds_shape_equal(sent.shape, got.shape));
        assert_true(ds_shape_count(sent.shape) > 0);
        assert_true(touches(train ? from->train_plan : from->eval_plan, m->cell, true));
        assert_true(touches(train ? to->train_plan : to->eval_plan, m->cell, false));
        assert_true(m->phase == DS_PHASE_BACKWARD ? m->target < m->source : m->target > m->source);
        assert_true(m->phase <= DS_PHASE_BACKWARD || m->phase == update);
        const uint32_t far = m->phase == DS_PHASE_BACKWARD ? m->source - m->target : 0;
        const uint32_t micro = (uint32_t)c->spec.train.accumulation;
        const uint32_t most = far < micro ? far : micro;
        assert_int_equal(m->buffers, most > 1 ? most : 0);
        for (uint32_t s = 0; s < c->n_stages && most > 1; ++s) {
            const ds_meta room = ds_cells_get(c->plans[s].local, m->waiting)->meta;
            assert_int_equal(ds_shape_count(room.shape),
                             s == m->source ? (int64_t)most * ds_shape_count(sent.shape) : 0);
        }
    }
}

/* Every cell is somewhere; states are where their parameter is first; what a stage lacks is empty
 * there and in no step. */
static void check_cells(const cut *c)
{
    const ds_cells *cells = c->plans[0].cells;
    uint32_t shared = 0;
    for (ds_cell cell = 0; cell < ds_cells_count(cells); ++cell) {
        const ds_cell_info *info = ds_cells_get(cells, cell);
        uint32_t n = 0;
        for (uint32_t s = 0; s < c->n_stages; ++s) {
            const ds_meta meta = ds_cells_get(c->plans[s].local, cell)->meta;
            const bool there = has(c, cell, s);
            n += there ? 1 : 0;
            assert_true((ds_shape_count(meta.shape) > 0) == there || info->meta.shape.n_dims == 0);
            if (!there) {
                assert_false(touches(c->plans[s].train_plan, cell, false));
                assert_false(touches(c->plans[s].eval_plan, cell, false));
            }
        }
        assert_true(n >= 1);
        if (info->kind == DS_CELL_PARAM) {
            assert_true(n <= 2);
            shared += n - 1;
        } else if (info->of != DS_NONE) {
            assert_int_equal(n, 1);
        } else {
            assert_int_equal(n, c->n_stages);
        }
    }
    const bool is_tied = ds_cells_find(cells, DS_CELL_PARAM, "transformer.wte.weight") != DS_NONE;
    const dsi_schedule s = dsi_rank_schedule(&c->spec); /* of a V one rank has both ends */
    assert_int_equal(shared, is_tied && !dsi_schedule_parts(&s).folded ? 1 : 0);
}

/* The layer of a parameter by its name; what stands before or behind: of the first or last. */
static uint32_t layer_of(const char *name, uint32_t n_layers)
{
    const char *at = strstr(name, "h.");
    at = at == NULL ? strstr(name, "layers.") : at;
    const char *digits = at != NULL ? strpbrk(at, "0123456789") : NULL;
    if (digits != NULL) {
        return (uint32_t)strtol(digits, NULL, 10);
    }
    return strstr(name, "wte") != NULL || strstr(name, "wpe") != NULL ||
                   strstr(name, "embed_tokens") != NULL
               ? 0
               : n_layers - 1;
}

/* The heaviest stage of the best of all cuts, by trying them. */
static double best(const double *weight, uint32_t n_layers, uint32_t n_stages)
{
    double sum = 0.0;
    if (n_stages == 1) {
        for (uint32_t l = 0; l < n_layers; ++l) {
            sum += weight[l];
        }
        return sum;
    }
    double least = -1.0;
    for (uint32_t l = 1; l + n_stages - 1 <= n_layers; ++l) {
        sum += weight[l - 1];
        const double rest = best(weight + l, n_layers - l, n_stages - 1);
        const double most = rest > sum ? rest : sum;
        least = least < 0.0 || most < least ? most : least;
    }
    return least;
}

static void check_partition(const cut *c, uint32_t n_layers, bool uniform)
{
    const ds_cells *cells = c->plans[0].cells;
    double weight[MOST] = {0.0};
    double held[MOST] = {0.0};
    uint32_t stage_of[MOST];
    memset(stage_of, 0xff, sizeof stage_of);
    for (ds_cell cell = 0; cell < ds_cells_count(cells); ++cell) {
        const ds_cell_info *info = ds_cells_get(cells, cell);
        if (info->kind != DS_CELL_PARAM) {
            continue;
        }
        const uint32_t layer = layer_of(info->name, n_layers);
        const uint32_t stage = c->plans[0].places[cell].at.on[DSI_AXIS_PP].dim;
        const double n = (double)ds_shape_count(info->meta.shape);
        assert_true(layer < n_layers && stage < c->n_stages);
        assert_true(stage_of[layer] == UINT32_MAX || stage_of[layer] == stage);
        stage_of[layer] = stage;
        weight[layer] += n;
        held[stage] += uniform ? 0.0 : n;
    }
    double most = 0.0;
    for (uint32_t l = 0; l < n_layers; ++l) {
        assert_true(l == 0 || stage_of[l] == stage_of[l - 1] || stage_of[l] == stage_of[l - 1] + 1);
        weight[l] = uniform ? 1.0 : weight[l];
        held[stage_of[l]] += uniform ? 1.0 : 0.0;
    }
    for (uint32_t s = 0; s < c->n_stages; ++s) {
        assert_true(held[s] > 0.0);
        most = held[s] > most ? held[s] : most;
    }
    assert_true(most == best(weight, n_layers, c->n_stages));
}

static void cuts(void **state)
{
    static const struct {
        const char *config;
        uint32_t n_layers;
    } models[] = {{tied, 7}, {untied, 5}};
    char *folder = scratch_make();
    (void)state;
    for (size_t i = 0; i < 2; ++i) {
        ds_model *model = small_model(ctx, folder, models[i].config);
        for (uint32_t pp = 2; pp <= models[i].n_layers; ++pp) {
            const bool uniform = pp % 2 != 0;
            cut c = {0};
            open_cut(&c, model, pp, pp % 3 == 0 ? 2 : 1, pp % 4,
                     uniform ? DSI_STAGES_UNIFORM : DSI_STAGES_BY_PARAMETERS, 1 + pp % 3);
            check_messages(&c, true);
            check_messages(&c, false);
            check_cells(&c);
            check_partition(&c, models[i].n_layers, uniform);
            for (uint32_t s = 0; s < pp; ++s) {
                const uint32_t left = pp - s;
                const uint32_t micro = 1 + pp % 3;
                assert_int_equal(c.plans[s].train_plan->n_slots, left < micro ? left : micro);
            }
            close_cut(&c);
        }
        ds_model_destroy(&model);
    }
    scratch_remove(folder);
}

/* Layers of a type are dealt alike, whatever the others are. */
static void types(void **state)
{
    static const struct {
        const char *type;
        uint32_t stage_of[6];
    } rows[] = {{"EXPERTS", {0, 0, 0, 0, 1, 2}},
                {"mlp\\.(gate|up)_proj", {0, 1, 2, 2, 2, 2}},
                {"transformerlayer", {0, 0, 1, 1, 2, 2}}};
    char *folder = scratch_make();
    ds_model *model = small_model(ctx, folder, mixed);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        cut c = {.spec.train.partition_type = rows[i].type};
        open_cut(&c, model, 3, 1, 1, DSI_STAGES_BY_TYPE, 2);
        const ds_cells *cells = c.plans[0].cells;
        for (ds_cell cell = 0; cell < ds_cells_count(cells); ++cell) {
            const ds_cell_info *info = ds_cells_get(cells, cell);
            if (info->kind == DS_CELL_PARAM && strstr(info->name, "layers.") != NULL) {
                assert_int_equal(c.plans[0].places[cell].at.on[DSI_AXIS_PP].dim,
                                 rows[i].stage_of[layer_of(info->name, 6)]);
            }
        }
        close_cut(&c);
    }
    ds_model_destroy(&model);
    scratch_remove(folder);
}

/* Steps of a phase: of an operator, or all. */
static uint32_t count_steps(const dsi_plan *plan, ds_phase phase, const ds_op *op)
{
    uint32_t n = 0;
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        n += op == NULL || plan->steps[s].op == op ? 1 : 0;
    }
    return n;
}

static void check_edges(const cut *c, const dsi_schedule *s, bool is_tied)
{
    const dsi_stage_messages *all = &c->plans[0].train_messages;
    const dsi_schedule_times alike = {1.0, 1.0, 1.0};
    dsi_pipe_edge edges[64];
    dsi_pipe_result result;
    uint32_t n = 0;
    uint32_t n_past = 0;
    for (uint32_t r = 1; r < c->n_stages; ++r) {
        assert_int_equal(c->plans[r].train_messages.n, all->n);
        assert_memory_equal(c->plans[r].train_messages.items, all->items,
                            all->n * sizeof *all->items);
    }
    for (uint32_t i = 0; i < all->n; ++i) {
        const dsi_stage_message *m = &all->items[i];
        const dsi_stage_parts parts = dsi_schedule_parts(s);
        assert_true(m->source != m->target);
        if (m->phase >= dsi_parts_phases(&parts)) {
            continue; /* a copy of a weight */
        }
        assert_true(n < 64);
        edges[n++] = (dsi_pipe_edge){.source = m->source,
                                     .target = m->target,
                                     .phase = m->phase,
                                     .first = m->first,
                                     .last = m->last,
                                     .buffers = m->buffers > 0 ? m->buffers : 1,
                                     .apart = m->waiting != DS_NONE,
                                     .kept = m->places == 0,
                                     .channel = m->channel};
        n_past += m->channel;
    }
    /* received when it is read: there once; of a V the last stage is on the rank of the first */
    assert_int_equal(n_past, is_tied && !dsi_schedule_parts(s).folded ? 1 : 0);
    /* by the model's own messages, tied weights' gradients among them: nothing waits for a buffer
     */
    CHECK_OK(ctx, dsi_pipe_check(ctx, s, edges, n, &alike, &result));
    const double work = 3.0 * s->n_micro;
    assert_true(fabs(result.seconds - work - dsi_schedule_idle(s, &alike)) < 1e-9);
}

/* Chunks of layers, and the backward phase in two: what each rank's plan has in which phase. */
static void parts(void **state)
{
    static const char *const models[] = {tied, untied};
    char *folder = scratch_make();
    (void)state;
    for (uint32_t k = 0; k < 6; ++k) {
        const bool split = k / 2 == 1;
        const bool folded = k / 2 == 2;
        ds_model *model = small_model(ctx, folder, models[k % 2]);
        cut c = {.n_stages = split ? 3 : 2, .n_ranks = split ? 3 : 2};
        c.spec = small_spec(DS_DTYPE_F32);
        c.spec.train.batch = 2;
        c.spec.train.seq_length = 32;
        c.spec.train.accumulation = 6;
        c.spec.zero.pp = c.n_stages;
        c.spec.schedule_kind = split    ? DSI_SCHEDULE_ZB_H1
                               : folded ? DSI_SCHEDULE_ZB_V
                                        : DSI_SCHEDULE_INTERLEAVED;
        c.spec.stage_chunks = split ? 1 : 2;
        CHECK_OK(ctx, dsi_zero_set_ranks(ctx, &c.spec.zero, c.n_ranks));
        const dsi_schedule s = dsi_rank_schedule(&c.spec);
        for (uint32_t r = 0; r < c.n_stages; ++r) {
            const dsi_rank_request request = {
                .model = model, .spec = &c.spec, .n_threads = 1, .stage = r};
            CHECK_OK(ctx, dsi_rank_plan_build(ctx, &request, &c.plans[r]));
        }
        check_edges(&c, &s, k % 2 == 0);
        check_cells(&c);
        for (uint32_t r = 0; r < c.n_stages; ++r) {
            const dsi_plan *plan = c.plans[r].train_plan;
            const dsi_phases *phases = &plan->phases;
            assert_int_equal(dsi_phases_micro(phases), split ? 3 : folded ? 6 : 4);
            CHECK_OK(ctx, dsi_plan_check(plan));
            CHECK_OK(ctx, dsi_plan_check(c.plans[r].eval_plan));
            assert_string_equal(phases->items[c.plans[r].own.phases.update].name, "update");
            uint32_t chunks = 0;
            size_t most = 0;
            assert_true(plan->n_slots >= dsi_schedule_in_flight(&s, r, &chunks));
            for (uint32_t chunk = 0; chunk < s.n_chunks; ++chunk) {
                const size_t bytes = plan->slot[chunk].range.bytes;
                assert_true(bytes > 0);
                most = bytes > most ? bytes : most;
            }
            assert_true(plan->pool.bytes <= chunks * most); /* the schedule's formula */
            if (split) { /* the first stage sends no gradient: all of it may be put off */
                assert_true((count_steps(plan, 1, NULL) == 0) == (r == 0));
                assert_int_equal(count_steps(plan, 1, &dsi_op_linear_dw), 0);
                assert_true(count_steps(plan, 2, &dsi_op_linear_dw) > 0);
                assert_true(r == 0 || count_steps(plan, 1, &dsi_op_linear) > 0);
                assert_true(r == 0 || count_steps(plan, 2, &dsi_op_linear) == 0);
            }
            for (ds_phase p = 0; !split && p < (folded ? 6 : 4); ++p) {
                static const char *const names[][6] = {
                    {"forward", "forward_1", "backward_1", "backward"},
                    {"forward", "forward_1", "backward_1", "weights_1", "backward", "weights"}};
                const bool first = r == 0 && p == 4; /* its gradients lead to no other stage */
                const bool weighs = folded ? p == 3 || p == 5 : p >= 2;
                assert_string_equal(phases->items[p].name, names[folded][p]);
                assert_true((count_steps(plan, p, NULL) > 0) == !(folded && first));
                /* a gradient of tied weights is waited for by the stage that adds it */
                assert_true((count_steps(plan, p, &dsi_op_linear_dw) > 0) == weighs ||
                            (folded && k % 2 == 0 && r == 0 && p == 2));
            }
        }
        close_cut(&c);
        ds_model_destroy(&model);
    }
    scratch_remove(folder);
}

static void refused(void **state)
{
    char *folder = scratch_make();
    dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    dsi_rank_plan plan;
    (void)state;
    ds_model *model = small_model(ctx, folder, untied);
    spec.train.batch = 1;
    spec.train.seq_length = 16;
    spec.zero.pp = 6;
    CHECK_OK(ctx, dsi_zero_set_ranks(ctx, &spec.zero, 6));
    dsi_rank_request request = {.model = model, .spec = &spec, .n_threads = 1};
    CHECK_FAILS(ctx, dsi_rank_plan_build(ctx, &request, &plan), DS_ERR_CONFIG,
                "pipeline.stages (times chunks) is 6, but the model has 5 layers");
    spec.zero.pp = 2;
    CHECK_OK(ctx, dsi_zero_set_ranks(ctx, &spec.zero, 2));
    request.stage = 2;
    CHECK_FAILS(ctx, dsi_rank_plan_build(ctx, &request, &plan), DS_ERR_ARG,
                "stage 2, but pipeline.stages is 2");
    ds_model_destroy(&model);
    scratch_remove(folder);
}

static int setup(void **state)
{
    (void)state;
    return ds_ctx_create(NULL, &ctx);
}

static int teardown(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts),
        cmocka_unit_test(types),
        cmocka_unit_test(parts),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
