/* SPDX-License-Identifier: Apache-2.0 */
/* An error of a shape names the scope in which it was made, once. */
#include "common/check.h"

#include <deepspeed/nn.h>

typedef ds_value (*wrong_fn)(ds_nn *nn, ds_value x, ds_value y);

static ds_value adds(ds_nn *nn, ds_value x, ds_value y)
{
    return ds_nn_add(nn, x, y);
}

static ds_value multiplies(ds_nn *nn, ds_value x, ds_value y)
{
    return ds_nn_matmul(nn, x, y, false, DS_DTYPE_NONE);
}

static ds_value attends(ds_nn *nn, ds_value x, ds_value y)
{
    const ds_attention_params params = {.n_heads = 2, .n_kv_heads = 2, .head_dim = 4};
    return ds_nn_attention(nn, x, y, y, DS_NONE, &params);
}

static ds_value shares(ds_nn *nn, ds_value x, ds_value y)
{
    const ds_linear_params four = {.n_out = 4};
    const ds_linear_params five = {.n_out = 5};
    (void)y;
    (void)ds_nn_linear(nn, "up", x, &four);
    return ds_nn_linear(nn, "up", x, &five);
}

static ds_value normalises_nothing(ds_nn *nn, ds_value x, ds_value y)
{
    (void)x;
    (void)y;
    return ds_nn_layer_norm(nn, "ln", DS_NONE, 1e-5, true);
}

/* x is f32 (4,8), y f32 (4,6), inside of layers.3.mlp. */
static void fails_with(ds_ctx *ctx, wrong_fn wrong, ds_status status, const char *text)
{
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    ds_nn *nn = NULL;
    const ds_trace trace = {.mode = DS_TRACE_TRAIN, .dtype = DS_DTYPE_F32, .batch = 4};
    CHECK_OK(ctx, ds_cells_create(ctx, 100, &cells));
    CHECK_OK(ctx, ds_graph_create(ctx, cells, &graph));
    CHECK_OK(ctx, ds_nn_create(graph, &trace, &nn));
    const ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(4, 8));
    const ds_value y = ds_nn_input(nn, "y", DS_DTYPE_F32, ds_shape_2d(4, 6));
    ds_nn_push(nn, "layers.%d", 3);
    ds_nn_push(nn, "mlp");
    assert_int_equal(wrong(nn, x, y), DS_NONE);
    ds_nn_pop(nn);
    ds_nn_pop(nn);
    assert_int_equal(ds_nn_sum_all(nn, x), DS_NONE); /* sticky */
    assert_int_equal(ds_nn_status(nn), status);
    assert_string_equal(ds_ctx_error(ctx), text);
    ds_nn_destroy(&nn);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

static void scopes_are_named(void **state)
{
    fails_with(
        *state, adds, DS_ERR_SHAPE,
        "layers.3.mlp: add: input 1 (b) is f32[4,6], expected the shape of a (f32[4,8]), its "
        "last dim alone, or a scalar");
    fails_with(*state, multiplies, DS_ERR_SHAPE,
               "layers.3.mlp: linear: input 1 (w) is f32[4,6], expected f32[out,8] (out,in)");
    fails_with(*state, attends, DS_ERR_SHAPE,
               "layers.3.mlp: attention: input 0 (q) is f32[4,8], expected a float tensor (B,T,8)");
    fails_with(*state, shares, DS_ERR_SHAPE,
               "layers.3.mlp.up: layers.3.mlp.up.weight is used as f32[5,8], but it is f32[4,8]");
    fails_with(
        *state, normalises_nothing, DS_ERR_SHAPE,
        "layers.3.mlp.ln: layer_norm: input 0 (x) is absent, expected a float tensor with at "
        "least 1 dimension(s)");
}

int main(void)
{
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(scopes_are_named, ctx)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
