/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged checkpoints: each kind of damage is refused by name, with another checkpoint to load;
 * what lies in sound shards is read. */
#include "common/check.h"
#include "common/cut_save.h"
#include "common/scratch.h"

#include "base/half.h"
#include "ckpt/ckpt_internal.h"
#include <deepspeed/checkpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static void edit(const char *path, const char *from, const char *to, bool sign)
{
    size_t n = 0;
    char *text = scratch_read(path, &n);
    char *at = strstr(text, from);
    if (at == NULL) {
        fail_msg("%s does not contain %s", path, from);
        return;
    }
    char *out = malloc(n + strlen(to) + 1);
    const size_t head = (size_t)(at - text);
    memcpy(out, text, head);
    (void)sprintf(out + head, "%s%s", to, at + strlen(from));
    if (sign) { /* as somebody who knows the format would */
        char *tail = strstr(out, "\"checksum\"");
        (void)sprintf(tail, "\"checksum\": \"%016llx\"\n}\n",
                      (unsigned long long)XXH3_64bits(out, (size_t)(tail - out)));
    }
    scratch_write(path, out, strlen(out));
    free(out);
    free(text);
}

static void flip(const char *path, long from_end)
{
    size_t n = 0;
    char *data = scratch_read(path, &n);
    data[n - (size_t)from_end] ^= 0x10;
    scratch_write(path, data, n);
    free(data);
}

typedef enum damage {
    EDIT, /* manifest text */
    EDIT_SIGNED,
    CUT,   /* file to n bytes */
    FLIP,  /* a bit, n bytes before the end of file */
    GONE,  /* file is removed */
    LINK,  /* file becomes a link to its copy */
    WRITE, /* file gets this text */
    FOLDER /* file becomes a folder */
} damage;

#define MANIFEST "b/ds_manifest.json"
#define SHARD    "b/ds_shard_00000_of_00001.safetensors"

static const struct {
    damage damage;
    const char *file;
    const char *from, *to;
    long n;
    ds_status status;
    const char *text;
} damages[] = {
    {EDIT, MANIFEST, "\"step\": 2", "\"step\": 3", 0, DS_ERR_CORRUPT, "does not have its checksum"},
    {EDIT, MANIFEST, "\"checksum\"", "\"Checksum\"", 0, DS_ERR_CORRUPT, "checksum line"},
    {CUT, MANIFEST, NULL, NULL, 0, DS_ERR_CORRUPT, "cut short"},
    {CUT, MANIFEST, NULL, NULL, 200, DS_ERR_CORRUPT, "cut short"},
    {FLIP, MANIFEST, NULL, NULL, 300, DS_ERR_CORRUPT, "b/ds_manifest.json"},
    {GONE, MANIFEST, NULL, NULL, 0, DS_ERR_NOT_FOUND, "b/ds_manifest.json"},
    {LINK, MANIFEST, NULL, NULL, 0, DS_ERR_IO, "is a symbolic link"},
    {FOLDER, MANIFEST, NULL, NULL, 0, DS_ERR_IO, "it is a folder"},
    {EDIT_SIGNED, MANIFEST, "\"version\": 1", "\"version\": 2", 0, DS_ERR_UNSUPPORTED, "version 2"},
    {EDIT_SIGNED, MANIFEST, "\"ds_checkpoint\"", "\"other\"", 0, DS_ERR_FORMAT,
     "format or version"},
    {EDIT_SIGNED, MANIFEST, "\"step\": 2", "\"step\": -2", 0, DS_ERR_FORMAT, "step, samples"},
    {EDIT_SIGNED, MANIFEST, "\"step\": 2", "\"step\": 2.0", 0, DS_ERR_FORMAT, "step, samples"},
    {EDIT_SIGNED, MANIFEST, "\"step\": 2", "\"step\": 2, \"step\": 2", 0, DS_ERR_FORMAT,
     "duplicate"},
    {EDIT_SIGNED, MANIFEST, "\"tag\": \"b\"", "\"tag\": \"../b\"", 0, DS_ERR_FORMAT, "tag"},
    {EDIT_SIGNED, MANIFEST, "\"states\": {", "\"states\": [{", 0, DS_ERR_FORMAT,
     "ds_manifest.json:"},
    {EDIT_SIGNED, MANIFEST, "\"ds_shard_00000", "\"../a/ds_shard_00000", 0, DS_ERR_FORMAT,
     "found '../a/ds_shard"},
    {EDIT_SIGNED, MANIFEST, "\"ds_shard_00000_of", "\"/ds_shard_00000_of", 0, DS_ERR_FORMAT,
     "expected the name of a file in this folder"},
    {EDIT_SIGNED, MANIFEST, "\"ds_shard_00000_of", "\"ds_shard_00001_of", 0, DS_ERR_NOT_FOUND,
     "ds_shard_00001_of"},
    {EDIT_SIGNED, MANIFEST, "\"shape\": [6,5]", "\"shape\": [6,4611686018427387904]", 0,
     DS_ERR_FORMAT, "has a wrong dtype or shape"},
    {EDIT_SIGNED, MANIFEST, "\"shape\": [6,5]", "\"shape\": [6,6]", 0, DS_ERR_FORMAT,
     "leave a gap"},
    {EDIT_SIGNED, MANIFEST, "\"shape\": [6,5]", "\"shape\": [6,-5]", 0, DS_ERR_FORMAT, "wrong"},
    {EDIT_SIGNED, MANIFEST, "\"shape\": [6,5]", "\"shape\": [5,5]", 0, DS_ERR_FORMAT,
     "a slice of tensor 'exp_avg/w' is wrong"},
    {EDIT_SIGNED, MANIFEST, "\"dtype\": \"F32\"", "\"dtype\": \"F31\"", 0, DS_ERR_FORMAT,
     "wrong dtype"},
    {EDIT_SIGNED, MANIFEST, "\"dtype\": \"F32\"", "\"dtype\": \"I32\"", 0, DS_ERR_CORRUPT,
     "is not what the manifest lists"},
    {EDIT_SIGNED, MANIFEST, "\"flat\": [0,7]", "\"flat\": [1,7]", 0, DS_ERR_FORMAT, "overlap"},
    {EDIT_SIGNED, MANIFEST, "\"flat\": [0,7]", "\"flat\": [0,9223372036854775807]", 0,
     DS_ERR_FORMAT, "a slice of tensor 'master/w' is wrong"},
    {EDIT_SIGNED, MANIFEST, "\"shard\": 0", "\"shard\": 1", 0, DS_ERR_FORMAT, "a slice of tensor"},
    {EDIT_SIGNED, MANIFEST, "\"entry\": \"param/w\"", "\"entry\": \"param/v\"", 0, DS_ERR_CORRUPT,
     "lacks the tensor 'param/v'"},
    {EDIT_SIGNED, MANIFEST, "\"kind\": \"param\"", "\"kind\": \"aaa\"", 0, DS_ERR_FORMAT,
     "is twice or out of order"},
    {EDIT_SIGNED, MANIFEST, "\"tensors\": [", "\"tensors\": 5, \"x\": [", 0, DS_ERR_FORMAT,
     "tensors"},
    {GONE, SHARD, NULL, NULL, 0, DS_ERR_NOT_FOUND, "ds_shard_00000_of_00001.safetensors"},
    {CUT, SHARD, NULL, NULL, 1000, DS_ERR_CORRUPT, "has 1000 bytes, the manifest lists"},
    {CUT, SHARD, NULL, NULL, 0, DS_ERR_CORRUPT, "has 0 bytes"},
    {LINK, SHARD, NULL, NULL, 0, DS_ERR_IO, "is a symbolic link"},
    {FOLDER, SHARD, NULL, NULL, 0, DS_ERR_IO, "it is a folder"},
    {WRITE, "latest", "gone", NULL, 0, DS_ERR_NOT_FOUND, "gone/ds_manifest.json"},
    {WRITE, "latest", "", NULL, 0, DS_ERR_FORMAT, "expected the tag of a checkpoint"},
    {WRITE, "latest", "../../etc", NULL, 0, DS_ERR_FORMAT, "found '../../etc'"},
    {WRITE, "latest", "\x01\x02\xff", NULL, 0, DS_ERR_FORMAT, "expected the tag"},
    {GONE, "latest", NULL, NULL, 0, DS_ERR_NOT_FOUND, "has no file 'latest'"},
    {FOLDER, "latest", NULL, NULL, 0, DS_ERR_IO, "it is a folder"},
};

static void do_damage(const char *dir, size_t i)
{
    const char *path = scratch_path(dir, damages[i].file);
    const char *copy = scratch_path(dir, "copy");
    switch (damages[i].damage) {
    case EDIT:
    case EDIT_SIGNED:
        edit(path, damages[i].from, damages[i].to, damages[i].damage == EDIT_SIGNED);
        break;
    case CUT:
        assert_int_equal(truncate(path, damages[i].n), 0);
        break;
    case FLIP:
        flip(path, damages[i].n);
        break;
    case GONE:
        assert_int_equal(unlink(path), 0);
        break;
    case LINK:
        assert_int_equal(rename(path, copy), 0);
        assert_int_equal(symlink(copy, path), 0);
        break;
    case WRITE:
        scratch_write(path, damages[i].from, strlen(damages[i].from));
        break;
    case FOLDER:
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkdir(path, 0777), 0);
        break;
    }
}

static void refuses_every_damage(void **state)
{
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; ++i) {
        char *dir = scratch_make();
        ds_checkpoint *c = NULL;
        CHECK_OK(*state, cut_save(*state, dir, "a", 1));
        CHECK_OK(*state, cut_save(*state, dir, "b", 2));
        do_damage(dir, i);
        CHECK_FAILS(*state, ds_checkpoint_open(*state, dir, NULL, &c), damages[i].status,
                    damages[i].text);
        assert_null(c);
        const bool of_latest = strcmp(damages[i].file, "latest") == 0;
        if (strstr(ds_ctx_error(*state),
                   of_latest ? "--resume b loads it" : "--resume a loads it") == NULL) {
            fail_msg("no offer: %s", ds_ctx_error(*state));
        }
        CHECK_OK(*state, ds_checkpoint_open(*state, dir, "a", &c)); /* nothing else is lost */
        cut_save_check(*state, c, "param", 1);
        ds_checkpoint_close(&c);
        scratch_remove(dir);
    }
}

/* Damage of the data is found by the read of that tensor, and by verify. */
static void finds_flipped_data(void **state)
{
    char *dir = scratch_make();
    ds_checkpoint *c = NULL;
    float out[CUT_COUNT];
    CHECK_OK(*state, cut_save(*state, dir, "a", 1));
    CHECK_OK(*state, cut_save(*state, dir, "b", 2));
    flip(scratch_path(dir, SHARD), 3); /* the last tensor of the file: bf16, param/b.half */
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    cut_save_check(*state, c, "param", 2);
    CHECK_FAILS(
        *state,
        ds_checkpoint_read(c, ds_checkpoint_find(c, "param", "b.half"), NULL, DS_DTYPE_F32, out),
        DS_ERR_CORRUPT, "'param/b.half' does not have its checksum");
    CHECK_FAILS(*state, ds_checkpoint_verify(c), DS_ERR_CORRUPT, "param/b.half");
    assert_non_null(strstr(ds_ctx_error(*state), "--resume a loads it"));
    ds_checkpoint_close(&c);
    scratch_remove(dir);
}

/* A byte of the shard that belongs to no tensor: one of its header's metadata. */
static void verify_covers_the_whole_file(void **state)
{
    char *dir = scratch_make();
    ds_checkpoint *c = NULL;
    size_t n = 0;
    CHECK_OK(*state, cut_save(*state, dir, "b", 2));
    const char *path = scratch_path(dir, SHARD);
    char *data = scratch_read(path, &n);
    char *format = strstr(data + 8, "\"pt\"");
    assert_non_null(format);
    format[1] = 'q';
    scratch_write(path, data, n);
    free(data);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    cut_save_check(*state, c, "param", 2);
    CHECK_FAILS(*state, ds_checkpoint_verify(c), DS_ERR_CORRUPT,
                "safetensors does not have its checksum");
    ds_checkpoint_close(&c);
    scratch_remove(dir);
}

static void offers_nothing_when_there_is_nothing(void **state)
{
    char *dir = scratch_make();
    ds_checkpoint *c = NULL;
    CHECK_FAILS(*state, ds_checkpoint_open(*state, dir, NULL, &c), DS_ERR_NOT_FOUND,
                "holds no other whole checkpoint");
    CHECK_FAILS(*state, ds_checkpoint_open(*state, scratch_path(dir, "none"), NULL, &c),
                DS_ERR_NOT_FOUND, "has no file 'latest'");
    CHECK_OK(*state, cut_save(*state, dir, "a", 1));
    CHECK_OK(*state, cut_save(*state, dir, "b", 2));
    CHECK_OK(*state, cut_save(*state, dir, "c", 3));
    flip(scratch_path(dir, "b/ds_shard_00000_of_00001.safetensors"), 3);
    flip(scratch_path(dir, "c/ds_manifest.json"), 100);
    CHECK_FAILS(*state, ds_checkpoint_open(*state, dir, NULL, &c), DS_ERR_CORRUPT,
                "--resume a loads it"); /* b's data is broken too */
    scratch_remove(dir);
}

/* A tag that is a link to a folder elsewhere is replaced without touching that folder. */
static void does_not_follow_a_linked_tag(void **state)
{
    char *dir = scratch_make();
    char *elsewhere = scratch_make();
    CHECK_OK(*state, cut_save(*state, elsewhere, "mine", 1));
    assert_int_equal(symlink(scratch_path(elsewhere, "mine"), scratch_path(dir, "t")), 0);
    CHECK_OK(*state, cut_save(*state, dir, "t", 2));
    struct stat st;
    assert_int_equal(lstat(scratch_path(dir, "t"), &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(scratch_count(scratch_path(elsewhere, "mine")), 2);
    scratch_remove(elsewhere);
    scratch_remove(dir);
}

static void write_shard(ds_ctx *ctx, const char *path, const char *name, ds_shape shape,
                        const float *data, dsi_ckpt_shard *shard, uint64_t *digest_out)
{
    size_t n = 0;
    const ds_tensor_source source = {.name = name, .meta = {DS_DTYPE_F32, shape}, .data = data};
    CHECK_OK(ctx, ds_safetensors_write(ctx, path, &source, 1, NULL));
    char *file = scratch_read(path, &n);
    shard->bytes = n;
    shard->digest = XXH3_64bits(file, n);
    *digest_out = XXH3_64bits(data, ds_meta_bytes(source.meta));
    free(file);
}

/* As two ranks would save it: the left and the right columns of a matrix. */
static void write_two_shards(ds_ctx *ctx, const char *dir)
{
    float left[CUT_ROWS * 2];
    float right[CUT_ROWS * 3];
    for (int i = 0; i < CUT_COUNT; ++i) {
        const int row = i / CUT_COLUMNS;
        const int column = i % CUT_COLUMNS;
        *(column < 2 ? &left[row * 2 + column] : &right[row * 3 + column - 2]) =
            cut_save_value(4, i);
    }
    dsi_ckpt_shard shards[2] = {{.file = "ds_shard_00000_of_00002.safetensors"},
                                {.file = "ds_shard_00001_of_00002.safetensors"}};
    dsi_ckpt_slice slices[2] = {
        {.shard = 0, .entry = "param/w#0", .extent = {.lengths = {CUT_ROWS, 2}}},
        {.shard = 1, .entry = "param/w#1", .extent = {.offset = {0, 2}, .lengths = {CUT_ROWS, 3}}}};
    ds_checkpoint_tensor tensor = {.kind = "param",
                                   .name = "w",
                                   .meta = {DS_DTYPE_F32, ds_shape_2d(CUT_ROWS, CUT_COLUMNS)},
                                   .n_slices = 2};
    const dsi_ckpt_manifest m = {.info = {.tag = "t", .step = 4, .optimizer = ""},
                                 .shards = shards,
                                 .n_shards = 2,
                                 .tensors = &tensor,
                                 .n_tensors = 1,
                                 .slices = slices,
                                 .n_slices = 2};
    assert_int_equal(mkdir(scratch_path(dir, "t"), 0777), 0);
    write_shard(ctx, scratch_path(dir, "t/ds_shard_00000_of_00002.safetensors"), "param/w#0",
                ds_shape_2d(CUT_ROWS, 2), left, &shards[0], &slices[0].digest);
    write_shard(ctx, scratch_path(dir, "t/ds_shard_00001_of_00002.safetensors"), "param/w#1",
                ds_shape_2d(CUT_ROWS, 3), right, &shards[1], &slices[1].digest);
    dsi_buf text = dsi_buf_make(1 << 20);
    CHECK_OK(ctx, dsi_ckpt_manifest_text(ctx, &m, &text));
    scratch_write(scratch_path(dir, "t/ds_manifest.json"), text.data, text.size);
    dsi_buf_free(&text);
}

static void reads_across_shards(void **state)
{
    char *dir = scratch_make();
    ds_checkpoint *c = NULL;
    float out[4];
    write_two_shards(*state, dir);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, "t", &c));
    assert_int_equal(ds_checkpoint_get_info(c)->n_shards, 2);
    cut_save_check(*state, c, "param", 4);
    const ds_extent middle = ds_extent_box(2, (const int64_t[]){2, 1}, (const int64_t[]){2, 2});
    CHECK_OK(*state, ds_checkpoint_read(c, ds_checkpoint_find(c, "param", "w"), &middle,
                                        DS_DTYPE_F32, out));
    assert_true(out[0] == cut_save_value(4, 11) && out[1] == cut_save_value(4, 12) &&
                out[2] == cut_save_value(4, 16) && out[3] == cut_save_value(4, 17));
    CHECK_OK(*state, ds_checkpoint_verify(c));
    ds_checkpoint_close(&c);
    flip(scratch_path(dir, "t/ds_shard_00001_of_00002.safetensors"), 3);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, "t", &c));
    const ds_extent left = ds_extent_box(2, (const int64_t[]){0, 0}, (const int64_t[]){2, 2});
    CHECK_OK(*state, ds_checkpoint_read(c, ds_checkpoint_find(c, "param", "w"), &left, DS_DTYPE_F32,
                                        out)); /* touches the sound shard only */
    CHECK_FAILS(
        *state,
        ds_checkpoint_read(c, ds_checkpoint_find(c, "param", "w"), &middle, DS_DTYPE_F32, out),
        DS_ERR_CORRUPT, "ds_shard_00001_of_00002.safetensors: the data of tensor");
    ds_checkpoint_close(&c);
    assert_int_equal(unlink(scratch_path(dir, "t/ds_shard_00001_of_00002.safetensors")), 0);
    CHECK_FAILS(*state, ds_checkpoint_open(*state, dir, "t", &c), DS_ERR_NOT_FOUND,
                "ds_shard_00001_of_00002");
    scratch_remove(dir);
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
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
        cmocka_unit_test(refuses_every_damage),
        cmocka_unit_test(finds_flipped_data),
        cmocka_unit_test(verify_covers_the_whole_file),
        cmocka_unit_test(offers_nothing_when_there_is_nothing),
        cmocka_unit_test(does_not_follow_a_linked_tag),
        cmocka_unit_test(reads_across_shards),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
