/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of saving, opening, exporting and opening weights fails once in turn: an error
 * each time, nothing leaked, nothing left in the folder, and the next try succeeds. */
#include "common/check.h"
#include "common/own_malloc.h"
#include "common/saves.h"
#include "common/scratch.h"

#include <deepspeed/hf_export.h>
#include <dlfcn.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#if !CAN_REPLACE_MALLOC
int main(void)
{
    return 77; /* the sanitizer's or another libc's malloc cannot be replaced */
}
#else

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);

static struct {
    bool on;
    int countdown;
    bool fired;
    long live; /* blocks, while on */
} heap;

/* jansson 2.14 is spared: its scanner drops a character when an allocation fails, and runs past the
 * end of its text when that was the closing quote. */
static bool is_jansson(void *caller)
{
    Dl_info json;
    Dl_info here;
    return dladdr((void *)(uintptr_t)json_loadb, &json) != 0 && dladdr(caller, &here) != 0 &&
           json.dli_fbase == here.dli_fbase;
}

static bool fails(void *caller)
{
    if (heap.on && heap.countdown > 0 && !is_jansson(caller) && --heap.countdown == 0) {
        heap.fired = true;
        errno = ENOMEM;
        return true;
    }
    return false;
}

DS_API void *malloc(size_t n)
{
    void *p = fails(__builtin_return_address(0)) ? NULL : __libc_malloc(n);
    heap.live += heap.on && p != NULL;
    return p;
}

DS_API void *calloc(size_t n, size_t size)
{
    void *p = fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
    heap.live += heap.on && p != NULL;
    return p;
}

DS_API void *realloc(void *old, size_t n)
{
    void *p = fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, n);
    heap.live += heap.on && p != NULL && old == NULL;
    return p;
}

DS_API void free(void *p)
{
    heap.live -= heap.on && p != NULL;
    __libc_free(p);
}

#define GOLDEN DS_SOURCE_DIR "/test/golden/io/"

static ds_status do_save(ds_ctx *ctx, const char *dir)
{
    return saves_save(ctx, dir, "b", 2, 500, true);
}

static ds_status do_load(ds_ctx *ctx, const char *dir)
{
    ds_checkpoint *c = NULL;
    float x[500];
    (void)dir;
    DS_TRY(ds_checkpoint_open(ctx, DS_SOURCE_DIR "/test/golden/ckpt", "step2", &c));
    ds_status status = ds_checkpoint_verify(c);
    for (size_t i = 0; i < ds_checkpoint_count(c) && status == DS_OK; ++i) {
        status = ds_checkpoint_read(c, ds_checkpoint_at(c, i), NULL, DS_DTYPE_F32, x);
    }
    ds_checkpoint_close(&c);
    return status;
}

static ds_status do_list(ds_ctx *ctx, const char *dir)
{
    ds_checkpoint_entry *list = NULL;
    size_t n = 0;
    const ds_status status = ds_checkpoint_list(ctx, dir, &list, &n);
    ds_checkpoint_list_free(list, n);
    return status;
}

static ds_status do_open(ds_ctx *ctx, const char *dir)
{
    ds_safetensors *st = NULL;
    (void)dir;
    DS_TRY(ds_safetensors_open_folder(ctx, GOLDEN "llama_sharded", &st));
    ds_safetensors_close(&st);
    return DS_OK;
}

static ds_status do_export(ds_ctx *ctx, const char *dir)
{
    static const float x[64];
    ds_hf_export *e = NULL;
    const ds_hf_export_params params = {.folder = scratch_path(dir, "model"),
                                        .config_json = "{\"a\": 1}",
                                        .dtype = DS_DTYPE_BF16,
                                        .max_shard_bytes = 100,
                                        .copy_from = GOLDEN "gpt2"};
    DS_TRY(ds_hf_export_begin(ctx, &params, &e));
    ds_status status = DS_OK;
    static const char *const names[] = {"a", "b"};
    for (int i = 0; i < 2 && status == DS_OK; ++i) {
        const ds_tensor_source source = {
            .name = names[i], .meta = {DS_DTYPE_F32, ds_shape_1d(64)}, .data = x};
        status = ds_hf_export_add(e, &source);
    }
    if (status < 0) {
        ds_hf_export_abort(&e);
        return status;
    }
    return ds_hf_export_finish(&e);
}

/* Some calls do without the memory: qsort sorts in place, a broken entry is listed as such. */
static void loop(ds_ctx *ctx, ds_status (*act)(ds_ctx *ctx, const char *dir))
{
    int n = 1;
    for (; n < 5000; ++n) {
        char *dir = scratch_make();
        uint64_t step = 0;
        CHECK_OK(ctx, saves_save(ctx, dir, "a", 1, 500, true));
        heap.countdown = n;
        heap.fired = false;
        heap.live = 0;
        heap.on = true;
        const ds_status status = act(ctx, dir);
        heap.on = false;
        if (heap.live != 0) {
            fail_msg("allocation %d: %ld blocks leaked", n, heap.live);
        }
        if (status < 0 && status != DS_ERR_NOMEM &&
            strstr(ds_ctx_error(ctx), "Cannot allocate memory") == NULL) {
            fail_msg("allocation %d: %s: %s", n, ds_status_name(status), ds_ctx_error(ctx));
        }
        CHECK_OK(ctx, saves_check(ctx, dir, NULL, &step));
        CHECK_OK(ctx, act(ctx, dir));
        scratch_remove(dir);
        if (!heap.fired) {
            break;
        }
    }
    assert_true(n > 3 && n < 5000);
}

static void saving(void **state)
{
    loop(*state, do_save);
}

static void loading(void **state)
{
    loop(*state, do_load);
}

static void listing(void **state)
{
    loop(*state, do_list);
}

static void opening_weights(void **state)
{
    loop(*state, do_open);
}

static void exporting(void **state)
{
    loop(*state, do_export);
}

static int set_up(void **state)
{
    const ds_ctx_params params = {.n_threads = 1, .world_size = 1};
    return ds_ctx_create(&params, (ds_ctx **)state);
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saving),          cmocka_unit_test(loading),   cmocka_unit_test(listing),
        cmocka_unit_test(opening_weights), cmocka_unit_test(exporting),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
#endif
