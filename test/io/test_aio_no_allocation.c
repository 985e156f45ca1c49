/* SPDX-License-Identifier: Apache-2.0 */
/* LAW: no allocation between opening and closing: every allocating call of every thread is counted
 * while requests of all kinds are submitted, polled and waited for, failing ones too.
 * labels: threads */
#include "common/check.h"
#include "common/count_allocations.h"
#include "common/scratch.h"

#include "io/aio.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !CAN_REPLACE_MALLOC
int main(void)
{
    return 77;
}
#else

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
    CHECK_OK(ctx, dsi_aio_wait(aio, tickets[0]));
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
    CHECK_OK(ctx, dsi_aio_add_scratch(aio, "count", BYTES, 0, 2, &scratch));
    CHECK_OK(ctx, dsi_aio_add_path(aio, scratch_path(folder, "named"), true, &named));
    count_begin();
    for (int i = 0; i < 5; ++i) {
        requests(ctx, aio, scratch, named, data);
    }
    assert_int_equal(count_end(), 0);
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
    count_begin();
    memory = malloc(1000);
    const unsigned n = count_end();
    free(memory);
    assert_int_equal(n, 1);
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
