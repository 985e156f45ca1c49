/* SPDX-License-Identifier: Apache-2.0 */
/* Counts allocating calls: whoever includes it replaces malloc and its like in its program. For one
 * source file of a test. Where they cannot be replaced (own_malloc.h) a sanitizer counts, mmap and
 * munmap not; where there is none, nothing is here: CAN_COUNT_ALLOCATIONS. */
#ifndef DS_TEST_COUNT_ALLOCATIONS_H
#define DS_TEST_COUNT_ALLOCATIONS_H

#include "common/own_malloc.h"

#include <deepspeed/status.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if CAN_REPLACE_MALLOC || (defined(HAS_OWN_MALLOC) && defined(__GLIBC__))
#define CAN_COUNT_ALLOCATIONS 1

static atomic_bool counting;
static atomic_uint n_calls;
static _Atomic(void *) first_caller; /* of the first call that was counted */

static void count(void *caller)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed)) {
        void *nobody = NULL;
        (void)atomic_compare_exchange_strong(&first_caller, &nobody, caller);
        atomic_fetch_add(&n_calls, 1);
    }
}

#if CAN_REPLACE_MALLOC

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);
void __libc_free(void *p);

#define COUNT() count(__builtin_return_address(0))

DS_API void *malloc(size_t n)
{
    COUNT();
    return __libc_malloc(n);
}

DS_API void *calloc(size_t n, size_t size)
{
    COUNT();
    return __libc_calloc(n, size);
}

DS_API void *realloc(void *old, size_t n)
{
    COUNT();
    return __libc_realloc(old, n);
}

DS_API void free(void *p)
{
    if (p != NULL) {
        COUNT();
    }
    __libc_free(p);
}

DS_API void *memalign(size_t alignment, size_t n);
DS_API void *memalign(size_t alignment, size_t n)
{
    COUNT();
    return __libc_memalign(alignment, n);
}

DS_API void *aligned_alloc(size_t alignment, size_t n)
{
    COUNT();
    return __libc_memalign(alignment, n);
}

DS_API int posix_memalign(void **p, size_t alignment, size_t n)
{
    COUNT();
    *p = __libc_memalign(alignment, n);
    return *p == NULL ? ENOMEM : 0;
}

DS_API void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    COUNT();
    return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

DS_API int munmap(void *at, size_t n)
{
    COUNT();
    return (int)syscall(SYS_munmap, at, n);
}

#else

int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void *, size_t),
                                              void (*freed)(const volatile void *));

static void note_malloc(const volatile void *p, size_t n)
{
    (void)p;
    (void)n;
    count(__builtin_return_address(0));
}

static void note_free(const volatile void *p)
{
    if (p != NULL) {
        count(__builtin_return_address(0));
    }
}

__attribute__((constructor)) static void install_hooks(void)
{
    if (__sanitizer_install_malloc_and_free_hooks(note_malloc, note_free) == 0) {
        abort(); /* nothing would be counted */
    }
}

#endif

static void count_begin(void)
{
    atomic_store(&first_caller, NULL);
    atomic_store(&n_calls, 0);
    atomic_store(&counting, true);
}

/* Calls of all threads since count_begin; who made the first is in first_caller. */
static unsigned count_end(void)
{
    atomic_store(&counting, false);
    return atomic_load(&n_calls);
}

#else
#define CAN_COUNT_ALLOCATIONS 0
#endif
#endif
