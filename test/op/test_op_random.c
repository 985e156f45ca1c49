/* SPDX-License-Identifier: Apache-2.0 */
/* Shape rules and kernels on random operands and attributes: a rule refuses with a message or
 * accepts; what it accepts every kernel computes, or refuses by name, without touching memory
 * outside. Empty tensors included. Most useful under the address and undefined sanitizers. */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/rng.h"
#include "common/check.h"
#include "ir/graph.h"
#include "op/harness.h"

#include <stdlib.h>
#include <string.h>

enum { TRIALS = 1500, MOST_ELEMENTS = 4096, MOST_WORK = 1 << 24, GUARD = 64, ATTRS_BYTES = 4096 };

typedef struct stream {
    uint64_t at;
} stream;

static uint32_t draw(stream *s, uint32_t below)
{
    return dsi_rng_u32(2026, 1, 0, s->at++) % below;
}

/* An attribute: mostly small and plausible, sometimes absurd. */
static void draw_attrs(stream *s, const ds_op *op, char *attrs)
{
    static const int64_t integers[] = {0, 0,  1,  1,    2,         3,         4,
                                       8, 16, -1, -100, INT64_MAX, INT64_MIN, INT64_C(1) << 40};
    static const double reals[] = {0.0, 0.1, 0.5, 1.0, 10.0, 1e-5, -1.0, 1e300};
    const uint32_t plausible = draw(s, 3); /* 0: anything */
    for (uint32_t a = 0; a < op->n_attrs; ++a) {
        if (op->attrs[a].type == DS_ATTR_INT) {
            const int64_t x = integers[draw(s, plausible != 0 ? 8 : 14)];
            memcpy(attrs + op->attrs[a].offset, &x, sizeof x);
        } else {
            const double x = reals[draw(s, plausible != 0 ? 5 : 8)];
            memcpy(attrs + op->attrs[a].offset, &x, sizeof x);
        }
    }
}

static ds_meta draw_meta(stream *s, ds_dtype act)
{
    static const ds_dtype types[] = {DS_DTYPE_F32,  DS_DTYPE_I32, DS_DTYPE_I64,
                                     DS_DTYPE_BOOL, DS_DTYPE_F64, DS_DTYPE_NONE};
    static const int64_t dims[] = {1, 2, 3, 4, 8, 16, 0, 33};
    ds_meta meta = {.dtype = draw(s, 3) != 0 ? act : types[draw(s, 6)]};
    meta.shape.n_dims = meta.dtype == DS_DTYPE_NONE ? 0 : draw(s, 4);
    for (uint32_t d = 0; d < meta.shape.n_dims; ++d) {
        meta.shape.dims[d] = dims[draw(s, 8)];
    }
    return meta;
}

/* Starts from a case of the table, so that many trials are accepted, and disturbs it. */
typedef struct trial {
    const op_case *c;
    char attrs[ATTRS_BYTES];
    uint32_t n_in;
    ds_meta in[DS_MAX_IN], out[DS_MAX_OUT];
} trial;

static void disturb(stream *s, trial *t, const op_operands *o, ds_dtype act)
{
    static const int64_t lengths[] = {0, 1, 2, 5, 17};
    t->n_in = o->sig.n_in;
    memcpy(t->in, o->in_meta, sizeof t->in);
    assert_true(t->c->op->attrs_bytes <= sizeof t->attrs);
    if (t->c->attrs != NULL) {
        memcpy(t->attrs, t->c->attrs, t->c->op->attrs_bytes);
    }
    switch (t->n_in == 0 ? 0 : draw(s, 5)) {
    case 0:
        draw_attrs(s, t->c->op, t->attrs);
        break;
    case 1:
        t->in[draw(s, t->n_in)] = draw_meta(s, act);
        break;
    case 2: /* rename one length everywhere: often still consistent */
    {
        const ds_shape *from = &t->in[draw(s, t->n_in)].shape;
        const int64_t old = from->n_dims > 0 ? from->dims[draw(s, from->n_dims)] : -1;
        const int64_t fresh = lengths[draw(s, 5)];
        for (uint32_t i = 0; i < t->n_in; ++i) {
            for (uint32_t d = 0; d < t->in[i].shape.n_dims; ++d) {
                if (t->in[i].shape.dims[d] == old) {
                    t->in[i].shape.dims[d] = fresh;
                }
            }
        }
        break;
    }
    case 3:
        t->n_in = t->c->op->n_in_min + draw(s, t->c->op->n_in_max - t->c->op->n_in_min + 1);
        break;
    default:
        for (uint32_t i = 0; i < t->n_in; ++i) {
            t->in[i] = draw(s, 4) == 0 ? draw_meta(s, act) : t->in[i];
        }
    }
}

static bool small(const ds_meta *metas, uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i) {
        if (metas[i].dtype != DS_DTYPE_NONE && ds_shape_count(metas[i].shape) > MOST_ELEMENTS) {
            return false;
        }
    }
    return true;
}

static void allocate(const ds_meta *metas, uint32_t n, ds_tensor *out)
{
    for (uint32_t i = 0; i < n; ++i) {
        out[i] = (ds_tensor){0};
        if (metas[i].dtype != DS_DTYPE_NONE) {
            /* exact size: a sanitizer sees the first byte outside */
            out[i] = (ds_tensor){malloc(ds_meta_bytes(metas[i])), metas[i]};
            if (ds_meta_bytes(metas[i]) == 0) {
                free(out[i].data);
                out[i].data = malloc(GUARD);
            }
            assert_non_null(out[i].data);
            memset(out[i].data, 0, ds_meta_bytes(metas[i]));
        }
    }
}

static void release(ds_tensor *tensors, uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i) {
        free(tensors[i].data);
    }
}

static void run_kernels(ds_ctx *ctx, stream *s, trial *t)
{
    const ds_op *op = t->c->op;
    const ds_kernel_sig sig = {op, t->attrs, t->n_in, op->n_out, t->in, t->out, 2};
    ds_tensor in[DS_MAX_IN];
    ds_tensor out[DS_MAX_OUT];
    for (uint32_t k = 0;; ++k) {
        const ds_kernel *kernel = dsi_cpu_kernel_at(&sig, dsi_cpu_isa(), k);
        if (kernel == NULL) {
            return;
        }
        const size_t bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
        if (bytes > MOST_WORK) {
            continue;
        }
        allocate(t->in, t->n_in, in);
        allocate(t->out, op->n_out, out);
        for (uint32_t i = 0; i < t->n_in; ++i) {
            if (t->in[i].dtype == DS_DTYPE_I32) {
                for (int64_t e = 0; e < ds_shape_count(t->in[i].shape); ++e) {
                    ((int32_t *)in[i].data)[e] = (int32_t)draw(s, 4);
                }
            }
        }
        for (uint32_t i = 0; op->writes != NULL && i < op->n_out; ++i) {
            if (op->writes[i] >= 0 && out[i].data != NULL) {
                free(out[i].data);
                out[i].data = in[op->writes[i]].data;
            }
        }
        void *work = aligned_alloc(64, bytes / 64 * 64 + 64);
        assert_non_null(work);
        const ds_kernel_call call = {ctx, &sig, in, out, work};
        (void)kernel->run(&call);
        free(work);
        for (uint32_t i = 0; op->writes != NULL && i < op->n_out; ++i) {
            out[i].data = op->writes[i] >= 0 ? NULL : out[i].data;
        }
        release(in, t->n_in);
        release(out, op->n_out);
    }
}

static void rules_refuse_or_kernels_run(void **state)
{
    (void)state;
    static const ds_dtype acts[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 2;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    uint32_t n_cases = 0;
    while (op_cases[n_cases].op != NULL) {
        ++n_cases;
    }
    stream s = {0};
    uint32_t accepted = 0;
    uint32_t refused = 0;
    for (uint32_t i = 0; i < TRIALS; ++i) {
        trial t = {.c = &op_cases[draw(&s, n_cases)]};
        const ds_dtype act = acts[draw(&s, 3)];
        op_operands o;
        const op_case shapes_only = {.op = t.c->op, .in = t.c->in, .attrs = t.c->attrs};
        if (op_operands_create(ctx, &shapes_only, act, &o) < 0) {
            continue; /* the case is of other dtypes */
        }
        disturb(&s, &t, &o, act);
        op_operands_destroy(&o);
        if (dsi_graph_infer(ctx, t.c->op, t.attrs, t.in, t.n_in, t.out) < 0) {
            assert_true(strlen(ds_ctx_error(ctx)) > 10);
            ++refused;
        } else if (small(t.in, t.n_in) && small(t.out, t.c->op->n_out)) {
            run_kernels(ctx, &s, &t);
            ++accepted;
        }
    }
    ds_ctx_destroy(&ctx);
    assert_true(accepted > TRIALS / 5 && refused > TRIALS / 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_refuse_or_kernels_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
