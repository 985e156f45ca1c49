/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings of shared memory: where they begin, large pages, sizes that fill none. */
#include "comm/shm_impl.h"
#include "common/check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KIB = 1024, MIB = 1024 * 1024 };

static char *map(ds_ctx *ctx, size_t bytes, int *twin_out)
{
    int fd = -1;
    char *base = NULL;
    assert_int_equal(shm_memory_create(ctx, bytes, &fd), DS_OK);
    *twin_out = dup(fd);
    assert_int_equal(shm_map(ctx, fd, bytes, &base), DS_OK);
    assert_int_equal((uintptr_t)base % SHM_LARGE_PAGE, 0);
    return base;
}

/* Bytes of the mapping at `base` that lie in large pages, as the system says. */
static size_t in_large_pages(const char *base)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512];
    char begin[32];
    unsigned long long kib = 0;
    bool here = false;
    assert_non_null(file);
    (void)snprintf(begin, sizeof begin, "%lx-", (unsigned long)(uintptr_t)base);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strchr(line, '-') != NULL && strstr(line, "kB") == NULL) {
            here = strncmp(line, begin, strlen(begin)) == 0;
        } else if (here && strncmp(line, "ShmemPmdMapped:", 15) == 0) {
            kib = strtoull(line + 15, NULL, 10);
        }
    }
    (void)fclose(file);
    return (size_t)kib * KIB;
}

static bool is_zero(const char *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; ++i) {
        if (memory[i] != 0) {
            return false;
        }
    }
    return true;
}

static void test_large_pages(void **state)
{
    (void)state;
    ds_ctx *ctx;
    int fd = -1;
    int error = -1;
    const ds_ctx_params params = ds_ctx_params_default();
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    char *base = map(ctx, 5 * MIB, &fd);
    const size_t large = shm_enlarge_pages(base, 5 * MIB, &error);
    (void)printf("%zu bytes in large pages%s%s\n", large, error != 0 ? "; " : "",
                 error != 0 ? strerror(error) : "");
    assert_true(large == 4 * MIB || (error != 0 && large < 4 * MIB));
    assert_int_equal(in_large_pages(base), large);
    assert_true(is_zero(base, 5 * MIB));
    memset(base, 7, 5 * MIB);
    /* another mapping of the same memory sees it */
    char *other = NULL;
    assert_int_equal(shm_map(ctx, fd, 5 * MIB, &other), DS_OK);
    assert_memory_equal(base, other, 5 * MIB);
    assert_int_equal(munmap(base, 5 * MIB), 0);
    assert_int_equal(munmap(other, 5 * MIB), 0);
    ds_ctx_destroy(&ctx);
}

/* What fills no large page stays as it is; what is around a mapping is not kept. */
static void test_small(void **state)
{
    (void)state;
    ds_ctx *ctx;
    const ds_ctx_params params = ds_ctx_params_default();
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    const size_t sizes[] = {1, 4096, 5000, 2 * MIB - 1, 2 * MIB + 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        int fd = -1;
        int error = -1;
        char *base = map(ctx, sizes[i], &fd);
        if (sizes[i] < SHM_LARGE_PAGE) {
            assert_int_equal(shm_enlarge_pages(base, sizes[i], &error), 0);
            assert_int_equal(error, 0);
        }
        base[sizes[i] - 1] = 1;
        const size_t pages = (sizes[i] + 4095) / 4096 * 4096;
        unsigned char there;
        assert_int_equal(mincore(base + pages - 4096, 4096, &there), 0);
        assert_int_equal(munmap(base, pages), 0);
        assert_int_not_equal(mincore(base + pages - 4096, 4096, &there), 0);
        assert_int_equal(close(fd), 0);
    }
    ds_ctx_destroy(&ctx);
}

static void test_refuses(void **state)
{
    (void)state;
    ds_ctx *ctx;
    int fd = -1;
    char *base = NULL;
    const ds_ctx_params params = ds_ctx_params_default();
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    assert_int_equal(shm_memory_create(ctx, 4096, &fd), DS_OK);
    assert_int_equal(shm_map(ctx, fd, 8192, &base), DS_ERR_PEER);
    assert_non_null(strstr(ds_ctx_error(ctx), "disagree about the size"));
    assert_null(base);
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_pages),
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
