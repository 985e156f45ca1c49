/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool. See pool.h for the law.
 *
 * A loop is published by bumping `epoch`; workers take tasks from an atomic counter; the caller
 * waits until every worker has left the loop, so the arguments may live on its stack.
 */
#include "base/pool.h"

#include "base/thread.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { SPINS_BEFORE_SLEEP = 2000 };

typedef struct worker {
    dsi_pool *pool;
    pthread_t thread;
    uint32_t index;
} worker;

struct dsi_pool {
    uint32_t n_threads;
    dsi_task_fn fn;
    void *arg;
    uint32_t n_tasks;
    _Alignas(64) atomic_uint epoch; /* bumped for each loop; futex word of the workers */
    _Alignas(64) atomic_uint next_task;
    _Alignas(64) atomic_uint n_busy; /* workers still inside; futex word of the caller */
    atomic_uint n_sleeping;
    atomic_bool caller_sleeps;
    atomic_bool quit;
    worker *workers;
};

static void futex_wait(atomic_uint *word, uint32_t value)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

static uint32_t flush_denormals(void)
{
#if defined(__x86_64__)
    const uint32_t old = _mm_getcsr();
    _mm_setcsr(old | 0x8040u);
    return old;
#else
    return 0;
#endif
}

static void restore_float_mode(uint32_t old)
{
#if defined(__x86_64__)
    _mm_setcsr(old);
#else
    (void)old;
#endif
}

static void take_tasks(dsi_pool *pool, uint32_t thread)
{
    for (;;) {
        const uint32_t task = atomic_fetch_add_explicit(&pool->next_task, 1, memory_order_relaxed);
        if (task >= pool->n_tasks) {
            return;
        }
        pool->fn(pool->arg, task, thread);
    }
}

static void wait_for_epoch(dsi_pool *pool, uint32_t seen)
{
    for (int spin = 0; spin < SPINS_BEFORE_SLEEP; ++spin) {
        if (atomic_load_explicit(&pool->epoch, memory_order_acquire) != seen) {
            return;
        }
        cpu_relax();
    }
    atomic_fetch_add(&pool->n_sleeping, 1);
    while (atomic_load(&pool->epoch) == seen) {
        futex_wait(&pool->epoch, seen);
    }
    atomic_fetch_sub(&pool->n_sleeping, 1);
}

static void *worker_main(void *opaque)
{
    const worker *self = opaque;
    dsi_pool *pool = self->pool;
    uint32_t seen = 0;
    (void)flush_denormals();
    for (;;) {
        wait_for_epoch(pool, seen);
        seen = atomic_load_explicit(&pool->epoch, memory_order_acquire);
        if (atomic_load_explicit(&pool->quit, memory_order_relaxed)) {
            return NULL;
        }
        take_tasks(pool, self->index);
        if (atomic_fetch_sub(&pool->n_busy, 1) == 1 && atomic_load(&pool->caller_sleeps)) {
            futex_wake_all(&pool->n_busy);
        }
    }
}

static void publish(dsi_pool *pool)
{
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->n_sleeping) > 0) {
        futex_wake_all(&pool->epoch);
    }
}

static void wait_for_workers(dsi_pool *pool)
{
    for (int spin = 0; spin < SPINS_BEFORE_SLEEP; ++spin) {
        if (atomic_load_explicit(&pool->n_busy, memory_order_acquire) == 0) {
            return;
        }
        cpu_relax();
    }
    atomic_store(&pool->caller_sleeps, true);
    for (;;) {
        const uint32_t busy = atomic_load(&pool->n_busy);
        if (busy == 0) {
            break;
        }
        futex_wait(&pool->n_busy, busy);
    }
    atomic_store(&pool->caller_sleeps, false);
}

ds_status dsi_pool_create(uint32_t n_threads, dsi_pool **pool_out)
{
    dsi_pool *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    if (pool == NULL) {
        return DS_ERR_NOMEM;
    }
    *pool = (dsi_pool){.n_threads = 1};
    pool->workers = calloc(n_threads, sizeof *pool->workers);
    if (pool->workers == NULL) {
        free(pool);
        return DS_ERR_NOMEM;
    }
    for (uint32_t i = 1; i < n_threads; ++i) {
        worker *w = &pool->workers[i];
        *w = (worker){.pool = pool, .index = i};
        if (dsi_thread_create(&w->thread, worker_main, w) != 0) {
            dsi_pool_destroy(&pool);
            return DS_ERR_NOMEM;
        }
        pool->n_threads = i + 1;
    }
    *pool_out = pool;
    return DS_OK;
}

void dsi_pool_destroy(dsi_pool **pool_inout)
{
    dsi_pool *pool = pool_inout != NULL ? *pool_inout : NULL;
    if (pool == NULL) {
        return;
    }
    atomic_store(&pool->quit, true);
    publish(pool);
    futex_wake_all(&pool->epoch);
    for (uint32_t i = 1; i < pool->n_threads; ++i) {
        (void)pthread_join(pool->workers[i].thread, NULL);
    }
    free(pool->workers);
    free(pool);
    *pool_inout = NULL;
}

uint32_t dsi_pool_n_threads(const dsi_pool *pool)
{
    return pool != NULL ? pool->n_threads : 1;
}

void dsi_pool_run(dsi_pool *pool, dsi_task_fn fn, void *arg, uint32_t n_tasks)
{
    const uint32_t old_mode = flush_denormals();
    if (pool == NULL || pool->n_threads == 1 || n_tasks <= 1) {
        for (uint32_t task = 0; task < n_tasks; ++task) {
            fn(arg, task, 0);
        }
    } else {
        pool->fn = fn;
        pool->arg = arg;
        pool->n_tasks = n_tasks;
        atomic_store_explicit(&pool->next_task, 0, memory_order_relaxed);
        atomic_store(&pool->n_busy, pool->n_threads - 1);
        publish(pool);
        take_tasks(pool, 0);
        wait_for_workers(pool);
    }
    restore_float_mode(old_mode);
}
