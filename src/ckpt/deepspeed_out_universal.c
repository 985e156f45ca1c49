/* SPDX-License-Identifier: Apache-2.0 */
/* Universal folders: a file for each parameter and state, whole. See deepspeed_out.h.
 *
 * DeepSpeed's stages 1 and 2 read the files as dicts ({"param": tensor}) and step.pt; stage 3
 * reads the same dicts, the step of optimizer_state.pt, and a model's file of its rank: so there is
 * one of each of `ranks`, without weights.
 */
#include "ckpt/deepspeed_out.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96 };

static const char *const files[DSI_OUT_KINDS] = {"fp32.pt", "exp_avg.pt", "exp_avg_sq.pt"};

static ds_status no_memory(const dsi_deepspeed_out *o)
{
    return ds_fail(o->ctx, DS_ERR_NOMEM, "no memory for a folder for DeepSpeed");
}

static ds_status write_file(const dsi_deepspeed_out *o, const char *folder, const char *name,
                            const dsi_torch_out *t)
{
    char *path = dsi_path_join(folder, name);
    const ds_status status = path != NULL ? dsi_torch_out_write(t, path) : no_memory(o);
    free(path);
    return status;
}

static ds_status write_state(const dsi_deepspeed_out *o, const dsi_out_param *p, int kind,
                             const char *folder)
{
    const dsi_out_piece piece = {.param = p, .count = p->count};
    dsi_out_vector vector = {.ckpt = o->ckpt,
                             .kind = kind,
                             .dtype = DS_DTYPE_F32,
                             .pieces = &piece,
                             .n = 1,
                             .count = p->count};
    dsi_torch_out t = dsi_torch_out_make(o->ctx);
    dsi_torch_dict(&t);
    dsi_torch_text(&t, "cat_dim");
    dsi_torch_whole(&t, 0);
    if (p->experts > 0) {
        dsi_torch_text(&t, "is_expert_param");
        dsi_torch_bool(&t, true);
        dsi_torch_text(&t, "ep_num_experts");
        dsi_torch_whole(&t, p->experts);
    }
    dsi_torch_text(&t, "param");
    dsi_out_put(&t, &vector, p->shape);
    dsi_torch_dict_end(&t);
    const ds_status status = write_file(o, folder, files[kind], &t);
    dsi_torch_out_free(&t);
    return status;
}

/* The step as the next value: a tensor for torch's Adam, a number for FusedAdam and
 * DeepSpeedCPUAdam, which DeepSpeed puts into the optimizer as it is. */
static ds_status fill_step(void *user, size_t offset, void *data, size_t n)
{
    const float value = (float)*(const int64_t *)user;
    memcpy(data, (const char *)&value + offset, n);
    return DS_OK;
}

static void put_step(const dsi_deepspeed_out *o, dsi_torch_out *t, int64_t *steps)
{
    bool torch_adam = false;
    *steps = o->steps - o->skipped;
    if (ds_config_get_bool(o->config, "optimizer.params.torch_adam", &torch_adam) >= 0 &&
        torch_adam) {
        dsi_torch_tensor(t, dsi_torch_storage(t, DS_DTYPE_F32, 1, fill_step, steps), 0,
                         (ds_shape){0});
    } else {
        dsi_torch_whole(t, *steps);
    }
}

static ds_status write_param(const dsi_deepspeed_out *o, const dsi_out_param *p, const char *zero)
{
    int64_t steps = 0;
    if (!dsi_path_is_plain(p->name)) {
        return ds_fail(o->ctx, DS_ERR_UNSUPPORTED,
                       "'%.160s' is no plain name of a folder, which a universal folder has for "
                       "each parameter",
                       p->name);
    }
    char *folder = dsi_path_join(zero, p->name);
    if (folder == NULL) {
        return no_memory(o);
    }
    ds_status status = dsi_folder_make(o->ctx, folder);
    for (int k = 0; k < DSI_OUT_KINDS && status >= 0; ++k) {
        status = write_state(o, p, k, folder);
    }
    if (status >= 0) {
        dsi_torch_out t = dsi_torch_out_make(o->ctx);
        put_step(o, &t, &steps);
        status = write_file(o, folder, "step.pt", &t);
        dsi_torch_out_free(&t);
    }
    free(folder);
    return status;
}

static ds_status write_common(const dsi_deepspeed_out *o, const char *zero)
{
    size_t one[DSI_OUT_GROUPS]; /* vector of each group */
    int64_t steps = 0;
    for (size_t g = 0; g < DSI_OUT_GROUPS; ++g) {
        one[g] = 1;
    }
    dsi_torch_out t = dsi_torch_out_make(o->ctx);
    dsi_torch_dict(&t);
    dsi_out_loss_scaler(o, &t, false);
    dsi_torch_text(&t, "clip_grad");
    dsi_torch_real(&t, o->values->gradient_clipping > 0.0 ? o->values->gradient_clipping : 0.0);
    dsi_torch_text(&t, "zero_stage");
    dsi_torch_whole(&t, 1);
    dsi_torch_text(&t, "ds_version");
    dsi_torch_text(&t, DSI_OUT_VERSION);
    dsi_out_param_groups(o, &t, one, true);
    dsi_torch_text(&t, "optimizer_state_dict"); /* where stage 3 looks, at the first group alone */
    dsi_torch_dict(&t);
    dsi_torch_text(&t, "state");
    dsi_torch_dict(&t);
    dsi_torch_whole(&t, 0);
    dsi_torch_dict(&t);
    dsi_torch_text(&t, "step");
    put_step(o, &t, &steps);
    dsi_torch_dict_end(&t);
    dsi_torch_dict_end(&t);
    dsi_out_param_groups(o, &t, one, o->n_groups == 1);
    dsi_torch_dict_end(&t);
    dsi_torch_dict_end(&t);
    const ds_status status = write_file(o, zero, "optimizer_state.pt", &t);
    dsi_torch_out_free(&t);
    return status;
}

static ds_status write_models(dsi_deepspeed_out *o)
{
    const size_t *sizes = NULL;
    size_t n = 0;
    char name[NAME_BYTES];
    DS_TRY(dsi_out_sub_groups(o, &sizes, &n));
    DS_TRY(dsi_out_model_file(o, "mp_rank_00_model_states.pt", true, sizes, n));
    for (uint32_t r = 0; r < o->given->ranks; ++r) {
        (void)snprintf(name, sizeof name, "zero_pp_rank_%u_mp_rank_00_model_states.pt", r);
        DS_TRY(dsi_out_model_file(o, name, false, sizes, n));
    }
    return DS_OK;
}

ds_status dsi_out_universal(dsi_deepspeed_out *o)
{
    char *zero = dsi_path_join(o->folder, "zero");
    ds_status status = zero != NULL ? dsi_folder_make(o->ctx, zero) : no_memory(o);
    for (size_t i = 0; i < o->n_params && status >= 0; ++i) {
        status = write_param(o, &o->params[i], zero);
    }
    status = status >= 0 ? write_common(o, zero) : status;
    status = status >= 0 ? write_models(o) : status;
    free(zero);
    return status;
}
