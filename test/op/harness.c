/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of a case and running a kernel on them. See harness.h. */
#include "op/harness.h"

#include "accel/cpu/ref/ref_list.h"
#include "base/blocks.h"
#include "base/half.h"
#include "base/packed.h"
#include "base/rng.h"
#include "ir/graph.h"
#include "op/paged_cell.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANARY_BYTES = 64, CANARY = 0xA5, POISON = 0xFF };

static void *new_memory(size_t bytes)
{
    const size_t all = (bytes + CANARY_BYTES + 63) / 64 * 64;
    unsigned char *memory = aligned_alloc(64, all);
    if (memory != NULL) {
        memset(memory, CANARY, all);
    }
    return memory;
}

static bool canary_lives(const void *memory, size_t bytes)
{
    const unsigned char *tail = (const unsigned char *)memory + bytes;
    for (int i = 0; i < CANARY_BYTES; ++i) {
        if (tail[i] != CANARY) {
            return false;
        }
    }
    return true;
}

/* ---- notation
 * ------------------------------------------------------------------------------------ */
static ds_dtype parse_dtype(const char *name, size_t n, ds_dtype act)
{
    char text[8] = {0};
    memcpy(text, name, n < 7 ? n : 7);
    if (strcmp(text, "act") == 0) {
        return act;
    }
    if (strcmp(text, "stat") == 0) {
        return act == DS_DTYPE_F64 ? DS_DTYPE_F64 : DS_DTYPE_F32;
    }
    return ds_dtype_from_name(text);
}

/* One operand at *text; leaves *text at its fill. */
static ds_meta parse_meta(const char **text, ds_dtype act)
{
    ds_meta meta = {0};
    const char *at = *text;
    if (*at == '-') {
        *text = at + 1;
        return meta;
    }
    const size_t n = strcspn(at, "[");
    meta.dtype = parse_dtype(at, n, act);
    at += n + 1;
    while (*at != ']' && *at != '\0') {
        char *end = NULL;
        meta.shape.dims[meta.shape.n_dims++] = strtoll(at, &end, 10);
        at = end + (*end == ',' ? 1 : 0);
    }
    *text = at + 1;
    return meta;
}

static void set_element(const ds_tensor *t, int64_t i, double value)
{
    switch (t->meta.dtype) {
    case DS_DTYPE_F32:
        ((float *)t->data)[i] = (float)value;
        break;
    case DS_DTYPE_BF16:
        ((uint16_t *)t->data)[i] = dsi_f32_to_bf16((float)value);
        break;
    case DS_DTYPE_F16:
        ((uint16_t *)t->data)[i] = dsi_f32_to_f16((float)value);
        break;
    case DS_DTYPE_F64:
        ((double *)t->data)[i] = value;
        break;
    case DS_DTYPE_I32:
        ((int32_t *)t->data)[i] = (int32_t)value;
        break;
    case DS_DTYPE_I64:
        ((int64_t *)t->data)[i] = (int64_t)value;
        break;
    case DS_DTYPE_U8:
        ((uint8_t *)t->data)[i] = (uint8_t)value;
        break;
    case DS_DTYPE_I8:
        ((int8_t *)t->data)[i] = (int8_t)value;
        break;
    case DS_DTYPE_BOOL:
        ((uint8_t *)t->data)[i] = value != 0.0;
        break;
    default:
        break;
    }
}

double op_element(const ds_tensor *t, int64_t i)
{
    switch (t->meta.dtype) {
    case DS_DTYPE_F32:
        return (double)((const float *)t->data)[i];
    case DS_DTYPE_BF16:
        return (double)dsi_bf16_to_f32(((const uint16_t *)t->data)[i]);
    case DS_DTYPE_F16:
        return (double)dsi_f16_to_f32(((const uint16_t *)t->data)[i]);
    case DS_DTYPE_F64:
        return ((const double *)t->data)[i];
    case DS_DTYPE_I32:
        return (double)((const int32_t *)t->data)[i];
    case DS_DTYPE_I8:
        return (double)((const int8_t *)t->data)[i];
    case DS_DTYPE_U8:
    case DS_DTYPE_BOOL:
        return (double)((const uint8_t *)t->data)[i];
    default:
        return (double)((const int64_t *)t->data)[i];
    }
}

/* learning rate, beta1, beta2, decay, bias1, bias2, first, spare: step 3 of Adam */
static const double hyper[DSI_HYPER_COUNT] = {1e-2, 0.9, 0.99, 0.1, 0.271, 0.17234, 0.0, 0.0};
static const double rng_state[4] = {1234, 7, 3, 0};

/* Element i of a permutation of [0,n). */
static int64_t shuffled(int64_t i, int64_t n)
{
    static const int64_t steps[] = {7, 11, 13, 17, 19, 23};
    size_t s = 0;
    while (s + 1 < sizeof steps / sizeof *steps && n % steps[s] == 0) {
        ++s;
    }
    return (i * steps[s] + 3) % n;
}

/* Byte i of heads of d codes and a scale (op/paged_cell.h). */
static double head_byte(int64_t d, uint32_t operand, int64_t i)
{
    const int64_t head = i / (d + DSI_PAGED_SCALE);
    const int64_t at = i % (d + DSI_PAGED_SCALE);
    const float scale =
        0.01f + 0.01f * (float)dsi_rng_unit(dsi_rng_u32(98, operand, 1, (uint64_t)head));
    int8_t bytes[DSI_PAGED_SCALE];
    memcpy(bytes, &scale, sizeof bytes);
    return at >= d ? (double)bytes[at - d]
                   : (double)(dsi_rng_u32(97, operand, 1, (uint64_t)i) % 255) - 127.0;
}

static double fill_value(const char *fill, const ds_tensor *t, uint32_t operand, int64_t i)
{
    const int64_t n_last = ds_shape_last(t->meta.shape);
    const uint32_t word = dsi_rng_u32(99, operand, 1, (uint64_t)i);
    switch (*fill) {
    case '+':
        return 0.25 + (double)dsi_rng_unit(word);
    case '<': {
        char *end = NULL;
        const unsigned long below = strtoul(fill + 1, &end, 10);
        return *end == 'm' && i % 5 == 3 ? -100.0 : (double)(word % below);
    }
    case 'd':
        return (double)(i % n_last / 5 * 5);
    case 'D': /* the ends of documents of 'd' */
        return fmin((double)(i % n_last / 5 * 5 + 5), (double)n_last);
    case 'p':
        return (double)(i % n_last) +
               (isdigit((unsigned char)fill[1]) ? strtod(fill + 1, NULL) : 0.0);
    case 'P':
        return (double)(i + (i < n_last / 2 ? 0 : n_last)) + strtod(fill + 1, NULL);
    case 's':
        return (double)shuffled(i, ds_shape_count(t->meta.shape));
    case 'e': /* groups that differ by a quarter of the mean at most */
        return i == 0            ? 0.0
               : i == n_last - 1 ? strtod(fill + 1, NULL)
                                 : floor(strtod(fill + 1, NULL) / (double)(n_last - 1) *
                                         ((double)i + 0.25 * (double)dsi_rng_unit(word) - 0.125));
    case 'o': { /* the first group is empty, then small ones */
        const double part = (double)i / (double)(n_last - 1);
        return i == 1 && n_last > 2 ? 0.0 : floor(strtod(fill + 1, NULL) * part * part);
    }
    case 'r':
        return rng_state[i];
    case 'h':
        return hyper[i];
    case 'q':
        return head_byte((int64_t)strtol(fill + 1, NULL, 10), operand, i);
    case '0':
        return 0.0;
    case '=':
        return strtod(fill + 1, NULL);
    default:
        return (*fill == '~' ? strtod(fill + 1, NULL) : 1.0) *
               (double)dsi_rng_normal(42, operand, (uint64_t)i);
    }
}

static ds_status normal_elements(void *user, int64_t first, int64_t n, float *out)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i) {
        out[i] = dsi_rng_normal(43, 1, (uint64_t)(first + i));
    }
    return DS_OK;
}

/* 'k': the packed matrix of the case's attributes. */
static ds_status fill_packed(ds_ctx *ctx, const op_case *c, const ds_tensor *t)
{
    const dsi_linear_packed_attrs *a = c->attrs;
    const ds_packed packed = {(ds_packing)a->format, 0, a->rows, a->columns};
    if (ds_packed_bytes(&packed) != ds_meta_bytes(t->meta)) {
        return ds_fail(ctx, DS_ERR_ARG, "%s: the packed matrix has %zu bytes", c->label,
                       ds_packed_bytes(&packed));
    }
    return dsi_packed_write(ctx, &packed, normal_elements, NULL, t->data);
}

/* Normal numbers as blocks; rows of up to 1024. */
static void fill_blocks(const ds_tensor *t)
{
    float x[DSI_BLOCK_ROWS * 1024];
    uint8_t plain[DSI_BLOCK_ROWS * 1024 * 2];
    const int64_t k = ds_shape_last(t->meta.shape);
    const int64_t n = ds_shape_rows(t->meta.shape);
    const size_t row_bytes = dsi_block_row_bytes(t->meta.dtype, k);
    for (int64_t r = 0; r < n; r += DSI_BLOCK_ROWS) {
        const int64_t rows = n - r < DSI_BLOCK_ROWS ? n - r : DSI_BLOCK_ROWS;
        (void)normal_elements(NULL, r * k, rows * k, x);
        dsi_blocks_quantize(t->meta.dtype, x, rows * k, plain);
        dsi_blocks_weave(t->meta.dtype, plain, rows, row_bytes, k,
                         (uint8_t *)t->data +
                             (size_t)(r / DSI_BLOCK_ROWS) * dsi_panel_bytes(t->meta.dtype, k));
    }
}

static ds_status create_inputs(ds_ctx *ctx, op_operands *o)
{
    const char *at = o->c->in;
    while (*at != '\0' && o->sig.n_in < DS_MAX_IN) {
        if (isspace((unsigned char)*at)) {
            ++at;
            continue;
        }
        const uint32_t i = o->sig.n_in++;
        o->in_meta[i] = parse_meta(&at, o->act);
        if (o->in_meta[i].dtype != DS_DTYPE_NONE) {
            const size_t bytes = ds_meta_bytes(o->in_meta[i]);
            o->in[i] = (ds_tensor){new_memory(bytes), o->in_meta[i]};
            o->original[i] = new_memory(bytes);
            if (o->in[i].data == NULL || o->original[i] == NULL) {
                return ds_fail(ctx, DS_ERR_NOMEM, "no memory for operand %u", i);
            }
            const ds_tensor original = {o->original[i], o->in_meta[i]};
            if (*at == 'k') {
                DS_TRY(fill_packed(ctx, o->c, &original));
            }
            const bool blocks = dsi_is_blocks(original.meta.dtype);
            if (blocks) {
                fill_blocks(&original);
            }
            for (int64_t e = 0; *at != 'k' && !blocks && e < ds_shape_count(o->in_meta[i].shape);
                 ++e) {
                set_element(&original, e, fill_value(at, &original, i, e));
            }
        }
        at += strcspn(at, " \n");
    }
    return DS_OK;
}

/* ---- kernels
 * ------------------------------------------------------------------------------------- */
#define X(name) dsi_ref_##name,
static const ds_kernel *const *const families[] = {DSI_REF_FAMILY_LIST(X) DSI_REF_SINGLE_LIST(X)};
#undef X
#define X(name) dsi_ref64_##name,
static const ds_kernel *const *const twins[] = {DSI_REF_FAMILY_LIST(X)};
#undef X

static const ds_kernel *find_in(const ds_kernel *const *const *lists, size_t n,
                                const ds_kernel_sig *sig)
{
    for (size_t f = 0; f < n; ++f) {
        for (uint32_t i = 0; lists[f][i] != NULL; ++i) {
            const ds_kernel *kernel = lists[f][i];
            if (strcmp(kernel->op, sig->op->name) == 0 &&
                (kernel->supports == NULL || kernel->supports(sig))) {
                return kernel;
            }
        }
    }
    return NULL;
}

const ds_kernel *op_reference(const ds_kernel_sig *sig)
{
    if (sig->op->kernels != NULL) { /* a custom operator's */
        return sig->op->kernels[0];
    }
    const ds_kernel *found = find_in(families, sizeof families / sizeof families[0], sig);
    return found != NULL ? found : find_in(twins, sizeof twins / sizeof twins[0], sig);
}

/* Runs once with a poisoned workspace. */
static ds_status run_kernel(ds_ctx *ctx, const ds_kernel *kernel, const ds_kernel_sig *sig,
                            const ds_tensor *in, const ds_tensor *out)
{
    const size_t bytes = kernel->work_bytes != NULL ? kernel->work_bytes(sig) : 0;
    void *work = bytes > 0 ? new_memory(bytes) : NULL;
    if (bytes > 0 && work == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the workspace");
    }
    if (bytes > 0) {
        memset(work, POISON, bytes);
    }
    const ds_kernel_call call = {.ctx = ctx, .sig = sig, .in = in, .out = out, .work = work};
    ds_status status = kernel->run(&call);
    if (status >= 0 && bytes > 0 && !canary_lives(work, bytes)) {
        status = ds_fail(ctx, DS_ERR_INTERNAL, "%s/%s writes beyond its workspace of %zu bytes",
                         kernel->op, kernel->name, bytes);
    }
    free(work);
    return status;
}

ds_status op_operands_forward(ds_ctx *ctx, op_operands *o)
{
    const op_forward *f = o->c->forward;
    ds_meta metas[DS_MAX_IN] = {{0}};
    ds_meta out_metas[DS_MAX_OUT] = {{0}};
    ds_tensor in[DS_MAX_IN] = {{0}};
    ds_tensor out[DS_MAX_OUT] = {{0}};
    for (uint32_t i = 0; i < f->n_in; ++i) {
        if (f->from[i] >= 0) {
            metas[i] = o->in_meta[f->from[i]];
            in[i] = (ds_tensor){o->original[f->from[i]], metas[i]};
        }
    }
    DS_TRY(dsi_graph_infer(ctx, f->op, f->attrs, metas, f->n_in, out_metas));
    const ds_kernel_sig sig = {.op = f->op,
                               .attrs = f->attrs,
                               .n_in = f->n_in,
                               .n_out = f->op->n_out,
                               .in = metas,
                               .out = out_metas,
                               .n_threads = 1};
    for (uint32_t i = 0; i < f->op->n_out; ++i) {
        if (out_metas[i].dtype != DS_DTYPE_NONE) {
            out[i] = (ds_tensor){new_memory(ds_meta_bytes(out_metas[i])), out_metas[i]};
        }
    }
    const ds_kernel *kernel = op_reference(&sig);
    ds_status status = kernel != NULL ? run_kernel(ctx, kernel, &sig, in, out)
                                      : ds_fail(ctx, DS_ERR_INTERNAL, "no reference kernel");
    for (uint32_t i = 0; i < f->op->n_out; ++i) {
        if (status >= 0 && f->to[i] >= 0 && out[i].data != NULL) {
            memcpy(o->original[f->to[i]], out[i].data, ds_meta_bytes(out_metas[i]));
        }
        free(out[i].data);
    }
    return status;
}

/* ---- the case
 * ------------------------------------------------------------------------------------ */
static ds_status create(ds_ctx *ctx, op_operands *o)
{
    DS_TRY(create_inputs(ctx, o));
    if (o->c->forward != NULL) {
        DS_TRY(op_operands_forward(ctx, o));
    }
    DS_TRY(dsi_graph_infer(ctx, o->c->op, o->c->attrs, o->in_meta, o->sig.n_in, o->out_meta));
    for (uint32_t i = 0; i < o->sig.n_out; ++i) {
        if (o->out_meta[i].dtype != DS_DTYPE_NONE) {
            o->out[i] = (ds_tensor){new_memory(ds_meta_bytes(o->out_meta[i])), o->out_meta[i]};
            if (o->out[i].data == NULL) {
                return ds_fail(ctx, DS_ERR_NOMEM, "no memory for output %u", i);
            }
        }
    }
    return DS_OK;
}

ds_status op_operands_create(ds_ctx *ctx, const op_case *c, ds_dtype act, op_operands *o_out)
{
    *o_out = (op_operands){.c = c, .act = act};
    o_out->sig = (ds_kernel_sig){.op = c->op,
                                 .attrs = c->attrs,
                                 .n_out = c->op->n_out,
                                 .in = o_out->in_meta,
                                 .out = o_out->out_meta,
                                 .n_threads = ds_ctx_n_threads(ctx)};
    const ds_status status = create(ctx, o_out);
    if (status < 0) {
        op_operands_destroy(o_out);
    }
    return status;
}

void op_operands_destroy(op_operands *o)
{
    for (uint32_t i = 0; i < DS_MAX_IN; ++i) {
        free(o->in[i].data);
        free(o->original[i]);
    }
    for (uint32_t i = 0; i < DS_MAX_OUT; ++i) {
        free(o->out[i].data);
    }
    *o = (op_operands){0};
}

/* Output i takes the memory of the input that it writes; the results are copied to out[i] after. */
static ds_status run_on(ds_ctx *ctx, op_operands *o, const ds_kernel *kernel, bool in_place)
{
    const ds_op *op = o->c->op;
    ds_tensor out[DS_MAX_OUT];
    memcpy(out, o->out, sizeof out);
    for (uint32_t i = 0; i < o->sig.n_out; ++i) {
        const int from = op->writes != NULL   ? op->writes[i]
                         : in_place && i == 0 ? (int)op->inplace_in
                                              : -1;
        if (from >= 0 && out[i].data != NULL) {
            out[i].data = o->in[from].data;
        }
    }
    DS_TRY(run_kernel(ctx, kernel, &o->sig, o->in, out));
    for (uint32_t i = 0; i < o->sig.n_out; ++i) {
        if (out[i].data != o->out[i].data) {
            memcpy(o->out[i].data, out[i].data, ds_meta_bytes(o->out_meta[i]));
        }
    }
    return DS_OK;
}

ds_status op_operands_run(ds_ctx *ctx, op_operands *o, const ds_kernel *kernel, bool in_place)
{
    o->sig.in = o->in_meta;
    o->sig.out = o->out_meta;
    o->sig.n_threads = ds_ctx_n_threads(ctx);
    for (uint32_t i = 0; i < o->sig.n_in; ++i) {
        if (o->in[i].data != NULL) {
            memcpy(o->in[i].data, o->original[i], ds_meta_bytes(o->in_meta[i]));
        }
    }
    for (uint32_t i = 0; i < o->sig.n_out; ++i) {
        if (o->out[i].data != NULL) {
            memset(o->out[i].data, POISON, ds_meta_bytes(o->out_meta[i]));
        }
    }
    DS_TRY(run_on(ctx, o, kernel, in_place));
    for (uint32_t i = 0; i < o->sig.n_out; ++i) {
        if (o->out[i].data != NULL &&
            !canary_lives(o->out[i].data, ds_meta_bytes(o->out_meta[i]))) {
            return ds_fail(ctx, DS_ERR_INTERNAL, "%s/%s writes beyond output %u", kernel->op,
                           kernel->name, i);
        }
    }
    for (uint32_t i = 0; i < o->sig.n_in; ++i) {
        if (o->in[i].data != NULL && !canary_lives(o->in[i].data, ds_meta_bytes(o->in_meta[i]))) {
            return ds_fail(ctx, DS_ERR_INTERNAL, "%s/%s writes beyond input %u", kernel->op,
                           kernel->name, i);
        }
    }
    return DS_OK;
}

ds_dtype op_case_dtype(const op_case *c, uint32_t i)
{
    static const struct {
        uint32_t bit;
        ds_dtype dtype;
    } rows[] = {{OP_F32, DS_DTYPE_F32}, {OP_BF16, DS_DTYPE_BF16}, {OP_F16, DS_DTYPE_F16}};
    const uint32_t all = OP_F32 | OP_BF16 | OP_F16;
    const uint32_t set = (c->flags & all) != 0 ? c->flags & all : all;
    for (uint32_t r = 0; r < 3; ++r) {
        if ((set & rows[r].bit) != 0 && i-- == 0) {
            return rows[r].dtype;
        }
    }
    return DS_DTYPE_NONE;
}
