/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for NVIDIA's libcublasLt.so.13 over the stand-in of the driver (standin/): what the
 * documentation of cuBLASLt says of the functions that lt_api.h lists. A product is queued on its
 * stream and computed late. An algorithm adds in an order of its own, in `split` parts of k: one
 * part, or two to four whose sums lie in the workspace, so that another algorithm is seen in the
 * bits. An algorithm is for the problem that was asked for: another one is refused.
 *
 * DS_CUBLASLT_STANDIN="first=N": the N-th of its algorithms is the first answer; "none": it has no
 * algorithm for anything. standin_lt_asked:
 * questions so far; standin_lt_ran: products so far; standin_lt_first: as the variable.
 */
#include "accel/cuda/driver/lt_api.h"
#include "accel/standin/standin.h"
#include "base/half.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SPLIT = 4, MAGIC = 0x4c54 };

struct cublasLtContext {
    int unused;
};

struct dsc_lt_desc_st {
    int32_t transposed[2];
    uint32_t epilogue;
    const void *bias;
};

struct dsc_lt_layout_st {
    int type;
    uint64_t rows, columns;
    int64_t ld;
};

struct dsc_lt_pref_st {
    uint64_t work_bytes;
    uint32_t reductions, align[4];
};

STANDIN_API void standin_lt_first(uint32_t first);
STANDIN_API uint64_t standin_lt_asked(void);
STANDIN_API uint64_t standin_lt_ran(void);
#define X(type, member, symbol, params) STANDIN_API type symbol params;
DSC_LT_LIST(X)
#undef X

static _Atomic uint32_t first_split;
static _Atomic bool has_none;
static _Atomic uint64_t n_asked;
static _Atomic uint64_t n_ran;
static _Atomic bool is_loaded[MOST_SPLIT + 1][16]; /* by split and type of A */
static struct cublasLtContext context;

void standin_lt_first(uint32_t first)
{
    first_split = first;
}

uint64_t standin_lt_asked(void)
{
    return n_asked;
}

uint64_t standin_lt_ran(void)
{
    return n_ran;
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusString(dsc_lt_status status)
{
    return status == DSC_LT_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == DSC_LT_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == DSC_LT_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                            : "CUBLAS_STATUS_NOT_INITIALIZED";
}

dsc_lt_status cublasLtCreate(dsc_lt_handle *handle_out)
{
    const char *options = getenv("DS_CUBLASLT_STANDIN");
    if (!standin_has_context()) {
        return DSC_LT_NOT_INITIALIZED;
    }
    if (options != NULL && strncmp(options, "first=", 6) == 0) {
        first_split = (uint32_t)strtoul(options + 6, NULL, 10);
    }
    has_none = options != NULL && strcmp(options, "none") == 0;
    *handle_out = &context;
    return DSC_LT_SUCCESS;
}

dsc_lt_status cublasLtDestroy(dsc_lt_handle handle)
{
    return handle == &context ? DSC_LT_SUCCESS : DSC_LT_NOT_INITIALIZED;
}

/* ---- descriptors --------------------------------------------------------------------------- */

dsc_lt_status cublasLtMatmulDescCreate(dsc_lt_desc *desc_out, int compute_type, int scale_type)
{
    if (compute_type != DSC_LT_COMPUTE_32F || scale_type != DSC_LT_R_32F) {
        return DSC_LT_NOT_SUPPORTED;
    }
    *desc_out = calloc(1, sizeof **desc_out);
    if (*desc_out == NULL) {
        return DSC_LT_ALLOC_FAILED;
    }
    (*desc_out)->epilogue = DSC_LT_EPILOGUE_DEFAULT;
    return DSC_LT_SUCCESS;
}

dsc_lt_status cublasLtMatmulDescDestroy(dsc_lt_desc desc)
{
    free(desc);
    return DSC_LT_SUCCESS;
}

static dsc_lt_status set(void *field, size_t field_bytes, const void *value, size_t bytes)
{
    if (bytes != field_bytes) {
        return DSC_LT_INVALID_VALUE;
    }
    memcpy(field, value, bytes);
    return DSC_LT_SUCCESS;
}

dsc_lt_status cublasLtMatmulDescSetAttribute(dsc_lt_desc desc, int which, const void *value,
                                             size_t bytes)
{
    switch (which) {
    case DSC_LT_DESC_TRANSA:
        return set(&desc->transposed[0], sizeof desc->transposed[0], value, bytes);
    case DSC_LT_DESC_TRANSB:
        return set(&desc->transposed[1], sizeof desc->transposed[1], value, bytes);
    case DSC_LT_DESC_EPILOGUE:
        return set(&desc->epilogue, sizeof desc->epilogue, value, bytes);
    case DSC_LT_DESC_BIAS_POINTER:
        return set(&desc->bias, sizeof desc->bias, value, bytes);
    default:
        return DSC_LT_INVALID_VALUE;
    }
}

dsc_lt_status cublasLtMatrixLayoutCreate(dsc_lt_layout *layout_out, int type, uint64_t rows,
                                         uint64_t columns, int64_t ld)
{
    *layout_out = malloc(sizeof **layout_out);
    if (*layout_out == NULL) {
        return DSC_LT_ALLOC_FAILED;
    }
    **layout_out = (struct dsc_lt_layout_st){type, rows, columns, ld};
    return DSC_LT_SUCCESS;
}

dsc_lt_status cublasLtMatrixLayoutDestroy(dsc_lt_layout layout)
{
    free(layout);
    return DSC_LT_SUCCESS;
}

dsc_lt_status cublasLtMatmulPreferenceCreate(dsc_lt_pref *pref_out)
{
    *pref_out = malloc(sizeof **pref_out);
    if (*pref_out == NULL) {
        return DSC_LT_ALLOC_FAILED;
    }
    **pref_out = (struct dsc_lt_pref_st){.reductions = 0x7, .align = {256, 256, 256, 256}};
    return DSC_LT_SUCCESS;
}

dsc_lt_status cublasLtMatmulPreferenceDestroy(dsc_lt_pref pref)
{
    free(pref);
    return DSC_LT_SUCCESS;
}

dsc_lt_status cublasLtMatmulPreferenceSetAttribute(dsc_lt_pref pref, int which, const void *value,
                                                   size_t bytes)
{
    if (which == DSC_LT_PREF_WORKSPACE) {
        return set(&pref->work_bytes, sizeof pref->work_bytes, value, bytes);
    }
    if (which == DSC_LT_PREF_REDUCTIONS) {
        return set(&pref->reductions, sizeof pref->reductions, value, bytes);
    }
    return which >= DSC_LT_PREF_ALIGN_A && which <= DSC_LT_PREF_ALIGN_D
               ? set(&pref->align[which - DSC_LT_PREF_ALIGN_A], sizeof pref->align[0], value, bytes)
               : DSC_LT_INVALID_VALUE;
}

/* ---- problems and algorithms --------------------------------------------------------------- */

/* What is queued: all by value, since descriptors may change or go once the call has returned. */
typedef struct product {
    struct dsc_lt_layout_st a, b, c, d;
    int32_t transposed[2];
    const void *at_a, *at_b, *at_c, *bias;
    void *at_d;
    float *work;
    float alpha, beta;
    uint32_t split;
} product;
_Static_assert(sizeof(product) <= ARGS_BYTES, "a product fits into a piece of work");

static bool is_type(int type)
{
    return type == DSC_LT_R_32F || type == DSC_LT_R_16F || type == DSC_LT_R_16BF;
}

static size_t width(int type)
{
    return type == DSC_LT_R_32F ? 4 : 2;
}

static uint64_t depth(const product *p)
{
    return p->transposed[0] == DSC_LT_OP_T ? p->a.rows : p->a.columns;
}

static bool describe(dsc_lt_desc desc, dsc_lt_layout a, dsc_lt_layout b, dsc_lt_layout c,
                     dsc_lt_layout d, product *p)
{
    *p = (product){.a = *a, .b = *b, .c = *c, .d = *d, .bias = desc->bias};
    memcpy(p->transposed, desc->transposed, sizeof p->transposed);
    const bool ta = p->transposed[0] == DSC_LT_OP_T;
    const bool tb = p->transposed[1] == DSC_LT_OP_T;
    const struct dsc_lt_layout_st *all[] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) {
        if (!is_type(all[i]->type) || all[i]->rows == 0 || all[i]->columns == 0 ||
            all[i]->ld < (int64_t)all[i]->rows) {
            return false;
        }
    }
    return (ta ? a->columns : a->rows) == d->rows && (tb ? b->rows : b->columns) == d->columns &&
           (tb ? b->columns : b->rows) == depth(p) && c->rows == d->rows &&
           c->columns == d->columns && c->type == d->type && a->type == b->type &&
           (d->type == a->type || d->type == DSC_LT_R_32F);
}

/* Of the problem that an algorithm is for. */
static uint64_t fingerprint(const product *p, uint32_t epilogue)
{
    const uint64_t parts[] = {p->d.rows,
                              p->d.columns,
                              depth(p),
                              (uint64_t)p->a.type * 16 + (uint64_t)p->d.type,
                              (uint64_t)p->transposed[0] * 2 + (uint64_t)p->transposed[1],
                              epilogue};
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; ++i) {
        hash = (hash ^ parts[i]) * 1099511628211u;
    }
    return hash;
}

static size_t work_of(const product *p, uint32_t split)
{
    return split == 1 ? 0 : (size_t)(split * p->d.rows * p->d.columns) * sizeof(float);
}

dsc_lt_status cublasLtMatmulAlgoGetHeuristic(dsc_lt_handle handle, dsc_lt_desc desc,
                                             dsc_lt_layout a, dsc_lt_layout b, dsc_lt_layout c,
                                             dsc_lt_layout d, dsc_lt_pref pref, int n,
                                             dsc_lt_result *results, int *n_out)
{
    product p;
    *n_out = 0;
    n_asked += 1;
    if (handle != &context || n < 1 || !standin_has_context()) {
        return DSC_LT_INVALID_VALUE;
    }
    if (has_none || !describe(desc, a, b, c, d, &p)) {
        return DSC_LT_NOT_SUPPORTED;
    }
    for (uint32_t i = 0; i < MOST_SPLIT && *n_out < n; ++i) {
        const uint32_t split = 1 + (first_split + i) % MOST_SPLIT;
        const bool reduces = (pref->reductions & DSC_LT_REDUCE_COMPUTE_TYPE) != 0;
        if (split > depth(&p) || work_of(&p, split) > pref->work_bytes || (split > 1 && !reduces)) {
            continue;
        }
        results[(*n_out)++] = (dsc_lt_result){
            .algo = {.data = {MAGIC, split, fingerprint(&p, desc->epilogue), pref->align[0]}},
            .work_bytes = work_of(&p, split),
            .state = DSC_LT_SUCCESS,
            .waves = 1.0f};
    }
    return *n_out > 0 ? DSC_LT_SUCCESS : DSC_LT_NOT_SUPPORTED;
}

dsc_lt_status cublasLtMatmulAlgoConfigGetAttribute(const dsc_lt_algo *algo, int which,
                                                   void *value_out, size_t bytes,
                                                   size_t *written_out)
{
    const uint32_t value = which == DSC_LT_ALGO_ID        ? 7
                           : which == DSC_LT_ALGO_SPLIT_K ? (uint32_t)algo->data[1]
                                                          : 1;
    *written_out = sizeof value;
    if (algo->data[0] != MAGIC || bytes < sizeof value) {
        return DSC_LT_INVALID_VALUE;
    }
    memcpy(value_out, &value, sizeof value);
    return DSC_LT_SUCCESS;
}

/* ---- the product --------------------------------------------------------------------------- */

static float get(const void *at, int type, uint64_t i)
{
    return type == DSC_LT_R_32F    ? ((const float *)at)[i]
           : type == DSC_LT_R_16BF ? dsi_bf16_to_f32(((const uint16_t *)at)[i])
                                   : dsi_f16_to_f32(((const uint16_t *)at)[i]);
}

static void put(void *at, int type, uint64_t i, float value)
{
    if (type == DSC_LT_R_32F) {
        ((float *)at)[i] = value;
    } else {
        ((uint16_t *)at)[i] =
            type == DSC_LT_R_16BF ? dsi_f32_to_bf16(value) : dsi_f32_to_f16(value);
    }
}

static float part_of(const product *p, uint64_t i, uint64_t j, uint32_t part)
{
    const uint64_t k = depth(p);
    const uint64_t a_ld = (uint64_t)p->a.ld;
    const uint64_t b_ld = (uint64_t)p->b.ld;
    float sum = 0.0f;
    for (uint64_t l = part * k / p->split; l < (part + 1) * k / p->split; ++l) {
        const uint64_t at_a = p->transposed[0] == DSC_LT_OP_T ? l + i * a_ld : i + l * a_ld;
        const uint64_t at_b = p->transposed[1] == DSC_LT_OP_T ? j + l * b_ld : l + j * b_ld;
        sum += get(p->at_a, p->a.type, at_a) * get(p->at_b, p->b.type, at_b);
    }
    return sum;
}

/* All parts, then what they make: as a kernel, and one that reduces behind it. */
static bool run(const void *args)
{
    product copy;
    memcpy(&copy, args, sizeof copy);
    const product *p = &copy;
    const uint64_t m = p->d.rows;
    const uint64_t n = p->d.columns;
    for (uint32_t part = 0; p->split > 1 && part < p->split; ++part) {
        for (uint64_t at = 0; at < m * n; ++at) {
            p->work[part * m * n + at] = part_of(p, at % m, at / m, part);
        }
    }
    for (uint64_t at = 0; at < m * n; ++at) {
        float sum = p->split > 1 ? p->work[at] : part_of(p, at % m, at / m, 0);
        for (uint32_t part = 1; part < p->split; ++part) {
            sum += p->work[part * m * n + at];
        }
        const uint64_t to = at % m + at / m * (uint64_t)p->d.ld;
        sum *= p->alpha;
        sum += p->beta != 0.0f ? p->beta * get(p->at_c, p->c.type, to) : 0.0f;
        sum += p->bias != NULL ? get(p->bias, p->d.type, at % m) : 0.0f;
        put(p->at_d, p->d.type, to, sum);
    }
    return true;
}

static bool is_matrix(const void *at, const struct dsc_lt_layout_st *l, uint64_t align)
{
    const size_t bytes = ((size_t)l->ld * (l->columns - 1) + l->rows) * width(l->type);
    return (uintptr_t)at % align == 0 && standin_is_device(at, bytes);
}

/* An algorithm's code is loaded when it is first used, a call that a capture may forbid. */
static bool load_code(const product *p)
{
    _Atomic bool *loaded = &is_loaded[p->split][p->a.type % 16];
    if (!*loaded && !standin_may_load()) {
        return false;
    }
    *loaded = true;
    return true;
}

dsc_lt_status cublasLtMatmul(dsc_lt_handle handle, dsc_lt_desc desc, const void *alpha,
                             const void *a, dsc_lt_layout a_layout, const void *b,
                             dsc_lt_layout b_layout, const void *beta, const void *c,
                             dsc_lt_layout c_layout, void *d, dsc_lt_layout d_layout,
                             const dsc_lt_algo *algo, void *scratch, size_t scratch_bytes,
                             dsc_cu_stream stream)
{
    product p;
    if (handle != &context || algo == NULL || algo->data[0] != MAGIC ||
        !describe(desc, a_layout, b_layout, c_layout, d_layout, &p) ||
        algo->data[2] != fingerprint(&p, desc->epilogue)) {
        return DSC_LT_INVALID_VALUE;
    }
    p.split = (uint32_t)algo->data[1];
    p.at_a = a;
    p.at_b = b;
    p.at_c = c;
    p.at_d = d;
    p.work = scratch;
    memcpy(&p.alpha, alpha, sizeof p.alpha);
    memcpy(&p.beta, beta, sizeof p.beta);
    const bool biased = desc->epilogue == DSC_LT_EPILOGUE_BIAS;
    p.bias = biased ? p.bias : NULL;
    const size_t needs = work_of(&p, p.split);
    if (!is_matrix(a, &p.a, algo->data[3]) || !is_matrix(b, &p.b, algo->data[3]) ||
        !is_matrix(c, &p.c, algo->data[3]) || !is_matrix(d, &p.d, algo->data[3]) ||
        (biased && !standin_is_device(p.bias, p.d.rows * width(p.d.type))) ||
        scratch_bytes < needs ||
        (needs > 0 && ((uintptr_t)scratch % 256 != 0 || !standin_is_device(scratch, needs)))) {
        return DSC_LT_INVALID_VALUE;
    }
    if (!load_code(&p)) {
        return DSC_LT_EXECUTION_FAILED;
    }
    n_ran += 1;
    return standin_call(stream, run, &p, sizeof p) == DSC_CU_SUCCESS ? DSC_LT_SUCCESS
                                                                     : DSC_LT_EXECUTION_FAILED;
}
