/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of `cuda`, on the host layer, with numbers that are not finite at random places of
 * queries, keys, values and gradients, also where masks hide them: what they reach is what they
 * reach in the reference kernel, and everything else has the bits that it has without them. What an
 * element depends on is asked of the reference kernel too, in fp32, by other finite numbers in the
 * same places. DS_CUDA_TRIALS=N: so many draws of each case. labels: threads */
#include "accel/cuda/host/launch_host.h"
#include "base/half.h"
#include "base/rng.h"
#include "common/check.h"
#include "op/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRIALS = 1, MOST_ODD = 3, CHANGES = 2 };

/* A row names only what matters to it. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define ATT(...)                                                                                   \
    &(const dsi_attention_attrs)                                                                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define PART(...)                                                                                  \
    &(const dsi_attention_part_attrs)                                                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define PAGED(...)                                                                                 \
    &(const dsi_paged_attrs)                                                                       \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define FORWARD(...)                                                                               \
    &(const op_forward)                                                                            \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

#define GROUPED .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .scale = 0.25
#define WIDE    .n_heads = 2, .n_kv_heads = 1, .head_dim = 128, .causal = 1, .scale = 0.09
#define ODD     .n_heads = 2, .n_kv_heads = 2, .head_dim = 13, .causal = 1, .scale = 0.3
#define PACKED                                                                                     \
    .n_heads = 3, .n_kv_heads = 3, .head_dim = 8, .causal = 1, .scale = 0.35, .packed = 1,         \
    .dropout = 0.25, .site = 5
#define RING                                                                                       \
    .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .causal = 1, .scale = 0.35, .all_keys = 200

/* The label says what the case is for. */
static const op_case cases[] = {
    {&dsi_op_attention, "documents, window",
     "act[1,133,64] act[1,133,32] act[1,133,32] i32[1,133]d",
     ATT(GROUPED, .causal = 1, .window = 4)},
    {&dsi_op_attention, "wide", "act[1,70,256] act[1,70,128] act[1,70,128]", ATT(WIDE)},
    {&dsi_op_attention, "odd head, window", "act[1,70,26] act[1,70,26] act[1,70,26]",
     ATT(ODD, .window = 9)},
    {&dsi_op_attention, "dropout", "act[2,17,72] - - - - i64[4]r", ATT(PACKED)},
    {&dsi_op_attention_backward, "documents, window",
     "act[1,133,64] act[1,133,64] act[1,133,32] act[1,133,32] act[1,133,64] stat[1,4,133] "
     "i32[1,133]d",
     ATT(GROUPED, .causal = 1, .window = 4),
     .forward = FORWARD(&dsi_op_attention, ATT(GROUPED, .causal = 1, .window = 4), 4, {1, 2, 3, 6},
                        {4, 5})},
    {&dsi_op_attention_backward, "documents to both sides",
     "act[1,133,64] act[1,133,64] act[1,133,32] act[1,133,32] act[1,133,64] stat[1,4,133] "
     "i32[1,133]d - - - - i32[1,133]D",
     ATT(GROUPED, .window = 3),
     .forward = FORWARD(&dsi_op_attention, ATT(GROUPED, .window = 3), 10,
                        {1, 2, 3, 6, -1, -1, -1, -1, -1, 11}, {4, 5})},
    {&dsi_op_attention_backward, "wide",
     "act[1,70,256] act[1,70,256] act[1,70,128] act[1,70,128] act[1,70,256] stat[1,2,70]",
     ATT(WIDE), .forward = FORWARD(&dsi_op_attention, ATT(WIDE), 3, {1, 2, 3}, {4, 5})},
    {&dsi_op_attention_backward, "odd head, window",
     "act[1,70,26] act[1,70,26] act[1,70,26] act[1,70,26] act[1,70,26] stat[1,2,70]",
     ATT(ODD, .window = 9),
     .forward = FORWARD(&dsi_op_attention, ATT(ODD, .window = 9), 3, {1, 2, 3}, {4, 5})},
    {&dsi_op_attention_backward, "dropout",
     "act[2,17,24] act[2,17,72] - - act[2,17,24] stat[2,3,17] - i64[4]r", ATT(PACKED),
     .forward = FORWARD(&dsi_op_attention, ATT(PACKED), 6, {1, -1, -1, -1, -1, 7}, {4, 5})},
    {&dsi_op_attention_part, "of a ring, documents, dropout",
     "act[2,14,32] act[2,14,16] act[2,14,16] i32[14]p2 i32[14]p2 i32[2,14]d i64[4]r - "
     "stat[2,14,32] stat[2,4,14]",
     PART(RING, .part = 14, .last = 1, .dropout = 0.25, .site = 5)},
    {&dsi_op_attention_part, "of a ring, window",
     "act[1,80,32] act[1,80,16] act[1,80,16] i32[80]p20 i32[80]p10",
     PART(RING, .part = 40, .window = 5)},
    {&dsi_op_attention_part_backward, "of a ring, window",
     "act[1,80,32] act[1,80,32] act[1,80,16] act[1,80,16] act[1,80,32] stat[1,4,80] i32[80]p20 "
     "i32[80]p20 - - - stat[1,80,32] stat[1,80,16] stat[1,80,16]",
     PART(RING, .part = 40, .last = 1, .window = 5),
     .forward = FORWARD(&dsi_op_attention_part, PART(RING, .part = 40, .last = 1, .window = 5), 5,
                        {1, 2, 3, 6, 7}, {4, 5})},
    {&dsi_op_paged_attention, "some sequences",
     "act[1,19,64] act[5,64,32] act[5,64,32] i32[3,4]<5 i32[19]<3 i32[1,19]<256", PAGED(GROUPED)},
    {&dsi_op_paged_attention, "prompt, window",
     "act[1,70,45] act[2,128,15] act[2,128,15] i32[1,2]<2 i32[70]<1 i32[1,70]p",
     PAGED(.n_heads = 9, .n_kv_heads = 3, .head_dim = 5, .scale = 0.45, .window = 9)},
    {&dsi_op_paged_attention, "wide heads, window",
     "act[1,9,512] act[5,64,256] act[5,64,256] i32[2,5]<5 i32[9]<2 i32[1,9]<320",
     PAGED(.n_heads = 4, .n_kv_heads = 2, .head_dim = 128, .scale = 0.09, .window = 67)},
};

enum { N_CASES = sizeof cases / sizeof cases[0] };

/* What all cases of a dtype have seen, so that a test of nothing fails. */
typedef struct counts {
    uint64_t reached, near, kept;
} counts;

/* Places of a trial: element at[i] of operand of[i]. */
typedef struct places {
    uint32_t n, of[MOST_ODD];
    int64_t at[MOST_ODD];
} places;

typedef struct copies {
    void *of[DS_MAX_OUT];
} copies;

/* Elements of output k. */
static int64_t count_of(const op_operands *o, uint32_t k)
{
    return o->out[k].data != NULL ? ds_shape_count(o->out_meta[k].shape) : 0;
}

static copies copy_outputs(const op_operands *o)
{
    copies c = {{NULL}};
    for (uint32_t k = 0; k < o->sig.n_out; ++k) {
        const size_t bytes = o->out[k].data != NULL ? ds_meta_bytes(o->out_meta[k]) : 0;
        c.of[k] = malloc(bytes + 1);
        assert_non_null(c.of[k]);
        memcpy(c.of[k], bytes > 0 ? o->out[k].data : "", bytes);
    }
    return c;
}

static void free_copies(copies *c, uint32_t n)
{
    for (uint32_t k = 0; k < n; ++k) {
        free(c->of[k]);
    }
}

static void set_bits(void *t, ds_dtype dtype, int64_t i, float value)
{
    if (dtype == DS_DTYPE_F32) {
        ((float *)t)[i] = value;
    } else {
        ((uint16_t *)t)[i] =
            dtype == DS_DTYPE_BF16 ? dsi_f32_to_bf16(value) : dsi_f32_to_f16(value);
    }
}

/* Operands that are numbers of the dtype under test and that no forward run has left. */
static bool is_given(const op_operands *o, uint32_t i)
{
    bool given = o->in[i].data != NULL && o->in_meta[i].dtype == o->act;
    const op_forward *f = o->c->forward;
    for (uint32_t k = 0; f != NULL && k < f->op->n_out; ++k) {
        given = given && f->to[k] != (int8_t)i;
    }
    /* what parts before gave has the dtype only in fp32 */
    return given && i < (f != NULL ? 4u : 3u);
}

static places draw_places(const op_operands *o, uint64_t seed)
{
    uint32_t given[DS_MAX_IN];
    uint32_t n = 0;
    places p = {.n = 1 + (uint32_t)(seed % MOST_ODD)};
    for (uint32_t i = 0; i < o->sig.n_in; ++i) {
        if (is_given(o, i)) {
            given[n++] = i;
        }
    }
    for (uint32_t i = 0; i < p.n; ++i) {
        p.of[i] = given[dsi_rng_u32(seed, 1, 0, i) % n];
        p.at[i] = dsi_rng_u32(seed, 2, 0, i) % ds_shape_count(o->in_meta[p.of[i]].shape);
    }
    return p;
}

/* value(user, i): what place i gets. Then the reference's forward run, so that what it leaves is of
 * these operands. */
static void put(ds_ctx *ctx, op_operands *o, const places *p, const float *values)
{
    for (uint32_t i = 0; i < p->n; ++i) {
        set_bits(o->original[p->of[i]], o->in_meta[p->of[i]].dtype, p->at[i], values[i]);
    }
    if (o->c->forward != NULL) {
        CHECK_OK(ctx, op_operands_forward(ctx, o));
    }
}

static void values_at(const op_operands *o, const places *p, float *values)
{
    for (uint32_t i = 0; i < p->n; ++i) {
        const ds_tensor t = {o->original[p->of[i]], o->in_meta[p->of[i]]};
        values[i] = (float)op_element(&t, p->at[i]);
    }
}

/* One byte an element of an output: whether other numbers in these places change it. plain: the
 * case in fp32. */
static copies find_touched(ds_ctx *ctx, op_operands *plain, const places *p)
{
    float own[MOST_ODD];
    const ds_kernel *reference = op_reference(&plain->sig);
    CHECK_OK(ctx, op_operands_run(ctx, plain, reference, false));
    copies before = copy_outputs(plain);
    copies touched = copy_outputs(plain);
    values_at(plain, p, own);
    for (int change = 0; change < CHANGES; ++change) {
        float other[MOST_ODD];
        for (uint32_t i = 0; i < p->n; ++i) {
            other[i] = change == 0 ? own[i] + 0.75f : -1.5f * own[i] - 0.5f;
        }
        put(ctx, plain, p, other);
        CHECK_OK(ctx, op_operands_run(ctx, plain, reference, false));
        for (uint32_t k = 0; k < plain->sig.n_out; ++k) {
            uint8_t *marks = touched.of[k];
            const uint32_t *bits = plain->out[k].data;
            for (int64_t i = 0; i < count_of(plain, k); ++i) {
                const bool same = bits[i] == ((const uint32_t *)before.of[k])[i];
                marks[i] = (uint8_t)(!same || (change > 0 && marks[i] != 0));
            }
        }
    }
    put(ctx, plain, p, own);
    free_copies(&before, plain->sig.n_out);
    return touched;
}

/* The root of the mean square of those of n elements that are finite. */
static double scale_of(const ds_tensor *t, int64_t n)
{
    double sum = 0.0;
    int64_t n_finite = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double x = op_element(t, i);
        sum += isfinite(x) ? x * x : 0.0;
        n_finite += isfinite(x) ? 1 : 0;
    }
    return n_finite > 0 ? sqrt(sum / (double)n_finite) : 0.0;
}

/* want: the reference's outputs, without: the kernel's own of the operands as they were. */
static int compare(const op_operands *o, const ds_kernel *kernel, uint64_t trial,
                   const copies *want, const copies *without, const copies *touched, counts *c)
{
    const double step = o->act == DS_DTYPE_BF16 ? 0x1p-5 : o->act == DS_DTYPE_F16 ? 0x1p-8 : 1e-4;
    for (uint32_t k = 0; k < o->sig.n_out; ++k) {
        const ds_tensor reference = {want->of[k], o->out_meta[k]};
        const ds_tensor before = {without->of[k], o->out_meta[k]};
        const double scale = scale_of(&reference, count_of(o, k));
        const size_t each = ds_dtype_bytes(o->out_meta[k].dtype);
        for (int64_t i = 0; i < count_of(o, k); ++i) {
            const double got = op_element(&o->out[k], i);
            const double wanted = op_element(&reference, i);
            const bool same = memcmp((const char *)o->out[k].data + (size_t)i * each,
                                     (const char *)without->of[k] + (size_t)i * each, each) == 0;
            const bool is_touched = ((const uint8_t *)touched->of[k])[i] != 0;
            const bool near = fabs(got - wanted) <= step * (fabs(wanted) + scale);
            if (isfinite(wanted) ? !isfinite(got) || (is_touched ? !near : !same) : isfinite(got)) {
                print_error(
                    "%s (%s) %s kernel %s trial %d: output %u element %lld is %g, reference "
                    "%g, without %g, %s\n",
                    o->c->op->name, o->c->label, ds_dtype_name(o->act), kernel->name, (int)trial, k,
                    (long long)i, got, wanted, op_element(&before, i),
                    is_touched ? "reached" : "not reached");
                return 1;
            }
            c->reached += !isfinite(wanted) ? 1 : 0;
            c->near += isfinite(wanted) && is_touched ? 1 : 0;
            c->kept += isfinite(wanted) && !is_touched ? 1 : 0;
        }
    }
    return 0;
}

static int check_trial(ds_ctx *ctx, op_operands *o, op_operands *plain, uint64_t seed, counts *c)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN};
    const places p = draw_places(o, seed);
    const ds_kernel *kernel;
    float own[MOST_ODD];
    float put_in[MOST_ODD];
    int failures = 0;
    copies touched = find_touched(ctx, plain, &p);
    values_at(o, &p, own);
    for (uint32_t i = 0; i < p.n; ++i) {
        put_in[i] = odd[(seed / MOST_ODD + i) % 3];
    }
    dsc_host_set_order((uint32_t)(seed % 4));
    put(ctx, o, &p, put_in);
    CHECK_OK(ctx, op_operands_run(ctx, o, op_reference(&o->sig), false));
    copies want = copy_outputs(o);
    for (uint32_t i = 0; (kernel = dsc_kernel_at(&o->sig, i)) != NULL; ++i) {
        put(ctx, o, &p, own);
        CHECK_OK(ctx, op_operands_run(ctx, o, kernel, false));
        copies without = copy_outputs(o);
        put(ctx, o, &p, put_in);
        CHECK_OK(ctx, op_operands_run(ctx, o, kernel, false));
        failures += compare(o, kernel, seed, &want, &without, &touched, c);
        free_copies(&without, o->sig.n_out);
    }
    put(ctx, o, &p, own);
    free_copies(&want, o->sig.n_out);
    free_copies(&touched, o->sig.n_out);
    return failures;
}

static void what_is_not_finite_reaches_what_it_reaches_in_the_reference(void **state)
{
    static const ds_dtype dtypes[] = {DS_DTYPE_BF16, DS_DTYPE_F16, DS_DTYPE_F32};
    const char *more = getenv("DS_CUDA_TRIALS");
    const uint64_t n = more != NULL ? strtoull(more, NULL, 10) : TRIALS;
    int failures = 0;
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; ++d) {
        counts c = {0, 0, 0};
        for (size_t i = 0; i < N_CASES; ++i) {
            op_operands o;
            op_operands plain;
            CHECK_OK(*state, op_operands_create(*state, &cases[i], dtypes[d], &o));
            CHECK_OK(*state, op_operands_create(*state, &cases[i], DS_DTYPE_F32, &plain));
            for (uint64_t trial = 0; trial < n; ++trial) {
                failures += check_trial(*state, &o, &plain, n * (d * N_CASES + i) + trial, &c);
            }
            op_operands_destroy(&o);
            op_operands_destroy(&plain);
        }
        print_message("%s: %llu elements not finite, %llu near, %llu with their bits\n",
                      ds_dtype_name(dtypes[d]), (unsigned long long)c.reached,
                      (unsigned long long)c.near, (unsigned long long)c.kept);
        assert_true(c.reached > 0 && c.near > 0 && c.kept > 0);
    }
    dsc_host_set_order(0);
    assert_int_equal(failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_finite_reaches_what_it_reaches_in_the_reference),
    };
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
