/* SPDX-License-Identifier: Apache-2.0 */
/* The host layer by itself: barriers, shuffles, mma and asynchronous copies do what CUDA says; what
 * CUDA leaves undefined is found. labels: threads */
#include "accel/cuda/cuda_device.h"
#include "common/check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 96, TSAN_EXIT = 66 };

typedef struct args {
    float *out;
    const void *in[2];
} args;

static void run(dsc_host_kernel kernel, const char *name, uint32_t threads, const args *a,
                uint32_t seed)
{
    const dsc_host_grid g = {
        .name = name, .grid = {2, 1, 1}, .block = {threads, 1, 1}, .seed = seed};
    for (uint64_t block = 0; block < 2; ++block) {
        dsc_host_run_block(&g, kernel, a, block);
    }
}

/* ---- a block turned around through shared memory ------------------------------------------ */

DSC_INLINE void turn_around(const args *a, bool with_barrier)
{
    __shared__ float all[N];
    float sum = 0.0f;
    for (uint32_t turn = 0; turn < 3; ++turn) {
        all[threadIdx.x] = (float)(blockIdx.x * 1000 + turn * 100 + threadIdx.x);
        __syncthreads();
        sum += all[N - 1 - threadIdx.x];
        if (with_barrier) {
            __syncthreads();
        }
    }
    a->out[blockIdx.x * N + threadIdx.x] = sum;
}
DSC_KERNEL(turn, args, turn_around(a, true))
DSC_KERNEL(turn_racing, args, turn_around(a, false))

static int count_wrong(dsc_host_kernel kernel)
{
    int wrong = 0;
    for (uint32_t seed = 0; seed < 20; ++seed) {
        float out[2 * N];
        run(kernel, "turn", N, &(args){.out = out}, seed);
        for (uint32_t i = 0; i < 2 * N; ++i) {
            wrong += out[i] != (float)(3 * (i / N * 1000 + 100 + N - 1 - i % N));
        }
    }
    return wrong;
}

static void barriers_order_a_block(void **state)
{
    (void)state;
    assert_int_equal(count_wrong(dsc_kernel_turn), 0);
}

/* What the child does ends it, or not; its message is what it wrote. */
static int in_child(void (*what)(void), char *message, size_t bytes)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)dup2(fds[1], 2);
        (void)close(fds[0]);
        what();
        _exit(0);
    }
    (void)close(fds[1]);
    size_t n = 0;
    char rest[512];
    for (;;) {
        const bool full = n + 1 >= bytes;
        const ssize_t got =
            full ? read(fds[0], rest, sizeof rest) : read(fds[0], message + n, bytes - 1 - n);
        if (got <= 0) {
            break;
        }
        n += full ? 0 : (size_t)got;
    }
    message[n] = 0;
    (void)close(fds[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void race(void)
{
    _exit(count_wrong(dsc_kernel_turn_racing) > 0 ? 1 : 0);
}

/* The thread sanitizer reports it; without, an order of threads shows it. */
static void a_missing_barrier_is_found(void **state)
{
    (void)state;
    char message[4096];
    const int status = in_child(race, message, sizeof message);
    assert_true(WIFEXITED(status));
#ifdef __SANITIZE_THREAD__
    assert_int_equal(WEXITSTATUS(status), TSAN_EXIT);
    assert_non_null(strstr(message, "data race"));
#else
    assert_int_equal(WEXITSTATUS(status), 1);
#endif
}

/* What no order of threads need show. */
static void found_by_the_sanitizer(void (*what)(void))
{
    char message[4096];
    const int status = in_child(what, message, sizeof message);
    assert_true(WIFEXITED(status));
#ifdef __SANITIZE_THREAD__
    assert_int_equal(WEXITSTATUS(status), TSAN_EXIT);
    assert_non_null(strstr(message, "data race"));
#else
    assert_int_equal(WEXITSTATUS(status), 0);
#endif
}

/* Threads that run one after the other to their ends are not ordered by that. */
DSC_INLINE void turn_alone(const args *a)
{
    __shared__ float all[N];
    all[threadIdx.x] = (float)threadIdx.x;
    a->out[threadIdx.x] = all[N - 1 - threadIdx.x];
}
DSC_KERNEL(alone, args, turn_alone(a))

static void race_alone(void)
{
    float out[N];
    run(dsc_kernel_alone, "alone", N, &(args){.out = out}, 0);
}

static void no_barrier_at_all_is_found(void **state)
{
    (void)state;
    found_by_the_sanitizer(race_alone);
}

/* Lanes that exchange meet, but what they wrote before is not ordered by it. */
DSC_INLINE void turn_by_shuffle(const args *a, bool with_barrier)
{
    __shared__ float all[32];
    all[threadIdx.x] = (float)threadIdx.x;
    const float one = dsc_shfl_f32(0xffffffffu, 1.0f, 0);
    if (with_barrier) {
        __syncwarp();
    }
    a->out[threadIdx.x] = one * all[31 - threadIdx.x];
}
DSC_KERNEL(by_shuffle, args, turn_by_shuffle(a, true))
DSC_KERNEL(by_shuffle_racing, args, turn_by_shuffle(a, false))

static void race_by_shuffle(void)
{
    float out[32];
    run(dsc_kernel_by_shuffle_racing, "by_shuffle", 32, &(args){.out = out}, 1);
}

static void a_shuffle_is_no_barrier(void **state)
{
    (void)state;
    float out[32];
    found_by_the_sanitizer(race_by_shuffle);
    run(dsc_kernel_by_shuffle, "by_shuffle", 32, &(args){.out = out}, 1);
    assert_true(out[0] == 31.0f && out[31] == 0.0f);
}

/* ---- what ends the process ---------------------------------------------------------------- */

DSC_INLINE void half_at_barrier(void)
{
    if (threadIdx.x < 40) {
        __syncthreads();
    }
}
DSC_KERNEL(lonely, args, (void)a; half_at_barrier())

static void lonely(void)
{
    run(dsc_kernel_lonely, "lonely", 64, &(args){0}, 0);
}

DSC_INLINE void shuffle_of_few(void)
{
    (void)dsc_shfl_xor_f32(0xffffu, 1.0f, 1);
}
DSC_KERNEL(few, args, (void)a; shuffle_of_few())

static void few(void)
{
    run(dsc_kernel_few, "few", 32, &(args){0}, 0);
}

DSC_INLINE void lanes_part(void)
{
    if (threadIdx.x < 16) {
        __syncwarp();
    } else {
        (void)dsc_shfl_f32(0xffffffffu, 1.0f, 0);
    }
}
DSC_KERNEL(parted, args, (void)a; lanes_part())

static void parted(void)
{
    run(dsc_kernel_parted, "parted", 32, &(args){0}, 0);
}

DSC_INLINE void forgotten_copy(const args *a)
{
    __shared__ DSC_ALIGN(16) float to[4];
    dsc_copy_async(to, a->in[0], 16);
    dsc_copy_commit();
}
DSC_KERNEL(forgotten, args, forgotten_copy(a))

static void forgotten(void)
{
    static const _Alignas(16) float from[4];
    run(dsc_kernel_forgotten, "forgotten", 1, &(args){.in = {from}}, 0);
}

static void dies_with(void (*what)(void), const char *words)
{
    char message[4096];
    const int status = in_child(what, message, sizeof message);
    assert_true(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 0));
    if (strstr(message, words) == NULL) {
        fail_msg("no \"%s\" in: %s", words, message);
    }
}

static void what_is_undefined_ends_the_process(void **state)
{
    (void)state;
    dies_with(lonely, "kernel lonely, block (0,0,0)");
    dies_with(lonely, "a barrier that not every thread reaches");
    dies_with(few, "a shuffle of some lanes");
    dies_with(parted, "lanes of one warp at a barrier and at an exchange");
    dies_with(forgotten, "an asynchronous copy that nothing waited for");
}

/* ---- lanes -------------------------------------------------------------------------------- */

DSC_INLINE void sums(const args *a)
{
    __shared__ float parts[32];
    const float own = ((const float *)a->in[0])[threadIdx.x];
    a->out[threadIdx.x] = dsc_warp_sum(own);
    a->out[N + threadIdx.x] = dsc_block_sum(own, parts);
    a->out[2 * N + threadIdx.x] = dsc_block_max(own, parts);
    a->out[3 * N + threadIdx.x] = dsc_shfl_f32(0xffffffffu, own, 5);
    const uint32_t odd = dsc_ballot(0xffffffffu, (uint32_t)own % 2 == 1);
    a->out[4 * N + threadIdx.x] = (float)(odd >> threadIdx.x % 32 & 1);
}
DSC_KERNEL(sums, args, sums(a))

static void lanes_exchange(void **state)
{
    (void)state;
    float in[N], out[5 * N];
    float warp[3] = {0.0f, 0.0f, 0.0f};
    for (uint32_t i = 0; i < N; ++i) {
        in[i] = (float)((i * 37) % 101);
        warp[i / 32] += in[i];
    }
    for (uint32_t seed = 0; seed < 10; ++seed) {
        memset(out, 0, sizeof out);
        run(dsc_kernel_sums, "sums", N, &(args){.out = out, .in = {in}}, seed);
        for (uint32_t i = 0; i < N; ++i) {
            assert_float_equal(out[i], warp[i / 32], 0.0);
            assert_float_equal(out[N + i], warp[0] + warp[1] + warp[2], 0.0);
            assert_float_equal(out[2 * N + i], 100.0f, 0.0);
            assert_float_equal(out[3 * N + i], in[i / 32 * 32 + 5], 0.0);
            assert_float_equal(out[4 * N + i], (float)((uint32_t)in[i] % 2), 0.0);
        }
    }
}

/* ---- mma: fragments loaded as the PTX ISA lays them out ------------------------------------ */

static uint32_t pair(const uint16_t *at, uint32_t step)
{
    return (uint32_t)at[0] | (uint32_t)at[step] << 16;
}

DSC_INLINE void multiply(const args *a)
{
    const uint16_t *x = a->in[0]; /* (16,16) */
    const uint16_t *w = a->in[1]; /* (16,8) */
    const uint32_t group = threadIdx.x / 4;
    const uint32_t in_group = threadIdx.x % 4;
    const uint32_t fa[4] = {pair(x + group * 16 + in_group * 2, 1),
                            pair(x + (group + 8) * 16 + in_group * 2, 1),
                            pair(x + group * 16 + in_group * 2 + 8, 1),
                            pair(x + (group + 8) * 16 + in_group * 2 + 8, 1)};
    const uint32_t fb[2] = {pair(w + in_group * 2 * 8 + group, 8),
                            pair(w + (in_group * 2 + 8) * 8 + group, 8)};
    float c[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    dsc_mma_bf16(c, fa, fb, c);
    for (uint32_t i = 0; i < 4; ++i) {
        a->out[(group + i / 2 * 8) * 8 + in_group * 2 + i % 2] = c[i];
    }
}
DSC_KERNEL(multiply, args, multiply(a))

static void mma_multiplies(void **state)
{
    (void)state;
    uint16_t x[16 * 16], w[16 * 8];
    float out[16 * 8];
    for (uint32_t i = 0; i < 16 * 16; ++i) {
        x[i] = dsi_f32_to_bf16((float)((int)(i * 7 % 13) - 6));
        if (i < 16 * 8) {
            w[i] = dsi_f32_to_bf16((float)((int)(i * 5 % 11) - 5));
        }
    }
    run(dsc_kernel_multiply, "multiply", 32, &(args){.out = out, .in = {x, w}}, 3);
    for (uint32_t row = 0; row < 16; ++row) {
        for (uint32_t column = 0; column < 8; ++column) {
            float want = 1.0f;
            for (uint32_t k = 0; k < 16; ++k) {
                want += dsi_bf16_to_f32(x[row * 16 + k]) * dsi_bf16_to_f32(w[k * 8 + column]);
            }
            assert_float_equal(out[row * 8 + column], want, 0.0);
        }
    }
}

/* ---- asynchronous copies ------------------------------------------------------------------ */

DSC_INLINE void copies(const args *a)
{
    __shared__ DSC_ALIGN(16) float to[2][4];
    const float *from = a->in[0];
    for (uint32_t i = 0; i < 4; ++i) {
        to[0][i] = -1.0f;
        to[1][i] = -1.0f;
    }
    dsc_copy_async(to[0], from, 16);
    dsc_copy_commit();
    dsc_copy_async(to[1], from + 4, 8);
    dsc_copy_commit();
    dsc_copy_wait(1);
    for (uint32_t i = 0; i < 8; ++i) {
        a->out[i] = to[i / 4][i % 4];
    }
    dsc_copy_wait(0);
    for (uint32_t i = 0; i < 4; ++i) {
        a->out[8 + i] = to[1][i];
    }
}
DSC_KERNEL(copies, args, copies(a))

static void copies_are_late(void **state)
{
    (void)state;
    static const _Alignas(16) float from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const float want[12] = {1, 2, 3, 4, -1, -1, -1, -1, 5, 6, 0, 0};
    float out[12];
    run(dsc_kernel_copies, "copies", 1, &(args){.out = out, .in = {from}}, 0);
    assert_memory_equal(out, want, sizeof want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* first: in a child of a process with fibers the thread sanitizer looks at nothing */
        cmocka_unit_test(a_missing_barrier_is_found),
        cmocka_unit_test(no_barrier_at_all_is_found),
        cmocka_unit_test(a_shuffle_is_no_barrier),
        cmocka_unit_test(barriers_order_a_block),
        cmocka_unit_test(what_is_undefined_ends_the_process),
        cmocka_unit_test(lanes_exchange),
        cmocka_unit_test(mma_multiplies),
        cmocka_unit_test(copies_are_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
