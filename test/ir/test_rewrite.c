/* SPDX-License-Identifier: Apache-2.0 */
/* A graph made anew: a copy is the same text, what a pass puts in between leaves the copies where
 * they stood, and an error leaves nothing behind. */
#include "common/check.h"
#include "ir/rewrite.h"
#include "op/ops.h"

#include <stdlib.h>
#include <string.h>

static const char graph_text[] =
    "phase norm\n"
    "phase update skippable alone\n"
    "cell %0 scalar f32[4] \"x\" zeros\n"
    "cell %1 state f32[4] \"s\" ones\n"
    "%2 = neg(\"x\"@scalar) : f32[4] ; forward \"a\"\n"
    "%3 = neg(%2) : f32[4] ; forward \"b\" region=2\n"
    "%4 = neg(\"x\"@scalar) : f32[4] ; backward \"b\" region=1 recomputed\n"
    "%5 = add(%3, %4) : f32[4] ; backward \"b\"\n"
    "%6 = store(\"s\"@state, %5) : f32[4] ; update \"b\"\n"
    "output \"y\" %3\n"
    "output \"s\" %6\n";

static ds_ctx *ctx;
static ds_cells *cells;
static ds_graph *graph;

static void assert_text(const ds_graph *made, const char *want)
{
    char *text = NULL;
    CHECK_OK(ctx, dsi_graph_check(made));
    CHECK_OK(ctx, ds_graph_print(made, &text));
    assert_string_equal(text, want);
    free(text);
}

static void a_copy_is_the_same(void **state)
{
    dsi_rewrite r;
    ds_graph *made = NULL;
    (void)state;
    ds_status status = dsi_rewrite_begin(&r, graph, cells);
    for (ds_node n = 0; n < graph->n_nodes && status >= 0; ++n) {
        status = dsi_rewrite_copy(&r, &graph->nodes[n]);
    }
    CHECK_OK(ctx, dsi_rewrite_end(&r, status, &made));
    assert_text(made, graph_text);
    ds_graph_destroy(&made);
}

/* %3 is what stands for "x" twice negated; each other node has one of another scope before it. */
static void what_comes_between_moves_nothing(void **state)
{
    dsi_rewrite r;
    ds_graph *made = NULL;
    (void)state;
    CHECK_OK(ctx, dsi_rewrite_begin(&r, graph, cells));
    for (ds_node n = 0; n < graph->n_nodes; ++n) {
        const dsi_node_info *node = &graph->nodes[n];
        ds_value in[DS_MAX_IN];
        ds_value out[DS_MAX_OUT];
        dsi_rewrite_inputs(&r, node, in);
        for (uint32_t i = node->n_in; i < DS_MAX_IN; ++i) {
            assert_int_equal(in[i], DS_NONE);
        }
        if (n == 1) {
            dsi_rewrite_made(&r, node, &r.map[0]);
            continue;
        }
        ds_graph_set_phase(r.to, node->phase);
        CHECK_OK(ctx, ds_graph_set_scope(r.to, "between"));
        r.to->region = 7;
        r.to->recomputed = false;
        CHECK_OK(ctx, ds_graph_apply(r.to, &dsi_op_neg, NULL, &r.map[0], 1, out));
        CHECK_OK(ctx, dsi_rewrite_copy(&r, node));
    }
    CHECK_OK(ctx, dsi_rewrite_end(&r, DS_OK, &made));
    assert_text(made, "phase norm\n"
                      "phase update skippable alone\n"
                      "cell %0 scalar f32[4] \"x\" zeros\n"
                      "cell %1 state f32[4] \"s\" ones\n"
                      "%2 = neg(\"x\"@scalar) : f32[4] ; forward \"between\" region=7\n"
                      "%3 = neg(\"x\"@scalar) : f32[4] ; forward \"a\"\n"
                      "%4 = neg(\"x\"@scalar) : f32[4] ; backward \"between\" region=7\n"
                      "%5 = neg(\"x\"@scalar) : f32[4] ; backward \"b\" region=1 recomputed\n"
                      "%6 = neg(\"x\"@scalar) : f32[4] ; backward \"between\" region=7\n"
                      "%7 = add(\"x\"@scalar, %5) : f32[4] ; backward \"b\"\n"
                      "%8 = neg(\"x\"@scalar) : f32[4] ; update \"between\" region=7\n"
                      "%9 = store(\"s\"@state, %7) : f32[4] ; update \"b\"\n"
                      "output \"y\" \"x\"@scalar\n"
                      "output \"s\" %9\n");
    ds_graph_destroy(&made);
}

static void an_error_leaves_nothing(void **state)
{
    dsi_rewrite r;
    ds_graph *made = NULL;
    (void)state;
    CHECK_OK(ctx, dsi_rewrite_begin(&r, graph, cells));
    const ds_status status = ds_fail(ctx, DS_ERR_UNSUPPORTED, "cannot be rewritten");
    CHECK_FAILS(ctx, dsi_rewrite_end(&r, status, &made), DS_ERR_UNSUPPORTED, "cannot be rewritten");
    assert_null(made);
    /* outputs of nodes that were not made */
    CHECK_OK(ctx, dsi_rewrite_begin(&r, graph, cells));
    assert_true(dsi_rewrite_end(&r, DS_OK, &made) < 0);
    assert_null(made);
}

static int set_up(void **state)
{
    (void)state;
    return ds_ctx_create(NULL, &ctx) < 0 || ds_cells_create(ctx, 8, &cells) < 0 ||
           ds_graph_parse(ctx, graph_text, cells, ds_op_find, &graph) < 0;
}

static int tear_down(void **state)
{
    (void)state;
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_is_the_same),
        cmocka_unit_test(what_comes_between_moves_nothing),
        cmocka_unit_test(an_error_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
