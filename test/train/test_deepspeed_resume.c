/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of DeepSpeed for Python (three ranks; see make_deepspeed.py): the fp32 weights are
 * those of its own script, bit for bit; a run that resumes one, on other ranks and at other stages,
 * makes the losses of DeepSpeed's own continuation. */
#include "common/check.h"
#include "common/deepspeed_forms.h"
#include "common/scratch.h"

#include <deepspeed/checkpoint.h>
#include <deepspeed/safetensors.h>
#include <stdio.h>
#include <string.h>

static const char *const forms[] = {"zero1",      "zero2",      "zero3",        "bf16",
                                    "universal2", "universal3", "tensor1",      "tensor2",
                                    "pipe",       "pipe_tied",  "pipe_bf16",    "pipe_universal",
                                    "experts1",   "experts2",   "experts_pipe", NULL};

static const char *const plain[] = {"zero1", "zero2", "zero3", "bf16", "universal2", "universal3"};
enum { N_PLAIN = sizeof plain / sizeof plain[0] };

/* Of ranks that share layers, two by two; see make_tensor.py. */
static const char *const shared[] = {"tensor1", "tensor2"};
enum { N_SHARED = sizeof shared / sizeof shared[0] };

/* Stages of pipelines, two each; see make_pipe.py. */
static const char *const pipes[] = {"pipe", "pipe_tied", "pipe_bf16", "pipe_universal"};
enum { N_PIPES = sizeof pipes / sizeof pipes[0] };

/* Ranks that have each other experts, also in the stages of a pipeline; see make_experts.py and
 * make_experts_pipe.py. */
static const char *const sparse[] = {"experts1", "experts2", "experts_pipe"};
enum { N_SPARSE = sizeof sparse / sizeof sparse[0] };

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

/* ---- weights ---- */

static void gives_deepspeeds_own_weights(void **state)
{
    char path[512];
    for (size_t i = 0; i < N_PLAIN; ++i) {
        ds_checkpoint *c = NULL;
        ds_safetensors *want = NULL;
        const bool bf16 = strcmp(plain[i], "bf16") == 0; /* its script refuses these */
        (void)snprintf(path, sizeof path, "%s/%s/fp32.safetensors", folder, plain[i]);
        if (!bf16) {
            CHECK_OK(*state, ds_safetensors_open(*state, path, &want));
        }
        (void)snprintf(path, sizeof path, "%s/%s", folder, plain[i]);
        CHECK_OK(*state, ds_checkpoint_open(*state, path, NULL, &c));
        CHECK_OK(*state, ds_checkpoint_verify(c));
        assert_int_equal(ds_checkpoint_count(c), 60);
        for (size_t k = 0; want != NULL && k < ds_safetensors_count(want); ++k) {
            const ds_safetensor *w = ds_safetensors_at(want, k);
            const ds_checkpoint_tensor *t = ds_checkpoint_find(c, "master", w->name);
            float got[512];
            assert_non_null(t);
            assert_true(w->bytes <= sizeof got);
            CHECK_OK(*state, ds_checkpoint_read(c, t, NULL, DS_DTYPE_F32, got));
            assert_memory_equal(got, w->data, w->bytes);
        }
        ds_checkpoint_close(&c);
        ds_safetensors_close(&want);
    }
}

/* ---- going on ---- */

static void goes_on_as_deepspeed(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_PLAIN; ++i) {
        const double limit = strcmp(plain[i], "bf16") == 0 ? 1e-4 : 1e-5;
        assert_true(forms_resume(folder, plain[i], 1, 0) <= limit);
        assert_true(forms_resume(folder, plain[i], 2, 3) <= limit);
        assert_true(forms_resume(folder, plain[i], 3, 2) <= limit);
    }
}

static void goes_on_from_shared_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHARED; ++i) {
        assert_true(forms_resume(folder, shared[i], 1, 0) <= 1e-5);
        assert_true(forms_resume(folder, shared[i], 3, 3) <= 1e-5);
    }
}

static void goes_on_from_stages(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_PIPES; ++i) {
        const double limit = strcmp(pipes[i], "pipe_bf16") == 0 ? 1e-4 : 1e-5;
        assert_true(forms_resume(folder, pipes[i], 1, 0) <= limit);
        assert_true(forms_resume(folder, pipes[i], 2, 3) <= limit);
        assert_true(forms_resume(folder, pipes[i], 3, 1) <= limit);
    }
}

static void goes_on_from_experts(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SPARSE; ++i) {
        assert_true(forms_resume(folder, sparse[i], 1, 0) <= 1e-5);
        assert_true(forms_resume(folder, sparse[i], 2, 3) <= 1e-5);
        assert_true(forms_resume(folder, sparse[i], 2, 1) <= 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_deepspeeds_own_weights), cmocka_unit_test(goes_on_as_deepspeed),
        cmocka_unit_test(goes_on_from_shared_layers),   cmocka_unit_test(goes_on_from_stages),
        cmocka_unit_test(goes_on_from_experts),
    };
    return cmocka_run_group_tests(tests, unpack, remove_all);
}
