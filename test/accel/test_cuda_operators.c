/* SPDX-License-Identifier: Apache-2.0 */
/* docs/internals/cuda_operators.md says of every operator which kernels the accelerator `cuda` has
 * for it, for which of the harness's cases it has none, and of the others why: made from the tables
 * that plans are made with, and compared here. DS_UPDATE=1 writes it. */
#include "accel/cpu/registry.h"
#include "accel/cuda/cuda_launch.h"
#include "base/buf.h"
#include "common/check.h"
#include "op/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char head[] =
    "# Operators of the accelerator `cuda`\n\n"
    "Made by `test_cuda_operators` from the tables that plans are made with; it fails where this "
    "file says something else\n"
    "(`DS_UPDATE=1` writes it). Nothing of a plan for `cuda` runs on the host: a step without "
    "a kernel is refused by its\n"
    "operator's name. What the kernels do is in [cuda.md](cuda.md). Cases are those of the "
    "operator "
    "harness, in each dtype.\n\n"
    "| operator | kernels | cases |\n"
    "|---|---|---|\n";

static const ds_kernel *const *const lists[] = {
#define X(name) dsc_##name##_kernels,
    DSC_GLUE_LIST(X)
#undef X
};

/* Names of the operator's kernels, best first; how many there are. */
static uint32_t put_kernels(dsi_buf *text, const ds_op *op)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < sizeof lists / sizeof lists[0]; ++l) {
        for (uint32_t i = 0; lists[l][i] != NULL; ++i) {
            if (strcmp(lists[l][i]->op, op->name) == 0) {
                dsi_buf_printf(text, "%s%s", n++ > 0 ? ", " : "", lists[l][i]->name);
            }
        }
    }
    return n;
}

static bool has_processor(const ds_op *op)
{
    const ds_kernel *kernel;
    for (uint32_t i = 0; (kernel = dsi_cpu_kernel_list(i)) != NULL; ++i) {
        if (strcmp(kernel->op, op->name) == 0) {
            return true;
        }
    }
    return false;
}

static const char *why_none(const ds_op *op)
{
    return (op->flags & DS_OP_COMM) != 0    ? "none: the executor's, between ranks"
           : (op->flags & DS_OP_RANKS) != 0 ? "none: gone before a plan is made"
           : (op->flags & DS_OP_SWAP) != 0  ? "none: the executor's, between memories"
           : has_processor(op)              ? "**refused**: the processor alone has one"
           : (op->flags & DS_OP_VIEW) != 0  ? "none: a view"
                                            : "none: of a logical graph alone";
}

static bool has_kernel(ds_ctx *ctx, const op_case *c, ds_dtype dtype)
{
    op_operands o;
    CHECK_OK(ctx, op_operands_create(ctx, c, dtype, &o));
    const bool has = dsc_kernel_at(&o.sig, 0) != NULL;
    op_operands_destroy(&o);
    return has;
}

/* Large ones take long to make, and are no others for the choice. */
static bool is_large(const op_case *c)
{
    return strstr(c->label, "long") != NULL || strstr(c->label, "beyond") != NULL ||
           strstr(c->label, "many") != NULL;
}

static void put_cases(dsi_buf *text, ds_ctx *ctx, const ds_op *op)
{
    dsi_buf without = dsi_buf_make((size_t)1 << 16);
    uint32_t n = 0;
    uint32_t n_without = 0;
    for (const op_case *c = op_cases; c->op != NULL; ++c) {
        if (c->op != op || is_large(c)) {
            continue;
        }
        bool all = true;
        for (uint32_t i = 0; op_case_dtype(c, i) != DS_DTYPE_NONE; ++i) {
            all = has_kernel(ctx, c, op_case_dtype(c, i)) && all;
        }
        ++n;
        if (!all) {
            dsi_buf_printf(&without, "%s%s", n_without++ > 0 ? "; " : "", c->label);
        }
    }
    if (n_without == 0) {
        dsi_buf_printf(text, n > 0 ? "all" : "");
    } else {
        dsi_buf_printf(text, "%u of %u, not: %s", n - n_without, n, dsi_buf_text(&without));
    }
    dsi_buf_free(&without);
}

static const char path[] = DS_SOURCE_DIR "/docs/internals/cuda_operators.md";

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fputs(text, f) >= 0, 1);
    assert_int_equal(fclose(f), 0);
}

/* Fails with the first line that differs. */
static void compare(ds_ctx *ctx, const char *text)
{
    dsi_buf file = dsi_buf_make((size_t)1 << 20);
    if (getenv("DS_UPDATE") != NULL) {
        write_file(text);
    }
    CHECK_OK(ctx, dsi_buf_read_file(ctx, path, &file));
    const char *there = dsi_buf_text(&file);
    size_t line = 0;
    for (size_t i = 0; text[i] != 0 || there[i] != 0; ++i) {
        if (text[i] != there[i]) {
            fail_msg("cuda_operators.md is not what the tables say (DS_UPDATE=1 writes it): it has "
                     "\"%.*s\", expected \"%.*s\"",
                     (int)strcspn(there + line, "\n"), there + line,
                     (int)strcspn(text + line, "\n"), text + line);
        }
        line = text[i] == '\n' ? i + 1 : line;
    }
    dsi_buf_free(&file);
}

static void the_table_is_true(void **state)
{
    dsi_buf text = dsi_buf_make((size_t)1 << 20);
    ds_ctx *ctx = check_ctx(1);
    (void)state;
    dsi_buf_printf(&text, "%s", head);
    for (uint32_t i = 0; dsi_op_all()[i] != NULL; ++i) {
        const ds_op *op = dsi_op_all()[i];
        dsi_buf_printf(&text, "| %s | ", op->name);
        if (put_kernels(&text, op) > 0) {
            dsi_buf_printf(&text, " | ");
            put_cases(&text, ctx, op);
            dsi_buf_printf(&text, " |\n");
        } else {
            dsi_buf_printf(&text, "%s | |\n", why_none(op));
        }
    }
    compare(ctx, dsi_buf_text(&text));
    dsi_buf_free(&text);
    ds_ctx_destroy(&ctx);
}

/* Each row of the glue's lists is of an operator that there is. */
static void rows_are_of_operators(void **state)
{
    (void)state;
    for (uint32_t l = 0; l < sizeof lists / sizeof lists[0]; ++l) {
        for (uint32_t i = 0; lists[l][i] != NULL; ++i) {
            if (ds_op_find(lists[l][i]->op) == NULL) {
                fail_msg("there is no operator %s", lists[l][i]->op);
            }
        }
    }
}

static bool takes_rows(const ds_op *op, const void *attrs, ds_meta x, ds_meta w, ds_meta y)
{
    const ds_meta in[2] = {x, w};
    const ds_meta out[2] = {y, {DS_DTYPE_NONE, {0}}};
    const ds_kernel_sig sig = {
        .op = op, .attrs = attrs, .n_in = 2, .in = in, .n_out = 2, .out = out, .n_threads = 1};
    return dsc_kernel_at(&sig, 0) != NULL;
}

/* More rows than a grid has in y are refused when kernels are chosen, not by a launch. */
static void what_no_grid_has_is_refused(void **state)
{
    static const dsi_linear_attrs linear;
    static const dsi_bmm_attrs bmm;
    const ds_meta w = {DS_DTYPE_F32, ds_shape_2d(32, 32)};
    const ds_meta blocks = {DS_DTYPE_Q8_0, ds_shape_2d(32, 32)};
    (void)state;
    for (int more = 0; more < 2; ++more) {
        const ds_meta many = {DS_DTYPE_F32, ds_shape_2d(65535 * 16 + more, 32)};
        const ds_meta half = {DS_DTYPE_F32, ds_shape_2d(65535 * 8 + more, 32)};
        const ds_meta items = {DS_DTYPE_F32, ds_shape_3d(1, 65535 * 16 + more, 32)};
        const ds_meta b = {DS_DTYPE_F32, ds_shape_3d(1, 32, 32)};
        assert_int_equal(takes_rows(&dsi_op_linear, &linear, many, w, many), more == 0);
        assert_int_equal(takes_rows(&dsi_op_linear, &linear, half, blocks, half), more == 0);
        assert_int_equal(takes_rows(&dsi_op_bmm, &bmm, items, b, items), more == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_true),
        cmocka_unit_test(what_no_grid_has_is_refused),
        cmocka_unit_test(rows_are_of_operators),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
