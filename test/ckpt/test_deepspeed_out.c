/* SPDX-License-Identifier: Apache-2.0 */
/* Folders written for DeepSpeed for Python, against those that it wrote (see make_deepspeed.py):
 * for the same stage and ranks every value that it reads is its own, bit for bit; for others the
 * tensors are. That DeepSpeed goes on from them: test/long/deepspeed_out.sh. */
#include "common/check.h"
#include "common/deepspeed_forms.h"
#include "common/scratch.h"
#include "io/torch_file.h"

#include <deepspeed/checkpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const forms[] = {"zero1", "zero2", "zero3", "bf16", "universal2", "universal3"};
enum { N_FORMS = sizeof forms / sizeof forms[0], PATH_BYTES = 512, MOST_FILLED = 20 };

static const char *const pipes[] = {"pipe", "pipe_tied", "pipe_bf16"};
enum { N_PIPES = sizeof pipes / sizeof pipes[0] };

/* Of ranks that share layers or have each other experts. */
static const char *const meshes[] = {"tensor1", "tensor2", "experts1", "experts2", "experts_pipe"};
enum { N_MESHES = sizeof meshes / sizeof meshes[0] };

static char *folder;

static int unpack(void **state)
{
    static const char *const all[] = {"zero1",      "zero2",        "zero3",   "bf16",
                                      "universal2", "universal3",   "pipe",    "pipe_tied",
                                      "pipe_bf16",  "tensor1",      "tensor2", "experts1",
                                      "experts2",   "experts_pipe", NULL};
    folder = forms_unpack(all);
    return check_set_up(state);
}

static int remove_all(void **state)
{
    scratch_remove(folder);
    return check_tear_down(state);
}

/* ---- values ---- */

/* Keys that DeepSpeed does not read, or reads in another form, which is compared apart. */
static bool is_left_out(const char *key)
{
    static const char *const keys[] = {
        "param_alignment_paddings", "param_slice_mappings",   "ds_config",    "loss_scaler",
        "frozen_param_shapes",      "frozen_param_fragments", "shared_params"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
        if (strcmp(key, keys[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void compare(const char *where, const dsi_pickle *want, const dsi_pickle *got);

static void compare_tensors(const char *where, const dsi_pickle_tensor *a,
                            const dsi_pickle_tensor *b)
{
    static uint8_t x[1 << 16];
    static uint8_t y[1 << 16];
    if (!ds_shape_equal(a->shape, b->shape) || dsi_pickle_dtype(a) != dsi_pickle_dtype(b)) {
        fail_msg("%s: another shape or dtype", where);
    }
    assert_true(dsi_pickle_bytes(a) <= sizeof x);
    dsi_pickle_copy(a, x);
    dsi_pickle_copy(b, y);
    /* stage 3 of DeepSpeed fills its parts up with what was in memory, ours with zeros; that no
     * value of a parameter is lost, keeps_every_tensor says */
    const size_t width = ds_dtype_bytes(dsi_pickle_dtype(a));
    size_t filled = 0;
    for (size_t i = 0; i < dsi_pickle_bytes(a); i += width) {
        static const uint8_t zeros[8];
        const bool differs = memcmp(x + i, y + i, width) != 0;
        filled += differs;
        if (differs && (strstr(where, "fp32_flat_groups") == NULL || filled > MOST_FILLED ||
                        memcmp(y + i, zeros, width) != 0)) {
            fail_msg("%s: other values", where);
        }
    }
}

static void compare_dicts(const char *where, const dsi_pickle *want, const dsi_pickle *got)
{
    char place[PATH_BYTES];
    for (size_t i = 0; i < want->list.n; i += 2) {
        const dsi_pickle *key = want->list.items[i];
        const char *text = dsi_pickle_text(key);
        const dsi_pickle *value = NULL;
        for (size_t k = 0; k < got->list.n; k += 2) {
            const char *other = dsi_pickle_text(got->list.items[k]);
            const bool same = text != NULL
                                  ? other != NULL && strcmp(text, other) == 0
                                  : other == NULL && got->list.items[k]->whole == key->whole;
            value = same ? got->list.items[k + 1] : value;
        }
        (void)snprintf(place, sizeof place, "%.380s/%.100s", where, text != NULL ? text : "#");
        if (text != NULL && is_left_out(text)) {
            continue;
        }
        if (value == NULL) {
            fail_msg("%s is missing", place);
        }
        compare(place, want->list.items[i + 1], value);
    }
}

static void compare(const char *where, const dsi_pickle *want, const dsi_pickle *got)
{
    double a = 0.0;
    double b = 0.0;
    char place[PATH_BYTES];
    if (dsi_pickle_number(want, &a) && dsi_pickle_number(got, &b)) {
        if (a != b) {
            fail_msg("%s: %.17g, not %.17g", where, b, a);
        }
        return;
    }
    if (want->kind != got->kind) {
        fail_msg("%s: kind %d, not %d", where, (int)got->kind, (int)want->kind);
    }
    switch (want->kind) {
    case DSI_PICKLE_BOOL:
        assert_int_equal(want->truth, got->truth);
        break;
    case DSI_PICKLE_TEXT:
        assert_string_equal(want->text.data, got->text.data);
        break;
    case DSI_PICKLE_TUPLE:
    case DSI_PICKLE_LIST:
        if (want->list.n != got->list.n) {
            fail_msg("%s: %zu items, not %zu", where, got->list.n, want->list.n);
        }
        for (size_t i = 0; i < want->list.n; ++i) {
            (void)snprintf(place, sizeof place, "%.480s/%zu", where, i);
            compare(place, want->list.items[i], got->list.items[i]);
        }
        break;
    case DSI_PICKLE_DICT:
        compare_dicts(where, want, got);
        break;
    case DSI_PICKLE_TENSOR:
        compare_tensors(where, want->tensor, got->tensor);
        break;
    case DSI_PICKLE_NONE:
        break;
    default:
        fail_msg("%s: a value of kind %d", where, (int)want->kind);
    }
}

static void compare_files(ds_ctx *ctx, const char *want_folder, const char *got_folder,
                          const char *name)
{
    char path[PATH_BYTES];
    dsi_torch_file want = {0};
    dsi_torch_file got = {0};
    (void)snprintf(path, sizeof path, "%s/%s", want_folder, name);
    CHECK_OK(ctx, dsi_torch_open(ctx, path, 0, &want));
    (void)snprintf(path, sizeof path, "%s/%s", got_folder, name);
    CHECK_OK(ctx, dsi_torch_open(ctx, path, 0, &got));
    CHECK_OK(ctx, dsi_torch_verify(ctx, path, got.map.data, got.map.size));
    compare(name, want.root, got.root);
    dsi_torch_close(&want);
    dsi_torch_close(&got);
}

/* ---- folders ---- */

static void write_form(ds_ctx *ctx, const char *form, const char *out, uint32_t stage,
                       uint32_t ranks)
{
    char from[PATH_BYTES];
    char to[PATH_BYTES];
    ds_checkpoint *c = NULL;
    const ds_checkpoint_deepspeed_params params = {
        .dir = to, .zero_stage = stage, .ranks = ranks, .sub_group_size = stage == 3 ? 300 : 0};
    (void)snprintf(from, sizeof from, "%s/%s", folder, form);
    (void)snprintf(to, sizeof to, "%s/%s", folder, out);
    CHECK_OK(ctx, ds_checkpoint_open(ctx, from, NULL, &c));
    CHECK_OK(ctx, ds_checkpoint_write_deepspeed(c, &params));
    ds_checkpoint_close(&c);
}

static void has_deepspeeds_own_values(void **state)
{
    static const struct {
        const char *form, *prefix;
        uint32_t stage;
    } cases[] = {{"zero1", "", 1}, {"zero2", "", 2}, {"zero3", "", 3}, {"bf16", "bf16_", 1}};
    char want[PATH_BYTES];
    char got[PATH_BYTES];
    char name[128];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        (void)snprintf(name, sizeof name, "same_%s", cases[i].form);
        write_form(*state, cases[i].form, name, cases[i].stage, 3);
        (void)snprintf(want, sizeof want, "%s/%s/global_step3", folder, cases[i].form);
        (void)snprintf(got, sizeof got, "%s/%s/global_step3", folder, name);
        for (uint32_t r = 0; r < 3; ++r) {
            (void)snprintf(name, sizeof name, "%szero_pp_rank_%u_mp_rank_00_optim_states.pt",
                           cases[i].prefix, r);
            if (cases[i].stage != 1 || strcmp(cases[i].form, "bf16") != 0) {
                compare_files(*state, want, got, name); /* BF16_Optimizer keeps the padding */
            }
            (void)snprintf(name, sizeof name, "zero_pp_rank_%u_mp_rank_00_model_states.pt", r);
            if (cases[i].stage == 3) {
                compare_files(*state, want, got, name);
            }
        }
        if (cases[i].stage < 3) {
            compare_files(*state, want, got, "mp_rank_00_model_states.pt");
        }
    }
}

static void compare_checkpoints(ds_ctx *ctx, const char *a, const char *b)
{
    forms_compare(ctx, folder, a, b, strncmp(b, "like", 4) != 0); /* a pipeline's are by stage */
}

static void keeps_every_tensor(void **state)
{
    char out[128];
    for (size_t i = 0; i < N_FORMS; ++i) {
        for (uint32_t stage = 0; stage <= 3; ++stage) {
            for (uint32_t ranks = 1; ranks <= 64; ranks = ranks * 4 + (ranks == 4)) {
                (void)snprintf(out, sizeof out, "out_%s_%u_%u", forms[i], stage, ranks);
                write_form(*state, forms[i], out, stage, ranks);
                compare_checkpoints(*state, forms[i], out);
            }
        }
    }
}

static void fails_to_write(ds_ctx *ctx, const ds_checkpoint_deepspeed_params *params,
                           ds_status status, const char *text)
{
    char path[PATH_BYTES];
    ds_checkpoint *c = NULL;
    (void)snprintf(path, sizeof path, "%s/zero2", folder);
    CHECK_OK(ctx, ds_checkpoint_open(ctx, path, NULL, &c));
    CHECK_FAILS(ctx, ds_checkpoint_write_deepspeed(c, params), status, text);
    ds_checkpoint_close(&c);
}

static void refuses_what_does_not_fit(void **state)
{
    char to[PATH_BYTES];
    char self[PATH_BYTES];
    const char *order[] = {"model.norm.weight", "model.norm.weight"};
    (void)snprintf(to, sizeof to, "%s/refused", folder);
    (void)snprintf(self, sizeof self, "%s/zero2", folder);
    ds_checkpoint_deepspeed_params p = {.dir = to, .zero_stage = 4, .ranks = 1};
    fails_to_write(*state, &p, DS_ERR_ARG, "ZeRO stage 1, 2 or 3");
    p.zero_stage = 2;
    p.ranks = 0;
    fails_to_write(*state, &p, DS_ERR_ARG, "1 to 65536 ranks");
    p.ranks = 2;
    p.order = order;
    p.n_order = 1;
    fails_to_write(*state, &p, DS_ERR_ARG, "the order of parameters lacks 'model.embed_tokens");
    p.n_order = 2;
    fails_to_write(*state, &p, DS_ERR_ARG, "has 'model.norm.weight' twice");
    order[0] = "model.nothing";
    fails_to_write(*state, &p, DS_ERR_ARG, "has 'model.nothing', which is none of");
    p.order = NULL;
    p.dir = self;
    fails_to_write(*state, &p, DS_ERR_ARG, "would replace itself");
}

/* ---- pipelines ---- */

static ds_status write_like_at(ds_ctx *ctx, const char *form, const char *like, const char *out,
                               uint32_t stage, uint32_t ranks)
{
    char from[PATH_BYTES];
    char to[PATH_BYTES];
    char other[PATH_BYTES];
    ds_checkpoint *c = NULL;
    const ds_checkpoint_deepspeed_params params = {
        .dir = to, .zero_stage = stage, .ranks = ranks, .like = other};
    (void)snprintf(from, sizeof from, "%s/%s", folder, form);
    (void)snprintf(to, sizeof to, "%s/%s", folder, out);
    (void)snprintf(other, sizeof other, "%s/%s", folder, like);
    CHECK_OK(ctx, ds_checkpoint_open(ctx, from, NULL, &c));
    const ds_status status = ds_checkpoint_write_deepspeed(c, &params);
    ds_checkpoint_close(&c);
    return status;
}

static ds_status write_like(ds_ctx *ctx, const char *form, const char *like, const char *out,
                            uint32_t ranks)
{
    return write_like_at(ctx, form, like, out, 1, ranks);
}

/* Of the same ranks every value that DeepSpeed reads is its own, the weights of layers too. */
static void has_a_pipelines_own_values(void **state)
{
    static const struct {
        const char *form;
        uint32_t ranks, layers;
    } cases[] = {{"pipe", 1, 5}, {"pipe_tied", 2, 4}, {"pipe_bf16", 1, 5}};
    char want[PATH_BYTES];
    char got[PATH_BYTES];
    char name[128];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const bool bf16 = strcmp(cases[i].form, "pipe_bf16") == 0;
        (void)snprintf(name, sizeof name, "like_%s", cases[i].form);
        CHECK_OK(*state, write_like(*state, cases[i].form, cases[i].form, name, cases[i].ranks));
        compare_checkpoints(*state, cases[i].form, name);
        (void)snprintf(want, sizeof want, "%s/%s/global_step3", folder, cases[i].form);
        (void)snprintf(got, sizeof got, "%s/%s/global_step3", folder, name);
        for (uint32_t s = 0; s < 2; ++s) {
            (void)snprintf(name, sizeof name, "mp_rank_%02u_model_states.pt", s);
            compare_files(*state, want, got, name);
            for (uint32_t r = 0; r < cases[i].ranks && !bf16; ++r) {
                (void)snprintf(name, sizeof name, "zero_pp_rank_%u_mp_rank_%02u_optim_states.pt", r,
                               s);
                compare_files(*state, want, got, name);
            }
        }
        for (uint32_t k = 0; k < cases[i].layers; ++k) {
            (void)snprintf(name, sizeof name, "layer_%02u-model_states.pt", k);
            compare_files(*state, want, got, name);
        }
    }
}

static void cuts_a_pipeline_anew(void **state)
{
    CHECK_OK(*state, write_like(*state, "pipe_tied", "pipe_tied", "like_5", 5));
    compare_checkpoints(*state, "pipe_tied", "like_5");
    CHECK_OK(*state, write_like(*state, "zero3", "pipe_tied", "like_zero3", 2));
    compare_checkpoints(*state, "zero3", "like_zero3");
    CHECK_FAILS(*state, write_like(*state, "zero2", "zero3", "no", 2), DS_ERR_ARG,
                "is no folder of DeepSpeed at ZeRO stage 1 or 2");
    CHECK_FAILS(*state, write_like(*state, "zero3", "pipe", "no", 2), DS_ERR_ARG,
                "has '4.lm_head.weight' (lm_head.weight), which");
    CHECK_FAILS(*state, write_like(*state, "pipe", "pipe_tied", "no", 2), DS_ERR_ARG,
                "has 'lm_head.weight', which");
}

/* ---- ranks that share layers, and experts ---- */

/* Of the same ranks every value is DeepSpeed's own: partitions, shards, and each expert's file. */
static void has_the_own_values_of_shards_and_experts(void **state)
{
    static const struct {
        const char *form;
        uint32_t stage, ranks, model_ranks, layers, experts;
    } cases[] = {{"tensor1", 1, 2, 2, 0, 0},
                 {"tensor2", 2, 2, 2, 0, 0},
                 {"experts1", 1, 2, 1, 2, 4},
                 {"experts2", 2, 4, 1, 2, 4},
                 {"experts_pipe", 1, 2, 2, 1, 4}};
    char want[PATH_BYTES];
    char got[PATH_BYTES];
    char name[128];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const char *form = cases[i].form;
        (void)snprintf(name, sizeof name, "like_%s", form);
        CHECK_OK(*state, write_like_at(*state, form, form, name, cases[i].stage, cases[i].ranks));
        compare_checkpoints(*state, form, name);
        (void)snprintf(want, sizeof want, "%s/%s/global_step3", folder, form);
        (void)snprintf(got, sizeof got, "%s/%s/global_step3", folder, name);
        for (uint32_t mp = 0; mp < cases[i].model_ranks; ++mp) {
            (void)snprintf(name, sizeof name, "mp_rank_%02u_model_states.pt", mp);
            compare_files(*state, want, got, name);
            for (uint32_t r = 0; r < cases[i].ranks; ++r) {
                (void)snprintf(name, sizeof name, "zero_pp_rank_%u_mp_rank_%02u_optim_states.pt", r,
                               mp);
                compare_files(*state, want, got, name);
            }
            for (uint32_t k = 0; k < cases[i].layers * cases[i].experts; ++k) {
                (void)snprintf(name, sizeof name, "layer_%u_expert_%u_mp_rank_%02u_model_states.pt",
                               k / cases[i].experts, k % cases[i].experts, mp);
                compare_files(*state, want, got, name);
            }
        }
    }
}

static void cuts_shards_and_experts_anew(void **state)
{
    char to[PATH_BYTES];
    char from[PATH_BYTES];
    ds_checkpoint *c = NULL;
    /* by way of a checkpoint of ours, for other ranks and stages */
    for (size_t i = 0; i < N_MESHES; ++i) {
        char name[64];
        char out[64];
        (void)snprintf(from, sizeof from, "%s/%s", folder, meshes[i]);
        (void)snprintf(name, sizeof name, "ours_%s", meshes[i]);
        (void)snprintf(to, sizeof to, "%s/%s", folder, name);
        (void)snprintf(out, sizeof out, "like_ours_%s", meshes[i]);
        CHECK_OK(*state, ds_checkpoint_open(*state, from, NULL, &c));
        CHECK_OK(*state, ds_checkpoint_consolidate(c, to));
        ds_checkpoint_close(&c);
        const uint32_t stage = strcmp(meshes[i], "experts_pipe") == 0 ? 1 : 2;
        for (uint32_t ranks = 2; ranks <= 64; ranks = ranks * 4 - 2) {
            CHECK_OK(*state, write_like_at(*state, name, meshes[i], out, stage, ranks));
            compare_checkpoints(*state, meshes[i], out);
        }
    }
    CHECK_OK(*state, write_like(*state, "experts2", "experts_pipe", "like_stages", 2));
    compare_checkpoints(*state, "experts2", "like_stages");
    CHECK_FAILS(*state, write_like(*state, "experts1", "experts2", "no", 3), DS_ERR_ARG,
                "is of experts on 2 ranks each, which do not divide 3 ranks");
    CHECK_FAILS(*state, write_like(*state, "experts1", "tensor1", "no", 2), DS_ERR_ARG, "which");
    CHECK_FAILS(*state, write_like_at(*state, "experts1", "experts_pipe", "no", 2, 2), DS_ERR_ARG,
                "the folder of a pipeline is of ZeRO stage 1");
    CHECK_FAILS(*state, write_like_at(*state, "experts1", "experts1", "no", 3, 2), DS_ERR_ARG,
                "like another is universal or of ZeRO stage 1 or 2");
    const ds_checkpoint_deepspeed_params plain = {.dir = to, .zero_stage = 1, .ranks = 2};
    (void)snprintf(from, sizeof from, "%s/experts1", folder);
    CHECK_OK(*state, ds_checkpoint_open(*state, from, NULL, &c));
    CHECK_FAILS(*state, ds_checkpoint_write_deepspeed(c, &plain), DS_ERR_UNSUPPORTED,
                "holds stacked experts");
    ds_checkpoint_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_deepspeeds_own_values),
        cmocka_unit_test(has_a_pipelines_own_values),
        cmocka_unit_test(cuts_a_pipeline_anew),
        cmocka_unit_test(keeps_every_tensor),
        cmocka_unit_test(has_the_own_values_of_shards_and_experts),
        cmocka_unit_test(cuts_shards_and_experts_anew),
        cmocka_unit_test(refuses_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, unpack, remove_all);
}
