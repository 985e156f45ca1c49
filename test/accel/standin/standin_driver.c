/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, contexts and modules of the stand-in. See standin.h. */
#include "accel/standin/device_table.h"
#include "accel/standin/standin.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { IMAGES = 13000 }; /* the CUDA that makes images */

standin standin_all = {.lock = PTHREAD_MUTEX_INITIALIZER,
                       .turn_bytes = 4096,
                       .major = 9,
                       .version = IMAGES,
                       .n_devices = 1,
                       .host_waits = true,
                       .mib = 1024};

struct CUctx_st {
    int unused;
};
enum { MOST_OWN = 8, NAME_BYTES = 128 };
/* Of the kernels of kernels/, or of an object that the stand-in of NVRTC has made. */
struct CUmod_st {
    void *object; /* NULL: of kernels/ */
    uint32_t n;
    char names[MOST_OWN][NAME_BYTES];
    dsc_host_row rows[MOST_OWN];
    struct CUfunc_st functions[MOST_OWN];
};
static struct CUctx_st context;
static struct CUmod_st module;
static _Thread_local bool is_current;
static _Thread_local bool in_host_call; /* where the driver allows no call of its own */

/* What STANDIN_API adds to declarations of the driver's own. */
#define X(member, symbol, params) STANDIN_API dsc_cu_result symbol params;
DSC_CU_LIST(X)
#undef X

void standin_set(const char *options)
{
    static const struct {
        const char *key;
        uint64_t *value;
    } rows[] = {{"seed=", &standin_all.random},     {"turn=", &standin_all.turn_bytes},
                {"ignore=", &standin_all.ignore},   {"least=", &standin_all.major},
                {"broken=", &standin_all.broken},   {"late=", &standin_all.late},
                {"mib=", &standin_all.mib},         {"init=", &standin_all.init},
                {"version=", &standin_all.version}, {"devices=", &standin_all.n_devices}};
    const char *name = options != NULL ? strstr(options, "name=") : NULL;
    (void)pthread_mutex_lock(&standin_all.lock);
    standin_all.n_waits = 0;
    standin_all.ignore = 0;
    standin_all.ignored = false;
    standin_all.n_syncs = 0;
    standin_all.broken = 0;
    standin_all.late = 0;
    standin_all.mib = 1024;
    (void)snprintf(standin_all.name, sizeof standin_all.name, "%.*s",
                   name != NULL ? (int)strcspn(name + 5, ",") : 96,
                   name != NULL ? name + 5 : "stand-in on the processor");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const char *at = options != NULL ? strstr(options, rows[i].key) : NULL;
        if (at != NULL) {
            *rows[i].value = strtoull(at + strlen(rows[i].key), NULL, 10);
        }
    }
    standin_all.starved_for = 0;
    (void)pthread_mutex_unlock(&standin_all.lock);
}

uint64_t standin_waits(void)
{
    (void)pthread_mutex_lock(&standin_all.lock);
    const uint64_t n = standin_all.n_waits;
    (void)pthread_mutex_unlock(&standin_all.lock);
    return n;
}

bool standin_ignored_one(void)
{
    (void)pthread_mutex_lock(&standin_all.lock);
    const bool ignored = standin_all.ignored;
    (void)pthread_mutex_unlock(&standin_all.lock);
    return ignored;
}

bool standin_ignores(bool idle)
{
    const bool ignores = ++standin_all.n_waits == standin_all.ignore;
    standin_all.ignored = standin_all.ignored || (ignores && !idle);
    return ignores;
}

static bool is_initialized(void)
{
    return standin_all.initialized && standin_all.process == (long)getpid();
}

dsc_cu_result standin_enter(void)
{
    if (in_host_call) {
        (void)fputs("stand-in: a host function calls the driver\n", stderr);
        abort();
    }
    (void)pthread_mutex_lock(&standin_all.lock);
    return !is_initialized()                            ? DSC_CU_NOT_INITIALIZED
           : !is_current || standin_all.n_contexts == 0 ? DSC_CU_INVALID_CONTEXT
                                                        : DSC_CU_SUCCESS;
}

dsc_cu_result standin_leave(dsc_cu_result result)
{
    standin_protect(false);
    (void)pthread_mutex_unlock(&standin_all.lock);
    return result;
}

void standin_run_host(void (*fn)(void *arg), void *arg)
{
    standin_protect(false);
    in_host_call = true;
    fn(arg);
    in_host_call = false;
}

bool standin_has_context(void)
{
    return standin_leave(standin_enter()) == DSC_CU_SUCCESS;
}

/* ---- what there is ------------------------------------------------------------------------- */

dsc_cu_result cuInit(unsigned flags)
{
    if (flags != 0) {
        return DSC_CU_INVALID_VALUE;
    }
    standin_set(getenv("DS_CUDA_STANDIN"));
    standin_all.initialized = standin_all.init == DSC_CU_SUCCESS;
    standin_all.process = (long)getpid();
    return (dsc_cu_result)standin_all.init;
}

dsc_cu_result cuDriverGetVersion(int *version_out)
{
    const char *at = getenv("DS_CUDA_STANDIN"); /* which may be asked before cuInit */
    at = at != NULL ? strstr(at, "version=") : NULL;
    *version_out =
        at != NULL ? (int)strtol(at + strlen("version="), NULL, 10) : (int)standin_all.version;
    return DSC_CU_SUCCESS;
}

static const struct {
    dsc_cu_result result;
    const char *name;
} results[] = {{DSC_CU_SUCCESS, "CUDA_SUCCESS"},
               {DSC_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
               {DSC_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
               {DSC_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
               {DSC_CU_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
               {DSC_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
               {DSC_CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
               {DSC_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
               {DSC_CU_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE"},
               {DSC_CU_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY"},
               {DSC_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
               {DSC_CU_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
               {DSC_CU_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
               {DSC_CU_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
               {DSC_CU_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
               {DSC_CU_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"}};

dsc_cu_result cuGetErrorName(dsc_cu_result result, const char **text_out)
{
    *text_out = NULL;
    for (size_t i = 0; i < sizeof results / sizeof results[0]; ++i) {
        if (results[i].result == result) {
            *text_out = results[i].name;
        }
    }
    return *text_out != NULL ? DSC_CU_SUCCESS : DSC_CU_INVALID_VALUE;
}

dsc_cu_result cuGetErrorString(dsc_cu_result result, const char **text_out)
{
    return cuGetErrorName(result, text_out);
}

/* NVIDIA's NVRTC asks a driver that it finds for this function, which no reference describes, and
 * does without what there is not. */
STANDIN_API dsc_cu_result cuGetExportTable(const void **table_out, const void *id);
dsc_cu_result cuGetExportTable(const void **table_out, const void *id)
{
    (void)id;
    *table_out = NULL;
    return DSC_CU_NOT_FOUND;
}

dsc_cu_result cuDeviceGetCount(int *n_out)
{
    *n_out = (int)standin_all.n_devices;
    return is_initialized() ? DSC_CU_SUCCESS : DSC_CU_NOT_INITIALIZED;
}

dsc_cu_result cuDeviceGet(dsc_cu_device *device_out, int ordinal)
{
    *device_out = ordinal;
    return ordinal >= 0 && (uint64_t)ordinal < standin_all.n_devices ? DSC_CU_SUCCESS
                                                                     : DSC_CU_INVALID_DEVICE;
}

dsc_cu_result cuDeviceGetName(char *name_out, int n, dsc_cu_device device)
{
    (void)device;
    (void)snprintf(name_out, (size_t)n, "%s", standin_all.name);
    return DSC_CU_SUCCESS;
}

dsc_cu_result cuDeviceGetPCIBusId(char *text_out, int n, dsc_cu_device device)
{
    (void)snprintf(text_out, (size_t)n, "0000:%02X:00.0", 0x3b + device);
    return DSC_CU_SUCCESS;
}

dsc_cu_result cuDeviceTotalMem_v2(size_t *bytes_out, dsc_cu_device device)
{
    (void)device;
    *bytes_out = standin_all.mib << 20;
    return DSC_CU_SUCCESS;
}

dsc_cu_result cuDeviceGetAttribute(int *value_out, int which, dsc_cu_device device)
{
    (void)device;
    *value_out = which == DSC_CU_ATTRIBUTE_MAJOR                ? (int)standin_all.major
                 : which == DSC_CU_ATTRIBUTE_MINOR              ? 0
                 : which == DSC_CU_ATTRIBUTE_UNIFIED_ADDRESSING ? 1
                                                                : 132;
    return DSC_CU_SUCCESS;
}

dsc_cu_result cuDevicePrimaryCtxRetain(dsc_cu_ctx *ctx_out, dsc_cu_device device)
{
    if (!is_initialized() || device < 0 || (uint64_t)device >= standin_all.n_devices) {
        return DSC_CU_INVALID_DEVICE;
    }
    (void)pthread_mutex_lock(&standin_all.lock);
    standin_all.n_contexts += 1;
    (void)pthread_mutex_unlock(&standin_all.lock);
    *ctx_out = &context;
    return DSC_CU_SUCCESS;
}

dsc_cu_result cuDevicePrimaryCtxRelease_v2(dsc_cu_device device)
{
    (void)pthread_mutex_lock(&standin_all.lock);
    const bool held = device >= 0 && standin_all.n_contexts > 0;
    standin_all.n_contexts -= held ? 1 : 0;
    (void)pthread_mutex_unlock(&standin_all.lock);
    return held ? DSC_CU_SUCCESS : DSC_CU_INVALID_CONTEXT;
}

dsc_cu_result cuCtxSetCurrent(dsc_cu_ctx ctx)
{
    is_current = ctx == &context;
    return ctx == &context || ctx == NULL ? DSC_CU_SUCCESS : DSC_CU_INVALID_CONTEXT;
}

/* ---- modules ------------------------------------------------------------------------------- */

/* A fat binary, as nvcc makes them, or what the tests' own module has. */
static bool is_image(const void *image)
{
    static const unsigned char fat[4] = {0x50, 0xed, 0x55, 0xba};
    return memcmp(image, fat, sizeof fat) == 0 || strcmp(image, "host layer") == 0;
}

/* A shared object for this machine, by its headers; 0: it is none. Its sections' table is its end.
 */
static size_t object_bytes(const void *image)
{
    Elf64_Ehdr h;
    if (memcmp(image, ELFMAG, SELFMAG) != 0) {
        return 0;
    }
    memcpy(&h, image, sizeof h);
    return h.e_type == ET_DYN && h.e_machine != EM_CUDA
               ? (size_t)h.e_shoff + (size_t)h.e_shnum * h.e_shentsize
               : 0;
}

static struct CUmod_st *load_object(const void *image, size_t bytes)
{
    static const standin_device device = {.here = dsc_here,
                                          .syncthreads = __syncthreads,
                                          .syncwarp = __syncwarp,
                                          .shfl_xor = dsc_shfl_xor_f32,
                                          .shfl = dsc_shfl_f32};
    const char *temporary = getenv("TMPDIR");
    char path[512];
    void (*bind)(const standin_device *) = NULL;
    void *symbol = NULL;
    struct CUmod_st *m = calloc(1, sizeof *m);
    struct rlimit limit; /* a full disk is the program's, in tests */
    (void)getrlimit(RLIMIT_FSIZE, &limit);
    (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit.rlim_max, limit.rlim_max});
    (void)snprintf(path, sizeof path, "%s/standin_module_XXXXXX",
                   temporary != NULL ? temporary : "/tmp");
    const int file = mkstemp(path); /* two objects of one name would be one */
    if (m != NULL && file >= 0 && write(file, image, bytes) == (ssize_t)bytes) {
        m->object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        symbol = m->object != NULL ? dlsym(m->object, "standin_bind") : NULL;
    }
    (void)setrlimit(RLIMIT_FSIZE, &limit);
    memcpy(&bind, &symbol, sizeof bind);
    if (file >= 0) {
        (void)close(file);
        (void)unlink(path);
    }
    if (bind == NULL) {
        free(m);
        return NULL;
    }
    bind(&device);
    return m;
}

dsc_cu_result cuModuleLoadData(dsc_cu_module *module_out, const void *image)
{
    const dsc_cu_result entered = standin_unsafe(standin_enter());
    if (entered != DSC_CU_SUCCESS) {
        return standin_leave(entered);
    }
    const size_t bytes = object_bytes(image);
    struct CUmod_st *made = bytes > 0 ? load_object(image, bytes)
                            : is_image(image) && standin_all.version >= IMAGES ? &module
                                                                               : NULL;
    if (made != NULL) {
        *module_out = made;
    }
    return standin_leave(made != NULL ? DSC_CU_SUCCESS : DSC_CU_INVALID_IMAGE);
}

dsc_cu_result cuModuleUnload(dsc_cu_module which)
{
    if (which != &module && which != NULL) {
        (void)dlclose(which->object);
        free(which);
    }
    return which != NULL ? DSC_CU_SUCCESS : DSC_CU_INVALID_HANDLE;
}

static dsc_cu_result own_function(dsc_cu_function *function_out, struct CUmod_st *m,
                                  const char *name)
{
    char symbol_name[NAME_BYTES + 32];
    (void)snprintf(symbol_name, sizeof symbol_name, "standin_kernel_%s", name);
    void *symbol = m->n < MOST_OWN ? dlsym(m->object, symbol_name) : NULL;
    if (symbol == NULL) {
        return DSC_CU_NOT_FOUND;
    }
    const uint32_t i = m->n++;
    (void)snprintf(m->names[i], NAME_BYTES, "%s", name);
    m->rows[i].name = m->names[i];
    memcpy(&m->rows[i].run, &symbol, sizeof symbol);
    m->functions[i].row = &m->rows[i];
    *function_out = &m->functions[i];
    return DSC_CU_SUCCESS;
}

dsc_cu_result cuModuleGetFunction(dsc_cu_function *function_out, dsc_cu_module which,
                                  const char *name)
{
    static struct CUfunc_st functions[DSC_FN_COUNT];
    if (which == NULL) {
        return DSC_CU_INVALID_HANDLE;
    }
    if (which->object != NULL) {
        return own_function(function_out, which, name);
    }
    for (uint32_t f = 0; f < DSC_FN_COUNT; ++f) {
        if (strcmp(dsc_host_table[f].name, name) == 0) {
            functions[f].row = &dsc_host_table[f];
            *function_out = &functions[f];
            return DSC_CU_SUCCESS;
        }
    }
    return DSC_CU_NOT_FOUND;
}
