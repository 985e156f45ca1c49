/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the stand-in's device: mapped without any permission but while work runs, so that a
 * touch of the host faults. See standin.h. */
#include "accel/standin/standin.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void standin_protect(bool open)
{
    if (standin_all.open == open) {
        return;
    }
    for (uint32_t i = 0; i < standin_all.n_regions; ++i) {
        const region *r = &standin_all.regions[i];
        if (r->on_device) {
            (void)mprotect(r->at, r->bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
        }
    }
    standin_all.open = open;
}

const region *standin_find(const void *memory, size_t bytes)
{
    const unsigned char *at = memory;
    for (uint32_t i = 0; i < standin_all.n_regions; ++i) {
        const region *r = &standin_all.regions[i];
        if (at >= r->at && at < r->at + r->bytes && bytes <= (size_t)(r->at + r->bytes - at)) {
            return r;
        }
    }
    return NULL;
}

/* Whether the first byte lies in memory that is known. */
static bool begins_inside(const void *memory)
{
    return standin_find(memory, 0) != NULL;
}

bool standin_reaches(const void *memory, size_t bytes, bool *pinned_out)
{
    *pinned_out = standin_find(memory, bytes) != NULL;
    return *pinned_out || !begins_inside(memory);
}

bool standin_is_device(const void *memory, size_t bytes)
{
    (void)standin_enter();
    const region *r = standin_find(memory, bytes);
    const bool is = r != NULL && r->on_device;
    (void)standin_leave(DSC_CU_SUCCESS);
    return is;
}

void standin_copy(void *to, const void *from, size_t bytes)
{
    (void)standin_enter();
    standin_protect(true);
    memcpy(to, from, bytes);
    (void)standin_leave(DSC_CU_SUCCESS);
}

static bool add(unsigned char *at, size_t bytes, bool on_device, bool own)
{
    if (standin_all.n_regions == MOST_REGIONS) {
        return false;
    }
    standin_all.regions[standin_all.n_regions++] = (region){at, bytes, on_device, own};
    return true;
}

/* Work that uses it ends first: what frees memory waits for the device. */
static dsc_cu_result drop(const void *memory, bool on_device, bool own, dsc_cu_result otherwise)
{
    for (uint32_t i = 0; i < standin_all.n_regions; ++i) {
        region *r = &standin_all.regions[i];
        if (r->at == memory && r->on_device == on_device && r->own == own) {
            while (standin_turn()) {
            }
            if (on_device) {
                (void)munmap(r->at, r->bytes);
            }
            *r = standin_all.regions[--standin_all.n_regions];
            return DSC_CU_SUCCESS;
        }
    }
    return otherwise;
}

STANDIN_API dsc_cu_result cuMemGetInfo_v2(size_t *free_out, size_t *total_out);
dsc_cu_result cuMemGetInfo_v2(size_t *free_out, size_t *total_out)
{
    *total_out = standin_all.mib << 20;
    *free_out = *total_out;
    for (uint32_t i = 0; i < standin_all.n_regions; ++i) {
        *free_out -= standin_all.regions[i].on_device ? standin_all.regions[i].bytes : 0;
    }
    return DSC_CU_SUCCESS;
}

STANDIN_API dsc_cu_result cuMemAlloc_v2(dsc_cu_ptr *memory_out, size_t bytes);
dsc_cu_result cuMemAlloc_v2(dsc_cu_ptr *memory_out, size_t bytes)
{
    enum { GARBAGE = 0xa5 }; /* its content is undefined */
    size_t n_free = 0;
    size_t n_all = 0;
    dsc_cu_result result = standin_unsafe(standin_enter());
    (void)cuMemGetInfo_v2(&n_free, &n_all);
    result = result == DSC_CU_SUCCESS && bytes == 0       ? DSC_CU_INVALID_VALUE
             : result == DSC_CU_SUCCESS && bytes > n_free ? DSC_CU_OUT_OF_MEMORY
                                                          : result;
    if (result != DSC_CU_SUCCESS) {
        return standin_leave(result);
    }
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || !add(at, bytes, true, false)) {
        return standin_leave(DSC_CU_OUT_OF_MEMORY);
    }
    memset(at, GARBAGE, bytes);
    (void)mprotect(at, bytes, standin_all.open ? PROT_READ | PROT_WRITE : PROT_NONE);
    *memory_out = (dsc_cu_ptr)(uintptr_t)at;
    return standin_leave(DSC_CU_SUCCESS);
}

STANDIN_API dsc_cu_result cuMemFree_v2(dsc_cu_ptr memory);
dsc_cu_result cuMemFree_v2(dsc_cu_ptr memory)
{
    const dsc_cu_result entered = standin_unsafe(standin_enter());
    return standin_leave(entered != DSC_CU_SUCCESS ? entered
                                                   : drop((const void *)(uintptr_t)memory, true,
                                                          false, DSC_CU_INVALID_VALUE));
}

STANDIN_API dsc_cu_result cuMemHostAlloc(void **memory_out, size_t bytes, unsigned flags);
dsc_cu_result cuMemHostAlloc(void **memory_out, size_t bytes, unsigned flags)
{
    const dsc_cu_result entered = standin_unsafe(standin_enter());
    (void)flags;
    if (entered != DSC_CU_SUCCESS) {
        return standin_leave(entered);
    }
    *memory_out = malloc(bytes);
    return standin_leave(*memory_out != NULL && add(*memory_out, bytes, false, true)
                             ? DSC_CU_SUCCESS
                             : DSC_CU_OUT_OF_MEMORY);
}

STANDIN_API dsc_cu_result cuMemFreeHost(void *memory);
dsc_cu_result cuMemFreeHost(void *memory)
{
    const dsc_cu_result entered = standin_unsafe(standin_enter());
    const dsc_cu_result result =
        entered != DSC_CU_SUCCESS ? entered : drop(memory, false, true, DSC_CU_INVALID_VALUE);
    if (result == DSC_CU_SUCCESS) {
        free(memory);
    }
    return standin_leave(result);
}

STANDIN_API dsc_cu_result cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags);
dsc_cu_result cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    enum { PAGE = 4096 };
    dsc_cu_result result = standin_unsafe(standin_enter());
    (void)flags;
    const uintptr_t begin = (uintptr_t)memory / PAGE;
    const uintptr_t end = ((uintptr_t)memory + bytes - 1) / PAGE;
    for (uint32_t i = 0; i < standin_all.n_regions && result == DSC_CU_SUCCESS; ++i) {
        const region *r = &standin_all.regions[i];
        const bool overlaps =
            (uintptr_t)r->at / PAGE <= end && begin <= ((uintptr_t)r->at + r->bytes - 1) / PAGE;
        result = overlaps && !r->own ? DSC_CU_HOST_MEMORY_ALREADY_REGISTERED : result;
    }
    if (result == DSC_CU_SUCCESS && !add(memory, bytes, false, false)) {
        result = DSC_CU_OUT_OF_MEMORY;
    }
    return standin_leave(result);
}

STANDIN_API dsc_cu_result cuMemHostUnregister(void *memory);
dsc_cu_result cuMemHostUnregister(void *memory)
{
    const dsc_cu_result entered = standin_unsafe(standin_enter());
    return standin_leave(entered != DSC_CU_SUCCESS
                             ? entered
                             : drop(memory, false, false, DSC_CU_HOST_MEMORY_NOT_REGISTERED));
}
