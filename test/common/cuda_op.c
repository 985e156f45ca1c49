/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda_op.h. */
#include "common/cuda_op.h"

#include "base/half.h"

#include <math.h>
#include <stdlib.h>

enum { PARTS = 64 };

const char cuda_wave_source[] =
    "#include \"deepspeed_cuda.h\"\n"
    "extern \"C\" __global__ void wave(const void *x, void *y, int64_t n, float a)\n"
    "{\n"
    "    for (int64_t i = ds_index(); i < n; i += ds_stride()) {\n"
    "        const float v = ds_get(x, DS_IN_0, i);\n"
    "        const float s = sinf(a * v);\n"
    "        ds_set(y, DS_OUT_0, i, v + s * s / a);\n"
    "    }\n"
    "}\n";

const char cuda_shares_source[] =
    "#include \"deepspeed_cuda.h\"\n"
    "extern \"C\" __global__ void __launch_bounds__(64)\n"
    "row_sums(const float *x, float *sums, int64_t columns)\n"
    "{\n"
    "    __shared__ float parts[64];\n"
    "    float sum = 0.0f;\n"
    "    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {\n"
    "        sum += fabsf(x[blockIdx.x * columns + i]);\n"
    "    }\n"
    "    parts[threadIdx.x] = sum;\n"
    "    __syncthreads();\n"
    "    if (threadIdx.x == 0) {\n"
    "        for (unsigned t = 1; t < blockDim.x; ++t) {\n"
    "            sum += parts[t];\n"
    "        }\n"
    "        sums[blockIdx.x] = sum;\n"
    "    }\n"
    "}\n"
    "struct shares { const float *x, *sums; float *y; int64_t n, columns; };\n"
    "extern \"C\" __global__ void divide(const shares a)\n"
    "{\n"
    "    for (int64_t i = ds_index(); i < a.n; i += ds_stride()) {\n"
    "        a.y[i] = a.x[i] / a.sums[i / a.columns];\n"
    "    }\n"
    "}\n";

/* ---- wave ---------------------------------------------------------------------------------- */

static ds_status same_infer(ds_infer *call)
{
    call->out[0] = call->in[0];
    return DS_OK;
}

static float get(const void *t, ds_dtype dtype, int64_t i)
{
    return dtype == DS_DTYPE_F32    ? ((const float *)t)[i]
           : dtype == DS_DTYPE_BF16 ? dsi_bf16_to_f32(((const uint16_t *)t)[i])
                                    : dsi_f16_to_f32(((const uint16_t *)t)[i]);
}

static void set(void *t, ds_dtype dtype, int64_t i, float value)
{
    if (dtype == DS_DTYPE_F32) {
        ((float *)t)[i] = value;
    } else {
        ((uint16_t *)t)[i] =
            dtype == DS_DTYPE_BF16 ? dsi_f32_to_bf16(value) : dsi_f32_to_f16(value);
    }
}

static ds_status wave_run(const ds_kernel_call *call)
{
    const ds_dtype dtype = call->in[0].meta.dtype;
    const float a = (float)((const cuda_wave_attrs *)call->sig->attrs)->a;
    for (int64_t i = 0; i < ds_shape_count(call->in[0].meta.shape); ++i) {
        const float v = get(call->in[0].data, dtype, i);
        const float s = sinf(a * v);
        set(call->out[0].data, dtype, i, v + s * s / a);
    }
    return DS_OK;
}

static ds_status wave_launch(const ds_kernel_call *call, uint32_t function, ds_cuda_launch *launch)
{
    const float a = (float)((const cuda_wave_attrs *)call->sig->attrs)->a;
    const int64_t n = ds_shape_count(call->in[0].meta.shape);
    (void)function;
    ds_cuda_over(launch, n);
    ds_cuda_arg(launch, &call->in[0].data, sizeof call->in[0].data);
    ds_cuda_arg(launch, &call->out[0].data, sizeof call->out[0].data);
    ds_cuda_arg(launch, &n, sizeof n);
    ds_cuda_arg(launch, &a, sizeof a);
    return DS_OK;
}

static const ds_attr wave_fields[] = {{"a", DS_ATTR_REAL, offsetof(cuda_wave_attrs, a)}};
static const ds_kernel wave_ref = {
    .version = DS_OP_VERSION, .name = "ref", .op = "cuda_wave", .run = wave_run};
static const ds_kernel *const wave_kernels[] = {&wave_ref, NULL};
static const char *const wave_functions[] = {"wave", NULL};
static const ds_cuda_kernel wave_source = {.version = DS_OP_VERSION,
                                           .name = "plain",
                                           .source = cuda_wave_source,
                                           .functions = wave_functions,
                                           .launch = wave_launch};
static const ds_cuda_kernel *const wave_sources[] = {&wave_source, NULL};

const ds_op cuda_wave = {.version = DS_OP_VERSION,
                         .name = "cuda_wave",
                         .doc = "x → x + sin²(a·x)/a.",
                         .n_in_min = 1,
                         .n_in_max = 1,
                         .n_out = 1,
                         .attrs_bytes = sizeof(cuda_wave_attrs),
                         .attrs = wave_fields,
                         .n_attrs = 1,
                         .infer = same_infer,
                         .kernels = wave_kernels,
                         .cuda = wave_sources};

/* ---- shares -------------------------------------------------------------------------------- */

static ds_status shares_run(const ds_kernel_call *call)
{
    const int64_t columns = ds_shape_last(call->in[0].meta.shape);
    for (int64_t row = 0; row < ds_shape_rows(call->in[0].meta.shape); ++row) {
        const float *x = (const float *)call->in[0].data + row * columns;
        float *y = (float *)call->out[0].data + row * columns;
        float parts[PARTS] = {0.0f};
        for (int64_t i = 0; i < columns; ++i) {
            parts[i % PARTS] += fabsf(x[i]);
        }
        for (int t = 1; t < PARTS; ++t) {
            parts[0] += parts[t];
        }
        for (int64_t i = 0; i < columns; ++i) {
            y[i] = x[i] / parts[0];
        }
    }
    return DS_OK;
}

static size_t shares_work(const ds_kernel_sig *sig)
{
    return (size_t)ds_shape_rows(sig->in[0].shape) * sizeof(float);
}

typedef struct shares_args {
    const void *x, *sums;
    void *y;
    int64_t n, columns;
} shares_args;

static ds_status shares_launch(const ds_kernel_call *call, uint32_t function,
                               ds_cuda_launch *launch)
{
    const shares_args a = {.x = call->in[0].data,
                           .sums = call->work,
                           .y = call->out[0].data,
                           .n = ds_shape_count(call->in[0].meta.shape),
                           .columns = ds_shape_last(call->in[0].meta.shape)};
    if (function == 0) {
        launch->grid[0] = (uint32_t)(a.n / a.columns);
        launch->block[0] = PARTS;
        ds_cuda_arg(launch, &a.x, sizeof a.x);
        ds_cuda_arg(launch, &a.sums, sizeof a.sums);
        ds_cuda_arg(launch, &a.columns, sizeof a.columns);
        return DS_OK;
    }
    ds_cuda_over(launch, a.n);
    memcpy(launch->args, &a, sizeof a);
    launch->args_bytes = sizeof a;
    return DS_OK;
}

static const ds_kernel shares_ref = {
    .version = DS_OP_VERSION, .name = "ref", .op = "cuda_shares", .run = shares_run};
static const ds_kernel *const shares_kernels[] = {&shares_ref, NULL};
static const char *const shares_functions[] = {"row_sums", "divide", NULL};
static const ds_cuda_kernel shares_source = {.version = DS_OP_VERSION,
                                             .name = "two_passes",
                                             .source = cuda_shares_source,
                                             .functions = shares_functions,
                                             .work_bytes = shares_work,
                                             .launch = shares_launch};
static const ds_cuda_kernel *const shares_sources[] = {&shares_source, NULL};

const ds_op cuda_shares = {.version = DS_OP_VERSION,
                           .name = "cuda_shares",
                           .doc = "x → each row over the sum of its magnitudes.",
                           .n_in_min = 1,
                           .n_in_max = 1,
                           .n_out = 1,
                           .infer = same_infer,
                           .kernels = shares_kernels,
                           .cuda = shares_sources};

/* ---- one call ------------------------------------------------------------------------------ */

typedef struct device_call {
    ds_ctx *ctx;
    const ds_accel *accel;
    ds_accel_device *device;
    ds_accel_stream *stream;
    ds_kernel_call call;
    ds_tensor in, out;
    size_t bytes, work_bytes;
    unsigned char *memory; /* x, y, work */
} device_call;

static ds_status run_there(device_call *c, const ds_kernel *kernel, const void *x, void *y)
{
    const ds_accel_memory *m = c->accel->memory;
    const ds_kernel_call *failed = NULL;
    const size_t room = (c->bytes + 63) / 64 * 64;
    void *memory = NULL;
    DS_TRY(m->alloc(c->device, c->ctx, 2 * room + c->work_bytes + 64, "a test", &memory));
    c->memory = memory;
    DS_TRY(m->copy(c->device, memory, x, c->bytes));
    c->in.data = c->memory;
    c->out.data = c->memory + room;
    c->call.work = c->work_bytes > 0 ? c->memory + 2 * room : NULL;
    DS_TRY(c->accel->streams->create(c->device, c->ctx, &c->stream));
    ds_status status = c->accel->streams->launch(c->stream, kernel, &c->call);
    status = status < 0 ? status : c->accel->streams->synchronize(c->stream, &failed);
    return status < 0 ? status : m->copy(c->device, y, c->out.data, c->bytes);
}

ds_status cuda_op_run(ds_ctx *ctx, const ds_accel *accel, ds_accel_device *device, const ds_op *op,
                      const void *attrs, ds_meta meta, const void *x, void *y)
{
    const ds_kernel_sig sig = {
        .op = op, .attrs = attrs, .n_in = 1, .n_out = 1, .in = &meta, .out = &meta, .n_threads = 1};
    device_call c = {.ctx = ctx,
                     .accel = accel,
                     .device = device,
                     .in = {(void *)(uintptr_t)x, meta},
                     .out = {y, meta},
                     .bytes = (size_t)ds_shape_count(meta.shape) * ds_dtype_bytes(meta.dtype)};
    c.call = (ds_kernel_call){.ctx = ctx, .sig = &sig, .in = &c.in, .out = &c.out};
    if (accel == NULL) {
        return op->kernels[0]->run(&c.call);
    }
    const ds_kernel *kernel = accel->kernels->choose(&sig, 0);
    if (kernel == NULL) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "no kernel of %s", op->name);
    }
    c.work_bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
    DS_TRY(accel->kernels->prepare(device, ctx, kernel, &sig));
    const ds_status status = run_there(&c, kernel, x, y);
    accel->streams->destroy(&c.stream);
    if (c.memory != NULL) {
        accel->memory->release(device, c.memory,
                               2 * ((c.bytes + 63) / 64 * 64) + c.work_bytes + 64);
    }
    return status;
}
