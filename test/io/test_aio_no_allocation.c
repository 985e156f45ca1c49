/* LAW: no allocation between opening and closing: every allocating call of every thread is counted
 * while requests of all kinds are submitted, polled and waited for, failing ones too.
 * labels: threads */
#include "common/check.h"
#include "common/scratch.h"

#include "io/aio.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_OWN_MALLOC 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define HAS_OWN_MALLOC 1
#endif
#endif

#if defined(HAS_OWN_MALLOC) || !defined(__GLIBC__)
int main(void)
{
    return 77; /* the sanitizer's or another libc's malloc cannot be replaced */
}
#else

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

static atomic_bool counting;
static atomic_uint n_calls;

static void count(void)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed)) {
        atomic_fetch_add(&n_calls, 1);
    }
}

DS_API void *malloc(size_t n)
{
    count();
    return __libc_malloc(n);
}

DS_API void *calloc(size_t n, size_t size)
{
    count();
    return __libc_calloc(n, size);
}

DS_API void *realloc(void *old, size_t n)
{
    count();
    return __libc_realloc(old, n);
}

DS_API void *aligned_alloc(size_t alignment, size_t n)
{
    count();
    return __libc_memalign(alignment, n);
}

DS_API int posix_memalign(void **p, size_t alignment, size_t n)
{
    count();
    *p = __libc_memalign(alignment, n);
    return *p == NULL ? ENOMEM : 0;
}

DS_API void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    count();
    return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

enum { BYTES = 1 << 20, BLOCK = 16384 };

/* All sorts of requests: aligned, odd, empty, refused, failing. */
static void requests(ds_ctx *ctx, dsi_aio *aio, uint32_t scratch, uint32_t named, uint8_t *data)
{
    dsi_aio_ticket tickets[4];
    CHECK_OK(ctx, dsi_aio_write(aio, scratch, 0, data, BYTES / 2, &tickets[0]));
    CHECK_OK(ctx, dsi_aio_write(aio, scratch, BYTES / 2 + 77, data + 13, 99999, &tickets[1]));
    CHECK_OK(ctx, dsi_aio_write(aio, named, 5, data, 70001, &tickets[2]));
    CHECK_OK(ctx, dsi_aio_wait(aio, tickets[1]));
    CHECK_OK(ctx, dsi_aio_wait(aio, tickets[0]));
    CHECK_OK(ctx, dsi_aio_wait(aio, tickets[2]));
    CHECK_OK(ctx, dsi_aio_read(aio, scratch, 3, data + 1, BYTES / 3, &tickets[0]));
    CHECK_OK(ctx, dsi_aio_read(aio, named, 0, data + BYTES / 2, 70006, &tickets[1]));
    CHECK_OK(ctx, dsi_aio_wait(aio, tickets[1]));
    while (dsi_aio_poll(aio, tickets[0]) == DS_IN_PROGRESS) {
    }
    CHECK_OK(ctx, dsi_aio_read(aio, named, 4096, data, 1 << 19, &tickets[2]));
    assert_int_equal(dsi_aio_wait(aio, tickets[2]), DS_ERR_IO); /* ends before */
    assert_int_equal(dsi_aio_read(aio, scratch, BYTES, data, 1, &tickets[3]), DS_ERR_ARG);
}

static void count_on(ds_ctx *ctx, ds_aio_backend backend, const char *folder)
{
    const char *folders[] = {folder, folder};
    dsi_aio_params params = {.io = ds_aio_params_default(),
                             .folders = folders,
                             .n_folders = 2,
                             .max_files = 2,
                             .max_requests = 4};
    dsi_aio *aio = NULL;
    uint32_t scratch = 0;
    uint32_t named = 0;
    uint8_t *data = aligned_alloc(DSI_AIO_ALIGN, BYTES);
    memset(data, 7, BYTES);
    params.io.block_size = BLOCK;
    params.io.backend = backend;
    params.io.intra_op_parallelism = 2;
    CHECK_OK(ctx, dsi_aio_open(ctx, &params, &aio));
    CHECK_OK(ctx, dsi_aio_add_scratch(aio, "count", BYTES, &scratch));
    CHECK_OK(ctx, dsi_aio_add_path(aio, scratch_path(folder, "named"), true, &named));
    atomic_store(&n_calls, 0);
    atomic_store(&counting, true);
    for (int i = 0; i < 5; ++i) {
        requests(ctx, aio, scratch, named, data);
    }
    atomic_store(&counting, false);
    assert_int_equal(atomic_load(&n_calls), 0);
    dsi_aio_close(&aio);
    free(data);
}

static void no_request_allocates(void **state)
{
    ds_ctx *ctx = NULL;
    (void)state;
    char *folder = scratch_make();
    CHECK_OK(NULL, ds_ctx_create(NULL, &ctx));
    count_on(ctx, DS_AIO_THREADS, folder);
    count_on(ctx, DS_AIO_AUTO, folder);
    ds_ctx_destroy(&ctx);
    scratch_remove(folder);
}

/* The counter itself must be able to fail. */
static void the_counter_counts(void **state)
{
    (void)state;
    void *volatile memory = NULL;
    atomic_store(&n_calls, 0);
    atomic_store(&counting, true);
    memory = malloc(1000);
    atomic_store(&counting, false);
    free(memory);
    assert_int_equal(atomic_load(&n_calls), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_counts),
        cmocka_unit_test(no_request_allocates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
