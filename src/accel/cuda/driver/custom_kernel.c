/* SPDX-License-Identifier: Apache-2.0 */
/* See custom_kernel.h. */
#include "accel/cuda/driver/custom_kernel.h"

#include "accel/cuda/driver/image_cache.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 1024, MOST_THREADS = 1024, TYPES = DS_MAX_IN + DS_MAX_OUT };

/* A kernel that is loaded on a device. */
typedef struct dsc_custom {
    const ds_cuda_kernel *row;
    uint8_t types[TYPES];
    dsc_cu_module module;
    dsc_cu_function functions[DS_CUDA_FUNCTIONS];
    struct dsc_custom *next;
} dsc_custom;

/* ---- which kernel --------------------------------------------------------------------------- */

static ds_status run(const ds_kernel_call *call);

/* What steps point to, as long as the process lives. */
static struct {
    pthread_mutex_t lock;
    ds_kernel *all[MOST_ROWS];
    uint32_t n;
} rows = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const ds_cuda_kernel *row_of(const ds_kernel_sig *sig)
{
    const ds_cuda_kernel *const *list = sig->op->cuda;
    for (uint32_t i = 0; list != NULL && list[i] != NULL; ++i) {
        if (list[i]->supports == NULL || list[i]->supports(sig)) {
            return list[i];
        }
    }
    return NULL;
}

static bool is_for(const ds_kernel *kernel, const ds_op *op, const ds_cuda_kernel *row)
{
    return strcmp(kernel->op, op->name) == 0 && strcmp(kernel->name, row->name) == 0 &&
           kernel->work_bytes == row->work_bytes;
}

static ds_kernel *add(const ds_op *op, const ds_cuda_kernel *row)
{
    ds_kernel *kernel = rows.n < MOST_ROWS ? malloc(sizeof *kernel) : NULL;
    char *name = kernel != NULL ? strdup(row->name) : NULL;
    char *op_name = name != NULL ? strdup(op->name) : NULL;
    if (op_name == NULL) {
        free(name);
        free(kernel);
        return NULL;
    }
    *kernel = (ds_kernel){.version = DS_OP_VERSION,
                          .name = name,
                          .op = op_name,
                          .work_bytes = row->work_bytes,
                          .run = run};
    rows.all[rows.n++] = kernel;
    return kernel;
}

const ds_kernel *dsc_custom_kernel(const ds_kernel_sig *sig)
{
    const ds_cuda_kernel *row = row_of(sig);
    ds_kernel *found = NULL;
    if (row == NULL) {
        return NULL;
    }
    (void)pthread_mutex_lock(&rows.lock);
    for (uint32_t i = 0; i < rows.n && found == NULL; ++i) {
        found = is_for(rows.all[i], sig->op, row) ? rows.all[i] : NULL;
    }
    found = found != NULL ? found : add(sig->op, row);
    (void)pthread_mutex_unlock(&rows.lock);
    return found;
}

/* ---- on a device --------------------------------------------------------------------------- */

static void types_of(const ds_kernel_sig *sig, uint8_t types_out[TYPES])
{
    memset(types_out, 0, TYPES);
    for (uint32_t i = 0; i < sig->n_in; ++i) {
        types_out[i] = (uint8_t)sig->in[i].dtype;
    }
    for (uint32_t i = 0; i < sig->n_out; ++i) {
        types_out[DS_MAX_IN + i] = (uint8_t)sig->out[i].dtype;
    }
}

static dsc_custom *find(const ds_accel_device *device, const ds_cuda_kernel *row,
                        const ds_kernel_sig *sig)
{
    uint8_t types[TYPES];
    types_of(sig, types);
    dsc_custom *c = device->customs;
    while (c != NULL && (c->row != row || memcmp(c->types, types, TYPES) != 0)) {
        c = c->next;
    }
    return c;
}

typedef struct maker {
    ds_ctx *ctx;
    const dsc_nvrtc_api *nvrtc;
    const ds_op *op;
    const ds_cuda_kernel *row;
    const dsc_custom_build *build;
    ds_status status;
} maker;

/* Line for line, whole. */
static void say_log(const maker *m, char *log)
{
    for (char *rest = NULL, *line = strtok_r(log, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        dsc_library->log(m->ctx, line);
    }
}

static bool make(void *user, void **code_out, size_t *bytes_out)
{
    maker *m = user;
    dsc_nvrtc_made made;
    dsc_nvrtc_compile(m->nvrtc, &m->build->job, &made);
    if (made.log != NULL) {
        char title[256];
        (void)snprintf(title, sizeof title, "operator %s, kernel %s for cuda (sm_%d):", m->op->name,
                       m->row->name, m->build->job.arch);
        dsc_library->log(m->ctx, title);
        say_log(m, made.log);
    }
    if (made.code == NULL) {
        m->status = dsc_fail(m->ctx, DS_ERR_ARG,
                             "operator %s: its kernel %s for cuda is not compiled for sm_%d: %s%s",
                             m->op->name, m->row->name, m->build->job.arch, made.why,
                             made.log != NULL ? "; the compiler's log is above" : "");
    }
    free(made.log);
    *code_out = made.code;
    *bytes_out = made.code_bytes;
    return made.code != NULL;
}

static void warn(void *user, const char *text)
{
    dsc_library->log(((const maker *)user)->ctx, text);
}

static ds_status find_arch(const ds_accel_device *device, ds_ctx *ctx, const ds_op *op,
                           const dsc_nvrtc_api *nvrtc, int *arch_out)
{
    char known[512];
    int major = 0;
    int minor = 0;
    DSC_CU(ctx, device->cu, device->cu->attribute(&major, DSC_CU_ATTRIBUTE_MAJOR, device->ordinal),
           "cuDeviceGetAttribute");
    DSC_CU(ctx, device->cu, device->cu->attribute(&minor, DSC_CU_ATTRIBUTE_MINOR, device->ordinal),
           "cuDeviceGetAttribute");
    *arch_out = dsc_nvrtc_arch(nvrtc, major, minor, known, sizeof known);
    char compiler[128];
    dsc_nvrtc_say(compiler, sizeof compiler);
    return *arch_out > 0 ? DS_OK
                         : dsc_fail(ctx, DS_ERR_UNSUPPORTED,
                                    "operator %s: %s makes no code for sm_%d%d, which device %d "
                                    "has; it makes %s",
                                    op->name, compiler, major, minor, device->ordinal, known);
}

static ds_status load(ds_accel_device *device, ds_ctx *ctx, const ds_op *op, const void *code,
                      dsc_custom *c)
{
    const dsc_driver *cu = device->cu;
    char what[256];
    DS_TRY(dsc_enter(device, ctx));
    (void)snprintf(what, sizeof what, "operator %s: the code of its kernel %s", op->name,
                   c->row->name);
    DSC_CU(ctx, cu, cu->module_load(&c->module, code), what);
    for (uint32_t f = 0; c->row->functions[f] != NULL; ++f) {
        const dsc_cu_result result =
            cu->function(&c->functions[f], c->module, c->row->functions[f]);
        if (result == DSC_CU_NOT_FOUND) {
            return dsc_fail(ctx, DS_ERR_ARG,
                            "operator %s: the source of its kernel %s for cuda has no function %s; "
                            "it is extern \"C\" __global__",
                            op->name, c->row->name, c->row->functions[f]);
        }
        DSC_CU(ctx, cu, result, what);
    }
    return DS_OK;
}

static ds_status compile(ds_accel_device *device, ds_ctx *ctx, const ds_kernel_sig *sig,
                         const char *source, dsc_custom *c)
{
    const char *why = NULL;
    char what[256];
    int arch = 0;
    void *code = NULL;
    size_t bytes = 0;
    dsc_custom_build build;
    const dsc_nvrtc_api *nvrtc = dsc_nvrtc_load(&why);
    if (nvrtc == NULL) {
        return dsc_fail(ctx, DS_ERR_UNSUPPORTED,
                        "operator %s: its kernel %s for cuda is source that NVRTC compiles: %s",
                        sig->op->name, c->row->name, why);
    }
    DS_TRY(find_arch(device, ctx, sig->op, nvrtc, &arch));
    DS_TRY(dsc_custom_describe(ctx, c->row, sig, source, arch, &build));
    maker m = {.ctx = ctx, .nvrtc = nvrtc, .op = sig->op, .row = c->row, .build = &build};
    (void)snprintf(what, sizeof what, "operator %s is compiled by each rank that needs it",
                   sig->op->name);
    const dsc_cache_request request = {.key = build.key,
                                       .key_bytes = build.key_bytes,
                                       .what = what,
                                       .make = make,
                                       .warn = warn,
                                       .user = &m};
    const bool done = dsc_cache_get(&request, &code, &bytes);
    free(build.key);
    const ds_status status = done ? load(device, ctx, sig->op, code, c) : m.status;
    free(code);
    return status;
}

static void unload(const ds_accel_device *device, dsc_custom *c)
{
    if (c->module != NULL) {
        (void)device->cu->module_unload(c->module);
    }
    free(c);
}

ds_status dsc_custom_prepare(ds_accel_device *device, ds_ctx *ctx, const ds_kernel *kernel,
                             const ds_kernel_sig *sig)
{
    const ds_cuda_kernel *row = kernel->run == run ? row_of(sig) : NULL;
    char *source = NULL;
    if (row == NULL || find(device, row, sig) != NULL) {
        return DS_OK;
    }
    DS_TRY(dsc_custom_read(ctx, sig->op, row, &source));
    dsc_custom *c = calloc(1, sizeof *c);
    if (c == NULL) {
        free(source);
        return dsc_fail(ctx, DS_ERR_NOMEM, "no memory for a kernel");
    }
    c->row = row;
    types_of(sig, c->types);
    const ds_status status = compile(device, ctx, sig, source, c);
    free(source);
    if (status < 0) {
        unload(device, c);
        return status;
    }
    c->next = device->customs;
    device->customs = c;
    return DS_OK;
}

void dsc_custom_close(ds_accel_device *device)
{
    while (device->customs != NULL) {
        dsc_custom *c = device->customs;
        device->customs = c->next;
        unload(device, c);
    }
}

/* ---- a launch ------------------------------------------------------------------------------ */

/* What is wrong with it; NULL: nothing. */
static const char *fault_of(const ds_cuda_launch *l)
{
    const uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
    if (threads == 0 || threads > MOST_THREADS || l->block[2] > 64) {
        return "a block has 1 to 1024 threads, at most 64 in z";
    }
    if (l->grid[0] > INT32_MAX || l->grid[1] > DSC_MOST_YZ || l->grid[2] > DSC_MOST_YZ) {
        return "a grid has at most 2147483647 blocks in x, 65535 in y and z";
    }
    return l->args_bytes > DS_CUDA_ARGS_BYTES ? "more than 512 bytes of arguments" : NULL;
}

static ds_status launch(const ds_kernel_call *call, const ds_accel_stream *s, const dsc_custom *c,
                        uint32_t f)
{
    const char *op = call->sig->op->name;
    ds_cuda_launch l = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
    DS_TRY(c->row->launch(call, f, &l));
    if (l.grid[0] == 0 || l.grid[1] == 0 || l.grid[2] == 0) {
        return DS_OK;
    }
    const char *fault = fault_of(&l);
    if (fault != NULL) {
        return dsc_fail(call->ctx, DS_ERR_ARG,
                        "operator %s: its kernel %s for cuda: %s with grid (%u,%u,%u), block "
                        "(%u,%u,%u), %zu bytes of arguments: %s",
                        op, c->row->name, c->row->functions[f], l.grid[0], l.grid[1], l.grid[2],
                        l.block[0], l.block[1], l.block[2], l.args_bytes, fault);
    }
    void *extra[] = {DSC_CU_PARAM_POINTER, l.args, DSC_CU_PARAM_SIZE, &l.args_bytes,
                     DSC_CU_PARAM_END};
    DSC_CU(call->ctx, s->device->cu,
           s->device->cu->launch(c->functions[f], l.grid[0], l.grid[1], l.grid[2], l.block[0],
                                 l.block[1], l.block[2], 0, s->queue, NULL, extra),
           op);
    return DS_OK;
}

static ds_status run(const ds_kernel_call *call)
{
    const ds_accel_stream *s = dsc_current_stream();
    const ds_cuda_kernel *row = row_of(call->sig);
    const dsc_custom *c = s != NULL && row != NULL ? find(s->device, row, call->sig) : NULL;
    if (c == NULL) {
        return dsc_fail(call->ctx, DS_ERR_STATE,
                        "operator %s: its kernel for cuda has no stream, or was not prepared",
                        call->sig->op->name);
    }
    for (uint32_t f = 0; row->functions[f] != NULL; ++f) {
        DS_TRY(launch(call, s, c, f));
    }
    return DS_OK;
}

void dsc_custom_say(char *text_out, size_t n)
{
    const char *why = NULL;
    char compiler[600];
    char cache[400];
    dsc_nvrtc_say(compiler, sizeof compiler);
    dsc_cache_say(cache, sizeof cache);
    if (dsc_nvrtc_load(&why) != NULL) {
        (void)snprintf(text_out, n, "custom operators: compiled at first use by %s, %s", compiler,
                       cache);
    } else {
        (void)snprintf(text_out, n, "custom operators: not those with CUDA source; %s", compiler);
    }
}
