/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of torch.distributed.checkpoint (test/golden/distcp, three ranks): every tensor is what
 * torch saved, whole; what is cut short, missing or contradicts itself is refused. */
#include "common/check.h"
#include "common/golden.h"
#include "common/scratch.h"

#include <deepspeed/checkpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN DS_SOURCE_DIR "/test/golden/distcp/"

enum { PATH_BYTES = 512, MOST_BYTES = 4096 };

static char *folder;

static int unpack(void **state)
{
    char command[1024];
    folder = scratch_make();
    (void)snprintf(command, sizeof command,
                   "tar -xzf %sfsdp.tar.gz -C %s && tar -xzf %sflat.tar.gz -C %s", GOLDEN, folder,
                   GOLDEN, folder);
    return system(command) != 0 ? 1 : check_set_up(state);
}

static int remove_all(void **state)
{
    scratch_remove(folder);
    return check_tear_down(state);
}

static void has_every_tensor(void **state)
{
    static const char *const forms[] = {"fsdp", "flat"};
    for (size_t i = 0; i < 2; ++i) {
        char path[PATH_BYTES];
        ds_checkpoint *c = NULL;
        ds_safetensors *want = NULL;
        (void)snprintf(path, sizeof path, "%s/%s/want.safetensors", folder, forms[i]);
        CHECK_OK(*state, ds_safetensors_open(*state, path, &want));
        (void)snprintf(path, sizeof path, "%s/%s", folder, forms[i]);
        CHECK_OK(*state, ds_checkpoint_open(*state, path, "step", &c));
        CHECK_OK(*state, ds_checkpoint_verify(c));
        assert_int_equal(ds_checkpoint_count(c), ds_safetensors_count(want));
        for (size_t k = 0; k < ds_safetensors_count(want); ++k) {
            uint8_t got[MOST_BYTES];
            char kind[PATH_BYTES];
            const ds_safetensor *w = ds_safetensors_at(want, k);
            (void)snprintf(kind, sizeof kind, "%s", w->name);
            char *name = strchr(kind, '/');
            assert_non_null(name);
            *name++ = '\0';
            const ds_checkpoint_tensor *t = ds_checkpoint_find(c, kind, name);
            assert_non_null(t);
            assert_true(ds_shape_equal(t->meta.shape, w->meta.shape));
            assert_int_equal(t->meta.dtype, w->meta.dtype);
            assert_true(w->bytes <= sizeof got);
            CHECK_OK(*state, ds_checkpoint_read(c, t, NULL, t->meta.dtype, got));
            assert_memory_equal(got, w->data, w->bytes);
        }
        ds_checkpoint_close(&c);
        ds_safetensors_close(&want);
        (void)snprintf(path, sizeof path, "%s/%s/step", folder, forms[i]);
        CHECK_OK(*state, ds_checkpoint_open(*state, path, NULL, &c)); /* by itself */
        assert_string_equal(ds_checkpoint_get_info(c)->tag, "step");
        ds_checkpoint_close(&c);
    }
}

/* ---- damage ---- */

static void fresh(char dir[PATH_BYTES])
{
    char command[1400];
    (void)snprintf(dir, PATH_BYTES, "%s/damaged", folder);
    (void)snprintf(command, sizeof command, "rm -rf %s; cp -r %s/fsdp/step %s", dir, folder, dir);
    assert_int_equal(system(command), 0);
}

/* Opens and reads all of it; whatever happens stays inside of the files. */
static ds_status read_all(ds_ctx *ctx, const char *dir)
{
    ds_checkpoint *c = NULL;
    DS_TRY(ds_checkpoint_open(ctx, dir, NULL, &c));
    ds_status status = DS_OK;
    for (size_t i = 0; i < ds_checkpoint_count(c) && status >= 0; ++i) {
        const ds_checkpoint_tensor *t = ds_checkpoint_at(c, i);
        void *data = malloc(ds_meta_bytes(t->meta) + 1);
        assert_non_null(data);
        status = ds_checkpoint_read(c, t, NULL, t->meta.dtype, data);
        free(data);
    }
    status = status >= 0 ? ds_checkpoint_verify(c) : status;
    ds_checkpoint_close(&c);
    return status;
}

static void refuses_every_cut(void **state)
{
    static const char *const files[] = {".metadata", "__1_0.distcp"};
    char dir[PATH_BYTES];
    char path[PATH_BYTES + 32];
    for (size_t i = 0; i < 2; ++i) {
        size_t n = 0;
        fresh(dir);
        (void)snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        char *data = scratch_read(path, &n);
        for (size_t cut = 0; cut < n; cut += i == 0 ? 7 : 101) {
            scratch_write(path, data, cut);
            assert_true(read_all(*state, dir) < 0);
        }
        scratch_write(path, data, n);
        CHECK_OK(*state, read_all(*state, dir));
        free(data);
    }
    assert_int_equal(unlink(path), 0);
    CHECK_FAILS(*state, read_all(*state, dir), DS_ERR_NOT_FOUND, "__1_0.distcp");
}

/* The text at `from`, which is there, gets the bytes of `to`. */
static void replace(const char *path, const char *from, const char *to, size_t n)
{
    size_t size = 0;
    char *data = scratch_read(path, &size);
    char *at = memmem(data, size, from, n);
    assert_non_null(at);
    memcpy(at, to, n);
    scratch_write(path, data, size);
    free(data);
}

static void refuses_contradictions(void **state)
{
    char dir[PATH_BYTES];
    char path[PATH_BYTES + 32];
    fresh(dir);
    (void)snprintf(path, sizeof path, "%s/.metadata", dir);
    replace(path, "__1_0.distcp", "../0_.distcp", 12);
    CHECK_FAILS(*state, read_all(*state, dir), DS_ERR_FORMAT, "no plain file name");
    fresh(dir);
    replace(path, "__1_0.distcp", "__2_0.distcp", 12);
    assert_true(read_all(*state, dir) < 0);
    fresh(dir);
    replace(path, "_StorageInfo", "_StorageXnfo", 12);
    CHECK_FAILS(*state, read_all(*state, dir), DS_ERR_UNSUPPORTED, "_StorageXnfo");
}

static void stays_inside_of_mutated_folders(void **state)
{
    const char *wanted = getenv("TORCH_MUTATIONS");
    const long times = wanted != NULL ? atol(wanted) : 400;
    char dir[PATH_BYTES];
    char path[PATH_BYTES + 32];
    size_t n = 0;
    uint64_t seed = 7;
    fresh(dir);
    (void)snprintf(path, sizeof path, "%s/.metadata", dir);
    char *data = scratch_read(path, &n);
    char *mutated = malloc(n);
    assert_non_null(mutated);
    for (long i = 0; i < times; ++i) {
        memcpy(mutated, data, n);
        for (int k = 0; k < 3; ++k) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            mutated[(seed >> 33) % n] = (char)(seed >> 25);
        }
        scratch_write(path, mutated, n);
        (void)read_all(*state, dir);
    }
    free(mutated);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_every_tensor),
        cmocka_unit_test(refuses_every_cut),
        cmocka_unit_test(refuses_contradictions),
        cmocka_unit_test(stays_inside_of_mutated_folders),
    };
    return cmocka_run_group_tests(tests, unpack, remove_all);
}
