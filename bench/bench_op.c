/* SPDX-License-Identifier: Apache-2.0 */
/* Times every kernel of every operator at the shapes of GPT-2 124M.
 *
 * usage: bench_op [--ref] [--list] [--dtype bf16|f16|f32] [--threads N] [OP]
 * One line a kernel: median milliseconds, GB/s and GFLOP/s from the operator's own cost. Operands
 * are touched before, as in a step. Reference kernels are timed with --ref only. --list times
 * nothing and names the kernels, best first, of every case of the test table.
 */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/clock.h"
#include "test/op/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RUNS = 101, LEAST_RUNS = 3 };

typedef struct options {
    bool reference, list;
    ds_dtype dtype;
    const char *op;
} options;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

/* Median seconds of runs that last half a second together. */
static ds_status time_kernel(ds_ctx *ctx, op_operands *o, const ds_kernel *kernel, double *seconds)
{
    double runs[MOST_RUNS];
    uint32_t n = 0;
    double spent = 0.0;
    ds_tensor out[DS_MAX_OUT];
    memcpy(out, o->out, sizeof out);
    for (uint32_t i = 0; kernel->op != NULL && o->sig.op->writes != NULL && i < o->sig.n_out; ++i) {
        if (o->sig.op->writes[i] >= 0 && out[i].data != NULL) {
            out[i].data = o->in[o->sig.op->writes[i]].data;
        }
    }
    const size_t bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&o->sig) : 0;
    void *work = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (work == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for %zu bytes of workspace", bytes);
    }
    memset(work, 0, (bytes + 127) / 64 * 64);
    const ds_kernel_call call = {ctx, &o->sig, o->in, out, work};
    ds_status status = DS_OK;
    while (status >= 0 && n < MOST_RUNS &&
           (n == 0 || spent < 0.5 || (n < LEAST_RUNS && spent < 2.0))) {
        const double start = dsi_clock_seconds();
        status = kernel->run(&call);
        runs[n] = dsi_clock_seconds() - start;
        spent += runs[n++];
    }
    free(work);
    qsort(runs, n, sizeof runs[0], by_value);
    *seconds = runs[n / 2];
    return status;
}

static int fails(ds_ctx *ctx, const op_case *c, const char *kernel)
{
    printf("%s (%s) %s: %s\n", c->op->name, c->label, kernel, ds_ctx_error(ctx));
    return 1;
}

static int bench_case(ds_ctx *ctx, const options *opt, const op_case *c, ds_dtype act)
{
    op_operands o;
    if (op_operands_create(ctx, c, act, &o) < 0) {
        return fails(ctx, c, ds_dtype_name(act));
    }
    const ds_infer infer = {ctx, c->op, c->attrs, o.sig.n_in, o.in_meta, o.sig.n_out, o.out_meta};
    ds_cost cost = {0};
    if (c->op->cost != NULL) {
        c->op->cost(&infer, &cost);
    }
    o.sig.in = o.in_meta;
    o.sig.out = o.out_meta;
    int failures = 0;
    for (uint32_t k = 0;; ++k) {
        const ds_kernel *kernel = dsi_cpu_kernel_at(&o.sig, dsi_cpu_isa(), k);
        if (kernel == NULL) {
            break;
        }
        if (kernel->needs == DS_ISA_REF && strcmp(kernel->name, "ref") == 0 && !opt->reference) {
            continue;
        }
        double seconds = 0.0;
        if (op_operands_run(ctx, &o, kernel, false) < 0 ||
            time_kernel(ctx, &o, kernel, &seconds) < 0) {
            failures += fails(ctx, c, kernel->name);
            continue;
        }
        printf("%-30s %-20s %-5s %-14s %10.4f ms %8.2f GB/s %9.2f GFLOP/s\n", c->op->name, c->label,
               ds_dtype_name(act), kernel->name, seconds * 1e3, cost.bytes / seconds * 1e-9,
               cost.flops / seconds * 1e-9);
        (void)fflush(stdout);
    }
    op_operands_destroy(&o);
    return failures;
}

static int list_case(ds_ctx *ctx, const op_case *c, ds_dtype act)
{
    op_operands o;
    if (op_operands_create(ctx, c, act, &o) < 0) {
        return fails(ctx, c, ds_dtype_name(act));
    }
    o.sig.in = o.in_meta;
    o.sig.out = o.out_meta;
    printf("%-30s %-28s %-5s", c->op->name, c->label, ds_dtype_name(act));
    const ds_kernel *kernel;
    for (uint32_t k = 0; (kernel = dsi_cpu_kernel_at(&o.sig, dsi_cpu_isa(), k)) != NULL; ++k) {
        printf(" %s", kernel->name);
    }
    printf("\n");
    op_operands_destroy(&o);
    return 0;
}

static int usage(void)
{
    (void)fprintf(stderr,
                  "usage: bench_op [--ref] [--list] [--dtype bf16|f16|f32] [--threads N] [OP]\n");
    return 2;
}

int main(int argc, char **argv)
{
    options opt = {.dtype = DS_DTYPE_NONE};
    ds_ctx_params params = ds_ctx_params_default();
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--ref") == 0) {
            opt.reference = true;
        } else if (strcmp(argv[i], "--list") == 0) {
            opt.list = true;
        } else if (strcmp(argv[i], "--dtype") == 0 && i + 1 < argc) {
            opt.dtype = ds_dtype_from_name(argv[++i]);
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            params.n_threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (argv[i][0] != '-' && ds_op_find(argv[i]) != NULL) {
            opt.op = argv[i];
        } else {
            (void)fprintf(stderr, "bench_op: \"%s\" is no option and no operator\n", argv[i]);
            return usage();
        }
    }
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    int failures = 0;
    for (const op_case *c = opt.list ? op_cases : op_bench_cases; c->op != NULL; ++c) {
        if (opt.op != NULL && strcmp(opt.op, c->op->name) != 0) {
            continue;
        }
        for (uint32_t d = 0; op_case_dtype(c, d) != DS_DTYPE_NONE; ++d) {
            const ds_dtype act = op_case_dtype(c, d);
            if (opt.dtype == DS_DTYPE_NONE || opt.dtype == act) {
                failures += opt.list ? list_case(ctx, c, act) : bench_case(ctx, &opt, c, act);
            }
        }
    }
    ds_ctx_destroy(&ctx);
    return failures > 0 ? 1 : 0;
}
