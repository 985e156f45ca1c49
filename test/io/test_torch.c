/* SPDX-License-Identifier: Apache-2.0 */
/* Files of torch.save: what PyTorch wrote read back element for element, and a table of malformed
 * pickles and archives, each refused by name. Mutations of good files never pass a bound: that is
 * for the address sanitizer to see. TORCH_MUTATIONS: how many (default 20000). */
#include "common/check.h"
#include "common/scratch.h"
#include "io/torch_file.h"

#include <deepspeed/safetensors.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN DS_SOURCE_DIR "/test/golden/io/torch/"

static void same_tensors(ds_ctx *ctx, const char *folder)
{
    ds_safetensors *got = NULL;
    ds_safetensors *want = NULL;
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, folder, &got));
    CHECK_OK(ctx, ds_safetensors_open(ctx, GOLDEN "one.safetensors", &want));
    assert_int_equal(ds_safetensors_count(got), ds_safetensors_count(want));
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        const ds_safetensor *w = ds_safetensors_at(want, i);
        const ds_safetensor *g = ds_safetensors_find(got, w->name);
        assert_non_null(g);
        assert_int_equal(g->meta.dtype, w->meta.dtype);
        assert_true(ds_shape_equal(g->meta.shape, w->meta.shape));
        assert_int_equal(g->bytes, w->bytes);
        assert_true(w->bytes == 0 || memcmp(g->data, w->data, w->bytes) == 0);
    }
    ds_safetensors_close(&got);
    ds_safetensors_close(&want);
}

static void reads_what_torch_wrote(void **state)
{
    same_tensors(*state, GOLDEN "one");
    same_tensors(*state, GOLDEN "two");
}

static void verifies_checksums(void **state)
{
    size_t n = 0;
    uint8_t *data = (uint8_t *)scratch_read(GOLDEN "one/pytorch_model.bin", &n);
    CHECK_OK(*state, dsi_torch_verify(*state, "a.bin", data, n));
    dsi_torch_file f = {0};
    CHECK_OK(*state, dsi_torch_parse(*state, "a.bin", data, n, &f));
    const dsi_pickle *value = dsi_pickle_get(f.root, "f32");
    assert_true(dsi_pickle_is(value, DSI_PICKLE_TENSOR));
    data[dsi_pickle_dense(value->tensor) - data] ^= 1;
    CHECK_FAILS(*state, dsi_torch_verify(*state, "a.bin", data, n), DS_ERR_CORRUPT, "CRC-32");
    dsi_torch_close(&f);
    free(data);
}

static void refuses_calls_and_old_files(void **state)
{
    dsi_torch_file f = {0};
    CHECK_FAILS(*state, dsi_torch_open(*state, GOLDEN "bad.bin", 0, &f), DS_ERR_UNSUPPORTED,
                "names the global 'posix system'");
    assert_non_null(strstr(ds_ctx_error(*state), "bad.bin: data.pkl: byte"));
    CHECK_FAILS(*state, dsi_torch_open(*state, GOLDEN "old.bin", 0, &f), DS_ERR_UNSUPPORTED,
                "before 1.6");
    CHECK_FAILS(*state, dsi_torch_open(*state, GOLDEN "one.safetensors", 0, &f), DS_ERR_FORMAT,
                "no file of torch.save");
}

/* ---- pickles by hand ---- */

typedef struct pickle_case {
    const char *bytes;
    size_t n;
    ds_status status;
    const char *text;
} pickle_case;

#define P(text) (text), sizeof(text) - 1
#define STORE   "((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" /* key, device, count, Q */
#define DEVICE  "X\3\0\0\0cpu"
#define REBUILD "\x80\2ctorch._utils\n_rebuild_tensor_v2\n" STORE
#define HOOKS   "\x89}tR."

static const pickle_case cases[] = {
    {P("\x80\2N."), DS_OK, ""},
    {P("\x80\2N"), DS_ERR_FORMAT, "byte 3: the pickle ends in the middle"},
    {P(""), DS_ERR_FORMAT, "ends in the middle"},
    {P("\x80\3N."), DS_ERR_UNSUPPORTED, "another protocol"},
    {P("\x80\4\x95\7\0\0\0\0\0\0\0N."), DS_ERR_FORMAT, "in the middle of an opcode"},
    {P("\x80\4\x94."), DS_ERR_FORMAT, "the stack has none"},
    {P("\x80\4NN\x93."), DS_ERR_FORMAT, "named by something that is no text"},
    {P("\x80\4\x8c\2os\x8c\6system\x93."), DS_ERR_UNSUPPORTED, "the global 'os system'"},
    {P("\x80\2NN."), DS_ERR_FORMAT, "does not end with its one value"},
    {P("\x80\2N.N"), DS_ERR_FORMAT, "does not end with its one value"},
    {P("\x80\2."), DS_ERR_FORMAT, "the stack has none"},
    {P("\x80\2(."), DS_ERR_FORMAT, "the stack has none"},
    {P("\x80\2\x95\0\0\0\0\0\0\0\0N."), DS_ERR_UNSUPPORTED, "opcode 0x95 (a frame"},
    {P("\x80\2(ios\nsystem\n."), DS_ERR_UNSUPPORTED, "opcode 0x69 (a call)"},
    {P("\x80\2cos\nsystem\nX\1\0\0\0a\x85R."), DS_ERR_UNSUPPORTED, "'os system'"},
    {P("\x80\2c__builtin__\neval\nX\1\0\0\0a\x85R."), DS_ERR_UNSUPPORTED, "'__builtin__ eval'"},
    {P("\x80\2X\xff\xff\xff\x7fN."), DS_ERR_FORMAT, "ends in the middle"},
    {P("\x80\2h\0."), DS_ERR_FORMAT, "never put"},
    {P("\x80\2Nr\xff\xff\xff\x7f."), DS_ERR_LIMIT, "larger than any writer's"},
    {P("\x80\2]q\0h\0a."), DS_ERR_FORMAT, "contains itself"},
    {P("\x80\2}q\0X\1\0\0\0ah\0s."), DS_ERR_FORMAT, "contains itself"},
    {P("\x80\2}NNa."), DS_ERR_FORMAT, "no list"},
    {P("\x80\2](NNu."), DS_ERR_FORMAT, "no dict"},
    {P("\x80\2}(NNNu."), DS_ERR_FORMAT, "a key of a dict has no value"},
    {P("\x80\2(u."), DS_ERR_FORMAT, "no dict"},
    {P("\x80\2t."), DS_ERR_FORMAT, "needs a mark"},
    {P("\x80\2N\x87."), DS_ERR_FORMAT, "the stack has none"},
    {P("\x80\2NNR."), DS_ERR_FORMAT, "a call of something that is no global"},
    {P("\x80\2NNb."), DS_ERR_FORMAT, "a state for something that takes none"},
    {P("\x80\2NQ."), DS_ERR_FORMAT, "not that of a storage"},
    {P("\x80\2\x8a\x09\1\1\1\1\1\1\1\1\1."), DS_ERR_LIMIT, "more than 64 bits"},
    {P("\x80\2ctorch\nSize\nK\1\x85R."), DS_ERR_FORMAT, "'torch Size' has other arguments"},
    {P(REBUILD "a" DEVICE "K\4tQK\0K\4\x85K\1\x85" HOOKS), DS_OK, ""},
    {P(REBUILD "b" DEVICE "K\4tQK\0K\4\x85K\1\x85" HOOKS), DS_ERR_FORMAT, "'b' is not in the file"},
    {P(REBUILD "a" DEVICE "K\5tQK\0K\4\x85K\1\x85" HOOKS), DS_ERR_FORMAT,
     "16 bytes, not those of 5"},
    {P(REBUILD "a" DEVICE "J\xff\xff\xff\xfftQK\0K\4\x85K\1\x85" HOOKS), DS_ERR_FORMAT,
     "not that of a storage"},
    {P(REBUILD "a" DEVICE "K\4tQK\1K\4\x85K\1\x85" HOOKS), DS_ERR_FORMAT, "reaches out of its"},
    {P(REBUILD "a" DEVICE "K\4tQK\0K\2\x85K\4\x85" HOOKS), DS_ERR_FORMAT, "reaches out of its"},
    {P(REBUILD "a" DEVICE "K\4tQK\0K\5\x85K\0\x85" HOOKS), DS_ERR_FORMAT, "more elements than"},
    {P(REBUILD "a" DEVICE "K\4tQJ\xff\xff\xff\xffK\4\x85K\1\x85" HOOKS), DS_ERR_FORMAT, "offset"},
    {P(REBUILD "a" DEVICE "K\4tQK\3K\4\x85J\xff\xff\xff\xff\x85" HOOKS), DS_ERR_FORMAT,
     "no number >= 0"},
    {P(REBUILD "a" DEVICE "K\4tQK\0J\xff\xff\xff\xff\x85K\1\x85" HOOKS), DS_ERR_FORMAT,
     "no number >= 0"},
    {P(REBUILD "a" DEVICE "K\4tQK\0K\4\x85K\1K\1\x86" HOOKS), DS_ERR_FORMAT, "as many strides"},
    {P(REBUILD "a" DEVICE "K\4tQK\0\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\4\x86"
               "K\1K\1\x86" HOOKS),
     DS_ERR_FORMAT, "more than 2^63 elements"},
    {P(REBUILD "a" DEVICE "K\4tQK\0K\2\x85\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85" HOOKS),
     DS_ERR_FORMAT, "reaches out of its"},
};

static bool find_a(void *user, const char *key, const uint8_t **data_out, size_t *bytes_out)
{
    *data_out = user;
    *bytes_out = 16;
    return strcmp(key, "a") == 0;
}

static ds_status load(ds_ctx *ctx, const void *bytes, size_t n)
{
    float numbers[4] = {0};
    dsi_arena *arena = NULL;
    dsi_pickle *value = NULL;
    uint8_t *exact = malloc(n > 0 ? n : 1); /* so that a read past it is seen */
    const dsi_pickle_source source = {"f", exact, n, find_a, numbers};
    assert_non_null(exact);
    assert_int_equal(dsi_arena_create((size_t)1 << 24, &arena), DS_OK);
    memcpy(exact, bytes, n);
    const ds_status status = dsi_pickle_load(ctx, &source, arena, &value);
    dsi_arena_destroy(&arena);
    free(exact);
    return status;
}

static void refuses_bad_pickles(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const ds_status status = load(*state, cases[i].bytes, cases[i].n);
        if (status != cases[i].status ||
            (status < 0 && strstr(ds_ctx_error(*state), cases[i].text) == NULL)) {
            fail_msg("case %zu, '%s': %d, %s", i, cases[i].text, (int)status,
                     status < 0 ? ds_ctx_error(*state) : "");
        }
    }
}

/* Lists in lists without end, and a text that is in the tree 2^90 times. */
static void bounds_depth_and_work(void **state)
{
    char bytes[4096] = "\x80\2";
    size_t n = 2;
    memset(bytes + n, ']', 200);
    n += 200;
    memset(bytes + n, 'a', 199);
    n += 199;
    bytes[n++] = '.';
    CHECK_FAILS(*state, load(*state, bytes, n), DS_ERR_LIMIT, "nested deeper than 100");
    n = 2;
    bytes[n++] = 'N';
    for (int i = 0; i < 90; ++i) { /* (x, x) of the one before */
        bytes[n++] = 'q';
        bytes[n++] = (char)i;
        bytes[n++] = 'h';
        bytes[n++] = (char)i;
        bytes[n++] = (char)0x86;
    }
    bytes[n++] = '.';
    CHECK_OK(*state, load(*state, bytes, n));
}

/* ---- whole files ---- */

static void use(const dsi_torch_file *f)
{
    uint8_t room[1024];
    for (size_t i = 0; dsi_pickle_is(f->root, DSI_PICKLE_DICT) && i < f->root->list.n; ++i) {
        const dsi_pickle *value = f->root->list.items[i];
        if (value->kind == DSI_PICKLE_TENSOR && dsi_pickle_bytes(value->tensor) <= sizeof room) {
            dsi_pickle_copy(value->tensor, room);
        }
    }
}

static void try_file(ds_ctx *ctx, const uint8_t *data, size_t n)
{
    dsi_torch_file f = {0};
    uint8_t *exact = malloc(n > 0 ? n : 1);
    assert_non_null(exact);
    memcpy(exact, data, n);
    if (dsi_torch_parse(ctx, "f.bin", exact, n, &f) == DS_OK) {
        use(&f);
    } else {
        assert_true(strstr(ds_ctx_error(ctx), "f.bin") != NULL);
    }
    dsi_torch_close(&f);
    free(exact);
}

static void refuses_every_cut(void **state)
{
    size_t n = 0;
    uint8_t *data = (uint8_t *)scratch_read(GOLDEN "two/pytorch_model-00001-of-00002.bin", &n);
    for (size_t i = 0; i < n; ++i) {
        dsi_torch_file f = {0};
        assert_true(dsi_torch_parse(*state, "f", data, i, &f) < 0);
    }
    free(data);
}

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

static void stays_inside_of_mutated_files(void **state)
{
    const char *wanted = getenv("TORCH_MUTATIONS");
    const long times = wanted != NULL ? atol(wanted) : 20000;
    size_t n = 0;
    uint64_t seed = 1;
    uint8_t *data = (uint8_t *)scratch_read(GOLDEN "two/pytorch_model-00002-of-00002.bin", &n);
    uint8_t *copy = malloc(n);
    assert_non_null(copy);
    for (long i = 0; i < times; ++i) {
        memcpy(copy, data, n);
        for (uint64_t k = next(&seed) % 4 + 1; k > 0; --k) {
            /* half of them in the pickle, near the begin */
            const size_t at = (size_t)(next(&seed) % (next(&seed) % 2 != 0 ? 1200 : n));
            copy[at] = next(&seed) % 2 != 0 ? (uint8_t)next(&seed)
                                            : (uint8_t)(copy[at] ^ 1 << next(&seed) % 8);
        }
        try_file(*state, copy, n);
    }
    free(copy);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_torch_wrote),       cmocka_unit_test(verifies_checksums),
        cmocka_unit_test(refuses_calls_and_old_files),  cmocka_unit_test(refuses_bad_pickles),
        cmocka_unit_test(bounds_depth_and_work),        cmocka_unit_test(refuses_every_cut),
        cmocka_unit_test(stays_inside_of_mutated_files)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
