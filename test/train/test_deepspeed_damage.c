/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged folders of DeepSpeed for Python are refused by name, or read within their bounds. */
#include "common/check.h"
#include "common/deepspeed_forms.h"
#include "common/scratch.h"

#include <deepspeed/checkpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const forms[] = {"zero1",
                                    "zero2",
                                    "zero3",
                                    "universal2",
                                    "universal3",
                                    "tensor1",
                                    "pipe",
                                    "pipe_tied",
                                    "experts1",
                                    "experts2",
                                    "experts_pipe",
                                    "universal_tensor1",
                                    "universal_views",
                                    "universal_autoep1",
                                    NULL};

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

static void refuses_damaged_folders(void **state)
{
    char dir[256];
    char path[512];
    char other[512];
    size_t n = 0;
    (void)snprintf(dir, sizeof dir, "%s/damaged", folder);
    forms_copy(folder, "zero2", dir);
    (void)snprintf(path, sizeof path, "%s/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt",
                   dir);
    (void)snprintf(other, sizeof other, "%s/global_step3/zero_pp_rank_2_mp_rank_00_optim_states.pt",
                   dir);
    char *data = scratch_read(path, &n);
    assert_int_equal(unlink(other), 0);
    forms_fail_to_open(*state, dir, DS_ERR_FORMAT,
                       "partition_count says 3 ranks, the folder has files "
                       "of 2");
    scratch_write(other, data, n);
    assert_int_equal(unlink(path), 0);
    forms_fail_to_open(*state, dir, DS_ERR_NOT_FOUND, "zero_pp_rank_1_mp_rank_00_optim_states.pt");
    scratch_write(path, data, n / 2);
    forms_fail_to_open(*state, dir, DS_ERR_FORMAT, "zero_pp_rank_1_mp_rank_00_optim_states.pt");
    free(data);
    /* one rank's partition of a model of stage 3 among those of stage 2 */
    (void)snprintf(other, sizeof other, "%s/zero3/global_step3/%s", folder,
                   "zero_pp_rank_1_mp_rank_00_optim_states.pt");
    data = scratch_read(other, &n);
    scratch_write(path, data, n);
    forms_fail_to_open(*state, dir, DS_ERR_FORMAT, "zero_stage is not that of rank 0");
    free(data);
    /* rank 0's file of another name's parameters: model states of stage 3 have no such groups */
    forms_copy(folder, "zero1", dir);
    (void)snprintf(path, sizeof path, "%s/global_step3/mp_rank_00_model_states.pt", dir);
    (void)snprintf(other, sizeof other, "%s/zero3/global_step3/%s", folder,
                   "zero_pp_rank_0_mp_rank_00_model_states.pt");
    data = scratch_read(other, &n);
    scratch_write(path, data, n);
    forms_fail_to_open(*state, dir, DS_ERR_FORMAT, "param_shapes has");
    free(data);
}

static void refuses_damaged_universal_folders(void **state)
{
    static const char zero[] = "global_step3_universal/zero";
    char dir[256];
    char path[512];
    char other[512];
    size_t n = 0;
    (void)snprintf(dir, sizeof dir, "%s/damaged", folder);
    forms_copy(folder, "universal2", dir);
    (void)snprintf(path, sizeof path, "%s/%s/model.norm.weight/step.pt", dir, zero);
    (void)snprintf(other, sizeof other, "%s/%s/model.norm.weight/exp_avg.pt", dir, zero);
    char *data = scratch_read(other, &n);
    scratch_write(path, data, n);
    forms_fail_to_open(*state, dir, DS_ERR_FORMAT, "model.norm.weight/step.pt holds no number");
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/%s/model.embed_tokens.weight/exp_avg.pt", dir, zero);
    scratch_write(path, data, n);
    forms_fail_to_open(*state, dir, DS_ERR_SHAPE,
                       "model.embed_tokens.weight/exp_avg.pt has not the");
    free(data);
    forms_copy(folder, "universal3", dir);
    (void)snprintf(path, sizeof path, "%s/%s/model.norm.weight/fp32.pt", dir, zero);
    assert_int_equal(unlink(path), 0);
    forms_fail_to_open(*state, dir, DS_ERR_NOT_FOUND, "model.norm.weight/fp32.pt is missing");
}

static void refuses_damaged_stages_and_experts(void **state)
{
    char dir[256];
    char path[512];
    (void)snprintf(dir, sizeof dir, "%s/damaged", folder);
    forms_copy(folder, "pipe", dir);
    (void)snprintf(path, sizeof path, "%s/global_step3/zero_pp_rank_0_mp_rank_01_optim_states.pt",
                   dir);
    assert_int_equal(unlink(path), 0);
    forms_fail_to_open(*state, dir, DS_ERR_NOT_FOUND, "zero_pp_rank_0_mp_rank_01_optim_states.pt");
    (void)snprintf(path, sizeof path, "%s/global_step3/mp_rank_01_model_states.pt", dir);
    forms_copy(folder, "pipe", dir);
    forms_replace(path, "global_samples", "global_simples", 14);
    forms_fail_to_open(*state, dir, DS_ERR_FORMAT, "global_samples is -1");
    forms_copy(folder, "pipe", dir);
    forms_replace(path, "tp_degree", "xp_degree", 9);
    forms_replace(path, "pp_degree", "tp_degree", 9); /* 2 */
    forms_fail_to_open(*state, dir, DS_ERR_UNSUPPORTED, "a pipeline with tensor parallelism");
    (void)snprintf(path, sizeof path, "%s/global_step3/mp_rank_00_model_states.pt", dir);
    forms_copy(folder, "experts1", dir);
    forms_replace(path, "deepspeed_experts.1", "deepspeed_experts.7", 19);
    forms_fail_to_open(*state, dir, DS_ERR_FORMAT, "param_slice_mappings has 0 elements of");
    forms_copy(folder, "experts1", dir);
    char other[512];
    size_t n = 0;
    (void)snprintf(other, sizeof other, "%s/experts2/global_step3/mp_rank_00_model_states.pt",
                   folder);
    char *data = scratch_read(other, &n); /* of another save, on more ranks */
    scratch_write(path, data, n);
    free(data);
    forms_fail_to_open(*state, dir, DS_ERR_FORMAT, "dp_world_size says 4 ranks");
    forms_copy(folder, "experts2", dir);
    forms_replace(path, "deepspeed_experts.", "deepspeed_exparts.", 18);
    forms_fail_to_open(*state, dir, DS_ERR_FORMAT, "param_slice_mappings has 0 elements of");
    forms_copy(folder, "experts_pipe", dir);
    forms_replace(path, "tp_degree", "xp_degree", 9);
    forms_replace(path, "pp_degree", "tp_degree", 9); /* 2 */
    forms_fail_to_open(*state, dir, DS_ERR_UNSUPPORTED, "experts with tensor parallelism (2)");
}

static void refuses_damaged_shared_layers(void **state)
{
    char dir[256];
    char path[512];
    (void)snprintf(dir, sizeof dir, "%s/damaged", folder);
    (void)snprintf(path, sizeof path, "%s/global_step3/zero_pp_rank_1_mp_rank_01_optim_states.pt",
                   dir);
    forms_copy(folder, "tensor1", dir);
    assert_int_equal(unlink(path), 0);
    forms_fail_to_open(*state, dir, DS_ERR_NOT_FOUND, "zero_pp_rank_1_mp_rank_01_optim_states.pt");
    (void)snprintf(path, sizeof path, "%s/global_step3/mp_rank_00_model_states.pt", dir);
    forms_copy(folder, "tensor1", dir);
    forms_replace(path, "affine_map", "affine_mop", 10);
    forms_fail_to_open(*state, dir, DS_ERR_UNSUPPORTED, "has no logical_shape");
    forms_copy(folder, "tensor1", dir);
    forms_replace(path, "logical_shape", "logical_shope", 13);
    forms_fail_to_open(*state, dir, DS_ERR_UNSUPPORTED, "has no logical_shape");
    forms_copy(folder, "tensor1", dir);
    forms_replace(path, "shard_shape", "shard_shope", 11);
    forms_fail_to_open(*state, dir, DS_ERR_UNSUPPORTED, "another shard_shape");
}

/* A mutated pickle is refused, or read within its bounds, which the address sanitizer sees. files:
 * in the form's folder. */
static void mutate(ds_ctx *ctx, const char *form, const char *const files[2], size_t span)
{
    const char *wanted = getenv("TORCH_MUTATIONS");
    const long times = wanted != NULL ? atol(wanted) : 300;
    char dir[256];
    char path[512];
    uint64_t seed = 5;
    (void)snprintf(dir, sizeof dir, "%s/mutated", folder);
    forms_copy(folder, form, dir);
    for (long i = 0; i < times; ++i) {
        size_t n = 0;
        ds_checkpoint *c = NULL;
        (void)snprintf(path, sizeof path, "%s/%s", dir, files[i % 2]);
        char *data = scratch_read(path, &n);
        char *copy = malloc(n);
        assert_non_null(copy);
        memcpy(copy, data, n);
        for (int k = 0; k < 3; ++k) {
            seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            copy[(seed >> 33) % (n < span ? n : span)] ^=
                (char)(1 << (seed >> 20) % 8); /* the pickle is first */
        }
        scratch_write(path, copy, n);
        if (ds_checkpoint_open(ctx, dir, NULL, &c) == DS_OK) {
            for (size_t t = 0; t < ds_checkpoint_count(c); ++t) {
                float room[512];
                const ds_checkpoint_tensor *tensor = ds_checkpoint_at(c, t);
                if (ds_meta_bytes(tensor->meta) <= sizeof room) {
                    (void)ds_checkpoint_read(c, tensor, NULL, tensor->meta.dtype, room);
                }
            }
            ds_checkpoint_close(&c);
        }
        scratch_write(path, data, n);
        free(copy);
        free(data);
    }
}

#define STEP      "global_step3/"
#define UNIVERSAL "global_step3_universal/"

static void stays_inside_of_mutated_folders(void **state)
{
    static const char *const third[2] = {STEP "zero_pp_rank_1_mp_rank_00_optim_states.pt",
                                         STEP "zero_pp_rank_0_mp_rank_00_model_states.pt"};
    static const char *const maps[2] = {STEP "mp_rank_00_model_states.pt",
                                        STEP "mp_rank_01_model_states.pt"};
    static const char *const stages[2] = {STEP "mp_rank_01_model_states.pt",
                                          STEP "zero_pp_rank_1_mp_rank_01_optim_states.pt"};
    static const char *const experts[2] = {STEP "mp_rank_00_model_states.pt",
                                           STEP "zero_pp_rank_3_mp_rank_00_optim_states.pt"};
    mutate(*state, "pipe_tied", stages, 4096);
    mutate(*state, "experts2", experts, 8192);
    mutate(*state, "experts_pipe", stages, 4096);
    mutate(*state, "zero3", third, 4096);
    mutate(*state, "tensor1", maps, 32768); /* affine_map is in the middle */
}

static void stays_inside_of_mutated_universal_folders(void **state)
{
    static const char *const maps[2] = {UNIVERSAL "mp_rank_00_model_states.pt",
                                        UNIVERSAL "mp_rank_01_model_states.pt"};
    static const char *const views[2] = {UNIVERSAL "mp_rank_01_model_states.pt", UNIVERSAL
                                         "zero/model.layers.0.mlp.gate_proj.weight/fp32.pt"};
    static const char *const experts[2] = {UNIVERSAL "mp_rank_00_model_states.pt",
                                           UNIVERSAL "zero/model.layers.0.mlp.experts.w1/fp32.pt"};
    mutate(*state, "universal_tensor1", maps, 32768);
    mutate(*state, "universal_views", views, 32768);
    mutate(*state, "universal_autoep1", experts, 8192);
}

static void finds_a_changed_byte(void **state)
{
    char dir[256];
    char path[512];
    size_t n = 0;
    ds_checkpoint *c = NULL;
    (void)snprintf(dir, sizeof dir, "%s/changed", folder);
    forms_copy(folder, "zero1", dir);
    (void)snprintf(path, sizeof path, "%s/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt",
                   dir);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    ds_checkpoint_close(&c);
    char *data = scratch_read(path, &n);
    data[n / 2] ^= 1; /* in a storage: the pickle is before, the directory behind */
    scratch_write(path, data, n);
    free(data);
    CHECK_OK(*state, ds_checkpoint_open(*state, dir, NULL, &c));
    CHECK_FAILS(*state, ds_checkpoint_verify(c), DS_ERR_CORRUPT, "CRC-32");
    ds_checkpoint_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_damaged_stages_and_experts),
        cmocka_unit_test(refuses_damaged_shared_layers),
        cmocka_unit_test(refuses_damaged_folders),
        cmocka_unit_test(finds_a_changed_byte),
        cmocka_unit_test(refuses_damaged_universal_folders),
        cmocka_unit_test(stays_inside_of_mutated_folders),
        cmocka_unit_test(stays_inside_of_mutated_universal_folders),
    };
    return cmocka_run_group_tests(tests, unpack, remove_all);
}
