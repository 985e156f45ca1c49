/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers of a block, their barriers, and what lanes of a warp exchange. See host_layer.h.
 *
 * This file is compiled without the thread sanitizer and tells it what orders fibers: a thread that
 * comes to a barrier releases it, one that leaves acquires it. Barriers take turns between two
 * objects: a thread that leaves late must not see what others did behind the barrier. What lanes
 * exchange (shuffles, mma) makes them meet and orders no memory: CUDA makes no barrier of a
 * shuffle.
 */
#include "accel/cuda/host/host_layer.h"
#include "accel/cuda/host/sanitizers.h"
#include "base/half.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { WARP = 32, MOST_THREADS = 1024, STACK = 64 * 1024, COPIES = 64 };

typedef enum state { READY, AT_WARP, AT_BLOCK, ENDED } state;

typedef struct copy {
    void *to;
    const void *from;
    uint32_t bytes, group;
    bool done;
} copy;

/* Where a stack stands, of __builtin_setjmp: unlike swapcontext it asks nothing of the kernel. */
typedef void *mark[5];

typedef struct fiber {
    mark at;
    bool begun;
    void *stack;
    void *sanitizer;
    dsc_place place;
    state state;
    uint32_t n_warp, n_block; /* barriers passed: which of two objects the next one is */
    uint32_t n_exchange;
    uint64_t exchanged[2][6]; /* what this lane gives to its warp */
    copy copies[COPIES];
    uint32_t n_copies, group, oldest;
} fiber;

typedef enum meeting { BARRIER, EXCHANGE } meeting;

typedef struct warp {
    uint32_t n, n_waiting;
    meeting meeting; /* of those that wait */
    char order[2];   /* addresses for the sanitizer */
} warp;

/* A block that runs on this thread. */
typedef struct runner {
    mark scheduler;
    void *scheduler_sanitizer;
    dsc_saved_stack saved;
    fiber *fibers[MOST_THREADS]; /* made when first needed */
    warp warps[MOST_THREADS / WARP];
    uint32_t order[MOST_THREADS];
    uint32_t n, n_waiting, n_ended;
    char sync[2], begun, ended; /* two: who begins late is not behind who has ended */
    const dsc_host_grid *grid;
    dsc_host_kernel kernel;
    const void *args;
    uint32_t current;
} runner;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;

static void destroy_runner(void *memory)
{
    runner *r = memory;
    for (uint32_t i = 0; i < MOST_THREADS && r->fibers[i] != NULL; ++i) {
        dsc_fiber_destroy(r->fibers[i]->sanitizer);
        free(r->fibers[i]->stack);
        free(r->fibers[i]);
    }
    free(r);
}

static void make_key(void)
{
    (void)pthread_key_create(&key, destroy_runner);
}

static _Noreturn void give_up(const runner *r, const char *what)
{
    const dsc_place *p = &r->fibers[r->current]->place;
    (void)fprintf(stderr, "cuda host layer: kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s\n",
                  r->grid->name, p->block.x, p->block.y, p->block.z, p->thread.x, p->thread.y,
                  p->thread.z, what);
    abort();
}

static _Thread_local runner *own_runner; /* the key frees it when the thread ends */

static runner *make_runner(void)
{
    (void)pthread_once(&once, make_key);
    runner *r = calloc(1, sizeof *r);
    if (r == NULL || pthread_setspecific(key, r) != 0) {
        (void)fprintf(stderr, "cuda host layer: no memory for a block\n");
        abort();
    }
    return r;
}

static runner *this_runner(void)
{
    return own_runner;
}

static fiber *here(runner *r)
{
    return r->fibers[r->current];
}

const dsc_place *dsc_here(void)
{
    runner *r = this_runner();
    return &here(r)->place;
}

/* ---- fibers ------------------------------------------------------------------------------- */

/* Between the call of such a function and its return other fibers run: it keeps no register that a
 * call may change, whatever the compiler sees of its body. */
#ifdef __clang__
#define SWITCHES __attribute__((noinline))
#else
#define SWITCHES __attribute__((noipa))
#endif

static SWITCHES void go_to(mark to)
{
    __builtin_longjmp(to, 1);
}

/* Leaves this stack, to be gone on with by a change to `from`. */
static SWITCHES void change(mark from, mark to)
{
    if (__builtin_setjmp(from) == 0) {
        go_to(to);
    }
}

static SWITCHES void begin(mark from, const ucontext_t *to)
{
    if (__builtin_setjmp(from) == 0) {
        (void)setcontext(to);
    }
}

static void to_scheduler(runner *r)
{
    fiber *f = here(r);
    dsc_saved_stack own;
    dsc_before_switch(r->scheduler_sanitizer, &own, &r->saved);
    change(f->at, r->scheduler);
    dsc_after_switch(&own, NULL);
}

/* A thread of one block after another. */
static void fiber_main(void)
{
    runner *r = this_runner();
    dsc_after_switch(NULL, &r->saved);
    fiber *f = here(r);
    for (;;) {
        dsc_acquire(&r->begun);
        r->kernel(r->args);
        if (f->n_copies > 0) {
            give_up(r, "it ends with an asynchronous copy that nothing waited for");
        }
        dsc_release(&r->ended);
        f->state = ENDED;
        to_scheduler(r);
    }
}

static void make_fiber(runner *r, uint32_t i)
{
    if (r->fibers[i] != NULL) {
        return;
    }
    fiber *f = calloc(1, sizeof *f);
    void *stack = malloc(STACK);
    if (f == NULL || stack == NULL) {
        (void)fprintf(stderr, "cuda host layer: no memory for a thread of a block\n");
        abort();
    }
    f->stack = stack;
    f->sanitizer = dsc_fiber_create();
    r->fibers[i] = f;
}

static void start_fiber(runner *r, uint32_t i, const dsc_host_grid *g, uint64_t block)
{
    make_fiber(r, i);
    fiber *f = r->fibers[i];
    f->state = READY;
    f->n_warp = 0;
    f->n_block = 0;
    f->n_exchange = 0;
    f->n_copies = 0;
    f->group = 0;
    f->oldest = 0;
    const uint32_t x = i % g->block.x;
    const uint32_t y = i / g->block.x % g->block.y;
    f->place = (dsc_place){.thread = {x, y, i / g->block.x / g->block.y},
                           .block = {(uint32_t)(block % g->grid.x),
                                     (uint32_t)(block / g->grid.x % g->grid.y),
                                     (uint32_t)(block / g->grid.x / g->grid.y)},
                           .block_dim = g->block,
                           .grid_dim = g->grid};
}

static void run_fiber(runner *r, uint32_t i)
{
    r->current = i;
    fiber *f = r->fibers[i];
    dsc_saved_stack own;
    const dsc_saved_stack target = {f->stack, STACK, NULL};
    dsc_before_switch(f->sanitizer, &own, &target);
    if (f->begun) {
        change(r->scheduler, f->at);
    } else {
        ucontext_t first;
        (void)getcontext(&first);
        first.uc_stack.ss_sp = f->stack;
        first.uc_stack.ss_size = STACK;
        first.uc_link = NULL;
        makecontext(&first, fiber_main, 0);
        f->begun = true;
        begin(r->scheduler, &first);
    }
    dsc_after_switch(&own, NULL);
}

/* ---- barriers ----------------------------------------------------------------------------- */

static void free_warp(runner *r, uint32_t w)
{
    r->warps[w].n_waiting = 0;
    for (uint32_t i = w * WARP; i < w * WARP + r->warps[w].n; ++i) {
        r->fibers[i]->state = READY;
    }
}

static void free_block(runner *r)
{
    r->n_waiting = 0;
    for (uint32_t i = 0; i < r->n; ++i) {
        r->fibers[i]->state = READY;
    }
}

void __syncthreads(void)
{
    runner *r = this_runner();
    fiber *f = here(r);
    char *object = &r->sync[f->n_block++ % 2];
    dsc_release(object);
    f->state = AT_BLOCK;
    if (++r->n_waiting == r->n) {
        free_block(r);
    }
    to_scheduler(r);
    dsc_acquire(object);
}

/* Until all lanes of the warp have come. */
static void meet(runner *r, meeting what)
{
    const uint32_t w = r->current / WARP;
    if (r->warps[w].n_waiting > 0 && r->warps[w].meeting != what) {
        give_up(r, "lanes of one warp at a barrier and at an exchange");
    }
    r->warps[w].meeting = what;
    here(r)->state = AT_WARP;
    if (++r->warps[w].n_waiting == r->warps[w].n) {
        free_warp(r, w);
    }
    to_scheduler(r);
}

void __syncwarp(void)
{
    runner *r = this_runner();
    char *object = &r->warps[r->current / WARP].order[here(r)->n_warp++ % 2];
    dsc_release(object);
    meet(r, BARRIER);
    dsc_acquire(object);
}

/* ---- what lanes exchange ------------------------------------------------------------------ */

/* Gives n words of 64 bits to the warp; returns which of the two sets they are in. A lane is at
 * most one exchange ahead of another, so that two sets do. */
static uint32_t give(runner *r, const void *words, size_t bytes)
{
    fiber *f = here(r);
    const uint32_t set = f->n_exchange++ % 2;
    if (r->warps[r->current / WARP].n != WARP) {
        give_up(r, "lanes exchange in a warp of less than 32 threads");
    }
    memcpy(f->exchanged[set], words, bytes);
    meet(r, EXCHANGE);
    return set;
}

static const void *of_lane(const runner *r, uint32_t set, uint32_t lane)
{
    return r->fibers[r->current / WARP * WARP + lane % WARP]->exchanged[set];
}

static void check_mask(const runner *r, uint32_t mask)
{
    if (mask != 0xffffffffu) {
        give_up(r, "a shuffle of some lanes; this layer knows those of all 32");
    }
}

float dsc_shfl_f32(uint32_t mask, float value, int lane)
{
    runner *r = this_runner();
    check_mask(r, mask);
    const uint32_t set = give(r, &value, sizeof value);
    float got;
    memcpy(&got, of_lane(r, set, (uint32_t)lane), sizeof got);
    return got;
}

float dsc_shfl_xor_f32(uint32_t mask, float value, int lanes)
{
    runner *r = this_runner();
    return dsc_shfl_f32(mask, value, (int)((r->current ^ (uint32_t)lanes) % WARP));
}

uint32_t dsc_ballot(uint32_t mask, bool says)
{
    runner *r = this_runner();
    check_mask(r, mask);
    const uint32_t set = give(r, &says, sizeof says);
    uint32_t bits = 0;
    for (uint32_t lane = 0; lane < WARP; ++lane) {
        bits |= *(const bool *)of_lane(r, set, lane) ? 1u << lane : 0u;
    }
    return bits;
}

typedef struct fragments {
    uint32_t a[4], b[2];
} fragments;

typedef float (*widen)(uint16_t bits);

static float half_of(uint32_t pair, uint32_t which, widen to_f32)
{
    return to_f32((uint16_t)(pair >> (16 * which)));
}

/* Element (row,k) of a: lane row%8*4 + k%8/2, register by which half of the rows and of k. */
static float element_a(const runner *r, uint32_t set, uint32_t row, uint32_t k, widen to_f32)
{
    const fragments *f = of_lane(r, set, row % 8 * 4 + k % 8 / 2);
    return half_of(f->a[row / 8 + k / 8 * 2], k % 2, to_f32);
}

static float element_b(const runner *r, uint32_t set, uint32_t k, uint32_t col, widen to_f32)
{
    const fragments *f = of_lane(r, set, col * 4 + k % 8 / 2);
    return half_of(f->b[k / 8], k % 2, to_f32);
}

static void mma(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4],
                widen to_f32)
{
    runner *r = this_runner();
    fragments own;
    memcpy(own.a, a, sizeof own.a);
    memcpy(own.b, b, sizeof own.b);
    const uint32_t set = give(r, &own, sizeof own);
    const uint32_t lane = r->current % WARP;
    for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = lane / 4 + i / 2 * 8;
        const uint32_t col = lane % 4 * 2 + i % 2;
        float sum = c[i];
        for (uint32_t k = 0; k < 16; ++k) {
            sum += element_a(r, set, row, k, to_f32) * element_b(r, set, k, col, to_f32);
        }
        d[i] = sum;
    }
}

void dsc_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4])
{
    mma(d, a, b, c, dsi_bf16_to_f32);
}

void dsc_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4])
{
    mma(d, a, b, c, dsi_f16_to_f32);
}

/* ---- asynchronous copies ------------------------------------------------------------------ */

static void perform(copy *c)
{
    if (!c->done) {
        memset(c->to, 0, 16);
        memcpy(c->to, c->from, c->bytes);
        c->done = true;
    }
}

/* A device may copy at any time until the wait: odd threads' copies happen at once, which a missing
 * barrier before them shows, even ones' when they are waited for, which a missing wait does. */
void dsc_copy_async(void *shared, const void *global, uint32_t n)
{
    runner *r = this_runner();
    fiber *f = here(r);
    if (((uintptr_t)shared | (n > 0 ? (uintptr_t)global : 0)) % 16 != 0 || n > 16) {
        give_up(r, "an asynchronous copy that is not of 16 aligned bytes");
    }
    if (f->n_copies == COPIES) {
        give_up(r, "too many asynchronous copies at once for this layer");
    }
    copy *c = &f->copies[f->n_copies++];
    *c = (copy){shared, global, n, f->group, false};
    if (r->current % 2 == 1) {
        perform(c);
    }
}

void dsc_copy_commit(void)
{
    runner *r = this_runner();
    ++here(r)->group;
}

void dsc_copy_wait(uint32_t n)
{
    runner *r = this_runner();
    fiber *f = here(r);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < f->n_copies; ++i) {
        copy *c = &f->copies[i];
        if (c->group + n < f->group) {
            perform(c);
        } else {
            f->copies[kept++] = *c;
        }
    }
    f->n_copies = kept;
}

/* ---- a block ------------------------------------------------------------------------------ */

/* Threads of a block in an order of the seed's. */
static void draw_order(runner *r, uint32_t seed)
{
    uint64_t random = ((uint64_t)seed + 1) * 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < r->n; ++i) {
        r->order[i] = i;
    }
    for (uint32_t i = r->n; i > 1 && seed != 0; --i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const uint32_t j = (uint32_t)(random >> 33) % i;
        const uint32_t kept = r->order[i - 1];
        r->order[i - 1] = r->order[j];
        r->order[j] = kept;
    }
}

static void count_end(runner *r, uint32_t i)
{
    if (r->fibers[i]->state == ENDED) {
        ++r->n_ended;
    }
}

/* Each thread that can go on does, until all have ended. */
static void run_all(runner *r)
{
    while (r->n_ended < r->n) {
        bool moved = false;
        for (uint32_t k = 0; k < r->n; ++k) {
            const uint32_t i = r->order[k];
            if (r->fibers[i]->state == READY) {
                run_fiber(r, i);
                count_end(r, i);
                moved = true;
            }
        }
        if (!moved) {
            give_up(r, "a barrier that not every thread reaches");
        }
    }
}

void dsc_host_run_block(const dsc_host_grid *g, dsc_host_kernel kernel, const void *args,
                        uint64_t block)
{
    if (own_runner == NULL) {
        own_runner = make_runner();
    }
    runner *r = own_runner;
    r->grid = g;
    r->kernel = kernel;
    r->args = args;
    r->n = g->block.x * g->block.y * g->block.z;
    r->n_waiting = 0;
    r->n_ended = 0;
    r->current = 0;
    if (r->n == 0 || r->n > MOST_THREADS) {
        (void)fprintf(stderr, "cuda host layer: kernel %s: a block of %u threads\n", g->name, r->n);
        abort();
    }
    for (uint32_t w = 0; w * WARP < r->n; ++w) {
        r->warps[w].n = r->n - w * WARP < WARP ? r->n - w * WARP : WARP;
        r->warps[w].n_waiting = 0;
    }
    for (uint32_t i = 0; i < r->n; ++i) {
        start_fiber(r, i, g, block);
    }
    draw_order(r, g->seed == 0 ? 0 : g->seed + (uint32_t)block);
    r->scheduler_sanitizer = dsc_fiber_current();
    dsc_release(&r->begun);
    run_all(r);
    dsc_acquire(&r->ended);
}
