/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of DeepSpeed for Python, told by the names of their files. See ckpt_foreign.h.
 *
 *     DIR/latest, DIR/latest_universal          the tag
 *     TAG/mp_rank_00_model_states.pt            weights
 *     TAG/[bf16_]zero_pp_rank_0_mp_rank_00_optim_states.pt, …_model_states.pt (ZeRO-3)
 *     TAG/layer_00-model_00-model_states.pt     a layer of a pipeline
 *     TAG/layer_0_expert_0_mp_rank_00_model_states.pt   an expert
 *     TAG/zero/NAME/fp32.pt                     a universal checkpoint
 *
 * Nothing of their content is read here: see ckpt_deepspeed.h for those that can be.
 */
#include "ckpt/ckpt_foreign.h"

#include "ckpt/ckpt_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct foreign {
    int n_data, n_model; /* ranks by the names of files */
    int n_tensor;        /* ranks that share each layer of a pipeline */
    bool weights, zero, zero3, bf16, pipeline, experts, universal;
} foreign;

static void most(int *n, int index)
{
    *n = index >= *n && index < 1 << 24 ? index + 1 : *n;
}

/* Whether the whole name is of the form, which ends in %n. */
static bool is(const char *name, const char *form, int *a, int *b)
{
    int end = 0;
    (void)sscanf(name, form, a, b, &end); /* NOLINT: the forms below, each with two numbers */
    return end > 0 && name[end] == '\0' && *a >= 0 && *b >= 0;
}

static void look_at_name(foreign *f, const char *name)
{
    const bool bf16 = strncmp(name, "bf16_", 5) == 0;
    const char *rest = bf16 ? name + 5 : name;
    int d = 0;
    int m = 0;
    int end = 0;
    if (is(rest, "zero_pp_rank_%d_mp_rank_%d_optim_states.pt%n", &d, &m) ||
        is(rest, "zero_pp_rank_%d_mp_rank_%doptim_states.pt%n", &d, &m)) {
        f->zero = true;
        f->bf16 = f->bf16 || bf16;
    } else if (is(name, "zero_pp_rank_%d_mp_rank_%d_model_states.pt%n", &d, &m)) {
        f->zero = f->zero3 = true;
    } else if (is(name, "layer_%d-model_%d-model_states.pt%n", &d, &m)) {
        f->pipeline = true;
        most(&f->n_tensor, m);
        d = m = 0;
    } else if (sscanf(name, "layer_%d-model_states.pt%n", &d, &end) == 1 && end > 0) {
        f->pipeline = true;
        d = 0;
    } else if (strncmp(name, "expp_rank_", 10) == 0 ||
               (strstr(name, "expert_") != NULL && strstr(name, "_model_states.pt") != NULL)) {
        f->experts = true;
        d = 0;
    } else if (sscanf(name, "mp_rank_%d_model_states.pt%n", &m, &end) == 1 && end > 0) {
        f->weights = true;
    } else {
        return;
    }
    most(&f->n_data, d);
    most(&f->n_model, m);
}

/* TAG/zero with optimizer_state.pt, or a folder in it with fp32.pt. */
static bool is_universal(const char *folder)
{
    char *zero = dsi_path_join(folder, "zero");
    char **names = NULL;
    size_t n = 0;
    bool found = false;
    if (zero != NULL && dsi_folder_list(NULL, zero, &names, &n) == DS_OK) {
        for (size_t i = 0; i < n && !found; ++i) {
            char *part = dsi_path_join(zero, names[i]);
            char *file = part != NULL ? dsi_path_join(part, "fp32.pt") : NULL;
            struct stat st;
            found = strcmp(names[i], "optimizer_state.pt") == 0 ||
                    (file != NULL && stat(file, &st) == 0);
            free(file);
            free(part);
        }
        dsi_names_free(names, n);
    }
    free(zero);
    return found;
}

static bool look_at_folder(const char *folder, foreign *f)
{
    char **names = NULL;
    size_t n = 0;
    *f = (foreign){0};
    if (dsi_folder_list(NULL, folder, &names, &n) < 0) {
        return false;
    }
    for (size_t i = 0; i < n; ++i) {
        look_at_name(f, names[i]);
    }
    dsi_names_free(names, n);
    f->universal = is_universal(folder);
    return f->weights || f->zero || f->pipeline || f->experts || f->universal;
}

/* What DeepSpeed does not save, or is not read yet. */
static bool is_beyond(const foreign *f)
{
    return (f->pipeline && (f->zero3 || f->experts || f->n_tensor > 1)) ||
           (f->experts && (f->zero3 || f->universal || !f->zero));
}

int dsi_ckpt_foreign_zero_ranks(const char *folder, int *n_model_out, bool *pipeline_out,
                                bool *experts_out)
{
    foreign f;
    const bool read =
        look_at_folder(folder, &f) && f.zero && !f.universal && f.n_model >= 1 && !is_beyond(&f);
    *n_model_out = read ? f.n_model : 0;
    /* the stages of a pipeline with experts have no files of layers */
    *pipeline_out = read && (f.pipeline || (f.experts && f.n_model > 1));
    *experts_out = read && f.experts;
    return read ? f.n_data : 0;
}

int dsi_ckpt_foreign_universal(const char *folder)
{
    foreign f;
    const bool read = look_at_folder(folder, &f) && f.universal && !f.experts;
    return !read ? 0 : f.n_model > 0 ? f.n_model : 1;
}

static ds_status fail_foreign(ds_ctx *ctx, const char *folder, const foreign *f)
{
    static const char step[] = "global_step";
    const char *name = dsi_path_name(folder);
    const char *digits = strncmp(name, step, sizeof step - 1) == 0 ? name + sizeof step - 1 : "";
    const size_t n = strspn(digits, "0123456789");
    const char *kind = f->universal      ? "universal"
                       : f->n_tensor > 1 ? "of a pipeline with tensor parallelism"
                       : f->pipeline     ? "of a pipeline"
                       : f->zero3        ? "ZeRO stage 3"
                       : f->zero         ? "ZeRO stage 1 or 2"
                                         : "without ZeRO";
    if (!is_beyond(f) && (f->universal || f->zero)) {
        return ds_fail(ctx, DS_ERR_NOT_FOUND,
                       "%s is a checkpoint of DeepSpeed for Python (ZeRO%s). ds_checkpoint, "
                       "zero_to_fp32 and ds_train --resume read it by its save folder and its tag, "
                       "%s; for anything else make a model folder of it with zero_to_fp32, the "
                       "model's config.json and its tokenizer",
                       folder, f->universal ? ", universal" : "", name);
    }
    return ds_fail(
        ctx, DS_ERR_UNSUPPORTED,
        "%s is a checkpoint of DeepSpeed for Python: %s%s%s, step %.*s, %d data-parallel and %d "
        "model-parallel ranks by its files. Reading it is not supported yet. %s, then give a "
        "Hugging Face folder with those weights, the model's config.json and its tokenizer as "
        "--model",
        folder, kind, f->bf16 ? ", bf16" : "", f->experts ? ", with experts" : "",
        n > 0 ? (int)n : 7, n > 0 ? digits : "unknown", f->n_data, f->n_model,
        "Load it with DeepSpeed and save the weights as safetensors there");
}

static ds_status try_folder(ds_ctx *ctx, const char *dir, const char *name)
{
    foreign f;
    char *folder = name != NULL ? dsi_path_join(dir, name) : strdup(dir);
    const ds_status status =
        folder != NULL && look_at_folder(folder, &f) ? fail_foreign(ctx, folder, &f) : DS_OK;
    free(folder);
    return status;
}

/* A model folder with weights as pickles alone. */
static ds_status try_pickles(ds_ctx *ctx, const char *dir, char **names, size_t n)
{
    const char *found = NULL;
    for (size_t i = 0; i < n; ++i) {
        const size_t length = strlen(names[i]);
        if (length > 12 && strcmp(names[i] + length - 12, ".safetensors") == 0) {
            return DS_OK;
        }
        if (strncmp(names[i], "pytorch_model", 13) == 0 && strstr(names[i], ".bin") != NULL) {
            found = names[i];
        }
    }
    return found == NULL ? DS_OK
                         : ds_fail(ctx, DS_ERR_UNSUPPORTED,
                                   "%s is a model folder with its weights as %s, no checkpoint; "
                                   "give it as --model, with the model's config.json in it",
                                   dir, found);
}

ds_status dsi_ckpt_foreign(ds_ctx *ctx, const char *dir, const char *tag)
{
    char latest[256] = "";
    char **names = NULL;
    size_t n = 0;
    if (tag != NULL && tag[0] != '\0' && dsi_ckpt_is_tag(tag)) {
        DS_TRY(try_folder(ctx, dir, tag));
    } else if (dsi_ckpt_read_latest(NULL, dir, latest) == DS_OK) {
        DS_TRY(try_folder(ctx, dir, latest));
    }
    DS_TRY(try_folder(ctx, dir, NULL));
    if (dsi_folder_list(NULL, dir, &names, &n) < 0) {
        return DS_OK;
    }
    ds_status status = try_pickles(ctx, dir, names, n);
    for (size_t i = n; i-- > 0 && status == DS_OK && (tag == NULL || tag[0] == '\0');) {
        status = try_folder(ctx, dir, names[i]);
    }
    dsi_names_free(names, n);
    return status;
}
