/* SPDX-License-Identifier: Apache-2.0 */
/* Every kernel against the reference; every number of threads the same bits. See harness.h. */
#include "op/harness.h"

#include "common/check.h"

#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A result may differ by one step of its own dtype, and by what rounding inside may do. */
static double tolerance(const op_case *c, ds_dtype act)
{
    const double step = act == DS_DTYPE_BF16 ? 0x1p-7 : act == DS_DTYPE_F16 ? 0x1p-10 : 1e-5;
    return step * 1.02 * (c->loose > 0.0 ? c->loose : 1.0);
}

/* Over n elements from `at`. */
static double root_mean_square(const ds_tensor *t, int64_t at, int64_t n)
{
    double sum = 0.0;
    int64_t counted = 0;
    for (int64_t i = at; i < at + n; ++i) {
        const double x = op_element(t, i);
        if (isfinite(x)) {
            sum += x * x;
            ++counted;
        }
    }
    return counted > 0 ? sqrt(sum / (double)counted) : 0.0;
}

static int report(const op_operands *o, const ds_kernel *kernel, uint32_t output, int64_t i,
                  double got, double want, const char *how)
{
    printf("FAIL %s (%s) %s kernel %s: output %u element %lld is %.9g, reference %.9g; %s\n",
           o->c->op->name, o->c->label, ds_dtype_name(o->act), kernel->name, output, (long long)i,
           got, want, how);
    return 1;
}

/* Output k of the operands against `want`, the reference's bytes. */
static int compare_output(const op_operands *o, const ds_kernel *kernel, uint32_t k,
                          const void *want)
{
    const ds_tensor *t = &o->out[k];
    const ds_tensor reference = {(void *)(uintptr_t)want, t->meta};
    const int64_t n = ds_shape_count(t->meta.shape);
    const int64_t n_last = ds_shape_last(t->meta.shape);
    const double whole = root_mean_square(&reference, 0, n);
    double scale = whole; /* of the tensor or of the element's row, whichever is larger */
    const double tol = tolerance(o->c, o->act);
    const size_t each = ds_dtype_bytes(t->meta.dtype);
    for (int64_t i = 0; i < n; ++i) {
        const double a = op_element(t, i);
        const double b = op_element(&reference, i);
        if (i % n_last == 0) {
            const double row = root_mean_square(&reference, i, n_last);
            scale = row > whole ? row : whole;
        }
        if ((isnan(a) && isnan(b)) || a == b) {
            continue;
        }
        if ((o->c->flags & OP_EXACT) != 0) {
            if (memcmp((const char *)t->data + (size_t)i * each,
                       (const char *)want + (size_t)i * each, each) != 0) {
                return report(o, kernel, k, i, a, b, "expected the same bits");
            }
        } else if (!(fabs(a - b) <= tol * (fabs(b) + scale))) {
            char how[80];
            (void)snprintf(how, sizeof how, "tolerance %.3g of its magnitude and %.3g", tol, scale);
            return report(o, kernel, k, i, a, b, how);
        }
    }
    return 0;
}

static void *copy_outputs(const op_operands *o, void *copies[DS_MAX_OUT])
{
    for (uint32_t k = 0; k < o->sig.n_out; ++k) {
        copies[k] = NULL;
        if (o->out[k].data != NULL) {
            const size_t bytes = ds_meta_bytes(o->out_meta[k]);
            copies[k] = malloc(bytes + 1);
            if (copies[k] != NULL) {
                memcpy(copies[k], o->out[k].data, bytes);
            }
        }
    }
    return copies;
}

static void free_outputs(void *copies[DS_MAX_OUT], uint32_t n)
{
    for (uint32_t k = 0; k < n; ++k) {
        free(copies[k]);
    }
}

static int same_bits(const op_operands *o, const ds_kernel *kernel, void *const *copies,
                     const char *what)
{
    for (uint32_t k = 0; k < o->sig.n_out; ++k) {
        if (copies[k] != NULL &&
            memcmp(copies[k], o->out[k].data, ds_meta_bytes(o->out_meta[k])) != 0) {
            printf("FAIL %s (%s) %s kernel %s: output %u has other bits %s\n", o->c->op->name,
                   o->c->label, ds_dtype_name(o->act), kernel->name, k, what);
            return 1;
        }
    }
    return 0;
}

static int run_failed(ds_ctx *ctx, const op_operands *o, const ds_kernel *kernel)
{
    printf("FAIL %s (%s) %s kernel %s: %s\n", o->c->op->name, o->c->label, ds_dtype_name(o->act),
           kernel->name, ds_ctx_error(ctx));
    return 1;
}

/* One kernel: against the reference, on three threads, in place. */
static int check_kernel(ds_ctx *one, ds_ctx *three, op_operands *o, const ds_kernel *kernel,
                        void *const *want)
{
    int failures = 0;
    if (op_operands_run(one, o, kernel, false) < 0) {
        return run_failed(one, o, kernel);
    }
    for (uint32_t k = 0; k < o->sig.n_out; ++k) {
        failures += want[k] != NULL ? compare_output(o, kernel, k, want[k]) : 0;
    }
    void *own[DS_MAX_OUT];
    copy_outputs(o, own);
    if (op_operands_run(three, o, kernel, false) < 0) {
        failures += run_failed(three, o, kernel);
    } else {
        failures += same_bits(o, kernel, own, "on three threads");
    }
    if ((o->c->op->flags & DS_OP_INPLACE) != 0) {
        if (op_operands_run(one, o, kernel, true) < 0) {
            failures += run_failed(one, o, kernel);
        } else {
            failures += same_bits(o, kernel, own, "in place");
        }
    }
    free_outputs(own, o->sig.n_out);
    return failures;
}

/* Operands of so many elements take seconds under a sanitizer. */
static bool is_large(const op_operands *o)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < o->sig.n_in; ++i) {
        n += o->in[i].data != NULL ? ds_shape_count(o->in_meta[i].shape) : 0;
    }
    return n > 100000;
}

static int compare_in_dtype(ds_ctx *one, ds_ctx *three, const op_case *c, ds_dtype act,
                            op_kernel_at at, uint32_t *n_inout)
{
    op_operands o;
    if (op_operands_create(one, c, act, &o) < 0) {
        printf("FAIL %s (%s) %s: %s\n", c->op->name, c->label, ds_dtype_name(act),
               ds_ctx_error(one));
        return 1;
    }
    if (is_large(&o) && !check_long_row((size_t)(c - op_cases) + act)) {
        op_operands_destroy(&o);
        return 0;
    }
    const ds_kernel *reference = op_reference(&o.sig);
    if (reference == NULL || op_operands_run(one, &o, reference, false) < 0) {
        printf("FAIL %s (%s) %s: reference: %s\n", c->op->name, c->label, ds_dtype_name(act),
               reference == NULL ? "none" : ds_ctx_error(one));
        op_operands_destroy(&o);
        return 1;
    }
    void *want[DS_MAX_OUT];
    copy_outputs(&o, want);
    int failures = 0;
    for (uint32_t i = 0;; ++i) {
        o.sig.n_threads = 1;
        const ds_kernel *kernel = at(&o.sig, i);
        if (kernel == NULL) {
            break;
        }
        failures += check_kernel(one, three, &o, kernel, want);
        ++*n_inout;
    }
    free_outputs(want, o.sig.n_out);
    op_operands_destroy(&o);
    return failures;
}

int op_compare_kernels(ds_ctx *one_thread, ds_ctx *three_threads, const op_case *c, op_kernel_at at,
                       uint32_t *n_inout)
{
    int failures = 0;
    for (uint32_t i = 0; op_case_dtype(c, i) != DS_DTYPE_NONE; ++i) {
        failures +=
            compare_in_dtype(one_thread, three_threads, c, op_case_dtype(c, i), at, n_inout);
    }
    return failures;
}

static const ds_kernel *of_this_machine(const ds_kernel_sig *sig, uint32_t index)
{
    return dsi_cpu_kernel_at(sig, dsi_cpu_isa(), index);
}

int op_compare_case(ds_ctx *one_thread, ds_ctx *three_threads, const op_case *c)
{
    return op_compare_kernels(one_thread, three_threads, c, of_this_machine, &(uint32_t){0});
}
