/* SPDX-License-Identifier: Apache-2.0 */
/* What training plans need, pinned in test/golden/plan/resources.txt: bytes of the arena and of the
 * cells, steps, collectives, operations, kernels by operator. A change that needs more fails here;
 * one that needs less is pinned by copying the file that the failing test names. */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "accel/null/null_kernel.h"
#include "base/buf.h"
#include "base/clock.h"
#include "common/check.h"
#include "common/golden.h"
#include "common/scratch.h"
#include "compile/train_graph.h"
#include "exec/exec.h"
#include "op/isa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = 1 << 16, MAX_KERNELS = 128, PATH_BYTES = 1024 };

static ds_ctx *ctx;

/* A plan to pin. */
typedef struct plan_case {
    const char *folder; /* below test/golden, with config.json */
    ds_dtype dtype;
    int64_t batch, seq_length, accumulation;
    const char *frozen; /* a glob pattern, or NULL */
    bool on_null;       /* else the processor's kernels up to isa */
    ds_isa isa;
} plan_case;

static const plan_case cases[] = {
    {"parity/gpt2", DS_DTYPE_F32, 2, 24, 1, NULL, true, DS_ISA_REF},
    {"parity/gpt2", DS_DTYPE_BF16, 2, 24, 4, NULL, true, DS_ISA_REF},
    {"parity/gpt2", DS_DTYPE_BF16, 2, 24, 1, "transformer.h.[01].*", true, DS_ISA_REF},
    {"parity/gpt2", DS_DTYPE_F32, 2, 24, 1, NULL, false, DS_ISA_REF},
    {"parity/llama3_tied", DS_DTYPE_F32, 2, 24, 1, NULL, true, DS_ISA_REF},
    {"parity/llama3", DS_DTYPE_BF16, 2, 24, 4, NULL, true, DS_ISA_REF},
    {"parity/llama3", DS_DTYPE_BF16, 2, 24, 1, "*.embed_tokens.weight", true, DS_ISA_REF},
    {"parity/qwen3", DS_DTYPE_F16, 2, 24, 1, NULL, false, DS_ISA_REF},
    {"plan/gpt2_xl", DS_DTYPE_BF16, 4, 1024, 8, NULL, true, DS_ISA_REF},
    /* On processors that have these: the kernels that plan them are made of their instructions. */
    {"parity/llama3", DS_DTYPE_F32, 2, 24, 1, NULL, false, DSI_NEEDS_AVX2},
    {"parity/gpt2", DS_DTYPE_BF16, 2, 24, 1, NULL, false, DSI_NEEDS_AVX512},
    {"parity/gpt2", DS_DTYPE_BF16, 2, 24, 1, NULL, false, DSI_NEEDS_AVX512_BF16},
    {"plan/gpt2_xl", DS_DTYPE_BF16, 4, 1024, 8, NULL, false, DSI_NEEDS_AMX},
};
enum { N_CASES = sizeof cases / sizeof *cases };

typedef struct built {
    ds_model *model;
    ds_cells *cells;
    dsi_plan *plan;
} built;

static void freeze(built *b, const plan_case *c)
{
    const ds_trace trace = {
        .mode = DS_TRACE_TRAIN, .dtype = c->dtype, .batch = c->batch, .seq_length = c->seq_length};
    ds_graph *graph = NULL;
    uint32_t n = 0;
    CHECK_OK(ctx, dsi_forward_graph(b->model, &trace, NULL, NULL, b->cells, &graph));
    ds_graph_destroy(&graph);
    CHECK_OK(ctx, ds_cells_freeze(b->cells, c->frozen, &n));
}

static built build(const plan_case *c)
{
    const dsi_train_spec spec = {.dtype = c->dtype,
                                 .comm_dtype = c->dtype,
                                 .accumulate_dtype = DS_DTYPE_F32,
                                 .state_dtype = DS_DTYPE_F32,
                                 .master = c->dtype != DS_DTYPE_F32,
                                 .batch = c->batch,
                                 .seq_length = c->seq_length,
                                 .accumulation = c->accumulation,
                                 .max_norm = 1.0,
                                 .optimizer = DS_OPTIMIZER_ADAM,
                                 .eps = 1e-8,
                                 .decoupled_decay = true};
    const dsi_plan_env env = {.n_threads = 2,
                              .isa = c->isa,
                              .choose =
                                  c->on_null ? dsi_null_kernel_choose : dsi_cpu_kernel_choose};
    char path[PATH_BYTES];
    built b = {.model = NULL};
    dsi_train_cells own;
    ds_graph *graph = NULL;
    golden_path(path, sizeof path, "%s/config.json", c->folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &b.model));
    CHECK_OK(ctx, ds_cells_create(ctx, MAX_CELLS, &b.cells));
    if (c->frozen != NULL) {
        freeze(&b, c);
    }
    CHECK_OK(ctx, dsi_train_graph(b.model, &spec, b.cells, &graph, &own));
    CHECK_OK(ctx, dsi_plan_build(graph, &env, &b.plan));
    CHECK_OK(ctx, dsi_plan_check(b.plan));
    ds_graph_destroy(&graph);
    return b;
}

static void drop(built *b)
{
    dsi_plan_destroy(&b->plan);
    ds_cells_destroy(&b->cells);
    ds_model_destroy(&b->model);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* "  linear/ref 24", sorted. */
static void print_kernels(dsi_buf *text, const dsi_plan *plan)
{
    char(*names)[64] = calloc(plan->n_steps + 1, sizeof *names);
    assert_non_null(names);
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        (void)snprintf(names[s], sizeof *names, "%s/%s", step->op->name,
                       step->kernel != NULL ? step->kernel->name : "collective");
    }
    qsort(names, plan->n_steps, sizeof *names, by_text);
    for (uint32_t s = 0, n = 0; s < plan->n_steps; s += n) {
        for (n = 1; s + n < plan->n_steps && strcmp(names[s], names[s + n]) == 0;) {
            ++n;
        }
        dsi_buf_printf(text, "  %s %u\n", names[s], n);
    }
    free(names);
}

static void print_case(dsi_buf *text, const plan_case *c, const built *b)
{
    size_t cell_bytes = 0;
    double flops = 0.0;
    double bytes = 0.0;
    for (ds_cell i = 0; i < ds_cells_count(b->cells); ++i) {
        cell_bytes += ds_meta_bytes(ds_cells_get(b->cells, i)->meta);
    }
    for (uint32_t s = 0; s < b->plan->n_steps; ++s) {
        flops += b->plan->steps[s].cost.flops;
        bytes += b->plan->steps[s].cost.bytes;
    }
    dsi_buf_printf(text, "%s %s batch %lld of %lld accumulation %lld%s%s on %s\n", c->folder,
                   ds_dtype_name(c->dtype), (long long)c->batch, (long long)c->seq_length,
                   (long long)c->accumulation, c->frozen != NULL ? " frozen " : "",
                   c->frozen != NULL ? c->frozen : "",
                   c->on_null ? "null" : dsi_isa_print(c->isa).text);
    dsi_buf_printf(
        text, "  arena %zu bytes, %u cells %zu bytes, %u steps, %.0f flops, %.0f bytes\n",
        b->plan->arena_bytes, ds_cells_count(b->cells), cell_bytes, b->plan->n_steps, flops, bytes);
    print_kernels(text, b->plan);
}

/* Names the first line that differs. */
static void compare(const char *got, const char *want, const char *kept)
{
    for (unsigned line = 1; *got != '\0' || *want != '\0'; ++line) {
        const size_t n = strcspn(got, "\n");
        const size_t m = strcspn(want, "\n");
        if (n != m || memcmp(got, want, n) != 0) {
            fail_msg("resources.txt:%u: pinned '%.*s', now '%.*s'. Where that is meant, copy %s to "
                     "test/golden/plan/resources.txt and say why in the commit",
                     line, (int)m, want, (int)n, got, kept);
        }
        got += n + (got[n] == '\n');
        want += m + (want[m] == '\n');
    }
}

static void plans_need_what_is_pinned(void **state)
{
    char path[PATH_BYTES];
    size_t n = 0;
    dsi_buf text = dsi_buf_make(1 << 20);
    (void)state;
    int left_out = 0;
    for (int i = 0; i < N_CASES; ++i) {
        if ((cases[i].isa & ~dsi_cpu_isa()) != 0) {
            print_message("%s is left out: no %s here\n", cases[i].folder,
                          dsi_isa_print(cases[i].isa).text);
            ++left_out;
            continue;
        }
        assert_int_equal(left_out, 0); /* rising instruction sets: what is left out is a tail */
        built b = build(&cases[i]);
        print_case(&text, &cases[i], &b);
        drop(&b);
    }
    golden_path(path, sizeof path, "plan/resources.txt");
    char *want = scratch_read(path, &n);
    const char *kept = DS_BINARY_DIR "/resources.txt";
    scratch_write(kept, dsi_buf_text(&text), text.size);
    if (left_out > 0) {
        want[text.size < n ? text.size : n] = '\0';
    }
    compare(dsi_buf_text(&text), want, kept);
    free(want);
    dsi_buf_free(&text);
}

/* "VmRSS:" of this process. */
static long resident_kib(void)
{
    char line[128];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status != NULL && kib < 0 && fgets(line, sizeof line, status) != NULL) {
        kib = strncmp(line, "VmRSS:", 6) == 0 ? strtol(line + 6, NULL, 10) : -1;
    }
    assert_true(kib > 0);
    (void)fclose(status);
    return kib;
}

/* Planning a model of 1.5 billion parameters, 30 GB of cells and arena, takes next to nothing. */
static void large_plans_are_cheap(void **state)
{
    const plan_case *xl = NULL;
    (void)state;
    for (int i = 0; i < N_CASES && xl == NULL; ++i) {
        xl = strcmp(cases[i].folder, "plan/gpt2_xl") == 0 ? &cases[i] : NULL;
    }
    const long before = resident_kib();
    const double start = dsi_clock_seconds();
    built b = build(xl);
    const double seconds = dsi_clock_seconds() - start;
    const long grown = resident_kib() - before;
    print_message("GPT-2 XL: %u steps planned in %.3f s with %ld KiB\n", b.plan->n_steps, seconds,
                  grown);
    assert_true(b.plan->arena_bytes > (size_t)1 << 30);
    assert_true(grown < 64 << 10);
    drop(&b);
}

typedef struct counts {
    uint32_t n_steps;
    double flops;
} counts;

static void count_step(void *user, const dsi_step *step, const dsi_exec_times *times)
{
    counts *c = user;
    assert_true(times->end >= times->begin && times->work == 0.0);
    c->n_steps += 1;
    c->flops += step->cost.flops;
}

/* Every phase of a plan runs on the accelerator that computes nothing, each step once, and leaves
 * the cells alone. */
static void null_runs_only_count(void **state)
{
    built b = build(&cases[0]);
    counts seen = {0};
    dsi_exec *exec = NULL;
    uint32_t id = 0;
    double flops = 0.0;
    (void)state;
    CHECK_OK(ctx, dsi_exec_create(ctx, b.cells, NULL, &exec));
    CHECK_OK(ctx, dsi_exec_set_accel(exec, &(dsi_accel_choice){.accel = &dsi_accel_null}));
    CHECK_OK(ctx, dsi_exec_add(exec, b.plan, &id));
    CHECK_OK(ctx, dsi_exec_allocate(exec));
    dsi_exec_set_trace(exec, count_step, &seen);
    for (ds_phase phase = 0; phase < b.plan->phases.n; ++phase) {
        CHECK_OK(ctx, dsi_exec_run(exec, id, phase));
    }
    for (uint32_t s = 0; s < b.plan->n_steps; ++s) {
        flops += b.plan->steps[s].cost.flops;
        assert_string_equal(b.plan->steps[s].kernel->name, "null");
        assert_int_equal(b.plan->steps[s].work_bytes, 0);
    }
    assert_int_equal(seen.n_steps, b.plan->n_steps);
    assert_true(seen.flops == flops && flops > 0.0);
    for (ds_cell c = 0; c < ds_cells_count(b.cells); ++c) {
        const unsigned char *data = dsi_exec_host_view(exec, c);
        for (size_t i = 0; i < ds_meta_bytes(ds_cells_get(b.cells, c)->meta); ++i) {
            assert_int_equal(data[i], 0);
        }
    }
    dsi_exec_destroy(&exec);
    drop(&b);
}

static int make_ctx(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    (void)state;
    params.n_threads = 2;
    return ds_ctx_create(&params, &ctx);
}

static int drop_ctx(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_plans_are_cheap), /* first: nothing is resident yet */
        cmocka_unit_test(plans_need_what_is_pinned),
        cmocka_unit_test(null_runs_only_count),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
