/* SPDX-License-Identifier: Apache-2.0 */
/* Offload: states, gradients and parameters in host memory or on disk give the bits of the run in
 * memory, out of less device memory. Over several ranks: test_zero_matrix.sh.
 * labels: slow */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "compile/rank_plan.h"
#include "op/ops.h"
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3 };

static ds_ctx *ctx;
static char *folder;

static const dsi_offload_spec in_memory = {0};

static dsi_offload_spec away(dsi_residency states, dsi_residency params)
{
    return small_away(folder, states, params);
}

static dsi_engine_spec make_spec(ds_dtype dtype, const dsi_offload_spec *offload)
{
    dsi_engine_spec spec = small_spec(dtype);
    spec.train.max_norm = 0.1;
    spec.offload = *offload;
    return spec;
}

/* Steps with an evaluation between backward and step, which may not touch what waits there. */
static double train(ds_engine *engine, int32_t first, int32_t n)
{
    small_batch data;
    double eval = 0.0;
    for (int32_t step = first; step < first + n; ++step) {
        const ds_batch batch = small_feed(step, &data);
        for (int64_t micro = 0; micro < engine->spec.train.accumulation; ++micro) {
            CHECK_OK(ctx, ds_engine_forward(engine, &batch));
            CHECK_OK(ctx, ds_engine_backward(engine));
            CHECK_OK(ctx, ds_engine_eval_batch(engine, &batch, &eval, NULL));
            CHECK_OK(ctx, ds_engine_step(engine));
        }
    }
    return eval;
}

typedef struct result {
    uint64_t hash;
    double eval;
    size_t device, host, disk;
    double again; /* operations */
} result;

static result run(const char *config, dsi_engine_spec spec)
{
    result got = {0};
    ds_model *model = small_model(ctx, folder, config);
    ds_engine *engine = small_engine(ctx, model, &spec);
    got.eval = train(engine, 0, STEPS);
    CHECK_OK(ctx, engine_hash(ctx, engine, &got.hash));
    got.again = ds_engine_recomputed_flops(engine);
    got.device = ds_engine_planned_bytes(engine);
    got.host = dsi_exec_host_bytes(engine->exec);
    got.disk = dsi_exec_disk_bytes(engine->exec);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return got;
}

static void expect_same(const result *got, const result *kept, const char *what)
{
    if (got->hash != kept->hash || got->eval != kept->eval) {
        fail_msg("%s gives other bits", what);
    }
}

static void every_residence_gives_the_same_bits(void **state)
{
    static const char *const configs[] = {small_gpt2, small_llama};
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    static const dsi_residency places[] = {DSI_RESIDENCY_HOST, DSI_RESIDENCY_DISK};
    (void)state;
    for (int c = 0; c < 2; ++c) {
        for (int d = 0; d < 3; ++d) {
            const result kept = run(configs[c], make_spec(dtypes[d], &in_memory));
            assert_true(kept.host == 0 && kept.disk == 0);
            for (int p = 0; p < 2; ++p) {
                const dsi_offload_spec specs[] = {away(places[p], DSI_RESIDENCY_DEVICE),
                                                  away(DSI_RESIDENCY_DEVICE, places[p]),
                                                  away(places[p], places[p])};
                for (int s = 0; s < 3; ++s) {
                    const result got = run(configs[c], make_spec(dtypes[d], &specs[s]));
                    expect_same(&got, &kept, "offload");
                    assert_true((places[p] == DSI_RESIDENCY_HOST ? got.host : got.disk) > 0);
                }
            }
        }
    }
}

/* What decides how the same bytes move. */
static void no_setting_changes_a_bit(void **state)
{
    dsi_engine_spec kept_spec = make_spec(DS_DTYPE_BF16, &in_memory);
    const result kept = run(small_llama, kept_spec);
    kept_spec.train.accumulation = 2;
    const result accumulated = run(small_llama, kept_spec);
    (void)state;
    for (int i = 0; i < 14; ++i) {
        dsi_offload_spec offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
        dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, &offload);
        spec.offload.how.chunk = i == 0 ? 0 : i == 1 ? 1 : 4096;
        spec.offload.how.reuse = i == 2 ? INT64_MAX : 0;
        spec.offload.read_ahead = i == 3 ? 0 : 20000;
        spec.offload.update_ahead = i == 4 ? 0 : i == 5 ? SIZE_MAX : 60000;
        spec.offload.write_behind = i == 6 ? 0 : 60000;
        spec.offload.defer = i != 5;
        spec.offload.ratio = i == 7 ? 0.4 : 1.0;
        spec.recompute.mode = i == 8 ? DS_RECOMPUTE_FULL : DS_RECOMPUTE_NONE;
        if (i >= 10) { /* activations too, or alone */
            spec.offload.how.activations = i % 2 == 0 ? DSI_RESIDENCY_DISK : DSI_RESIDENCY_HOST;
            spec.offload.states = i < 12 ? DSI_RESIDENCY_DISK : DSI_RESIDENCY_DEVICE;
            spec.offload.params = spec.offload.states;
            spec.recompute.mode = i == 11 || i == 12 ? DS_RECOMPUTE_FULL : DS_RECOMPUTE_NONE;
        }
        spec.train.accumulation = i == 9 ? 2 : 1;
        spec.no_reuse = i == 5 || i == 9;
        const result got = run(small_llama, spec);
        char what[40];
        (void)snprintf(what, sizeof what, "setting %d of offload", i);
        expect_same(&got, i == 9 ? &accumulated : &kept, what);
    }
}

/* With recomputation the inputs of the layers alone are kept, elsewhere. */
static void activations_leave_too(void **state)
{
    dsi_offload_spec offload = in_memory;
    (void)state;
    offload.aio = ds_aio_params_default();
    (void)snprintf(offload.folders, sizeof offload.folders, "%s", folder);
    dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, &offload);
    const result kept = run(small_gpt2, spec);
    spec.offload.how.activations = DSI_RESIDENCY_DISK;
    const result disk = run(small_gpt2, spec);
    spec.recompute.mode = DS_RECOMPUTE_FULL;
    const result both = run(small_gpt2, spec);
    spec.offload.how.activations = DSI_RESIDENCY_DEVICE;
    const result again = run(small_gpt2, spec);
    assert_true(both.again > 0.0 && both.again == again.again);
    expect_same(&disk, &kept, "offload of activations");
    expect_same(&both, &kept, "offload of recomputed activations");
    print_message("device %zu, activations on disk %zu (%zu), of layers %zu (%zu)\n", kept.device,
                  disk.device, disk.disk, both.device, both.disk);
    assert_true(disk.device < kept.device && both.device < kept.device);
    assert_true(both.disk > 0 && both.disk < disk.disk);
}

/* What was tried before the choice that fits leaves nothing behind. */
static void choosing_leaves_nothing_behind(void **state)
{
    dsi_offload_spec offload = in_memory;
    (void)state;
    offload.how.activations = DSI_RESIDENCY_HOST;
    offload.how.least_activation = 2048;
    dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, &offload);
    result given[3];
    for (int mode = 0; mode < 3; ++mode) {
        spec.recompute.mode = (ds_recompute)(DS_RECOMPUTE_NONE + mode);
        given[mode] = run(small_gpt2, spec);
    }
    spec.device_memory = given[2].device;
    int first = 0; /* mode that fits: full does, with plain kernels none too */
    while (given[first].device > spec.device_memory) {
        ++first;
    }
    spec.recompute.mode = DS_RECOMPUTE_AUTO;
    const result chosen = run(small_gpt2, spec);
    expect_same(&chosen, &given[first], "a chosen recomputation");
    assert_true(chosen.again == given[first].again);
    assert_int_equal(chosen.device, given[first].device);
    assert_int_equal(chosen.host, given[first].host);
}

static void every_optimizer(void **state)
{
    static const ds_optimizer_kind kinds[] = {DS_OPTIMIZER_SGD, DS_OPTIMIZER_LION,
                                              DS_OPTIMIZER_ADAGRAD, DS_OPTIMIZER_LAMB};
    const dsi_offload_spec offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
    (void)state;
    for (int i = 0; i < 4; ++i) {
        result got[2];
        for (int away_too = 0; away_too < 2; ++away_too) {
            dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, away_too ? &offload : &in_memory);
            spec.train.optimizer = kinds[i];
            spec.train.momentum = true;
            spec.train.max_coeff = 10.0;
            spec.train.min_coeff = 0.01;
            spec.train.accumulation = 2;
            got[away_too] = run(small_gpt2, spec);
        }
        expect_same(&got[1], &got[0], "an optimizer");
    }
}

/* Reading and writing a part of a cell that lives elsewhere stays inside of it. */
static void a_cell_has_an_end(void **state)
{
    static const dsi_residency places[] = {DSI_RESIDENCY_HOST, DSI_RESIDENCY_DISK};
    unsigned char data[64] = {0};
    (void)state;
    for (int i = 0; i < 2; ++i) {
        const dsi_offload_spec offload = away(places[i], DSI_RESIDENCY_DEVICE);
        const dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, &offload);
        ds_model *model = small_model(ctx, folder, small_llama);
        ds_engine *engine = small_engine(ctx, model, &spec);
        const ds_cell cell = ds_cells_find(engine->cells, DS_CELL_MASTER, "model.norm.weight");
        assert_true(cell != DS_NONE && engine->residencies.items[cell].where == places[i]);
        const size_t bytes = ds_meta_bytes(ds_cells_get(engine->local, cell)->meta);
        CHECK_OK(ctx, dsi_exec_read(engine->exec, cell, bytes - 64, data, 64));
        CHECK_FAILS(ctx, dsi_exec_read(engine->exec, cell, bytes - 63, data, 64), DS_ERR_ARG, "");
        CHECK_FAILS(ctx, dsi_exec_write(engine->exec, cell, bytes + 1, data, 0), DS_ERR_ARG, "");
        CHECK_FAILS(ctx, dsi_exec_write(engine->exec, cell, 8, data, SIZE_MAX), DS_ERR_ARG, "");
        ds_engine_destroy(&engine);
        ds_model_destroy(&model);
    }
}

/* The device holds little but what is being worked on. Plain kernels: how much workspace the
 * products of this machine take is not the point. */
static void device_memory_falls(void **state)
{
    dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, &in_memory);
    (void)state;
    spec.isa = DS_ISA_REF;
    const result kept = run(small_llama, spec);
    spec.offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
    spec.offload.read_ahead = 0;
    spec.offload.update_ahead = 0;
    const result got = run(small_llama, spec);
    const double states = 16.0 * 90000.0; /* of about as many parameters */
    print_message("device %zu → %zu bytes, disk %zu\n", kept.device, got.device, got.disk);
    assert_true((double)(kept.device - got.device) > 0.6 * states);
    assert_true((double)got.disk > states);
}

/* Saved from the disk, loaded into memory, and the other way round. */
static void checkpoints_do_not_care(void **state)
{
    const dsi_offload_spec offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
    const dsi_engine_spec specs[] = {make_spec(DS_DTYPE_BF16, &in_memory),
                                     make_spec(DS_DTYPE_BF16, &offload)};
    uint64_t hashes[4];
    (void)state;
    for (int i = 0; i < 4; ++i) {
        ds_model *model = small_model(ctx, folder, small_gpt2);
        ds_engine *first = small_engine(ctx, model, &specs[i / 2]);
        char *save = scratch_make();
        (void)train(first, 0, 2);
        CHECK_OK(ctx, ds_engine_save_checkpoint(first, save, "t", NULL));
        ds_engine_destroy(&first);
        ds_engine *second = small_engine(ctx, model, &specs[i % 2]);
        CHECK_OK(ctx, ds_engine_load_checkpoint(second, save, "t", NULL));
        (void)train(second, 2, 2);
        CHECK_OK(ctx, engine_hash(ctx, second, &hashes[i]));
        ds_engine_destroy(&second);
        ds_model_destroy(&model);
        scratch_remove(save);
        assert_true(hashes[i] == hashes[0]);
    }
}

static void a_missing_folder_is_named(void **state)
{
    dsi_offload_spec offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DEVICE);
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = NULL;
    const ds_engine_params params = {.model = model, .seq_length = SMALL_SEQ};
    (void)state;
    (void)snprintf(offload.folders, sizeof offload.folders, "%s/none", folder);
    dsi_engine_spec spec = make_spec(DS_DTYPE_F32, &offload);
    CHECK_FAILS(ctx, dsi_engine_create(ctx, &params, &spec, &engine), DS_ERR_NOT_FOUND, "/none");
    spec.offload.folders[0] = '\0';
    CHECK_FAILS(ctx, dsi_engine_create(ctx, &params, &spec, &engine), DS_ERR_CONFIG, "nvme_path");
    ds_model_destroy(&model);
}

/* States, parameters and activations each go to folders of their own, if they have any. */
static void contents_have_folders_of_their_own(void **state)
{
    dsi_offload_spec offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
    offload.how.activations = DSI_RESIDENCY_DISK;
    dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, &offload);
    const result kept = run(small_gpt2, spec);
    char *const names[] = {spec.offload.folders, spec.offload.param_folders,
                           spec.offload.activation_folders};
    char *others[3];
    (void)state;
    for (int i = 0; i < 3; ++i) {
        others[i] = scratch_make();
        (void)snprintf(names[i], DS_CONFIG_TEXT_BYTES, "%s", others[i]);
    }
    const result got = run(small_gpt2, spec);
    expect_same(&got, &kept, "three disks");
    assert_int_equal(got.disk, kept.disk);
    ds_model *model = small_model(ctx, folder, small_gpt2);
    const ds_engine_params params = {.model = model, .seq_length = SMALL_SEQ};
    for (int i = 0; i < 3; ++i) {
        ds_engine *engine = NULL;
        (void)snprintf(names[i], DS_CONFIG_TEXT_BYTES, "%s/none", others[i]);
        CHECK_FAILS(ctx, dsi_engine_create(ctx, &params, &spec, &engine), DS_ERR_NOT_FOUND,
                    names[i]);
        (void)snprintf(names[i], DS_CONFIG_TEXT_BYTES, "%s", others[i]);
    }
    for (int i = 0; i < 3; ++i) {
        scratch_remove(others[i]);
    }
    ds_model_destroy(&model);
}

/* A plan in which a kernel touches what lives on disk is refused. */
static void the_checker_knows_where_cells_live(void **state)
{
    const dsi_offload_spec offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
    const dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, &offload);
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    dsi_plan *plan = engine->train_plan;
    uint32_t n_swaps = 0;
    (void)state;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        n_swaps += (plan->steps[s].op->flags & DS_OP_SWAP) != 0 ? 1 : 0;
    }
    assert_true(n_swaps > 100);
    CHECK_OK(ctx, dsi_plan_check(plan));
    for (uint32_t c = 0; c < plan->n_cells; ++c) {
        if (plan->cell_swapped[c]) {
            plan->cell_swapped[c] = false;
            const ds_status status = dsi_plan_check(plan);
            plan->cell_swapped[c] = true;
            if (status < 0) {
                assert_non_null(strstr(ds_ctx_error(ctx), "invariant 9"));
                n_swaps = 0;
            }
        }
    }
    assert_int_equal(n_swaps, 0);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

static void move_value(dsi_plan *plan, ds_value value, size_t by)
{
    for (uint32_t i = 0; i < plan->n_refs; ++i) {
        dsi_ref *ref = &plan->refs[i];
        ref->offset += ref->space == DSI_SPACE_ARENA && ref->value == value ? by : 0;
    }
}

/* The disk moves whole blocks, also where there is room beside what it brings. */
static void the_checker_knows_blocks(void **state)
{
    enum { STEP = 64 };
    const dsi_offload_spec offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
    const dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, &offload);
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    dsi_plan *plan = engine->train_plan;
    uint32_t seen = 0;
    (void)state;
    for (uint32_t s = 0; s < plan->n_steps && seen < 8; ++s) {
        const dsi_step *step = &plan->steps[s];
        if (step->op != &dsi_op_swap_in || step->kind == DSI_STEP_WAIT) {
            continue;
        }
        const dsi_ref brought = plan->refs[step->out_at];
        move_value(plan, brought.value, STEP);
        CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "whole blocks");
        move_value(plan, brought.value, (size_t)0 - STEP);
        ++seen;
    }
    CHECK_OK(ctx, dsi_plan_check(plan));
    assert_int_equal(seen, 8);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

/* Bytes of swaps that the next step waits for. */
static size_t bytes_deferred(const dsi_plan *plan, const char *op)
{
    size_t bytes = 0;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        if (step->kind == DSI_STEP_WAIT && step->start > s && strcmp(step->op->name, op) == 0) {
            bytes += ds_meta_bytes(plan->refs[plan->steps[step->start].out_at].meta);
        }
    }
    return bytes;
}

/* The most bytes of one direction under way at a time in phases [first, last], and of one swap. */
static void under_way(const dsi_plan *plan, const char *op, ds_phase first, ds_phase last,
                      size_t *most_out, size_t *one_out)
{
    size_t now = bytes_deferred(plan, op);
    const size_t left = now;
    *most_out = *one_out = 0;
    for (uint32_t s = plan->phase_begin[first]; s < plan->phase_begin[last + 1]; ++s) {
        const dsi_step *step = &plan->steps[s];
        if (strcmp(step->op->name, op) != 0) {
            continue;
        }
        const dsi_step *start = step->kind == DSI_STEP_START ? step : &plan->steps[step->start];
        const size_t bytes = ds_meta_bytes(plan->refs[start->out_at].meta);
        *one_out = bytes > *one_out ? bytes : *one_out;
        now = step->kind == DSI_STEP_START ? now + bytes : now - bytes;
        *most_out = now > *most_out ? now : *most_out;
    }
    assert_int_equal(now, left);
}

/* The limits of what is under way beside computation, each alone. */
static void limits_bound_what_is_under_way(void **state)
{
    enum { LIMIT = 70000 };
    (void)state;
    for (int which = 0; which < 4; ++which) {
        size_t most[3];
        size_t one[3];
        dsi_offload_spec offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
        offload.how.reuse = 0;
        offload.read_ahead = which == 1 ? LIMIT : 0;
        offload.update_ahead = which == 2 ? LIMIT : 0;
        offload.write_behind = which == 3 ? LIMIT : 0;
        offload.defer = which == 3;
        const dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, &offload);
        ds_model *model = small_model(ctx, folder, small_llama);
        ds_engine *engine = small_engine(ctx, model, &spec);
        const dsi_plan *plan = engine->train_plan;
        under_way(plan, "swap_in", DS_PHASE_FORWARD, DS_PHASE_FORWARD, &most[0], &one[0]);
        under_way(plan, "swap_in", DS_PHASE_BACKWARD + 1, DS_MAX_PHASES - 1, &most[1], &one[1]);
        under_way(plan, "swap_out", DS_PHASE_FORWARD, DS_MAX_PHASES - 1, &most[2], &one[2]);
        for (int i = 0; i < 3; ++i) {
            print_message("limit %d, direction %d: %zu under way, largest %zu\n", which, i, most[i],
                          one[i]);
            assert_true(one[i] > 0 && one[i] < LIMIT);
            const size_t at_once = i == 1 ? 3 : 1; /* an update needs so many */
            const bool ahead = i == which - 1;
            assert_true(most[i] <= (ahead ? LIMIT : 0) + at_once * one[i]);
            assert_true(!ahead || most[i] > LIMIT - one[i]);
        }
        ds_engine_destroy(&engine);
        ds_model_destroy(&model);
    }
}

/* However long a parameter may stay: not from one phase to the next. */
static void phases_start_with_empty_hands(void **state)
{
    size_t most = 0;
    size_t one = 0;
    dsi_offload_spec offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
    (void)state;
    offload.how.reuse = INT64_MAX;
    const dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, &offload);
    ds_model *model = small_model(ctx, folder, small_llama);
    ds_engine *engine = small_engine(ctx, model, &spec);
    under_way(engine->train_plan, "swap_in", DS_PHASE_BACKWARD, DS_PHASE_BACKWARD, &most, &one);
    assert_true(one > 0);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

/* A gradient comes back once for the norm and once for its update; the search for its largest
 * magnitude was done before it left. */
static void gradients_come_back_twice(void **state)
{
    const dsi_offload_spec offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
    const dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, &offload);
    ds_model *model = small_model(ctx, folder, small_llama);
    ds_engine *engine = small_engine(ctx, model, &spec);
    const dsi_plan *plan = engine->train_plan;
    uint32_t n[512] = {0};
    uint32_t most = 0;
    (void)state;
    assert_true(plan->n_cells <= 512);
    for (uint32_t s = plan->phase_begin[DS_PHASE_BACKWARD + 1]; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        const ds_cell cell = plan->refs[step->in_at].cell;
        if (step->kind == DSI_STEP_START && strcmp(step->op->name, "swap_in") == 0 &&
            ds_cells_get(plan->cells, cell)->kind == DS_CELL_GRAD) {
            n[cell] += 1;
            most = n[cell] > most ? n[cell] : most;
        }
    }
    assert_int_equal(most, 2);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

/* On several ranks the rounding of an updated master goes to the others: it is taken from memory,
 * and no state comes twice. */
static void states_come_once(void **state)
{
    (void)state;
    for (int early = 0; early < 2; ++early) {
        for (uint32_t stage = 1; stage <= 3; ++stage) {
            dsi_offload_spec offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DEVICE);
            offload.how.reuse = 0;
            dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, &offload);
            spec.train.keep_nonfinite = early != 0;
            spec.zero = (dsi_zero_spec){.mesh = dsi_mesh_data(2),
                                        .stage = stage,
                                        .comm_dtype = DS_DTYPE_BF16,
                                        .reduce_bucket = 100000,
                                        .gather_bucket = 100000};
            ds_model *model = small_model(ctx, folder, small_gpt2);
            const dsi_rank_request request = {.model = model, .spec = &spec, .n_threads = 1};
            dsi_rank_plan rank;
            CHECK_OK(ctx, dsi_rank_plan_build(ctx, &request, &rank));
            const dsi_plan *plan = rank.train_plan;
            bool *came = calloc(plan->n_cells, sizeof *came);
            uint32_t n = 0;
            for (uint32_t s = 0; s < plan->n_steps; ++s) {
                const dsi_step *step = &plan->steps[s];
                const ds_cell cell = plan->refs[step->in_at].cell;
                if (step->kind != DSI_STEP_WAIT && strcmp(step->op->name, "swap_in") == 0 &&
                    ds_cells_get(plan->cells, cell)->kind != DS_CELL_GRAD) {
                    assert_false(came[cell]);
                    came[cell] = true;
                    ++n;
                }
            }
            assert_true(n >= 100);
            free(came);
            dsi_rank_plan_free(&rank);
            ds_model_destroy(&model);
        }
    }
}

static int set_up(void **state)
{
    (void)state;
    folder = scratch_make();
    return ds_ctx_create(NULL, &ctx);
}

static int tear_down(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    scratch_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_residence_gives_the_same_bits),
        cmocka_unit_test(no_setting_changes_a_bit),
        cmocka_unit_test(activations_leave_too),
        cmocka_unit_test(choosing_leaves_nothing_behind),
        cmocka_unit_test(every_optimizer),
        cmocka_unit_test(a_cell_has_an_end),
        cmocka_unit_test(device_memory_falls),
        cmocka_unit_test(checkpoints_do_not_care),
        cmocka_unit_test(a_missing_folder_is_named),
        cmocka_unit_test(contents_have_folders_of_their_own),
        cmocka_unit_test(the_checker_knows_where_cells_live),
        cmocka_unit_test(the_checker_knows_blocks),
        cmocka_unit_test(limits_bound_what_is_under_way),
        cmocka_unit_test(gradients_come_back_twice),
        cmocka_unit_test(states_come_once),
        cmocka_unit_test(phases_start_with_empty_hands),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
