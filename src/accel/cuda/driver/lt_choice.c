/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm of cuBLASLt a product has. A plan is made before its device is open, so the
 * question goes to the first device that the driver shows, by a context that is held until a device
 * is opened. Devices of one process are of one kind; a rank whose device answers otherwise has
 * another plan, which is refused. See lt.h.
 */
#include "accel/cuda/driver/library_load.h"
#include "accel/cuda/driver/lt.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST = 1024,           /* products of a process */
    ALIGN = 16,            /* of every operand: the ledger's 64, or rows of a matrix */
    WORK_BYTES = 32 << 20, /* most that an algorithm may need; NVIDIA advises it for Hopper */
    WORK_ALIGN = 256
};

static struct {
    pthread_once_t once;
    dsc_lt_api lt;
    bool loaded;
    char why[512];
} library = {.once = PTHREAD_ONCE_INIT};

static struct {
    pthread_mutex_t lock;
    dsc_lt_choice *all[MOST];
    uint32_t n;
    const dsc_driver *cu; /* NULL: no device is held */
    dsc_cu_device device;
    dsc_lt_handle handle;
} choices = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void load(void)
{
    static const char *const all[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    const char *const *files = dsc_libraries_for(all);
    static const dsc_symbol symbols[] = {
#define X(type, member, symbol, params) {#symbol, offsetof(dsc_lt_api, member)},
        DSC_LT_LIST(X)
#undef X
    };
    const dsc_library_row row = {
        .what = "cuBLASLt",
        .files = files,
        .package = files == all ? "the package libcublas-13-0 of NVIDIA's repository, or "
                                  "nvidia-cublas of PyPI, has libcublasLt.so.13"
                                : "the package libcublas-12-8 of NVIDIA's repository, or "
                                  "nvidia-cublas-cu12 of PyPI, has libcublasLt.so.12, which this "
                                  "driver needs",
        .old = "that of CUDA 12.0 or newer",
        .symbols = symbols,
        .n_symbols = sizeof symbols / sizeof symbols[0]};
    library.loaded = dsc_library_load(&row, &library.lt, library.why, sizeof library.why);
}

const dsc_lt_api *dsc_lt_load(const char **why_out)
{
    (void)pthread_once(&library.once, load);
    *why_out = library.why;
    return library.loaded ? &library.lt : NULL;
}

void dsc_lt_say(char *text_out, size_t n)
{
    const char *why = NULL;
    const dsc_lt_api *lt = dsc_lt_load(&why);
    if (lt == NULL) {
        (void)snprintf(text_out, n, "products: kernels of its own; %s", why);
        return;
    }
    /* 10000·major + 100·minor + patch, as its header makes it */
    const size_t version = lt->version();
    (void)snprintf(text_out, n, "products: cuBLASLt %zu.%zu.%zu", version / 10000,
                   version / 100 % 100, version % 100);
}

ds_status dsc_lt_fail(ds_ctx *ctx, const dsc_lt_api *lt, dsc_lt_status status, const char *what)
{
    return dsc_fail(ctx, DS_ERR_DEVICE, "accelerator cuda: %s: %s (%d)", what,
                    lt->status_text(status), status);
}

void dsc_lt_lock(void)
{
    (void)pthread_mutex_lock(&choices.lock);
}

void dsc_lt_unlock(void)
{
    (void)pthread_mutex_unlock(&choices.lock);
}

/* ---- the device that is asked -------------------------------------------------------------- */

static void release(void)
{
    if (choices.cu != NULL) {
        (void)library.lt.destroy(choices.handle);
        (void)choices.cu->release(choices.device);
        choices.cu = NULL;
    }
}

void dsc_lt_forget_device(void)
{
    dsc_lt_lock();
    release();
    dsc_lt_unlock();
}

static bool hold(const dsc_lt_api *lt)
{
    const char *why = NULL;
    const dsc_driver *cu = dsc_driver_load(&why);
    dsc_cu_ctx context = NULL;
    if (choices.cu != NULL) {
        return cu->retain(&context, choices.device) == DSC_CU_SUCCESS &&
               cu->release(choices.device) == DSC_CU_SUCCESS &&
               cu->set_current(context) == DSC_CU_SUCCESS;
    }
    int n = 0;
    if (cu == NULL || cu->n_devices(&n) != DSC_CU_SUCCESS ||
        cu->device(&choices.device, n > 1 ? (int)dsc_local_rank() : 0 /* as dsc_own_device */) !=
            DSC_CU_SUCCESS ||
        cu->retain(&context, choices.device) != DSC_CU_SUCCESS) {
        return false;
    }
    if (cu->set_current(context) != DSC_CU_SUCCESS ||
        lt->create(&choices.handle) != DSC_LT_SUCCESS) {
        (void)cu->release(choices.device);
        return false;
    }
    choices.cu = cu;
    return true;
}

/* ---- a choice ------------------------------------------------------------------------------ */

static bool is_same(const dsc_lt_product *p, const dsc_lt_product *q)
{
    return p->m == q->m && p->n == q->n && p->k == q->k && p->in == q->in && p->out == q->out &&
           p->a_transposed == q->a_transposed && p->b_transposed == q->b_transposed &&
           p->has_bias == q->has_bias && p->adds == q->adds;
}

static dsc_lt_choice *find(const dsc_lt_product *product)
{
    for (uint32_t i = 0; i < choices.n; ++i) {
        if (is_same(&choices.all[i]->product, product)) {
            return choices.all[i];
        }
    }
    return NULL;
}

const dsc_lt_choice *dsc_lt_find(const dsc_lt_product *product)
{
    dsc_lt_lock();
    const dsc_lt_choice *c = find(product);
    dsc_lt_unlock();
    return c != NULL && c->found ? c : NULL;
}

static int type_of(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F32    ? DSC_LT_R_32F
           : dtype == DS_DTYPE_BF16 ? DSC_LT_R_16BF
                                    : DSC_LT_R_16F;
}

static bool describe(const dsc_lt_api *lt, dsc_lt_choice *c)
{
    const dsc_lt_product *p = &c->product;
    const uint64_t m = (uint64_t)p->m;
    const uint64_t n = (uint64_t)p->n;
    const uint64_t k = (uint64_t)p->k;
    const int32_t a_op = p->a_transposed ? DSC_LT_OP_T : DSC_LT_OP_N;
    const int32_t b_op = p->b_transposed ? DSC_LT_OP_T : DSC_LT_OP_N;
    const uint32_t epilogue = p->has_bias ? DSC_LT_EPILOGUE_BIAS : DSC_LT_EPILOGUE_DEFAULT;
    const int in = type_of(p->in);
    return lt->desc_create(&c->desc, DSC_LT_COMPUTE_32F, DSC_LT_R_32F) == DSC_LT_SUCCESS &&
           lt->desc_set(c->desc, DSC_LT_DESC_TRANSA, &a_op, sizeof a_op) == DSC_LT_SUCCESS &&
           lt->desc_set(c->desc, DSC_LT_DESC_TRANSB, &b_op, sizeof b_op) == DSC_LT_SUCCESS &&
           lt->desc_set(c->desc, DSC_LT_DESC_EPILOGUE, &epilogue, sizeof epilogue) ==
               DSC_LT_SUCCESS &&
           lt->layout_create(&c->a, in, p->a_transposed ? k : m, p->a_transposed ? m : k,
                             p->a_transposed ? p->k : p->m) == DSC_LT_SUCCESS &&
           lt->layout_create(&c->b, in, p->b_transposed ? n : k, p->b_transposed ? k : n,
                             p->b_transposed ? p->n : p->k) == DSC_LT_SUCCESS &&
           lt->layout_create(&c->d, type_of(p->out), m, n, p->m) == DSC_LT_SUCCESS;
}

static bool prefer(const dsc_lt_api *lt, dsc_lt_pref pref)
{
    const uint64_t work = WORK_BYTES;
    const uint32_t reductions = DSC_LT_REDUCE_COMPUTE_TYPE;
    const uint32_t align = ALIGN;
    bool done = lt->pref_set(pref, DSC_LT_PREF_WORKSPACE, &work, sizeof work) == DSC_LT_SUCCESS &&
                lt->pref_set(pref, DSC_LT_PREF_REDUCTIONS, &reductions, sizeof reductions) ==
                    DSC_LT_SUCCESS;
    for (int which = DSC_LT_PREF_ALIGN_A; which <= DSC_LT_PREF_ALIGN_D && done; ++which) {
        done = lt->pref_set(pref, which, &align, sizeof align) == DSC_LT_SUCCESS;
    }
    return done;
}

static int number_of(const dsc_lt_api *lt, const dsc_lt_algo *algo, int which)
{
    int32_t value = 0;
    size_t written = 0;
    return lt->algo_get(algo, which, &value, sizeof value, &written) == DSC_LT_SUCCESS ? value : -1;
}

/* The library's first answer. */
static bool ask(const dsc_lt_api *lt, dsc_lt_choice *c)
{
    dsc_lt_pref pref = NULL;
    dsc_lt_result result = {.state = DSC_LT_NOT_SUPPORTED};
    int n = 0;
    if (!describe(lt, c) || lt->pref_create(&pref) != DSC_LT_SUCCESS) {
        return false;
    }
    const bool answered = prefer(lt, pref) &&
                          lt->heuristic(choices.handle, c->desc, c->a, c->b, c->d, c->d, pref, 1,
                                        &result, &n) == DSC_LT_SUCCESS &&
                          n == 1 && result.state == DSC_LT_SUCCESS &&
                          result.work_bytes <= WORK_BYTES;
    (void)lt->pref_destroy(pref);
    if (answered) {
        c->algo = result.algo;
        c->work_bytes = result.work_bytes;
        (void)snprintf(c->name, sizeof c->name, "cublaslt_%d_tile%d_stages%d_split%d",
                       number_of(lt, &c->algo, DSC_LT_ALGO_ID),
                       number_of(lt, &c->algo, DSC_LT_ALGO_TILE),
                       number_of(lt, &c->algo, DSC_LT_ALGO_STAGES),
                       number_of(lt, &c->algo, DSC_LT_ALGO_SPLIT_K));
    }
    return answered;
}

static void drop(const dsc_lt_api *lt, dsc_lt_choice *c)
{
    (void)(c->desc != NULL ? lt->desc_destroy(c->desc) : DSC_LT_SUCCESS);
    dsc_lt_layout layouts[] = {c->a, c->b, c->d};
    for (int i = 0; i < 3; ++i) {
        (void)(layouts[i] != NULL ? lt->layout_destroy(layouts[i]) : DSC_LT_SUCCESS);
    }
    c->desc = NULL;
}

static size_t work_bytes(const ds_kernel_sig *sig)
{
    dsc_lt_product product;
    const dsc_lt_choice *c = dsc_lt_product_of(sig, &product) ? dsc_lt_find(&product) : NULL;
    return c != NULL && c->work_bytes > 0 ? c->work_bytes + WORK_ALIGN : 0;
}

/* Of a product that nobody has asked for yet. */
static dsc_lt_choice *choose(const dsc_lt_api *lt, const dsc_lt_product *product, const char *op)
{
    if (choices.n == MOST || !hold(lt)) {
        return NULL;
    }
    dsc_lt_choice *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return NULL;
    }
    c->product = *product;
    c->found = ask(lt, c);
    if (!c->found) {
        drop(lt, c);
    }
    const bool is_dw = strcmp(op, "linear_dw") == 0;
    c->kernel = (ds_kernel){.version = DS_OP_VERSION,
                            .name = c->name,
                            .op = is_dw ? "linear_dw" : "linear",
                            .work_bytes = work_bytes,
                            .run = is_dw ? dsc_lt_linear_dw : dsc_lt_linear};
    choices.all[choices.n++] = c;
    return c;
}

const ds_kernel *dsc_lt_kernel(const ds_kernel_sig *sig)
{
    const char *why = NULL;
    dsc_lt_product product;
    if (!dsc_lt_product_of(sig, &product)) {
        return NULL;
    }
    const dsc_lt_api *lt = dsc_lt_load(&why);
    if (lt == NULL) {
        return NULL;
    }
    dsc_lt_lock();
    dsc_lt_choice *c = find(&product);
    c = c != NULL ? c : choose(lt, &product, sig->op->name);
    dsc_lt_unlock();
    return c != NULL && c->found ? &c->kernel : NULL;
}
