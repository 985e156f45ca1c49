/* SPDX-License-Identifier: Apache-2.0 */
/* Universal folders that ds_to_universal of DeepSpeed for Python makes of ranks that share layers
 * (AutoTP, by affine_map and by patterns; make_tensor_universal.py) and of experts (AutoEP;
 * make_autoep.py): runs that resume them make DeepSpeed's losses; written anew for the job of
 * another they have the same tensors; what does not fit is refused by name. */
#include "common/check.h"
#include "common/deepspeed_forms.h"
#include "common/scratch.h"

#include <deepspeed/checkpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 512 };

static const char *const forms[] = {"universal_tensor1",
                                    "universal_tensor2",
                                    "universal_views",
                                    "universal_tensor3",
                                    "universal_autoep1",
                                    "universal_autoep2",
                                    "universal_autoep3",
                                    "zero2",
                                    NULL};
enum { N_SHARED = 4, N_FORMS = 7 };

static char *folder; /* of the unpacked forms */

static int unpack(void **state)
{
    folder = forms_unpack(forms);
    return check_set_up(state);
}

static int remove_all(void **state)
{
    scratch_remove(folder);
    return check_tear_down(state);
}

static void goes_on_from_shared_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHARED; ++i) {
        assert_true(forms_resume(folder, forms[i], 1, 0) <= 1e-5);
        assert_true(forms_resume(folder, forms[i], 3, 3) <= 1e-5);
    }
}

static void goes_on_from_experts(void **state)
{
    (void)state;
    for (size_t i = N_SHARED; i < N_FORMS; ++i) {
        assert_true(forms_resume(folder, forms[i], 1, 0) <= 1e-5);
        assert_true(forms_resume(folder, forms[i], 2, 3) <= 1e-5);
        assert_true(forms_resume(folder, forms[i], 2, 1) <= 1e-5);
    }
}

/* ---- written anew ---- */

static ds_status write_anew(ds_ctx *ctx, const char *form, const char *like, const char *out,
                            uint32_t stage)
{
    char from[PATH_BYTES];
    char to[PATH_BYTES];
    char other[PATH_BYTES];
    ds_checkpoint *c = NULL;
    (void)snprintf(from, sizeof from, "%s/%s", folder, form);
    (void)snprintf(to, sizeof to, "%s/%s", folder, out);
    (void)snprintf(other, sizeof other, "%s/%s", folder, like != NULL ? like : "");
    CHECK_OK(ctx, ds_checkpoint_open(ctx, from, NULL, &c));
    const ds_checkpoint_deepspeed_params p = {
        .dir = to, .zero_stage = stage, .ranks = 2, .like = like != NULL ? other : NULL};
    const ds_status status = ds_checkpoint_write_deepspeed(c, &p);
    ds_checkpoint_close(&c);
    return status;
}

static void keeps_every_tensor(void **state)
{
    for (size_t i = 0; i < N_FORMS; ++i) {
        char out[64];
        char ours[64];
        char path[PATH_BYTES];
        char to[PATH_BYTES];
        ds_checkpoint *c = NULL;
        (void)snprintf(path, sizeof path, "%s/%s", folder, forms[i]);
        (void)snprintf(ours, sizeof ours, "ours_%s", forms[i]);
        (void)snprintf(to, sizeof to, "%s/%s", folder, ours);
        CHECK_OK(*state, ds_checkpoint_open(*state, path, NULL, &c));
        CHECK_OK(*state, ds_checkpoint_verify(c));
        CHECK_OK(*state, ds_checkpoint_consolidate(c, to));
        ds_checkpoint_close(&c);
        (void)snprintf(out, sizeof out, "out_%s", forms[i]);
        CHECK_OK(*state, write_anew(*state, ours, forms[i], out, 0));
        forms_compare(*state, folder, forms[i], out, i < N_SHARED);
        /* and that is one to be like, too */
        CHECK_OK(*state, write_anew(*state, out, out, "again", 0));
        forms_compare(*state, folder, forms[i], "again", i < N_SHARED);
    }
    CHECK_OK(*state, write_anew(*state, "universal_autoep1", "universal_autoep3", "stage3", 0));
    forms_compare(*state, folder, "universal_autoep1", "stage3", false);
    /* of shards no other folder is needed */
    CHECK_OK(*state, write_anew(*state, "universal_tensor2", NULL, "plain", 0));
    forms_compare(*state, folder, "universal_tensor2", "plain", true);
}

static void refuses_what_does_not_fit(void **state)
{
    CHECK_FAILS(*state, write_anew(*state, "universal_autoep1", NULL, "no", 0), DS_ERR_UNSUPPORTED,
                "holds stacked experts");
    CHECK_FAILS(*state, write_anew(*state, "universal_autoep1", "zero2", "no", 0), DS_ERR_ARG,
                "is no universal folder of DeepSpeed");
    CHECK_FAILS(*state, write_anew(*state, "universal_autoep1", "universal_autoep1", "no", 1),
                DS_ERR_ARG, "(for a universal one, a universal one)");
    CHECK_FAILS(*state, write_anew(*state, "universal_autoep1", "universal_tensor1", "no", 0),
                DS_ERR_ARG, "which");
}

/* ---- damage ---- */

#define TAG     "global_step3_universal/"
#define ZERO    TAG "zero/"
#define EXPERTS ZERO "model.layers.0.mlp.experts.w1/"

/* A pickle has a text once for each place that holds it, or several. */
static void replace_all(const char *path, const char *from, const char *to)
{
    size_t n = 0;
    size_t n_found = 0;
    char *data = scratch_read(path, &n);
    char *at = NULL;
    while ((at = memmem(data, n, from, strlen(from))) != NULL) {
        memcpy(at, to, strlen(from));
        ++n_found;
    }
    assert_true(n_found > 0);
    scratch_write(path, data, n);
    free(data);
}

static void refuses_damaged_folders(void **state)
{
    static const struct {
        const char *form, *file, *from, *to;
        ds_status status;
        const char *error;
    } rows[] = {
        {"universal_autoep1", EXPERTS "exp_avg.pt", "ep_num_experts", "ep_num_exports",
         DS_ERR_SHAPE, "experts.w1/exp_avg.pt has not the shape of ep_num_experts (-1)"},
        {"universal_autoep1", EXPERTS "fp32.pt", "is_expert_param", "is_export_param", DS_ERR_SHAPE,
         "experts.w1/fp32.pt has not the shape that param_shapes has for it"},
        {"universal_autoep1", TAG "mp_rank_00_model_states.pt", "mlp.experts.w1", "mlp.exparts.w1",
         DS_ERR_FORMAT, "has no parameter 'model.layers.0.mlp.experts.w1'"},
        {"universal_autoep3", TAG "zero_pp_rank_0_mp_rank_00_model_states.pt", "mlp.experts.w1",
         "mlp.exparts.w1", DS_ERR_FORMAT, "has no parameter 'model.layers.0.mlp.experts.w1'"},
        {"universal_tensor1", TAG "mp_rank_01_model_states.pt", "model.norm.weight",
         "model.narm.weight", DS_ERR_FORMAT, "param_shapes has no shape of 'model.norm.weight'"},
        {"universal_tensor1", TAG "mp_rank_00_model_states.pt", "logical_shape", "logical_shope",
         DS_OK, NULL}, /* by the shards, then */
        {"universal_views", ZERO "model.layers.0.self_attn.q_proj.weight/fp32.pt", "partition_dim",
         "partition_dam", DS_ERR_SHAPE, "by the shards of the ranks"},
    };
    char dir[PATH_BYTES];
    char path[2 * PATH_BYTES];
    ds_checkpoint *c = NULL;
    (void)snprintf(dir, sizeof dir, "%s/damaged", folder);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        forms_copy(folder, rows[i].form, dir);
        (void)snprintf(path, sizeof path, "%s/%s", dir, rows[i].file);
        replace_all(path, rows[i].from, rows[i].to);
        if (rows[i].error == NULL) {
            CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
            ds_checkpoint_close(&c);
        } else {
            forms_fail_to_open(*state, dir, rows[i].status, rows[i].error);
        }
    }
    /* ranks that share layers, and a file of one of them alone */
    forms_copy(folder, "universal_tensor1", dir);
    (void)snprintf(path, sizeof path, "%s/" TAG "mp_rank_01_model_states.pt", dir);
    assert_int_equal(unlink(path), 0);
    forms_fail_to_open(*state, dir, DS_ERR_FORMAT,
                       "is of 2 ranks that share layers, the folder has model files of 1");
}

/* Another parameter's file is of another shape, and that is seen whatever the shards make. */
static void refuses_files_of_others(void **state)
{
    static const char *const pairs[][3] = {
        {"universal_tensor1", "self_attn.q_proj.weight", "mlp.up_proj.weight"},
        {"universal_tensor2", "mlp.down_proj.weight", "mlp.up_proj.weight"},
        {"universal_tensor2", "input_layernorm.weight", "self_attn.o_proj.weight"},
        {"universal_tensor3", "mlp.gate_proj.weight", "self_attn.k_proj.weight"},
        {"universal_views", "self_attn.q_proj.weight", "mlp.gate_proj.weight"},
        {"universal_autoep2", "mlp.experts.w1", "mlp.experts.w2"},
        {"universal_autoep3", "mlp.experts.w1", "mlp.router.gate.weight"}};
    char dir[PATH_BYTES];
    char from[2 * PATH_BYTES];
    char to[2 * PATH_BYTES];
    (void)snprintf(dir, sizeof dir, "%s/damaged", folder);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
        size_t n = 0;
        forms_copy(folder, pairs[i][0], dir);
        (void)snprintf(from, sizeof from, "%s/" ZERO "model.layers.1.%s/exp_avg.pt", dir,
                       pairs[i][2]);
        (void)snprintf(to, sizeof to, "%s/" ZERO "model.layers.1.%s/exp_avg.pt", dir, pairs[i][1]);
        char *data = scratch_read(from, &n);
        scratch_write(to, data, n);
        free(data);
        forms_fail_to_open(*state, dir, DS_ERR_SHAPE, pairs[i][1]);
    }
}

/* Without a preset the names are AutoEP's, and no run goes on from them; parameter_names.txt maps
 * them as well. */
static void maps_names(void **state)
{
    static const char lines[] =
        "model.layers.{n}.mlp.router.gate.weight model.layers.{n}.block_sparse_moe.gate.weight\n"
        "model.layers.{n}.mlp.experts.{e}.w2 "
        "model.layers.{n}.block_sparse_moe.experts.{e}.w2.weight\n"
        "model.layers.{n}.mlp.experts.{e}.* "
        "model.layers.{n}.block_sparse_moe.experts.{e}.*.weight\n"
        "* *\n";
    char dir[PATH_BYTES];
    char path[2 * PATH_BYTES];
    ds_checkpoint *c = NULL;
    (void)snprintf(dir, sizeof dir, "%s/named_autoep", folder);
    forms_copy(folder, "universal_autoep1", dir);
    (void)snprintf(path, sizeof path, "%s/" TAG "mp_rank_00_model_states.pt", dir);
    forms_replace(path, "preset_model", "preset_madel", 12);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    assert_non_null(ds_checkpoint_find(c, "master", "model.layers.1.mlp.experts.*.w3"));
    assert_non_null(ds_checkpoint_find(c, "exp_avg", "model.layers.0.mlp.router.gate.weight"));
    ds_checkpoint_close(&c);
    forms_copy(folder, "universal_autoep1", dir);
    (void)snprintf(path, sizeof path, "%s/parameter_names.txt", dir);
    scratch_write(path, lines, strlen(lines));
    forms_compare(*state, folder, "universal_autoep1", "named_autoep", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_on_from_shared_layers),
        cmocka_unit_test(goes_on_from_experts),
        cmocka_unit_test(keeps_every_tensor),
        cmocka_unit_test(refuses_what_does_not_fit),
        cmocka_unit_test(refuses_damaged_folders),
        cmocka_unit_test(refuses_files_of_others),
        cmocka_unit_test(maps_names),
    };
    return cmocka_run_group_tests(tests, unpack, remove_all);
}
