/* SPDX-License-Identifier: Apache-2.0 */
/* Vector kernels against the reference kernels at odd sizes and in every element type: the same
 * bits where only + - * / sqrt fma are used, a stated tolerance for exp, tanh and sums.
 * labels: slow */
#include "accel/simd_check.h"
#include "op/isa.h"

enum { MOST = 8 };

/* One run: inputs, and outputs made anew for each kernel. written: out i is in[written[i]]. */
typedef struct op_case {
    const char *op;
    const void *attrs;
    ds_tensor in[MOST];
    uint32_t n_in;
    ds_meta out[MOST];
    uint32_t n_out;
    int written[MOST]; /* index + 1 of the input that output i overwrites, 0: none */
    double tolerance;  /* 0: the same bits. Else relative to max(1,|reference|), plus a rounding */
} op_case;

typedef struct op_result {
    ds_tensor in[MOST], out[MOST];
} op_result;

static ds_tensor copy_tensor(const ds_tensor *from)
{
    if (from->data == NULL) {
        return absent;
    }
    ds_tensor t = new_tensor(from->meta.dtype, from->meta.shape);
    memcpy(t.data, from->data, ds_meta_bytes(from->meta));
    return t;
}

static bool run_case(ds_ctx *ctx, ds_isa isa, const op_case *c, op_result *r)
{
    for (uint32_t i = 0; i < c->n_in; ++i) {
        r->in[i] = copy_tensor(&c->in[i]);
    }
    for (uint32_t i = 0; i < c->n_out; ++i) {
        if (c->written[i] > 0) {
            r->out[i] = r->in[c->written[i] - 1];
        } else {
            r->out[i] = c->out[i].dtype == DS_DTYPE_NONE
                            ? absent
                            : new_tensor(c->out[i].dtype, c->out[i].shape);
        }
    }
    return run_at(ctx, isa, c->op, c->attrs, r->in, c->n_in, r->out, c->n_out);
}

static void free_result(const op_case *c, op_result *r)
{
    for (uint32_t i = 0; i < c->n_out; ++i) {
        if (c->written[i] == 0) {
            free(r->out[i].data);
        }
    }
    for (uint32_t i = 0; i < c->n_in; ++i) {
        free(r->in[i].data);
    }
}

static void compare_output(const op_case *c, ds_isa isa, uint32_t k, const ds_tensor *got,
                           const ds_tensor *want)
{
    const ds_dtype type = want->meta.dtype;
    if (c->tolerance == 0.0) {
        if (memcmp(got->data, want->data, ds_meta_bytes(want->meta)) != 0) {
            fail_msg("%s on %s: output %u is not the reference's bits (%s, %lld elements)", c->op,
                     dsi_isa_print(isa).text, k, ds_dtype_name(type),
                     (long long)ds_shape_count(want->meta.shape));
        }
        return;
    }
    const size_t n = (size_t)ds_shape_count(want->meta.shape);
    for (size_t i = 0; i < n; ++i) {
        const double a = (double)read_element(got->data, type, i);
        const double b = (double)read_element(want->data, type, i);
        const double size = fabs(b) > 1.0 ? fabs(b) : 1.0;
        const double limit = size * c->tolerance + fabs(b) * 2.0 * type_step(type) +
                             (type == DS_DTYPE_F16 ? 0x1p-24 : 0.0);
        if (!(fabs(a - b) <= limit) && !(isnan(a) && isnan(b)) && a != b) {
            fail_msg("%s on %s: output %u[%zu] is %.9g, reference %.9g (%s)", c->op,
                     dsi_isa_print(isa).text, k, i, a, b, ds_dtype_name(type));
        }
    }
}

static void check_case(ds_ctx *ctx, op_case *c)
{
    op_result want;
    assert_true(run_case(ctx, DS_ISA_REF, c, &want));
    FOR_ISAS(isa)
    {
        op_result got;
        if (cpu_has(isa)) {
            assert_true(run_case(ctx, isa, c, &got));
            for (uint32_t k = 0; k < c->n_out; ++k) {
                if (want.out[k].data != NULL) {
                    compare_output(c, isa, k, &got.out[k], &want.out[k]);
                }
            }
            free_result(c, &got);
        }
    }
    free_result(c, &want);
    for (uint32_t i = 0; i < c->n_in; ++i) {
        free(c->in[i].data);
    }
}

static const int64_t sizes[] = {1, 7, 16, 31, 33, 1000, 16397, 70001};
#define FOR_SIZES(n)                                                                               \
    for (size_t n##_i = 0; n##_i < sizeof sizes / sizeof sizes[0]; ++n##_i)                        \
        for (int64_t n = sizes[n##_i], n##_once = n; n##_once == n; n##_once = -1)

static ds_meta meta_of(ds_dtype type, ds_shape shape)
{
    return (ds_meta){type, shape};
}

/* Adds zeros, infinities, NaN and subnormals to a tensor. */
static void sprinkle(ds_tensor *t)
{
    static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, 3e38f, -1e-38f};
    const size_t n = (size_t)ds_shape_count(t->meta.shape);
    for (size_t i = 0; i < 8 && i * 3 + 1 < n; ++i) {
        write_element(t->data, t->meta.dtype, i * 3 + 1, odd[i]);
    }
}

static void flush_subnormals(ds_tensor *t)
{
    const size_t n = (size_t)ds_shape_count(t->meta.shape);
    for (size_t i = 0; i < n; ++i) {
        const float v = read_element(t->data, t->meta.dtype, i);
        write_element(t->data, t->meta.dtype, i, fabsf(v) < 0x1p-126f ? 0.0f : v);
    }
}

static void unary_and_binary(void **state)
{
    static const char *const exact[] = {"neg", "sqrt", "relu", "square", "scale"};
    static const char *const close[] = {"exp", "log", "tanh", "sigmoid"};
    static const char *const two[] = {"add", "sub", "mul", "div", "relu_backward"};
    (void)state;
    ds_ctx *ctx = new_ctx(3);
    const dsi_scale_attrs factor = {0.3};
    FOR_TYPES(type) FOR_SIZES(n)
    {
        for (size_t k = 0; k < 9; ++k) {
            op_case c = {.op = k < 5 ? exact[k] : close[k - 5],
                         .attrs = &factor,
                         .in = {noise(type, ds_shape_1d(n), 1, 3.0f)},
                         .n_in = 1,
                         .out = {meta_of(type, ds_shape_1d(n))},
                         .n_out = 1,
                         .tolerance = k < 5 ? 0.0 : 3e-7};
            if (n > 30 && strcmp(c.op, "sqrt") != 0) { /* the sign of its NaN is open */
                sprinkle(&c.in[0]);
            }
            if (strcmp(c.op, "log") == 0) { /* subnormals count as 0 here, not in the C library */
                flush_subnormals(&c.in[0]);
            }
            check_case(ctx, &c);
        }
        for (size_t k = 0; k < 5 * 4; ++k) { /* whole, a row, a scalar f32, f32 against type */
            const int64_t rows = k % 4 == 1 ? 3 : 1;
            const ds_shape b_shape = k % 4 == 2 ? (ds_shape){0} : ds_shape_1d(n);
            const ds_dtype b_type = k % 4 >= 2 ? DS_DTYPE_F32 : type;
            op_case c = {
                .op = two[k / 4],
                .in = {noise(type, ds_shape_2d(rows, n), 1, 3.0f), noise(b_type, b_shape, 2, 2.0f)},
                .n_in = 2,
                .out = {meta_of(type, ds_shape_2d(rows, n))},
                .n_out = 1};
            check_case(ctx, &c);
        }
    }
    ds_ctx_destroy(&ctx);
}

static void activations(void **state)
{
    (void)state;
    ds_ctx *ctx = new_ctx(3);
    FOR_TYPES(type) FOR_SIZES(n)
    {
        for (int64_t kind = 0; kind < 4; ++kind) {
            const dsi_act_attrs attrs = {kind};
            const ds_meta like = meta_of(type, ds_shape_1d(n));
            const ds_shape s = like.shape;
            op_case forward = {.op = "activation", .attrs = &attrs, .n_in = 1, .n_out = 1};
            op_case backward = {
                .op = "activation_backward", .attrs = &attrs, .n_in = 2, .n_out = 1};
            op_case glu = {.op = "glu", .attrs = &attrs, .n_in = 2, .n_out = 1};
            op_case glu_back = {.op = "glu_backward", .attrs = &attrs, .n_in = 3, .n_out = 2};
            op_case *all[] = {&forward, &backward, &glu, &glu_back};
            for (int k = 0; k < 4; ++k) {
                for (uint32_t i = 0; i < all[k]->n_in; ++i) {
                    all[k]->in[i] = noise(type, s, 3 + i, i == (uint32_t)k % 2 ? 4.0f : 1.0f);
                }
                all[k]->out[0] = like;
                all[k]->out[1] = like;
                /* the reference's own derivative cancels far from 0 */
                all[k]->tolerance = k % 2 == 0 ? 2e-6 : 1e-5;
                check_case(ctx, all[k]);
            }
        }
    }
    ds_ctx_destroy(&ctx);
}

static void casts_and_cells(void **state)
{
    (void)state;
    ds_ctx *ctx = new_ctx(3);
    FOR_TYPES(from) FOR_TYPES(to) FOR_SIZES(n)
    {
        const dsi_cast_attrs attrs = {to};
        const ds_shape s = ds_shape_1d(n);
        op_case cast = {.op = "cast",
                        .attrs = &attrs,
                        .in = {noise(from, s, 1, 100.0f)},
                        .n_in = 1,
                        .out = {meta_of(to, s)},
                        .n_out = 1};
        op_case store = {.op = "store",
                         .in = {noise(to, s, 2, 1.0f), noise(from, s, 3, 1e-5f)},
                         .n_in = 2,
                         .n_out = 1,
                         .written = {1}};
        op_case add = {.op = "accumulate",
                       .in = {noise(to, s, 2, 1.0f), noise(from, s, 3, 0.1f)},
                       .n_in = 2,
                       .n_out = 1,
                       .written = {1}};
        sprinkle(&cast.in[0]);
        check_case(ctx, &cast);
        check_case(ctx, &store);
        check_case(ctx, &add);
    }
    ds_ctx_destroy(&ctx);
}

static void optimizers(void **state)
{
    static const char *const names[] = {"adam", "sgd", "lion", "adagrad"};
    static const uint32_t n_states[] = {2, 1, 1, 1};
    (void)state;
    ds_ctx *ctx = new_ctx(3);
    for (int k = 0; k < 4 * 3 * 3 * 2 * 4; ++k) {
        const int opt = k % 4;
        const ds_dtype param = check_types[k / 4 % 3];
        const ds_dtype grad = check_types[k / 12 % 3];
        const ds_dtype st = k / 36 % 2 == 0 ? DS_DTYPE_F32 : DS_DTYPE_BF16;
        const int variant = k / 72;
        const int64_t n = sizes[(size_t)k % 8];
        const ds_shape s = ds_shape_1d(n);
        const dsi_optim_attrs attrs = {
            .eps = 1e-8, .adamw = variant & 1, .dampening = 0.1, .nesterov = variant >> 1};
        const bool master = param != DS_DTYPE_F32;
        const uint32_t states = opt == 1 && variant == 3 ? 0 : n_states[opt];
        op_case c = {.op = names[opt], .attrs = &attrs, .n_in = 5 + states, .n_out = 2 + states};
        c.in[0] = noise(param, s, 1, 0.5f);
        c.in[1] = noise(grad, s, 2, 0.1f);
        for (int64_t i = 5; i < n; i += 77) {
            write_element(c.in[1].data, grad, (size_t)i,
                          nanf("0x3fffff")); /* rounded, it would carry */
        }
        c.in[2] = noise(DS_DTYPE_F32, ds_shape_1d(DSI_HYPER_COUNT), 9, 0.0f);
        float *hyper = c.in[2].data;
        const float values[DSI_HYPER_COUNT] = {1e-2f,
                                               0.9f,
                                               0.99f,
                                               (variant & 2) != 0 ? 0.0f : 0.1f,
                                               0.1f,
                                               0.3f,
                                               variant == 1 ? 1.0f : 0.0f};
        memcpy(hyper, values, sizeof values);
        c.in[3] = noise(DS_DTYPE_F32, (ds_shape){0}, 8, 1.0f);
        c.in[4] = master ? noise(DS_DTYPE_F32, s, 1, 0.5f) : absent;
        for (uint32_t i = 0; i < states; ++i) {
            c.in[5 + i] = noise(st, s, 4 + i, 0.1f);
        }
        for (int64_t i = 0; i < n; ++i) { /* second moments are not negative */
            if (c.n_in > 6) {
                write_element(c.in[6].data, st, (size_t)i,
                              fabsf(read_element(c.in[6].data, st, (size_t)i)));
            } else if (opt == 3) {
                write_element(c.in[5].data, st, (size_t)i,
                              fabsf(read_element(c.in[5].data, st, (size_t)i)));
            }
        }
        c.written[0] = 1;
        c.written[1] = 5;
        c.written[2] = 6;
        c.written[3] = 7;
        check_case(ctx, &c);
    }
    ds_ctx_destroy(&ctx);
}

static void norms_of_gradients(void **state)
{
    (void)state;
    ds_ctx *ctx = new_ctx(3);
    FOR_TYPES(type) FOR_SIZES(n)
    {
        for (int k = 0; k < 3; ++k) {
            op_case top = {.op = "abs_max",
                           .in = {noise(type, ds_shape_1d(n), 1, 0.1f)},
                           .n_in = 1,
                           .out = {meta_of(DS_DTYPE_F32, (ds_shape){0})},
                           .n_out = 1,
                           .tolerance = 1e-30};
            op_case sum = {.op = "sum_squares",
                           .in = {noise(type, ds_shape_1d(n), 1, 0.1f),
                                  noise(DS_DTYPE_F32, (ds_shape){0}, 1, 0.0f)},
                           .n_in = 2,
                           .out = {meta_of(DS_DTYPE_F64, ds_shape_1d(2))},
                           .n_out = 1};
            *(float *)sum.in[1].data = k == 0 ? 1.0f : k == 1 ? INFINITY : 77.0f;
            if (k > 0) {
                write_element(top.in[0].data, type, (size_t)n / 2, k == 1 ? -INFINITY : NAN);
            }
            check_case(ctx, &top);
            check_case(ctx, &sum);
        }
    }
    ds_ctx_destroy(&ctx);
}

static void dropout_is_the_reference(void **state)
{
    (void)state;
    ds_ctx *ctx = new_ctx(3);
    FOR_TYPES(type) FOR_SIZES(n)
    {
        for (int k = 0; k < 3; ++k) {
            const dsi_dropout_attrs attrs = {.p = k == 0   ? 0.1
                                                  : k == 1 ? 0.0
                                                           : 0.53,
                                             .site = 11 + k};
            op_case c = {.op = "dropout",
                         .attrs = &attrs,
                         .in = {noise(type, ds_shape_2d(3, n), 1, 1.0f),
                                new_tensor(DS_DTYPE_I64, ds_shape_1d(4))},
                         .n_in = 2,
                         .out = {meta_of(type, ds_shape_2d(3, n))},
                         .n_out = 1};
            int64_t *rng = c.in[1].data;
            rng[0] = 0x123456789abcdefLL;
            rng[1] = 77;
            rng[2] = k == 2 ? 1LL << 33 : 5; /* counters beyond 32 bits too */
            check_case(ctx, &c);
        }
    }
    ds_ctx_destroy(&ctx);
}

static ds_tensor ids_below(int64_t n, int32_t limit, uint32_t site)
{
    ds_tensor t = new_tensor(DS_DTYPE_I32, ds_shape_1d(n));
    for (int64_t i = 0; i < n; ++i) {
        ((int32_t *)t.data)[i] = (int32_t)dsi_rng_below(3, site, (uint64_t)i, (uint64_t)limit);
    }
    return t;
}

static void embeddings(void **state)
{
    static const int64_t widths[] = {1, 16, 77, 300};
    (void)state;
    ds_ctx *ctx = new_ctx(3);
    FOR_TYPES(type)
    {
        for (int k = 0; k < 8; ++k) {
            const int64_t C = widths[k / 2];
            const int64_t n = 500;
            const ds_shape rows = ds_shape_2d(n, C);
            op_case look = {.op = "embedding",
                            .in = {noise(type, ds_shape_2d(50, C), 1, 1.0f), ids_below(n, 50, 1),
                                   k % 2 == 0 ? absent : noise(type, ds_shape_2d(9, C), 2, 1.0f),
                                   k % 2 == 0 ? absent : ids_below(n, 9, 2)},
                            .n_in = 4,
                            .out = {meta_of(type, rows)},
                            .n_out = 1};
            const dsi_embedding_dw_attrs attrs = {50};
            op_case back = {
                .op = "embedding_dw",
                .attrs = &attrs,
                .in = {ids_below(n, 50, 1), noise(type, rows, 3, 1.0f),
                       k % 2 == 0 ? absent : noise(DS_DTYPE_F32, ds_shape_2d(50, C), 4, 1.0f)},
                .n_in = 3,
                .out = {meta_of(DS_DTYPE_F32, ds_shape_2d(50, C))},
                .n_out = 1};
            check_case(ctx, &look);
            check_case(ctx, &back);
        }
    }
    ds_ctx_destroy(&ctx);
}

static void bad_ids_are_named(void **state)
{
    (void)state;
    ds_ctx *ctx = new_ctx(1);
    static const ds_op op = {.name = "embedding"};
    ds_tensor in[2] = {noise(DS_DTYPE_F32, ds_shape_2d(4, 8), 1, 1.0f), ids_below(5, 4, 1)};
    ((int32_t *)in[1].data)[3] = 4;
    const ds_tensor out = new_tensor(DS_DTYPE_F32, ds_shape_2d(5, 8));
    const ds_meta in_meta[2] = {in[0].meta, in[1].meta};
    const ds_kernel_sig sig = {&op, NULL, 2, 1, in_meta, &out.meta, 1};
    FOR_ISAS(isa)
    {
        if (cpu_has(isa)) {
            const ds_kernel_call call = {ctx, &sig, in, &out, NULL};
            CHECK_FAILS(ctx, dsi_cpu_kernel_choose(&sig, isa)->run(&call), DS_ERR_ARG,
                        "id[3] is 4, but the table has 4 rows");
        }
    }
    free(in[0].data);
    free(in[1].data);
    free(out.data);
    ds_ctx_destroy(&ctx);
}

static void sums_and_softmax(void **state)
{
    (void)state;
    ds_ctx *ctx = new_ctx(3);
    FOR_TYPES(type) FOR_SIZES(n)
    {
        const int64_t rows = n > 2000 ? 2 : 37;
        const ds_shape s = ds_shape_2d(rows, n);
        const ds_meta like = meta_of(type, s);
        const ds_meta scalar = meta_of(DS_DTYPE_F32, (ds_shape){0});
        const ds_meta by_row = meta_of(DS_DTYPE_F32, ds_shape_1d(rows));
        const ds_meta by_column = meta_of(DS_DTYPE_F32, ds_shape_1d(n));
        const double sum_limit = 1e-6 * sqrt((double)(rows * n)) + 1e-6;
        op_case cases[] = {
            {.op = "sum_all", .out = {scalar}, .tolerance = 30 * sum_limit},
            {.op = "mean_all", .out = {scalar}, .tolerance = 1e-5},
            {.op = "sum_last", .out = {by_row}, .tolerance = 30 * sum_limit},
            {.op = "sum_rows", .out = {by_column}, .tolerance = 1e-5},
            {.op = "softmax", .out = {like}, .tolerance = 1e-6},
            {.op = "softmax_backward", .out = {like}, .tolerance = 2e-5},
            {.op = "fill", .out = {like}},
            {.op = "expand_last", .out = {like}},
            {.op = "expand_rows", .out = {like}},
        };
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; ++k) {
            op_case *c = &cases[k];
            c->n_out = 1;
            c->n_in = k < 5 ? 1 : 2;
            c->in[0] = noise(type, s, 1, 1.0f);
            if (k == 5) {
                c->in[1] = noise(type, s, 2, 0.01f);
            } else if (k == 6) {
                c->in[1] = noise(DS_DTYPE_F32, (ds_shape){0}, 2, 1.0f);
            } else if (k > 6) {
                c->in[1] = c->in[0];
                c->in[0] = noise(DS_DTYPE_F32, ds_shape_1d(k == 7 ? rows : n), 2, 1.0f);
            }
            check_case(ctx, c);
        }
    }
    ds_ctx_destroy(&ctx);
}

static void shapes(void **state)
{
    (void)state;
    ds_ctx *ctx = new_ctx(3);
    static const ds_dtype types[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_I64};
    for (int k = 0; k < 9; ++k) {
        const int64_t dim = k % 3;
        const ds_dtype type = types[k / 3];
        int64_t dims[3] = {5, 13, 66};
        const ds_shape s = ds_shape_of(3, dims);
        const dsi_permute_attrs order = {3, {dim, (dim + 1) % 3, (dim + 2) % 3}};
        const dsi_slice_attrs part = {dim, 1, 3};
        const dsi_pad_attrs around = {dim, 2, 1};
        const dsi_concat_attrs join = {dim};
        ds_shape permuted = s;
        for (int i = 0; i < 3; ++i) {
            permuted.dims[i] = dims[order.order[i]];
        }
        ds_shape sliced = s;
        ds_shape padded = s;
        ds_shape joined = s;
        sliced.dims[dim] = 3;
        padded.dims[dim] += 3;
        joined.dims[dim] = 2 * joined.dims[dim] + 3;
        op_case cases[] = {
            {.op = "permute", .attrs = &order, .n_in = 1, .out = {meta_of(type, permuted)}},
            {.op = "slice", .attrs = &part, .n_in = 1, .out = {meta_of(type, sliced)}},
            {.op = "pad", .attrs = &around, .n_in = 1, .out = {meta_of(type, padded)}},
            {.op = "concat", .attrs = &join, .n_in = 3, .out = {meta_of(type, joined)}},
        };
        for (int i = 0; i < 4; ++i) {
            cases[i].n_out = 1;
            for (uint32_t j = 0; j < cases[i].n_in; ++j) {
                cases[i].in[j] = new_tensor(type, j == 1 ? sliced : s);
                const size_t bytes = ds_meta_bytes(cases[i].in[j].meta);
                for (size_t b = 0; b < bytes; ++b) {
                    ((unsigned char *)cases[i].in[j].data)[b] = (unsigned char)(b * 37 + j);
                }
            }
            check_case(ctx, &cases[i]);
        }
    }
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_and_binary),   cmocka_unit_test(activations),
        cmocka_unit_test(casts_and_cells),    cmocka_unit_test(optimizers),
        cmocka_unit_test(norms_of_gradients), cmocka_unit_test(dropout_is_the_reference),
        cmocka_unit_test(embeddings),         cmocka_unit_test(bad_ids_are_named),
        cmocka_unit_test(sums_and_softmax),   cmocka_unit_test(shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
