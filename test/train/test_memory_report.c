/* SPDX-License-Identifier: Apache-2.0 */
/* memory_breakdown: what is planned agrees with the plan's account, what is measured with what was
 * touched; the lines come where DeepSpeed's do, and only when they are asked for.
 */
#include "accel/cpu/cpu_features.h"
#include "base/process_memory.h"
#include "common/parity.h"
#include "common/scratch.h"

#include <deepspeed/profile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LOG_BYTES = 1 << 18, MIB = 1 << 20 };

typedef struct log_text {
    char text[LOG_BYTES];
    size_t n;
} log_text;

static log_text lines;
static ds_ctx *ctx;
static parity_case model;

static void keep(void *user, ds_log_level level, const char *line)
{
    log_text *log = user;
    (void)level;
    const int n = snprintf(log->text + log->n, sizeof log->text - log->n, "%s\n", line);
    log->n += (size_t)n < sizeof log->text - log->n ? (size_t)n : 0;
}

static dsi_engine_spec make_spec(void)
{
    dsi_engine_spec spec = parity_spec(&model, DS_DTYPE_BF16, dsi_cpu_isa());
    spec.train.max_norm = 0.5;
    return spec;
}

/* ---- measuring ---- */

static void pages_that_were_touched(void **state)
{
    const size_t page = 4096;
    const size_t bytes = 64 * (size_t)MIB;
    dsi_process_memory before;
    dsi_process_memory after;
    (void)state;
    unsigned char *map =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    (void)madvise(map, bytes, MADV_NOHUGEPAGE);
    dsi_process_memory_read(&before);
    assert_int_equal(dsi_resident_bytes(map, bytes), 0);
    memset(map, 1, bytes / 2);
    map[bytes - 1] = 1;
    dsi_process_memory_read(&after);
    assert_int_equal(dsi_resident_bytes(map, bytes), bytes / 2 + page);
    assert_int_equal(dsi_resident_bytes(map + 100, bytes - 200), bytes / 2 + page - 200);
    assert_int_equal(dsi_resident_bytes(map + bytes / 2 - 10, 30), 10);
    assert_int_equal(dsi_resident_bytes(map, 0), 0);
    const double grown = (double)after.anonymous - (double)before.anonymous;
    assert_true(grown > 31.0 * MIB && grown < 34.0 * MIB);
    assert_true(after.peak >= after.anonymous);
    assert_true(after.machine_used > 0 && after.machine_used < after.machine_memory);
    (void)munmap(map, bytes);
}

/* ---- planning ---- */

static size_t cells_of(const ds_engine *engine)
{
    size_t sum = 0;
    for (ds_cell c = 0; c < ds_cells_count(engine->local); ++c) {
        sum += ds_meta_bytes(ds_cells_get(engine->local, c)->meta);
    }
    return sum;
}

static ds_memory_info info_of(ds_engine *engine)
{
    ds_memory_info info;
    CHECK_OK(ctx, ds_engine_memory_info(engine, &info));
    return info;
}

/* Starts a new "most since". */
static void report(ds_engine *engine)
{
    char *text = NULL;
    CHECK_OK(ctx, ds_engine_memory_report(engine, "here", &text));
    free(text);
}

/* The figures of each state against the plan's ledger. */
static void as_the_ledger_says(void **state)
{
    const dsi_engine_spec spec = make_spec();
    size_t kinds[DSI_MEMORY_KIND_COUNT];
    size_t values = 0;
    size_t most = 0;
    uint32_t step = 0;
    (void)state;
    ds_engine *engine = parity_engine(ctx, &model, &spec);
    const size_t cells = cells_of(engine);
    const dsi_plan *plan = engine->train_plan;
    ds_memory_info info = info_of(engine);
    assert_int_equal(info.in_use, cells);
    assert_int_equal(info.in_use_peak, cells);
    assert_int_equal(info.mapped, ds_engine_planned_bytes(engine));
    assert_true(info.planned > info.mapped && info.planned < info.mapped + 16 * (size_t)MIB);

    CHECK_OK(ctx, ds_engine_forward(engine, &model.batch));
    info = info_of(engine);
    /* what the last step of the phase leaves: all that lives then but what ends with it */
    dsi_ledger_at(plan->ledger, DSI_RESIDENCY_DEVICE, plan->phase_begin[DS_PHASE_BACKWARD], kinds);
    for (uint32_t i = 0; i < plan->ledger->n_entries; ++i) {
        const dsi_ledger_entry *e = &plan->ledger->entries[i];
        values += e->first < plan->phase_begin[DS_PHASE_BACKWARD] &&
                          e->last >= plan->phase_begin[DS_PHASE_BACKWARD]
                      ? e->bytes
                      : 0;
    }
    assert_true(values > 0 && kinds[DSI_MEMORY_ACTIVATION] > 0);
    assert_int_equal(info.in_use, cells + values);
    assert_true(info.in_use_peak > info.in_use);

    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_OK(ctx, ds_engine_step(engine));
    CHECK_OK(ctx, dsi_ledger_peak(plan->ledger, DSI_RESIDENCY_DEVICE, &step, &most));
    info = info_of(engine);
    assert_int_equal(info.in_use, cells);
    assert_int_equal(info.in_use_peak, cells + most);
    report(engine);
    assert_int_equal(info_of(engine).in_use_peak, cells);
    ds_engine_destroy(&engine);
}

/* ---- the report ---- */

/* Figures of a row, -1 where there is a dash. */
static void row_of(const char *text, const char *name, double figures[3])
{
    char start[80];
    (void)snprintf(start, sizeof start, "\n  %s ", name);
    const char *at = strstr(text, start);
    if (at == NULL) {
        fail_msg("no row \"%s\":\n%s", name, text);
        return;
    }
    const char *p = at + 3 + 32;
    for (int i = 0; i < 3; ++i) {
        char *end = NULL;
        while (*p == ' ') {
            ++p;
        }
        figures[i] = *p == '-' ? -1.0 : strtod(p, &end);
        p = *p == '-' ? p + 1 : end;
    }
}

static void rows(void **state)
{
    dsi_engine_spec spec = make_spec();
    char *folder = scratch_make();
    double masters[3];
    double moments[3];
    double arenas[3];
    double values[3];
    char *text = NULL;
    (void)state;
    ds_engine *engine = parity_engine(ctx, &model, &spec);
    CHECK_OK(ctx, ds_engine_forward(engine, &model.batch));
    CHECK_OK(ctx, ds_engine_memory_report(engine, "between", &text));
    assert_memory_equal(text, "between\nMA 0.00 GB         Max_MA 0.00 GB         CA 0.", 52);
    assert_non_null(strstr(text, "\nCPU Virtual Memory:  used = "));
    row_of(text, "master weights", masters);
    row_of(text, "moments", moments);
    row_of(text, "arenas", arenas);
    row_of(text, "  activations", values);
    assert_true(masters[0] > 0.0 && masters[2] == masters[0]); /* the weights were written */
    assert_true(moments[0] > 1.99 * masters[0] && moments[0] < 2.01 * masters[0]);
    assert_true(values[0] > 0.0 && values[1] >= values[0] && values[2] == -1.0);
    assert_true(arenas[2] > 0.0 && arenas[2] <= arenas[0] && arenas[0] >= values[1]);
    free(text);
    ds_engine_destroy(&engine);

    spec.offload = (dsi_offload_spec){.states = DSI_RESIDENCY_DISK,
                                      .params = DSI_RESIDENCY_HOST,
                                      .ratio = 1.0,
                                      .threshold = 1,
                                      .how = {.chunk = 4096},
                                      .aio = ds_aio_params_default()};
    (void)snprintf(spec.offload.folders, sizeof spec.offload.folders, "%s", folder);
    engine = parity_engine(ctx, &model, &spec);
    CHECK_OK(ctx, ds_engine_memory_report(engine, "away", &text));
    row_of(text, "moments on disk", moments);
    row_of(text, "parameters on the host", values);
    assert_true(moments[0] > 0.0 && moments[2] == -1.0);
    assert_true(values[0] > 0.0 && values[2] == values[0]);
    const ds_memory_info info = info_of(engine);
    assert_true(info.host > 0 && info.disk > 0 && info.planned > info.host + info.mapped);
    free(text);
    ds_engine_destroy(&engine);
    scratch_remove(folder);
}

/* ---- the configuration's key ---- */

static void run_step(ds_engine *engine)
{
    for (int64_t i = 0; i < ds_engine_accumulation(engine); ++i) {
        CHECK_OK(ctx, ds_engine_forward(engine, &model.batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
    }
}

/* The lines before "MA …", which are the messages. */
static size_t messages(char *out, size_t room)
{
    size_t n = 0;
    out[0] = '\0';
    for (const char *at = strstr(lines.text, "\nMA "); at != NULL; at = strstr(at + 1, "\nMA ")) {
        const char *start = at;
        while (start > lines.text && start[-1] != '\n') {
            --start;
        }
        n += (size_t)snprintf(out + n, room - n, "%.*s|", (int)(at - start), start);
    }
    return n;
}

static void where_deepspeed_does(void **state)
{
    dsi_engine_spec spec = make_spec();
    char got[4096];
    (void)state;
    spec.train.accumulation = 2;
    lines.n = 0;
    ds_engine *engine = parity_engine(ctx, &model, &spec);
    run_step(engine);
    lines.text[lines.n] = '\0';
    assert_int_equal(messages(got, sizeof got), 0);
    ds_engine_destroy(&engine);

    spec.memory_breakdown = true;
    lines.n = 0;
    engine = parity_engine(ctx, &model, &spec);
    run_step(engine);
    ds_engine_destroy(&engine);
    assert_true(messages(got, sizeof got) > 0);
#define MICRO                                                                                      \
    "Engine before forward|Engine after forward|Engine before backward|Engine after backward|"     \
    "Engine before step|Engine after step|"
    assert_string_equal(got, "DeepSpeed Engine: Before configure distributed model|"
                             "DeepSpeed Engine: After configure distributed model|" MICRO MICRO);
}

static int setup(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    (void)state;
    params.n_threads = 2;
    params.log = keep;
    params.log_user = &lines;
    params.level = DS_LOG_JOB;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return -1;
    }
    parity_open(ctx, "llama3", &model);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    parity_close(&model);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_that_were_touched),
        cmocka_unit_test(as_the_ledger_says),
        cmocka_unit_test(rows),
        cmocka_unit_test(where_deepspeed_does),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
