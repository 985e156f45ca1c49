/* SPDX-License-Identifier: Apache-2.0 */
/* Products of the accelerator `cuda` by cuBLASLt, over stand-ins of the driver (standin/) and of
 * the library (standin_lt/): what the operator harness asks of linear and linear_dw, by each of
 * four algorithms; one algorithm for a product, chosen once; the plan names it and has its
 * workspace.
 * labels: slow */
#include "accel/accel.h"
#include "common/check.h"
#include "common/device_run.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "common/standin_load.h"
#include "op/harness.h"
#include "plan/plan.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;
static const ds_accel *cuda;
static ds_accel_device *device;
static ds_accel_stream *stream;

static struct {
    void (*first)(uint32_t first);
    uint64_t (*asked)(void);
    uint64_t (*ran)(void);
} lt;

static bool find(const char *name, void *slot)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(slot, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* What a plan would have for the step, where that is a call of the library. */
static const ds_kernel *at(const ds_kernel_sig *sig, uint32_t index)
{
    const ds_kernel *chosen = cuda->kernels->choose(sig, 0);
    const bool is_lt = chosen != NULL && strncmp(chosen->name, "cublaslt_", 9) == 0;
    return is_lt && index == 0 ? device_run_kernel(chosen) : NULL;
}

static bool is_product(const op_case *c)
{
    return strcmp(c->op->name, "linear") == 0 || strcmp(c->op->name, "linear_dw") == 0;
}

static void products_agree_with_the_reference(void **state)
{
    ds_ctx *three = check_ctx(3);
    uint32_t n = 0;
    uint32_t n_cases = 0;
    int failures = 0;
    (void)state;
    for (const op_case *c = op_cases; c->op != NULL; ++c) {
        if (is_product(c)) {
            lt.first(n_cases++);
            failures += op_compare_kernels(ctx, three, c, at, &n);
        }
    }
    ds_ctx_destroy(&three);
    print_message("%u cases, %u runs, %llu products\n", n_cases, n, (unsigned long long)lt.ran());
    assert_int_equal(failures, 0);
    assert_true(n > 20);
}

/* The bits of a case's output 0, by what is chosen for it now. */
static uint64_t bits_of(const op_case *c, ds_dtype act, const ds_kernel **kernel_out)
{
    op_operands o;
    uint64_t hash = 14695981039346656037u;
    CHECK_OK(ctx, op_operands_create(ctx, c, act, &o));
    const ds_kernel *wrapper = at(&o.sig, 0);
    assert_non_null(wrapper);
    *kernel_out = cuda->kernels->choose(&o.sig, 0);
    CHECK_OK(ctx, op_operands_run(ctx, &o, wrapper, false));
    const unsigned char *bytes = o.out[0].data;
    for (size_t i = 0; i < ds_meta_bytes(o.out[0].meta); ++i) {
        hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    op_operands_destroy(&o);
    return hash;
}

static const dsi_linear_attrs plain;

/* Shapes that no other test asks for. */
static void a_product_has_one_algorithm(void **state)
{
    static const op_case a = {
        .op = &dsi_op_linear, .label = "once", .in = "act[37,51] act[29,51]", .attrs = &plain};
    static const op_case same_shape = {
        .op = &dsi_op_linear, .label = "again", .in = "act[37,51] act[29,51]", .attrs = &plain};
    static const op_case other = {
        .op = &dsi_op_linear, .label = "other", .in = "act[37,51] act[31,51]", .attrs = &plain};
    const ds_kernel *first = NULL;
    const ds_kernel *second = NULL;
    (void)state;
    lt.first(2);
    const uint64_t before = lt.asked();
    const uint64_t bits = bits_of(&a, DS_DTYPE_F32, &first);
    assert_int_equal(lt.asked(), before + 1);
    assert_string_equal(first->name, "cublaslt_7_tile1_stages1_split3");
    lt.first(0);
    assert_true(bits_of(&same_shape, DS_DTYPE_F32, &second) == bits);
    assert_ptr_equal(first, second);
    assert_int_equal(lt.asked(), before + 1);
    (void)bits_of(&other, DS_DTYPE_F32, &second);
    assert_string_equal(second->name, "cublaslt_7_tile1_stages1_split1");
    (void)bits_of(&a, DS_DTYPE_BF16, &second);
    assert_int_equal(lt.asked(), before + 3);
}

/* An algorithm that adds otherwise is seen in the bits: else the test above shows nothing. */
static void algorithms_differ(void **state)
{
    static const op_case rows[] = {
        {.op = &dsi_op_linear, .in = "act[38,52] act[29,52]", .attrs = &plain},
        {.op = &dsi_op_linear, .in = "act[38,52] act[29,52] act[29]", .attrs = &plain},
    };
    op_operands o;
    op_operands p;
    (void)state;
    CHECK_OK(ctx, op_operands_create(ctx, &rows[0], DS_DTYPE_F32, &o));
    CHECK_OK(ctx, op_operands_create(ctx, &rows[1], DS_DTYPE_F32, &p));
    memset(p.in[2].data, 0, ds_meta_bytes(p.in[2].meta));
    memset(p.original[2], 0, ds_meta_bytes(p.in[2].meta));
    lt.first(0);
    CHECK_OK(ctx, op_operands_run(ctx, &o, at(&o.sig, 0), false));
    lt.first(3);
    CHECK_OK(ctx, op_operands_run(ctx, &p, at(&p.sig, 0), false));
    assert_int_not_equal(memcmp(o.out[0].data, p.out[0].data, ds_meta_bytes(o.out[0].meta)), 0);
    op_operands_destroy(&o);
    op_operands_destroy(&p);
}

static void what_it_does_not_do_has_another_kernel(void **state)
{
    static const dsi_linear_attrs acts = {.activation = DSI_ACT_GELU_TANH};
    static const dsi_linear_attrs wide = {.out_dtype = DS_DTYPE_F32};
    static const op_case rows[] = {
        /* rounded twice; a bias that has not y's dtype */
        {.op = &dsi_op_linear, .in = "act[4,8] act[8,8]", .attrs = &acts},
        {.op = &dsi_op_linear, .in = "act[4,8] act[8,8] act[8]", .attrs = &wide},
        {.op = &dsi_op_linear, .in = "act[0,8] act[8,8]", .attrs = &plain},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        op_operands o;
        CHECK_OK(ctx, op_operands_create(ctx, &rows[i], DS_DTYPE_BF16, &o));
        const ds_kernel *kernel = cuda->kernels->choose(&o.sig, 0);
        assert_non_null(kernel);
        assert_string_equal(kernel->name, "cuda_mma");
        op_operands_destroy(&o);
    }
}

static void a_step_asks_nothing_and_the_plan_names_algorithms(void **state)
{
    char *folder = scratch_make();
    ds_model *model = small_model(ctx, folder, small_gpt2);
    dsi_engine_spec spec = small_spec(DS_DTYPE_BF16);
    ds_engine *engine = NULL;
    small_batch room;
    uint32_t n_products = 0;
    uint32_t n_with_work = 0;
    const ds_engine_params params = {.model = model, .seq_length = SMALL_SEQ, .seed = 5};
    (void)state;
    lt.first(1);
    const uint64_t ran = lt.ran();
    CHECK_OK(ctx, dsi_accel_choose(ctx, "cuda", &spec.accel));
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
    const dsi_plan *plan = engine->train_plan;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        const bool is_lt = step->kernel != NULL && strncmp(step->kernel->name, "cublaslt_", 9) == 0;
        n_products += is_lt ? 1 : 0;
        n_with_work += is_lt && step->work_bytes > 0 ? 1 : 0;
    }
    assert_true(n_products > 12 && n_with_work > 0);
    const uint64_t asked = lt.asked();
    for (int32_t step = 0; step < 2; ++step) {
        const ds_batch batch = small_feed(step, &room);
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    assert_int_equal(lt.asked(), asked);
    assert_true(lt.ran() - ran >= n_products); /* graphs have them since they were captured */
    print_message("%u products a step, %u with a workspace\n", n_products, n_with_work);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_agree_with_the_reference),
        cmocka_unit_test(a_product_has_one_algorithm),
        cmocka_unit_test(algorithms_differ),
        cmocka_unit_test(what_it_does_not_do_has_another_kernel),
        cmocka_unit_test(a_step_asks_nothing_and_the_plan_names_algorithms),
    };
    standin_calls standin;
    dsi_accel_choice choice;
    if (!standin_load(DS_BINARY_DIR, &standin) || !find("standin_lt_first", &lt.first) ||
        !find("standin_lt_asked", &lt.asked) || !find("standin_lt_ran", &lt.ran)) {
        return 1;
    }
    ctx = check_ctx(1);
    CHECK_OK(ctx, dsi_accel_choose(ctx, "cuda", &choice));
    cuda = choice.accel;
    CHECK_OK(ctx, cuda->open(ctx, "", &device));
    CHECK_OK(ctx, cuda->streams->create(device, ctx, &stream));
    device_run_on(cuda, device, stream);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cuda->streams->destroy(&stream);
    cuda->close(&device);
    ds_ctx_destroy(&ctx);
    return failed;
}
