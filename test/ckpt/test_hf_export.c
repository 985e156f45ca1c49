/* SPDX-License-Identifier: Apache-2.0 */
/* Model folders: what is exported equals what transformers saves, byte for byte; a folder that
 * exists keeps its other files; a failed export leaves it as it was. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/hf_export.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOLDEN DS_SOURCE_DIR "/test/golden/io/"

static ds_status export_folder(ds_ctx *ctx, const ds_safetensors *st, const char *folder,
                               ds_dtype dtype, uint64_t shard_bytes, const char *copy_from)
{
    size_t n = 0;
    char *config = scratch_read(GOLDEN "gpt2/config.json", &n);
    ds_hf_export *e = NULL;
    const ds_hf_export_params params = {.folder = folder,
                                        .config_json = config,
                                        .dtype = dtype,
                                        .max_shard_bytes = shard_bytes,
                                        .copy_from = copy_from};
    ds_status status = ds_hf_export_begin(ctx, &params, &e);
    free(config);
    for (size_t i = 0; i < ds_safetensors_count(st) && status == DS_OK; ++i) {
        const ds_safetensor *t = ds_safetensors_at(st, i);
        const ds_tensor_source source = {.name = t->name, .meta = t->meta, .data = t->data};
        status = ds_hf_export_add(e, &source);
    }
    if (status < 0) {
        ds_hf_export_abort(&e);
        return status;
    }
    return ds_hf_export_finish(&e);
}

static void equals_transformers(void **state)
{
    static const struct {
        ds_dtype dtype;
        const char *golden;
    } cases[] = {{DS_DTYPE_NONE, GOLDEN "gpt2"},
                 {DS_DTYPE_F32, GOLDEN "gpt2"},
                 {DS_DTYPE_BF16, GOLDEN "gpt2_bf16"},
                 {DS_DTYPE_F16, GOLDEN "gpt2_f16"}};
    ds_safetensors *st = NULL;
    CHECK_OK(*state, ds_safetensors_open_folder(*state, GOLDEN "gpt2", &st));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char *dir = scratch_make();
        const char *folder = scratch_path(dir, "new/model/");
        CHECK_OK(*state, export_folder(*state, st, folder, cases[i].dtype, 0, GOLDEN "gpt2"));
        assert_int_equal(scratch_count(folder), 3);
        assert_int_equal(scratch_count(scratch_path(dir, "new")), 1);
        scratch_same(scratch_path(folder, "model.safetensors"),
                     scratch_path(cases[i].golden, "model.safetensors"));
        scratch_same(scratch_path(folder, "generation_config.json"),
                     GOLDEN "gpt2/generation_config.json");
        size_t n = 0;
        char *config = scratch_read(scratch_path(folder, "config.json"), &n);
        const char *name[] = {"\"float32\"", "\"float32\"", "\"bfloat16\"", "\"float16\""};
        assert_non_null(strstr(config, name[i]));
        free(config);
        scratch_remove(dir);
    }
    ds_safetensors_close(&st);
}

static void merges_into_a_folder(void **state)
{
    char *dir = scratch_make();
    ds_safetensors *st = NULL;
    ds_safetensors *back = NULL;
    CHECK_OK(*state, ds_safetensors_open_folder(*state, GOLDEN "gpt2", &st));
    scratch_write(scratch_path(dir, "notes.txt"), "mine", 4);
    assert_int_equal(mkdir(scratch_path(dir, "global_step1"), 0777), 0);
    CHECK_OK(*state, export_folder(*state, st, dir, DS_DTYPE_NONE, 10000, NULL));
    CHECK_OK(*state, ds_safetensors_open_folder(*state, dir, &back));
    assert_int_equal(ds_safetensors_count(back), ds_safetensors_count(st));
    ds_safetensors_close(&back);
    assert_true(scratch_count(dir) > 6);
    CHECK_OK(*state, export_folder(*state, st, dir, DS_DTYPE_NONE, 0, NULL));
    assert_int_equal(scratch_count(dir), 4); /* config, weights, notes, the other folder */
    scratch_same(scratch_path(dir, "model.safetensors"), GOLDEN "gpt2/model.safetensors");
    ds_safetensors_close(&st);
    scratch_remove(dir);
}

static ds_status failing_fill(void *user, size_t offset, void *data, size_t n)
{
    (void)offset;
    memset(data, 0, n);
    return ds_fail(user, DS_ERR_DEVICE, "the device is gone");
}

static void a_failed_export_changes_nothing(void **state)
{
    char *dir = scratch_make();
    ds_safetensors *st = NULL;
    ds_hf_export *e = NULL;
    CHECK_OK(*state, ds_safetensors_open_folder(*state, GOLDEN "gpt2", &st));
    CHECK_OK(*state, export_folder(*state, st, dir, DS_DTYPE_NONE, 0, NULL));
    const ds_tensor_source bad = {
        .name = "w", .meta = {DS_DTYPE_F32, ds_shape_1d(4)}, .fill = failing_fill, .user = *state};
    for (int fresh = 0; fresh < 2; ++fresh) {
        const char *folder = fresh == 1 ? scratch_path(dir, "fresh") : dir;
        const ds_hf_export_params params = {.folder = folder, .config_json = "{}"};
        CHECK_OK(*state, ds_hf_export_begin(*state, &params, &e));
        assert_int_equal(access(scratch_path(ds_hf_export_folder(e), "config.json"), F_OK), 0);
        CHECK_OK(*state, ds_hf_export_add(e, &bad));
        CHECK_FAILS(*state, ds_hf_export_finish(&e), DS_ERR_DEVICE, "the device is gone");
        assert_int_equal(scratch_count(dir), 2);
    }
    scratch_same(scratch_path(dir, "config.json"), GOLDEN "gpt2/config.json");
    ds_safetensors_close(&st);
    scratch_remove(dir);
}

static void refuses_bad_calls(void **state)
{
    char *dir = scratch_make();
    scratch_write(scratch_path(dir, "file"), "x", 1);
    const struct {
        ds_hf_export_params params;
        ds_status status;
        const char *text;
    } cases[] = {
        {{.folder = dir, .config_json = "{\"a\": }"}, DS_ERR_FORMAT, "config.json:1:7: "},
        {{.folder = dir, .config_json = "[]"}, DS_ERR_FORMAT, "config.json is no object"},
        {{.folder = dir, .config_json = "{}", .dtype = DS_DTYPE_I8}, DS_ERR_ARG, "not in i8"},
        {{.folder = scratch_path(dir, "file"), .config_json = "{}"}, DS_ERR_IO, "it is a file"},
        {{.folder = scratch_path(dir, "file/x"), .config_json = "{}"},
         DS_ERR_IO,
         "Not a directory"},
        {{.folder = dir, .config_json = "{}", .copy_from = "/nonexistent"},
         DS_ERR_NOT_FOUND,
         "/nonexistent is not a model folder"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        ds_hf_export *e = NULL;
        CHECK_FAILS(*state, ds_hf_export_begin(*state, &cases[i].params, &e), cases[i].status,
                    cases[i].text);
        assert_int_equal(scratch_count(dir), 1);
    }
    ds_hf_export *e = NULL;
    const ds_hf_export_params right = {.folder = dir, .config_json = "{}"};
    CHECK_OK(*state, ds_hf_export_begin(*state, &right, &e));
    assert_int_equal(mkdir(scratch_path(dir, "model.safetensors"), 0777), 0);
    CHECK_FAILS(*state, ds_hf_export_finish(&e), DS_ERR_IO, "model.safetensors: it is a folder");
    assert_int_equal(scratch_count(dir), 2); /* not even config.json moved */
    CHECK_FAILS(*state, ds_hf_export_begin(*state, &right, &e), DS_ERR_IO,
                "model.safetensors: it is a folder"); /* before the work */
    assert_int_equal(scratch_count(dir), 2);
    scratch_remove(dir);
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

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "export") == 0) { /* by hand, for a look with transformers */
        void *ctx = NULL;
        ds_safetensors *st = NULL;
        return set_up(&ctx) < 0 || ds_safetensors_open_folder(ctx, GOLDEN "gpt2", &st) < 0 ||
               export_folder(ctx, st, argv[2], ds_dtype_from_name(argv[3]), 9000, NULL) < 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_transformers),
        cmocka_unit_test(merges_into_a_folder),
        cmocka_unit_test(a_failed_export_changes_nothing),
        cmocka_unit_test(refuses_bad_calls),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
