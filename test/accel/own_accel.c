/* SPDX-License-Identifier: Apache-2.0 */
/* An accelerator as a shared object of its own, the smallest that there can be: blocks of memory
 * that the library may not touch, and the processor's kernels on them; no streams. It includes
 * public headers alone and is linked against nothing of the library. For test_tool_accel.sh, which
 * also builds it with faults (OWN_ACCEL_FAULT), and as a beginning for others.
 */
#include <deepspeed/accel.h>
#include <stdlib.h>
#include <string.h>

enum {
    FAULT_NONE,
    FAULT_COPY,
    FAULT_FILL,
    FAULT_ZERO,
    FAULT_VERSION,
    FAULT_TABLE,
    FAULT_KERNEL,
    FAULT_NEEDS
};

#ifndef OWN_ACCEL_FAULT
#define OWN_ACCEL_FAULT 0
#endif

static const ds_accel_library *library;

static ds_status alloc(ds_accel_device *device, ds_ctx *ctx, size_t bytes, const char *what,
                       void **memory_out)
{
    (void)device;
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == NULL) {
        return library->fail(ctx, DS_ERR_NOMEM, what);
    }
    memset(memory, OWN_ACCEL_FAULT == FAULT_ZERO ? 1 : 0, bytes);
    *memory_out = memory;
    return DS_OK;
}

static void release(ds_accel_device *device, void *memory, size_t bytes)
{
    (void)device;
    (void)bytes;
    free(memory);
}

static ds_status copy(ds_accel_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, OWN_ACCEL_FAULT == FAULT_COPY && bytes > 100 ? bytes - 1 : bytes);
    return DS_OK;
}

static ds_status fill(ds_accel_device *device, void *to, int byte, size_t bytes)
{
    (void)device;
    memset(to, OWN_ACCEL_FAULT == FAULT_FILL ? 0 : byte, bytes);
    return DS_OK;
}

static ds_status do_nothing(const ds_kernel_call *call)
{
    (void)call;
    return DS_OK;
}

static const ds_kernel idle = {
    .version = DS_OP_VERSION, .name = "idle", .op = "*", .run = do_nothing};

/* Bits of its own: one that every device of it has, and one that none has. */
#define OWN_BLOCKS DS_ISA_OWN(0)
#define OWN_TILES  DS_ISA_OWN(1)

static ds_isa has(ds_isa cpu)
{
    return cpu | OWN_BLOCKS;
}

static const ds_kernel in_tiles = {
    .version = DS_OP_VERSION, .name = "tiles", .op = "*", .needs = OWN_TILES, .run = do_nothing};

/* What the library says that there is has what this accelerator said. */
static const ds_kernel *choose(const ds_kernel_sig *sig, ds_isa there)
{
    if (OWN_ACCEL_FAULT == FAULT_NEEDS) {
        return &in_tiles;
    }
    return (there & OWN_BLOCKS) == 0         ? NULL
           : OWN_ACCEL_FAULT == FAULT_KERNEL ? &idle
                                             : library->cpu_kernel(sig, there);
}

static const ds_accel_memory memory = {
    .alloc = alloc, .release = release, .copy = copy, .fill = fill};

static const ds_accel_kernels kernels = {.choose = OWN_ACCEL_FAULT == FAULT_TABLE ? NULL : choose,
                                         .has = has};

static const ds_accel own = {.version =
                                 DS_ACCEL_VERSION + (OWN_ACCEL_FAULT == FAULT_VERSION ? 1u : 0u),
                             .name = "own",
                             .doc = "memory of its own, no streams",
                             .memory = &memory,
                             .kernels = &kernels};

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const ds_accel *
ds_accel_v9(const ds_accel_library *given);

const ds_accel *ds_accel_v9(const ds_accel_library *given)
{
    library = given;
    return &own;
}
