/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: files of the Python packages read and written back byte for byte, folders and
 * shards, and a table of malformed files, each refused by name. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/safetensors.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOLDEN DS_SOURCE_DIR "/test/golden/io/"

enum { MAX_TENSORS = 64 };

/* Sources that stand for the tensors of an open file, in its order. */
static size_t sources_of(const ds_safetensors *st, ds_tensor_source *sources)
{
    const size_t n = ds_safetensors_count(st);
    assert_true(n <= MAX_TENSORS);
    for (size_t i = 0; i < n; ++i) {
        const ds_safetensor *t = ds_safetensors_at(st, i);
        sources[i] = (ds_tensor_source){.name = t->name, .meta = t->meta, .data = t->data};
    }
    return n;
}

static void round_trip(ds_ctx *ctx, const char *golden, bool reverse)
{
    char *folder = scratch_make();
    const char *out = scratch_path(folder, "out.safetensors");
    ds_safetensors *st = NULL;
    ds_tensor_source sources[MAX_TENSORS];
    ds_text_pair metadata[8];
    size_t n_metadata = 0;
    CHECK_OK(ctx, ds_safetensors_open(ctx, golden, &st));
    const size_t n = sources_of(st, sources);
    for (size_t i = 0; reverse && i < n / 2; ++i) {
        const ds_tensor_source swapped = sources[i];
        sources[i] = sources[n - 1 - i];
        sources[n - 1 - i] = swapped;
    }
    while (ds_safetensors_metadata(st, n_metadata, &metadata[n_metadata].key,
                                   &metadata[n_metadata].value)) {
        ++n_metadata;
    }
    const ds_safetensors_params params = {.metadata = metadata, .n_metadata = n_metadata};
    CHECK_OK(ctx, ds_safetensors_write(ctx, out, sources, n, &params));
    scratch_same(out, golden);
    assert_int_equal(scratch_count(folder), 1);
    ds_safetensors_close(&st);
    scratch_remove(folder);
}

static void files_round_trip_byte_for_byte(void **state)
{
    static const char *const goldens[] = {
        GOLDEN "mixed.safetensors",      GOLDEN "no_metadata.safetensors",
        GOLDEN "texts.safetensors",      GOLDEN "nothing.safetensors",
        GOLDEN "gpt2/model.safetensors", GOLDEN "llama_sharded/model-00003-of-00006.safetensors"};
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; ++i) {
        round_trip(*state, goldens[i], false);
        round_trip(*state, goldens[i], true);
    }
}

/* transformers deals tensors to shards in the order of the model's parameters. */
static void sharded_folder_round_trips(void **state)
{
    static const char *const order[] = {
        "model.embed_tokens.weight", "L.self_attn.q_proj.weight",
        "L.self_attn.k_proj.weight", "L.self_attn.v_proj.weight",
        "L.self_attn.o_proj.weight", "L.mlp.gate_proj.weight",
        "L.mlp.up_proj.weight",      "L.mlp.down_proj.weight",
        "L.input_layernorm.weight",  "L.post_attention_layernorm.weight",
        "model.norm.weight",         "lm_head.weight"};
    char *folder = scratch_make();
    ds_safetensors *st = NULL;
    ds_tensor_source sources[MAX_TENSORS];
    size_t n = 0;
    CHECK_OK(*state, ds_safetensors_open_folder(*state, GOLDEN "llama_sharded", &st));
    for (size_t i = 0; i < 21; ++i) { /* embedding, two layers of nine, norm, head */
        char name[128];
        const size_t k = i == 0 ? 0 : i <= 18 ? 1 + (i - 1) % 9 : i - 9;
        if (order[k][0] == 'L') {
            (void)snprintf(name, sizeof name, "model.layers.%zu%s", (i - 1) / 9, order[k] + 1);
        } else {
            (void)snprintf(name, sizeof name, "%s", order[k]);
        }
        const ds_safetensor *t = ds_safetensors_find(st, name);
        if (t == NULL) {
            fail_msg("%s not found", name);
            return;
        }
        sources[n++] = (ds_tensor_source){.name = t->name, .meta = t->meta, .data = t->data};
    }
    assert_int_equal(n, ds_safetensors_count(st));
    const ds_text_pair pt = {"format", "pt"};
    const ds_safetensors_params params = {.metadata = &pt, .n_metadata = 1};
    scratch_write(scratch_path(folder, "model.safetensors"), "old", 3);
    scratch_write(scratch_path(folder, "model-00001-of-00009.safetensors"), "old", 3);
    scratch_write(scratch_path(folder, "keep.txt"), "mine", 4);
    CHECK_OK(*state, ds_safetensors_write_folder(*state, folder, sources, n, 2500, &params));
    static const char *const files[] = {
        "model-00001-of-00006.safetensors", "model-00002-of-00006.safetensors",
        "model-00003-of-00006.safetensors", "model-00004-of-00006.safetensors",
        "model-00005-of-00006.safetensors", "model-00006-of-00006.safetensors",
        "model.safetensors.index.json"};
    for (size_t i = 0; i < 7; ++i) {
        scratch_same(scratch_path(folder, files[i]),
                     scratch_path(GOLDEN "llama_sharded", files[i]));
    }
    assert_int_equal(scratch_count(folder), 8); /* and keep.txt: the old weights are gone */
    CHECK_OK(*state, ds_safetensors_write_folder(*state, folder, sources, n, 0, &params));
    assert_int_equal(scratch_count(folder), 2);
    ds_safetensors_close(&st);
    scratch_remove(folder);
}

static void values_and_views(void **state)
{
    ds_safetensors *st = NULL;
    float f[16];
    uint16_t h[16];
    CHECK_OK(*state, ds_safetensors_open(*state, GOLDEN "mixed.safetensors", &st));
    assert_int_equal(ds_safetensors_count(st), 12);
    assert_null(ds_safetensors_find(st, "absent"));
    assert_null(ds_safetensors_at(st, 12));
    const ds_safetensor *count = ds_safetensors_find(st, "count");
    assert_int_equal(count->meta.shape.n_dims, 0);
    int64_t value = 0;
    memcpy(&value, count->data, sizeof value);
    assert_int_equal(value, 12345678901);
    const ds_safetensor *empty = ds_safetensors_find(st, "empty");
    assert_true(empty->bytes == 0 && empty->data == NULL && empty->meta.shape.dims[1] == 4);
    const ds_safetensor *z = ds_safetensors_find(st, "z.weight");
    assert_true(((uintptr_t)z->data & 3) == 0);
    CHECK_OK(*state, ds_safetensors_read(*state, z, DS_DTYPE_F32, f));
    assert_true(f[0] == (float)(1.0 / 7 - 1) && f[14] == (float)(15.0 / 7 - 1));
    CHECK_OK(*state, ds_safetensors_read(*state, z, DS_DTYPE_BF16, h));
    assert_int_equal(h[6], 0x0000);
    assert_int_equal(h[13], 0x3f80);
    CHECK_OK(*state,
             ds_safetensors_read(*state, ds_safetensors_find(st, "a.half"), DS_DTYPE_F32, f));
    assert_true(f[6] == 0.0f);
    CHECK_FAILS(*state, ds_safetensors_read(*state, count, DS_DTYPE_F32, f), DS_ERR_SHAPE,
                "'count' is stored as i64");
    ds_safetensors_close(&st);
}

static ds_status fill_ramp(void *user, size_t offset, void *data, size_t n)
{
    size_t *calls = user;
    float *out = data;
    ++*calls;
    for (size_t i = 0; i < n / 4; ++i) {
        out[i] = (float)((offset / 4 + i) % 1000);
    }
    return DS_OK;
}

static void streams_with_conversion(void **state)
{
    char *folder = scratch_make();
    const char *path = scratch_path(folder, "a.safetensors");
    size_t calls = 0;
    const int64_t n = 3 * 1024 * 1024 + 17; /* several blocks and a rest */
    ds_tensor_source source = {.name = "ramp",
                               .meta = {DS_DTYPE_F32, ds_shape_1d(n)},
                               .stored = DS_DTYPE_F16,
                               .fill = fill_ramp,
                               .user = &calls};
    CHECK_OK(*state, ds_safetensors_write(*state, path, &source, 1, NULL));
    assert_int_equal(calls, 25);
    ds_safetensors *st = NULL;
    CHECK_OK(*state, ds_safetensors_open(*state, path, &st));
    const ds_safetensor *t = ds_safetensors_find(st, "ramp");
    assert_int_equal(t->bytes, 2 * n);
    float *back = malloc((size_t)n * 4);
    CHECK_OK(*state, ds_safetensors_read(*state, t, DS_DTYPE_F32, back));
    for (int64_t i = 0; i < n; ++i) {
        assert_true(back[i] == (float)(i % 1000));
    }
    free(back);
    ds_safetensors_close(&st);
    const float huge[2] = {1.0f, 70000.0f};
    source = (ds_tensor_source){.name = "huge",
                                .meta = {DS_DTYPE_F32, ds_shape_1d(2)},
                                .stored = DS_DTYPE_F16,
                                .data = huge};
    CHECK_FAILS(*state, ds_safetensors_write(*state, path, &source, 1, NULL), DS_ERR_NUMERIC,
                "'huge' has values beyond the range of f16");
    CHECK_OK(*state, ds_safetensors_open(*state, path, &st)); /* the old file stays */
    assert_non_null(ds_safetensors_find(st, "ramp"));
    ds_safetensors_close(&st);
    assert_int_equal(scratch_count(folder), 1);
    scratch_remove(folder);
}

static void refuses_bad_sources(void **state)
{
    char *folder = scratch_make();
    const char *path = scratch_path(folder, "a.safetensors");
    const float x[2] = {0};
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_1d(2)};
    const ds_tensor_source twice[2] = {{.name = "a", .meta = meta, .data = x},
                                       {.name = "a", .meta = meta, .data = x}};
    const ds_tensor_source reserved = {.name = "__metadata__", .meta = meta, .data = x};
    const ds_tensor_source bytes = {.name = "a\xff", .meta = meta, .data = x};
    const ds_tensor_source nothing = {.name = "a", .meta = meta};
    CHECK_FAILS(*state, ds_safetensors_write(*state, path, twice, 2, NULL), DS_ERR_ARG,
                "'a' is given twice");
    CHECK_FAILS(*state, ds_safetensors_write_folder(*state, folder, twice, 2, 8, NULL), DS_ERR_ARG,
                "'a' is given twice");
    CHECK_FAILS(*state, ds_safetensors_write(*state, path, &reserved, 1, NULL), DS_ERR_ARG,
                "cannot be the name");
    CHECK_FAILS(*state, ds_safetensors_write(*state, path, &bytes, 1, NULL), DS_ERR_ARG,
                "cannot be the name");
    CHECK_FAILS(*state, ds_safetensors_write(*state, path, &nothing, 1, NULL), DS_ERR_ARG,
                "'a' has no data");
    assert_int_equal(scratch_count(folder), 0);
    scratch_remove(folder);
}

typedef struct bad_file {
    const char *header; /* NULL: the file is `size_field` alone, cut to n_data bytes */
    size_t n_data;
    int64_t header_bytes; /* 0: the true one */
    ds_status status;
    const char *text;
} bad_file;

#define T(range, shape) "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" range "}"

static const bad_file bad_files[] = {
    {NULL, 0, 0, DS_ERR_FORMAT, "0 bytes are too few"},
    {NULL, 7, 0, DS_ERR_FORMAT, "7 bytes are too few"},
    {"{}", 0, 3, DS_ERR_FORMAT, "header should have 3 bytes, the file has 2"},
    {"{}", 0, 100000001, DS_ERR_LIMIT, "header would have 100000001 bytes"},
    {"{}", 0, -1, DS_ERR_LIMIT, "header would have 18446744073709551615 bytes"},
    {"", 0, 0, DS_ERR_FORMAT, "JSON header:1:"},
    {"[]", 0, 0, DS_ERR_FORMAT, "not a JSON object"},
    {"{\"a\":" T("[0,4]", "[1]"), 4, 0, DS_ERR_FORMAT, "JSON header:1:"},
    {"{} x", 0, 0, DS_ERR_FORMAT, "JSON header:1:"},
    {"{\"a\xff\":1}", 0, 0, DS_ERR_FORMAT, "JSON header:1:"},
    {"{\"a\":" T("[0,4]", "[1]") ",\"a\":" T("[4,8]", "[1]") "}", 8, 0, DS_ERR_FORMAT, "duplicate"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0,
     DS_ERR_FORMAT, "duplicate"},
    {"{\"a\":3}", 0, 0, DS_ERR_FORMAT, "entry 'a' of the header is not a tensor"},
    {"{\"\":" T("[0,4]", "[1]") "}", 4, 0, DS_ERR_FORMAT, "entry '' of the header"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0, DS_ERR_FORMAT,
     "'a': dtype is missing"},
    {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0, DS_ERR_FORMAT,
     "unknown dtype 'F33'"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0, DS_ERR_UNSUPPORTED,
     "F4, which is not supported"},
    {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, 0, DS_ERR_FORMAT,
     "f8_e4m3[2]"},
    {"{\"a\":" T("[0,4]", "1") "}", 4, 0, DS_ERR_FORMAT, "'a': shape is missing or not a list"},
    {"{\"a\":" T("[0,4]", "[-1]") "}", 4, 0, DS_ERR_FORMAT, "dimension 0 of its shape"},
    {"{\"a\":" T("[0,4]", "[1,1.0]") "}", 4, 0, DS_ERR_FORMAT, "dimension 1 of its shape"},
    {"{\"a\":" T("[0,4]", "[1,1,1,1,1,1,1,1,1]") "}", 4, 0, DS_ERR_UNSUPPORTED, "9 dimensions"},
    {"{\"a\":" T("[0,4]", "[99999999999999999999]") "}", 4, 0, DS_ERR_FORMAT, "JSON header:1:"},
    {"{\"a\":" T("[0,4]", "[4294967296,4294967296]") "}", 4, 0, DS_ERR_FORMAT, "overflows"},
    {"{\"a\":" T("[0,4]", "[2]") "}", 4, 0, DS_ERR_FORMAT, "has 8 bytes"},
    {"{\"a\":" T("[0]", "[1]") "}", 4, 0, DS_ERR_FORMAT, "data_offsets is missing or not a pair"},
    {"{\"a\":" T("[-4,0]", "[1]") "}", 4, 0, DS_ERR_FORMAT, "not inside of the file's 4 bytes"},
    {"{\"a\":" T("[4,0]", "[1]") "}", 4, 0, DS_ERR_FORMAT, "not inside of the file's 4 bytes"},
    {"{\"a\":" T("[0,8]", "[2]") "}", 4, 0, DS_ERR_FORMAT, "is the file cut short?"},
    {"{\"a\":" T("[0,4]", "[1]") "}", 6, 0, DS_ERR_FORMAT, "2 bytes after the data"},
    {"{\"a\":" T("[0,4]", "[1]") ",\"b\":" T("[6,10]", "[1]") "}", 10, 0, DS_ERR_FORMAT,
     "unused bytes before the data of tensor 'b'"},
    {"{\"a\":" T("[0,4]", "[1]") ",\"b\":" T("[2,6]", "[1]") "}", 6, 0, DS_ERR_FORMAT,
     "the data of tensor 'b' overlaps"},
    {"{\"a\":" T("[0,4]", "[1]") ",\"b\":" T("[0,4]", "[1]") "}", 4, 0, DS_ERR_FORMAT, "overlaps"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, 0,
     DS_ERR_FORMAT, "more keys than"},
    {"{\"__metadata__\":[]}", 0, 0, DS_ERR_FORMAT, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, 0, DS_ERR_FORMAT, "'a' is not a text"},
};

static void write_bad(const char *path, const bad_file *bad)
{
    unsigned char bytes[1024] = {0};
    const size_t n_header = bad->header != NULL ? strlen(bad->header) : 0;
    const uint64_t size = bad->header_bytes != 0 ? (uint64_t)bad->header_bytes : (uint64_t)n_header;
    for (int i = 0; i < 8; ++i) {
        bytes[i] = (unsigned char)(size >> (8 * i));
    }
    if (n_header > 0) {
        memcpy(bytes + 8, bad->header, n_header);
    }
    scratch_write(path, bytes, bad->header != NULL ? 8 + n_header + bad->n_data : bad->n_data);
}

static void refuses_bad_files(void **state)
{
    char *folder = scratch_make();
    const char *path = scratch_path(folder, "bad.safetensors");
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; ++i) {
        ds_safetensors *st = NULL;
        write_bad(path, &bad_files[i]);
        CHECK_FAILS(*state, ds_safetensors_open(*state, path, &st), bad_files[i].status,
                    bad_files[i].text);
        assert_non_null(strstr(ds_ctx_error(*state), "bad.safetensors"));
        assert_null(st);
    }
    ds_safetensors *st = NULL;
    CHECK_FAILS(*state, ds_safetensors_open(*state, folder, &st), DS_ERR_IO, "it is a folder");
    CHECK_FAILS(*state, ds_safetensors_open(*state, "/dev/zero", &st), DS_ERR_IO, "a device");
    const char *pipe = scratch_path(folder, "pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    CHECK_FAILS(*state, ds_safetensors_open(*state, pipe, &st), DS_ERR_IO, "a device or pipe");
    scratch_remove(folder);
}

/* Every prefix of a good file is refused, and none crashes. */
static void refuses_every_cut(void **state)
{
    char *folder = scratch_make();
    const char *path = scratch_path(folder, "cut.safetensors");
    size_t n = 0;
    char *data = scratch_read(GOLDEN "texts.safetensors", &n);
    for (size_t i = 0; i < n; ++i) {
        ds_safetensors *st = NULL;
        scratch_write(path, data, i);
        assert_true(ds_safetensors_open(*state, path, &st) < 0);
    }
    free(data);
    scratch_remove(folder);
}

static void put_shard(const char *folder, const char *name, const char *tensor)
{
    char header[256];
    unsigned char bytes[512] = {0};
    const int n = snprintf(header, sizeof header, "{\"%s\":" T("[0,4]", "[1]") "}", tensor);
    bytes[0] = (unsigned char)n;
    memcpy(bytes + 8, header, (size_t)n);
    scratch_write(scratch_path(folder, name), bytes, (size_t)n + 12);
}

static void refuses_bad_folders(void **state)
{
    static const struct {
        const char *index;
        ds_status status;
        const char *text;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"s1\",\"b\":\"s2\"", DS_ERR_FORMAT, ".index.json:1:"},
        {"{\"weight_map\":{\"a\":\"s1\",\"a\":\"s2\"}}", DS_ERR_FORMAT, "duplicate"},
        {"{\"weight_map\":[]}", DS_ERR_FORMAT, "weight_map is missing"},
        {"{\"weight_map\":{}}", DS_ERR_FORMAT, "weight_map is missing"},
        {"{\"weight_map\":{\"a\":3}}", DS_ERR_FORMAT, "tensor 'a': expected the name of a file"},
        {"{\"weight_map\":{\"a\":\"../s1\"}}", DS_ERR_FORMAT, "found '../s1'"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", DS_ERR_FORMAT, "found '/etc/passwd'"},
        {"{\"weight_map\":{\"a\":\"..\"}}", DS_ERR_FORMAT, "found '..'"},
        {"{\"weight_map\":{\"a\":\"s1\",\"b\":\"s9\"}}", DS_ERR_NOT_FOUND, "shard s9 is missing"},
        {"{\"weight_map\":{\"a\":\"s1\",\"c\":\"s2\"}}", DS_ERR_FORMAT,
         "tensor 'c' is not in its shard s2"},
        {"{\"weight_map\":{\"a\":\"s2\",\"b\":\"s1\"}}", DS_ERR_FORMAT, "is not in its shard"},
        {"{\"weight_map\":{\"a\":\"s1\"}}", DS_OK, ""},
        {"{\"weight_map\":{\"a\":\"s1\",\"b\":\"s12\"}}", DS_ERR_FORMAT, "'b' is not in its shard"},
        {"{\"weight_map\":{\"a\":\"s1\",\"x\":\"twin\"}}", DS_ERR_FORMAT, "tensor 'a' is twice"},
    };
    char *folder = scratch_make();
    put_shard(folder, "s1", "a");
    put_shard(folder, "s2", "b");
    put_shard(folder, "s12", "x");
    put_shard(folder, "twin", "a");
    ds_safetensors *st = NULL;
    CHECK_FAILS(*state, ds_safetensors_open_folder(*state, folder, &st), DS_ERR_NOT_FOUND,
                "has no weights: expected model.safetensors");
    const char *index = scratch_path(folder, "model.safetensors.index.json");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        scratch_write(index, cases[i].index, strlen(cases[i].index));
        if (cases[i].status == DS_OK) {
            CHECK_OK(*state, ds_safetensors_open_folder(*state, folder, &st));
            ds_safetensors_close(&st);
        } else {
            CHECK_FAILS(*state, ds_safetensors_open_folder(*state, folder, &st), cases[i].status,
                        cases[i].text);
        }
    }
    const char *unlisted = "{\"weight_map\":{\"a\":\"twin2\"}}";
    unsigned char two[256] = {0};
    const char *header = "{\"a\":" T("[0,4]", "[1]") ",\"extra\":" T("[4,8]", "[1]") "}";
    two[0] = (unsigned char)strlen(header);
    memcpy(two + 8, header, strlen(header));
    scratch_write(scratch_path(folder, "twin2"), two, 8 + strlen(header) + 8);
    scratch_write(index, unlisted, strlen(unlisted));
    CHECK_FAILS(*state, ds_safetensors_open_folder(*state, folder, &st), DS_ERR_FORMAT,
                "tensor 'extra'");
    (void)unlink(index);
    scratch_write(scratch_path(folder, "tf_model.h5"), "x", 1);
    CHECK_FAILS(*state, ds_safetensors_open_folder(*state, folder, &st), DS_ERR_UNSUPPORTED,
                "only as tf_model.h5");
    scratch_remove(folder);
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
        cmocka_unit_test(files_round_trip_byte_for_byte),
        cmocka_unit_test(sharded_folder_round_trips),
        cmocka_unit_test(values_and_views),
        cmocka_unit_test(streams_with_conversion),
        cmocka_unit_test(refuses_bad_sources),
        cmocka_unit_test(refuses_bad_files),
        cmocka_unit_test(refuses_every_cut),
        cmocka_unit_test(refuses_bad_folders),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
