/* SPDX-License-Identifier: Apache-2.0 */
/* Propagation: the text of a small graph's placements, and what is refused, in which words. */
#include "common/check.h"
#include "common/own_op.h"
#include "grad/grad.h"
#include "op/ops.h"
#include "place/propagate.h"

#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

static int set_up(void **state)
{
    (void)state;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    return ds_ctx_create(&params, &ctx);
}

static int tear_down(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

/* A cell by name, and where it lies. */
typedef struct placed_cell {
    const char *name;
    ds_cell_kind kind;
    ds_meta meta;
    const char *placement;
} placed_cell;

typedef struct small {
    ds_cells *cells;
    ds_graph *graph;
    const placed_cell *rows;
    uint32_t n_rows;
} small;

static small open_small(const placed_cell *rows, uint32_t n_rows)
{
    small s = {.rows = rows, .n_rows = n_rows};
    CHECK_OK(ctx, ds_cells_create(ctx, 64, &s.cells));
    CHECK_OK(ctx, ds_graph_create(ctx, s.cells, &s.graph));
    for (uint32_t i = 0; i < n_rows; ++i) {
        const ds_cell_info info = {
            .name = rows[i].name, .kind = rows[i].kind, .meta = rows[i].meta, .of = DS_NONE};
        ds_cell cell = DS_NONE;
        CHECK_OK(ctx, ds_cells_add(s.cells, &info, &cell));
    }
    return s;
}

static void close_small(small *s)
{
    ds_graph_destroy(&s->graph);
    ds_cells_destroy(&s->cells);
}

static void place_cell(void *user, ds_cell cell, const ds_cell_info *info, dsi_spread *spread_out)
{
    const small *s = user;
    (void)info;
    CHECK_OK(ctx, dsi_placement_parse(ctx, s->rows[cell].placement, &spread_out->at));
}

static ds_value read_cell(small *s, ds_cell cell)
{
    ds_value value = DS_NONE;
    CHECK_OK(ctx, ds_graph_read(s->graph, cell, &value));
    return value;
}

static ds_value apply(small *s, const char *scope, const ds_op *op, const void *attrs, ds_value a,
                      ds_value b)
{
    const ds_value in[2] = {a, b};
    ds_value out[DS_MAX_OUT];
    CHECK_OK(ctx, ds_graph_set_scope(s->graph, scope));
    CHECK_OK(ctx, ds_graph_apply(s->graph, op, attrs, in, b == DS_NONE ? 1 : 2, out));
    return out[0];
}

static ds_status propagate(small *s, const char *mesh, dsi_propagation **p)
{
    dsi_propagate_params params = {
        .policy = dsi_place_policy_default(), .cell = place_cell, .user = s};
    CHECK_OK(ctx, dsi_mesh_parse(ctx, mesh, &params.mesh));
    return dsi_propagate(s->graph, &params, p);
}

#define F32(...)                                                                                   \
    {                                                                                              \
        DS_DTYPE_F32, __VA_ARGS__                                                                  \
    }

/* A two-layer perceptron under data, tensor and ZeRO parallelism, with its gradient. */
static void test_text(void **state)
{
    (void)state;
    static const placed_cell rows[] = {
        {"x", DS_CELL_INPUT, F32({2, {8, 4}}), "dps:S(0)"},
        {"up", DS_CELL_PARAM, F32({2, {6, 4}}), "tp:S(0) flat(dps)"},
        {"down", DS_CELL_PARAM, F32({2, {4, 6}}), "tp:S(1)"},
        {"seed", DS_CELL_SCALAR, F32({0, {0}}), "R"},
        {"up", DS_CELL_GRAD, F32({2, {6, 4}}), "tp:S(0) flat(dps)"},
        {"down", DS_CELL_GRAD, F32({2, {4, 6}}), "tp:S(1)"},
    };
    static const dsi_linear_attrs linear = {.transposed = 0};
    small s = open_small(rows, 6);
    ds_value x = apply(&s, "up", &dsi_op_linear, &linear, read_cell(&s, 0), read_cell(&s, 1));
    x = apply(&s, "", &dsi_op_relu, NULL, x, DS_NONE);
    x = apply(&s, "down", &dsi_op_linear, &linear, x, read_cell(&s, 2));
    x = apply(&s, "", &dsi_op_square, NULL, x, DS_NONE);
    const ds_value loss = apply(&s, "loss", &dsi_op_sum_all, NULL, x, DS_NONE);
    const ds_value seed = read_cell(&s, 3);
    ds_value gradient[6];
    CHECK_OK(ctx, dsi_grad_build(s.graph, &loss, &seed, 1, gradient));
    apply(&s, "up", &dsi_op_store, NULL, read_cell(&s, 4), gradient[1]);
    apply(&s, "down", &dsi_op_store, NULL, read_cell(&s, 5), gradient[2]);
    dsi_propagation *p = NULL;
    CHECK_OK(ctx, propagate(&s, "mesh(dps=2,tp=2)", &p));
    dsi_buf buf = dsi_buf_make(1 << 16);
    dsi_propagation_text(s.graph, p, &buf);
    assert_string_equal(
        dsi_buf_text(&buf),
        "mesh(dps=2,tp=2)\n"
        "%2 dps:S(0) tp:S(1) = linear(input x dps:S(0), param up tp:S(0) flat(dps) -> tp:S(0)) @ "
        "up\n"
        "%3 dps:S(0) tp:S(1) = relu(%2 dps:S(0) tp:S(1))\n"
        "%5 dps:S(0) tp:P = linear(%3 dps:S(0) tp:S(1), param down tp:S(1)) @ down\n"
        "%6 dps:S(0) = square(%5 dps:S(0) tp:P -> dps:S(0))\n"
        "%7 dps:P = sum_all(%6 dps:S(0)) @ loss\n"
        "%9 dps:S(0) = fill(%6 dps:S(0), scalar seed R) @ loss\n"
        "%10 dps:S(0) tp:P = mul(%9 dps:S(0), %5 dps:S(0) tp:P)\n"
        "%11 dps:S(0) tp:P = scale(%10 dps:S(0) tp:P)\n"
        "%12 dps:S(0) tp:S(1) = linear(%11 dps:S(0) tp:P -> dps:S(0), param down tp:S(1)) @ down\n"
        "%13 dps:P tp:S(1) = linear_dw(%3 dps:S(0) tp:S(1), %11 dps:S(0) tp:P -> dps:S(0)) @ down\n"
        "%14 dps:S(0) tp:S(1) = relu_backward(%12 dps:S(0) tp:S(1), %3 dps:S(0) tp:S(1))\n"
        "%15 dps:P tp:S(0) = linear_dw(input x dps:S(0), %14 dps:S(0) tp:S(1)) @ up\n"
        "%17 tp:S(0) flat(dps) = store(grad up tp:S(0) flat(dps), %15 dps:P tp:S(0) -> tp:S(0) "
        "flat(dps)) @ up\n"
        "%19 tp:S(1) = store(grad down tp:S(1), %13 dps:P tp:S(1) -> tp:S(1)) @ down\n");
    dsi_buf_free(&buf);
    dsi_propagation_destroy(&p);
    close_small(&s);
}

/* A rank's own samples: parameters are gathered, a stored gradient is a term of a mean, and a cell
 * that is replicated is updated on the slices of its states. */
static void test_own(void **state)
{
    (void)state;
    static const placed_cell rows[] = {
        {"x", DS_CELL_INPUT, F32({2, {8, 4}}), "dps:own"},
        {"w", DS_CELL_PARAM, F32({2, {6, 4}}), "flat(dps)"},
        {"v", DS_CELL_PARAM, F32({2, {6, 4}}), "R"},
        {"w", DS_CELL_GRAD, F32({2, {6, 4}}), "flat(dps)"},
        {"v", DS_CELL_EXP_AVG, F32({2, {6, 4}}), "flat(dps)"},
        {"hyper", DS_CELL_SCALAR, F32({1, {8}}), "R"},
        {"factor", DS_CELL_SCALAR, F32({0, {0}}), "R"},
        {"seed", DS_CELL_INPUT, F32({2, {8, 6}}), "dps:own"},
    };
    static const dsi_linear_attrs linear = {.transposed = 0};
    static const dsi_optim_attrs optim = {.eps = 1e-8};
    small s = open_small(rows, 8);
    const ds_value y = apply(&s, "w", &dsi_op_linear, &linear, read_cell(&s, 0), read_cell(&s, 1));
    const ds_value seed = read_cell(&s, 7);
    ds_value gradient[8];
    CHECK_OK(ctx, dsi_grad_build(s.graph, &y, &seed, 1, gradient));
    const ds_value g = apply(&s, "w", &dsi_op_store, NULL, read_cell(&s, 3), gradient[1]);
    const ds_value top = apply(&s, "norm", &dsi_op_abs_max, NULL, g, DS_NONE);
    (void)apply(&s, "norm", &dsi_op_sum_squares, NULL, g, top);
    const ds_value in[6] = {read_cell(&s, 2), g,       read_cell(&s, 5),
                            read_cell(&s, 6), DS_NONE, read_cell(&s, 4)};
    ds_value out[DS_MAX_OUT];
    CHECK_OK(ctx, ds_graph_set_scope(s.graph, "v"));
    CHECK_OK(ctx, ds_graph_apply(s.graph, &dsi_op_lion, &optim, in, 6, out));
    dsi_propagation *p = NULL;
    CHECK_OK(ctx, propagate(&s, "mesh(dps=2)", &p));
    dsi_buf buf = dsi_buf_make(1 << 16);
    dsi_propagation_text(s.graph, p, &buf);
    assert_string_equal(
        dsi_buf_text(&buf),
        "mesh(dps=2)\n"
        "%2 dps:own = linear(input x dps:own, param w flat(dps) -> R) @ w\n"
        "%4 dps:own = linear_dw(input x dps:own, input seed dps:own) @ w\n"
        "%6 flat(dps) = store(grad w flat(dps), %4 dps:own -> flat(dps)) @ w\n"
        "%7 dps:Pmax = abs_max(%6 flat(dps)) @ norm\n"
        "%8 dps:Pexact = sum_squares(%6 flat(dps), %7 dps:Pmax -> R) @ norm\n"
        "%13 flat(dps) -> R, %14 flat(dps) = lion(param v R -> flat(dps), %6 flat(dps), "
        "scalar hyper R, scalar factor R, exp_avg v flat(dps)) @ v\n");
    dsi_buf_free(&buf);
    dsi_propagation_destroy(&p);
    close_small(&s);
}

/* One node whose inputs lie as given; what the error says. */
static void refuses(const placed_cell *rows, uint32_t n_rows, const char *mesh, const ds_op *op,
                    const void *attrs, const char *says)
{
    small s = open_small(rows, n_rows);
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = 0; i < n_rows; ++i) {
        in[i] = rows[i].meta.dtype == DS_DTYPE_NONE ? DS_NONE : read_cell(&s, i);
    }
    CHECK_OK(ctx, ds_graph_set_scope(s.graph, "model.layers.3"));
    CHECK_OK(ctx, ds_graph_apply(s.graph, op, attrs, in, n_rows, out));
    dsi_propagation *p = NULL;
    CHECK_FAILS(ctx, propagate(&s, mesh, &p), DS_ERR_UNSUPPORTED, says);
    close_small(&s);
}

static void test_refused(void **state)
{
    (void)state;
    static const dsi_linear_attrs linear = {.transposed = 0};
    static const dsi_linear_attrs gelu = {.transposed = 0, .activation = DSI_ACT_GELU_TANH};
    static const placed_cell crossed[] = {
        {"x", DS_CELL_INPUT, F32({2, {8, 4}}), "tp:S(0)"},
        {"w", DS_CELL_PARAM, F32({2, {6, 4}}), "tp:S(0)"},
    };
    refuses(
        crossed, 2, "mesh(tp=2)", &dsi_op_linear, &linear,
        "linear at model.layers.3: input 1 (param w f32[6,4]) is placed tp:S(0) and would have "
        "to be R: no rule of the operator fits, and the policy does not allow this change; lower "
        "tensor_parallel.autotp_size, the nearest that goes here is 1");
    static const dsi_attention_attrs heads = {
        .n_heads = 6, .n_kv_heads = 6, .head_dim = 2, .causal = 1, .scale = 1.0};
    static const placed_cell by_heads[] = {
        {"q", DS_CELL_INPUT, F32({3, {1, 4, 12}}), "tp:S(2)"},
        {"k", DS_CELL_INPUT, F32({3, {1, 4, 12}}), "tp:S(2)"},
        {"v", DS_CELL_INPUT, F32({3, {1, 4, 12}}), "tp:S(2)"},
    };
    refuses(by_heads, 3, "mesh(tp=4)", &dsi_op_attention, &heads,
            "must divide n_heads and n_kv_heads; lower tensor_parallel.autotp_size, the nearest "
            "that goes here is 2");
    static const placed_cell inner[] = {
        {"x", DS_CELL_INPUT, F32({2, {8, 4}}), "tp:S(1)"},
        {"w", DS_CELL_PARAM, F32({2, {6, 4}}), "tp:S(1)"},
    };
    refuses(inner, 2, "mesh(tp=2)", &dsi_op_linear, &gelu, "an activation needs the finished sum");
    static const placed_cell row[] = {{"x", DS_CELL_INPUT, F32({2, {8, 4}}), "tp:S(1)"}};
    refuses(row, 1, "mesh(tp=2)", &dsi_op_softmax, NULL,
            "softmax at model.layers.3: input 0 (input x f32[8,4]) is placed tp:S(1) and would "
            "have to be R");
    static const placed_cell owned[] = {
        {"m", DS_CELL_STATE, F32({2, {4, 8}}), "R"},
        {"x", DS_CELL_INPUT, F32({2, {4, 8}}), "dps:own"},
    };
    refuses(
        owned, 2, "mesh(dps=2)", &dsi_op_store, NULL,
        "input 0 (state m f32[4,8]) is placed R and would have to be R: it is written, with what "
        "each rank has of its own samples");
    static const placed_cell few[] = {{"x", DS_CELL_INPUT, F32({2, {3, 4}}), "tp:S(0)"}};
    refuses(few, 1, "mesh(tp=4)", &dsi_op_tanh, NULL, "would have to be R");
    static const dsi_attention_attrs packed = {
        .n_heads = 4, .n_kv_heads = 1, .head_dim = 2, .packed = 1, .scale = 1.0};
    static const placed_cell qkv[] = {{"qkv", DS_CELL_INPUT, F32({3, {1, 4, 12}}), "tp:S(2)"}};
    refuses(qkv, 1, "mesh(tp=2)", &dsi_op_attention, &packed,
            "packed q, k, v with fewer heads of keys than of queries cannot be cut by heads");
    static const dsi_ce_attrs ce = {.ignore_index = -100};
    static const placed_cell rows[] = {
        {"logits", DS_CELL_INPUT, F32({2, {4, 8}}), "tp:S(0)"},
        {"targets", DS_CELL_INPUT, {DS_DTYPE_I32, {1, {4}}}, "tp:S(0)"},
    };
    refuses(rows, 2, "mesh(tp=2)", &dsi_op_cross_entropy, &ce, "would have to be R");
    static const placed_cell store[] = {
        {"g", DS_CELL_GRAD, F32({2, {4, 8}}), "R"},
        {"x", DS_CELL_INPUT, F32({2, {4, 8}}), "tp:S(0)"},
    };
    refuses(store, 2, "mesh(tp=2)", &dsi_op_store, NULL, "input 1 (input x f32[4,8])");
    static const placed_cell split[] = {
        {"g", DS_CELL_GRAD, F32({2, {4, 8}}), "tp:S(1)"},
        {"x", DS_CELL_INPUT, F32({2, {4, 8}}), "tp:S(0)"},
    };
    refuses(split, 2, "mesh(tp=2)", &dsi_op_store, NULL,
            "input 0 (grad g f32[4,8]) is placed tp:S(1) and would have to be tp:S(0): it is "
            "written, so it stays where it is");
}

/* A custom operator with a rule is split as it says; without one it works on whole values, and on
 * the rank's own samples. */
static void test_custom(void **state)
{
    (void)state;
    static const placed_cell rows[] = {
        {"x", DS_CELL_INPUT, F32({2, {8, 4}}), "tp:S(0)"},
        {"w", DS_CELL_PARAM, F32({1, {4}}), "R"},
        {"dy", DS_CELL_INPUT, F32({2, {8, 4}}), "tp:S(0)"},
    };
    small s = open_small(rows, 3);
    const ds_value y = apply(&s, "", &own_scale, NULL, read_cell(&s, 0), read_cell(&s, 1));
    const ds_value dw = apply(&s, "", &own_scale_dw, NULL, read_cell(&s, 0), read_cell(&s, 2));
    dsi_propagation *p = NULL;
    char text[DSI_PLACEMENT_TEXT];
    CHECK_OK(ctx, propagate(&s, "mesh(tp=2)", &p));
    assert_string_equal(dsi_placement_str(&p->value[y].at, text), "tp:S(0)");
    assert_string_equal(dsi_placement_str(&p->value[dw].at, text), "tp:P");
    dsi_propagation_destroy(&p);
    close_small(&s);
    refuses(rows, 2, "mesh(tp=2)", &own_plain, NULL,
            "own_plain at model.layers.3: input 0 (input x f32[8,4]) is placed tp:S(0) and would "
            "have to be R: no rule of the operator fits");
    static const placed_cell own[] = {
        {"x", DS_CELL_INPUT, F32({2, {8, 4}}), "dps:own"},
        {"w", DS_CELL_PARAM, F32({1, {4}}), "flat(dps)"},
    };
    s = open_small(own, 2);
    const ds_value z = apply(&s, "", &own_plain, NULL, read_cell(&s, 0), read_cell(&s, 1));
    CHECK_OK(ctx, propagate(&s, "mesh(dps=2)", &p));
    assert_string_equal(dsi_placement_str(&p->value[z].at, text), "dps:own");
    dsi_propagation_destroy(&p);
    close_small(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_own),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_custom),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
