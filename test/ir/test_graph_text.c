/* SPDX-License-Identifier: Apache-2.0 */
/* Graph text: print, parse and print again is the same text, plan and bits, on the training graph
 * of each golden model; each wrong line is refused with its place. */
#include "accel/cpu/registry.h"
#include "base/buf.h"
#include "common/check.h"
#include "common/graph_run.h"
#include "common/parity.h"
#include "common/plan_digest.h"
#include "common/ref_model.h"
#include "common/scratch.h"
#include "ir/text_scan.h"
#include "op/ops.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = 1 << 12 };

static ds_ctx *ctx;

/* ---- round trips ---------------------------------------------------------------------------- */
static uint64_t digest_of(const ds_graph *graph, bool no_fuse)
{
    const dsi_plan_env env = {
        .n_threads = 2, .isa = DS_ISA_REF, .choose = dsi_cpu_kernel_choose, .no_fuse = no_fuse};
    dsi_plan *plan = NULL;
    uint64_t digest = 0;
    CHECK_OK(ctx, dsi_plan_build(graph, &env, &plan));
    CHECK_OK(ctx, plan_digest(plan, &digest));
    dsi_plan_destroy(&plan);
    return digest;
}

/* Through text into an empty table of cells, and into the graph's own. */
static void round_trip(const ds_graph *graph)
{
    char *text = NULL;
    CHECK_OK(ctx, ds_graph_print(graph, &text));
    for (int own = 0; own < 2; ++own) {
        ds_cells *cells = own ? ds_graph_cells(graph) : NULL;
        ds_graph *parsed = NULL;
        char *again = NULL;
        if (!own) {
            CHECK_OK(ctx, ds_cells_create(ctx, MAX_CELLS, &cells));
        }
        const uint32_t n_before = ds_cells_count(cells);
        CHECK_OK(ctx, ds_graph_parse(ctx, text, cells, ds_op_find, &parsed));
        CHECK_OK(ctx, ds_graph_print(parsed, &again));
        assert_string_equal(again, text);
        assert_true(!own || ds_cells_count(cells) == n_before);
        assert_int_equal(ds_graph_n_values(parsed), ds_graph_n_values(graph));
        assert_true(digest_of(parsed, false) == digest_of(graph, false));
        assert_true(digest_of(parsed, true) == digest_of(graph, true));
        free(again);
        ds_graph_destroy(&parsed);
        if (!own) {
            ds_cells_destroy(&cells);
        }
    }
    free(text);
}

static ds_graph *train_graph(const parity_case *p, ds_dtype dtype, int64_t accumulation,
                             ds_cells **cells_out)
{
    dsi_engine_spec spec = parity_spec(p, dtype, DS_ISA_REF);
    dsi_train_cells own;
    ds_graph *graph = NULL;
    uint32_t n = 0;
    spec.train.accumulation = accumulation;
    spec.train.optimizer = accumulation > 1 ? DS_OPTIMIZER_LAMB : DS_OPTIMIZER_ADAM;
    spec.train.max_norm = 0.1; /* no short decimal in binary */
    spec.train.eps = 1.0 / 3e8;
    CHECK_OK(ctx, ds_cells_create(ctx, MAX_CELLS, cells_out));
    CHECK_OK(ctx, dsi_train_graph(p->model, &spec.train, *cells_out, &graph, &own));
    CHECK_OK(ctx, ds_cells_freeze(*cells_out, "*.0.*", &n)); /* flags print */
    return graph;
}

static void every_model_comes_back(void **state)
{
    (void)state;
    for (int i = 0; i < PARITY_N; ++i) {
        for (int64_t accumulation = 1; accumulation <= 2; ++accumulation) {
            ds_cells *cells = NULL;
            parity_case p;
            parity_open(ctx, parity_variants[i], &p);
            ds_graph *graph = train_graph(&p, accumulation == 1 ? DS_DTYPE_BF16 : DS_DTYPE_F32,
                                          accumulation, &cells);
            round_trip(graph);
            ds_graph_destroy(&graph);
            ds_cells_destroy(&cells);
            parity_close(&p);
        }
    }
}

static void check_same_cells(const graph_run *a, const graph_run *b)
{
    for (ds_cell c = 0; c < ds_cells_count(a->cells); ++c) {
        const ds_cell_info *info = ds_cells_get(a->cells, c);
        const ds_cell other = ds_cells_find(b->cells, info->kind, info->name);
        assert_int_not_equal(other, DS_NONE);
        if (memcmp(dsi_exec_host_view(a->exec, c), dsi_exec_host_view(b->exec, other),
                   ds_meta_bytes(info->meta)) != 0) {
            fail_msg("%s cell %s differs", ds_cell_kind_name(info->kind), info->name);
        }
    }
}

static void parsed_graphs_run_alike(void **state)
{
    static const char *const folders[] = {"parity/packed_gpt2", "parity/qwen3", "parity/rope_yarn"};
    (void)state;
    for (int i = 0; i < 3; ++i) {
        const graph_run_params params = {.dtype = DS_DTYPE_BF16, .isa = DSI_NEEDS_AMX};
        graph_run_params again = params;
        golden_file golden = golden_read("%s/golden.safetensors", folders[i]);
        const ref_batch batch = ref_batch_of(&golden);
        graph_run a;
        graph_run b;
        again.reparse = true;
        graph_run_open(&a, ctx, folders[i], &batch, &params);
        graph_run_open(&b, ctx, folders[i], &batch, &again);
        for (int64_t step = 1; step <= 2; ++step) {
            const ref_adamw_params adamw = {
                .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.1, .step = step};
            const float loss_a = graph_run_pass(&a);
            const float loss_b = graph_run_pass(&b);
            assert_memory_equal(&loss_a, &loss_b, sizeof loss_a);
            graph_run_update(&a, &adamw);
            graph_run_update(&b, &adamw);
        }
        check_same_cells(&a, &b);
        graph_run_close(&a);
        graph_run_close(&b);
        golden_close(&golden);
    }
}

/* ---- words ---------------------------------------------------------------------------------- */
static void check_real(double value)
{
    dsi_buf text = dsi_buf_make(256);
    dsi_text_print_real(&text, value);
    dsi_text_scan scan = {.ctx = ctx, .at = dsi_buf_text(&text), .line = dsi_buf_text(&text)};
    double back = 0.0;
    scan.numbers = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    CHECK_OK(ctx, dsi_text_real(&scan, "a number", &back));
    assert_memory_equal(&back, &value, sizeof value);
    assert_int_equal(*scan.at, '\0');
    freelocale(scan.numbers);
    dsi_buf_free(&text);
}

static void reals_keep_their_bits(void **state)
{
    static const double some[] = {0.0,
                                  -0.0,
                                  1.0,
                                  0.1,
                                  1.0 / 3,
                                  5e-324,
                                  2.2250738585072011e-308,
                                  1.7976931348623157e308,
                                  INFINITY,
                                  -INFINITY,
                                  1e22,
                                  -1e-7};
    uint64_t bits = 1;
    (void)state;
    for (size_t i = 0; i < sizeof some / sizeof *some; ++i) {
        check_real(some[i]);
    }
    for (int i = 0; i < 20000; ++i) { /* any bits, NaN with payloads among them */
        double value;
        bits = bits * 6364136223846793005ull + 1442695040888963407ull;
        memcpy(&value, &bits, sizeof value);
        check_real(value);
    }
    const uint64_t payload = 0xfff8000000000123ull;
    double nan;
    memcpy(&nan, &payload, sizeof nan);
    check_real(nan);
}

/* ---- lines ---------------------------------------------------------------------------------- */
/* Names with quotes, backslashes, control bytes; flags; a cell that another belongs to; an output
 * that is an old version of a cell; cells read in another order than that of the table. */
static const char odd[] =
    "cell - param f32[4] \"a \\\"b\\\\c\\n\\u0001\xc3\xa9\" normal=0.02 frozen no_decay\n"
    "cell %1 state f32[4] \"s\" ones of=\"a \\\"b\\\\c\\n\\u0001\xc3\xa9\"@param\n"
    "cell %0 scalar f32[4] \"x\" zeros\n"
    "%2 = neg(\"x\"@scalar) : f32[4] ; forward \"\"\n"
    "%3 = scale(%2) factor=nan:7ff8000000000001 : f32[4] ; forward \"\"\n"
    "%4 = store(\"s\"@state, %3) : f32[4] ; backward \"up \\\"here\\\"\"\n"
    "output \"y\" %3\n"
    "output \"old s\" \"s\"@state\n";

static void odd_text_comes_back(void **state)
{
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    char *text = NULL;
    (void)state;
    CHECK_OK(ctx, ds_cells_create(ctx, 3, &cells));
    CHECK_OK(ctx, ds_graph_parse(ctx, odd, cells, ds_op_find, &graph));
    CHECK_OK(ctx, ds_graph_print(graph, &text));
    assert_string_equal(text, odd);
    const ds_cell s = ds_cells_find(cells, DS_CELL_STATE, "s");
    assert_int_equal(ds_graph_cell_of(graph, ds_graph_find_output(graph, "old s")), s);
    const ds_cell_info *owner = ds_cells_get(cells, ds_cells_get(cells, s)->of);
    assert_string_equal(owner->name, "a \"b\\c\n\1\xc3\xa9");
    assert_true(owner->frozen && owner->no_decay && owner->init.std == 0.02);
    free(text);
    ds_graph_destroy(&graph);
    CHECK_OK(ctx, ds_graph_parse(ctx, "", cells, ds_op_find, &graph));
    CHECK_OK(ctx, ds_graph_print(graph, &text));
    assert_string_equal(text, "");
    free(text);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

/* The texts that the fuzzer starts from, as they are in test/golden/ir: of today's operators. */
static void stored_texts_come_back(void **state)
{
    static const char *const names[] = {"odd",   "packed_gpt2", "rope_yarn",
                                        "masks", "parts",       "parts_split"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        char path[1024];
        size_t n = 0;
        ds_cells *cells = NULL;
        ds_graph *graph = NULL;
        char *again = NULL;
        (void)snprintf(path, sizeof path, "%s/test/golden/ir/%s.txt", DS_SOURCE_DIR, names[i]);
        char *text = scratch_read(path, &n);
        CHECK_OK(ctx, ds_cells_create(ctx, MAX_CELLS, &cells));
        CHECK_OK(ctx, ds_graph_parse(ctx, text, cells, ds_op_find, &graph));
        CHECK_OK(ctx, ds_graph_print(graph, &again));
        assert_string_equal(again, text);
        free(again);
        free(text);
        ds_graph_destroy(&graph);
        ds_cells_destroy(&cells);
    }
}

static void parse_fails(const char *text, const char *message)
{
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    CHECK_OK(ctx, ds_cells_create(ctx, 64, &cells));
    const ds_status status = ds_graph_parse(ctx, text, cells, ds_op_find, &graph);
    if (status >= 0 || strstr(ds_ctx_error(ctx), message) == NULL) {
        fail_msg("%s\nexpected an error with '%s', got '%s'", text, message,
                 status < 0 ? ds_ctx_error(ctx) : "none");
    }
    assert_null(graph);
    ds_cells_destroy(&cells);
}

/* Two lines that most cases begin with. */
#define HEAD                                                                                       \
    "cell %0 scalar f32[4] \"x\" zeros\n"                                                          \
    "%1 = neg(\"x\"@scalar) : f32[4] ; forward \"\"\n"

static void wrong_lines_are_refused(void **state)
{
    static const char *const cases[][2] = {
        {"what\n",
         "line 1, column 1: expected phases, cells, nodes, outputs in this order, found 'what'"},
        {"cell %0 scalar f32[4] \"x\" zeros", "expected the end of the line, found the end of the"},
        {"cell 0 scalar f32[4] \"x\" zeros\n", "line 1, column 6: expected a value such as %3"},
        {"cell %4294967295 scalar f32[] \"x\" zeros\n", "column 7: expected the number of a value"},
        {"cell %0 sclar f32[4] \"x\" zeros\n", "line 1, column 9: expected a kind of cell"},
        {"cell %0 scalar f31[4] \"x\" zeros\n", "expected a shape such as bf16[4,8], found 'f31"},
        {"cell %0 scalar f32[-4] \"x\" zeros\n", "expected dimensions that are not negative"},
        {"cell %0 scalar f32[1,1,1,1,1,1,1,1,1] \"x\" zeros\n", "after the eighth dimension"},
        {"cell %0 scalar f32[9223372036854775807] \"x\" zeros\n", "less than 2^63 bytes"},
        {"cell %0 scalar f32[99999999999999999999] \"x\" zeros\n", "expected a dimension"},
        {"cell %0 scalar f32[4] x zeros\n", "expected the cell's quoted name, found 'x zeros'"},
        {"cell %0 scalar f32[4] \"x\n", "expected the end of a quoted name"},
        {"cell %0 scalar f32[4] \"\\q\" zeros\n", "expected an escape"},
        {"cell %0 scalar f32[4] \"\\u0000\" zeros\n", "expected an escape"},
        {"cell %0 scalar f32[4] \"\" zeros\n", "a cell needs a name"},
        {"cell %0 scalar f32[4] \"x\" normal=1,5\n", "expected the end of the line, found ',5'"},
        {"cell %0 scalar f32[4] \"x\" normal=1e999\n", "expected a standard deviation"},
        {"cell %0 scalar f32[4] \"x\" normal=nan:7ff0000000000000\n", "the bits of a NaN"},
        {"cell %0 scalar f32[4] \"x\" zeros of=\"y\"@param\n", "a cell that has a line above"},
        {"cell %0 scalar f32[4] \"x\" zeros\ncell %1 scalar f32[4] \"x\" zeros\n",
         "second line of"},
        {"cell %1 scalar f32[4] \"x\" zeros\n", "expected a number that no line takes"},
        {"cell %0 scalar f32[4] \"x\" zeros\ncell %0 scalar f32[4] \"y\" zeros\n", "\"y\"@scalar"},
        {HEAD "%2 = nag(%1) : f32[4] ; forward \"\"\n", "line 3, column 6: expected a known op"},
        {HEAD "%2 = neg(%2) : f32[4] ; forward \"\"\n",
         "expected a value that a line above defines"},
        {HEAD "%2 = neg(%0) : f32[4] ; forward \"\"\n",
         "expected a value that a line above defines"},
        {HEAD "%2 = neg(\"y\"@scalar) : f32[4] ; forward \"\"\n", "a cell that has a line above"},
        {HEAD "%2, %3 = neg(%1) : f32[4] ; forward \"\"\n", "line 3: neg has 1 outputs, the line"},
        {HEAD "%3 = neg(%1) : f32[4] ; forward \"\"\n", "expected %2, the next free number, found"},
        {HEAD "%2 = neg(%1) : f32[5] ; forward \"\"\n", "line 3: output 0 of neg: expected f32[4]"},
        {HEAD "%2 = neg(%1, %1) : f32[4] ; forward \"\"\n", "line 3: "},
        {HEAD "%2 = neg(-) : f32[4] ; forward \"\"\n", "line 3: "},
        {HEAD "%2 = neg(%1) factor=1 : f32[4] ; forward \"\"\n", "expected ' :', found ' factor"},
        {HEAD "%2 = scale(%1) : f32[4] ; forward \"\"\n", "expected 'factor'"},
        {HEAD "%2 = scale(%1) factor=x : f32[4] ; forward \"\"\n", "column 23: expected a real"},
        {HEAD "%2 = cast(%1) dtype=1.5 : f32[4] ; forward \"\"\n", "expected ' :', found '.5 :"},
        {HEAD "%2 = cast(%1) dtype=77 : f32[4] ; forward \"\"\n", "line 3: "},
        {"parts 1\n", "expected a number of parts: 2 to 8, or 1 to 5 and split"},
        {"parts 6 split\n", "expected a number of parts: 2 to 8, or 1 to 5 and split"},
        {"parts 9\n", "expected a number of parts: 2 to 8, or 1 to 5 and split"},
        {"parts 8\nphase norm\n", "a graph has at most 16 phases"},
        {"phase norm\nphase norm\n", "line 2: phase \"norm\": expected a new name"},
        {"phase a side\nphase b side\n", "line 2: phase \"b\": \"a\" is on the side stream"},
        {"phase a alone side\n", "line 1, column 14: expected the end of the line"},
        {HEAD "phase a\n", "expected phases, cells, nodes"},
        {"phase a\nphase b\nphase c\nphase d\nphase e\nphase f\nphase g\nphase h\nphase i\n"
         "phase j\nphase k\nphase l\nphase m\nphase n\nphase o\n",
         "line 15: phase \"o\": a graph has at most 16 phases"},
        {HEAD "%2 = neg(%1) : f32[4] ; sideways \"\"\n", "expected a phase"},
        {HEAD "%2 = neg(%1) : f32[4] ; backward \"\"\n%3 = neg(%1) : f32[4] ; forward \"\"\n",
         "line 4, column 25: expected a phase that is not before that of the line above"},
        {HEAD "output \"y\" %9\n", "line 3, column 12: expected a value that a line above defines"},
        {HEAD "output \"y\" -\n", "expected a new name and a value"},
        {HEAD "output \"y\" %1\noutput \"y\" %1\n", "line 4: output \"y\": expected a new name"},
        {HEAD "output \"y\" %1\n%2 = neg(%1) : f32[4] ; forward \"\"\n",
         "expected phases, cells, nodes"},
        {HEAD "%2 = accumulate(\"x\"@scalar, %1) : f32[4] ; forward \"\"\n"
              "%3 = neg(\"x\"@scalar) : f32[4] ; forward \"\"\n",
         "line 4: neg reads an old version of cell x"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        parse_fails(cases[i][0], cases[i][1]);
    }
}

/* Every prefix of a text is refused or is a graph; none crashes. */
static void any_prefix_is_safe(void **state)
{
    char text[sizeof odd];
    (void)state;
    for (size_t n = 0; n < sizeof odd; ++n) {
        ds_cells *cells = NULL;
        ds_graph *graph = NULL;
        memcpy(text, odd, n);
        text[n] = '\0';
        CHECK_OK(ctx, ds_cells_create(ctx, 64, &cells));
        (void)ds_graph_parse(ctx, text, cells, ds_op_find, &graph);
        ds_graph_destroy(&graph);
        ds_cells_destroy(&cells);
    }
}

static void the_table_must_agree(void **state)
{
    const ds_cell_info x = {.name = "x",
                            .kind = DS_CELL_SCALAR,
                            .meta = {DS_DTYPE_F32, ds_shape_1d(4)},
                            .no_decay = true,
                            .of = DS_NONE};
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    ds_cell cell = DS_NONE;
    (void)state;
    CHECK_OK(ctx, ds_cells_create(ctx, 1, &cells));
    CHECK_OK(ctx, ds_cells_add(cells, &x, &cell));
    CHECK_FAILS(ctx, ds_graph_parse(ctx, HEAD, cells, ds_op_find, &graph), DS_ERR_GRAPH,
                "line 1: the scalar cell \"x\" stands in the table with another shape");
    CHECK_FAILS(
        ctx, ds_graph_parse(ctx, "cell %0 scalar f32[4] \"z\" zeros\n", cells, ds_op_find, &graph),
        DS_ERR_LIMIT, "more than 1 cells");
    const ds_cell_info orphan = {.name = "y", .kind = DS_CELL_MASTER, .of = 7};
    CHECK_FAILS(ctx, ds_cells_add(cells, &orphan, &cell), DS_ERR_ARG, "not there yet");
    ds_cells_destroy(&cells);
}

static int make_ctx(void **state)
{
    (void)state;
    return ds_ctx_create(NULL, &ctx);
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
        cmocka_unit_test(every_model_comes_back),  cmocka_unit_test(parsed_graphs_run_alike),
        cmocka_unit_test(reals_keep_their_bits),   cmocka_unit_test(odd_text_comes_back),
        cmocka_unit_test(wrong_lines_are_refused), cmocka_unit_test(any_prefix_is_safe),
        cmocka_unit_test(stored_texts_come_back),  cmocka_unit_test(the_table_must_agree),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
