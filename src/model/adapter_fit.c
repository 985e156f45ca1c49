/* SPDX-License-Identifier: Apache-2.0 */
/* The model that an adapter is of, where that is not quite the one of its folder: with more tokens,
 * or with an output head of its own. See adapter.h.
 *
 * PEFT trains a copy of a module in modules_to_save, and adapts an embedding and not the output
 * head that is tied to it, so that the two are tied no more; and the user makes the vocabulary as
 * long as the adapter's tensors are before loading them.
 */
#include "io/file.h"
#include "model/adapter.h"

#include <deepspeed/safetensors.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 1200 };

static const char *head_of(const ds_model_info *info)
{
    return info->head != NULL ? info->head : "lm_head.weight";
}

/* The module of a weight. */
static void module_of(const char *param, char module[NAME_BYTES])
{
    const char *dot = strrchr(param, '.');
    (void)snprintf(module, NAME_BYTES, "%.*s", (int)(dot != NULL ? dot - param : 0), param);
}

/* Rows of a weight as the adapter's folder holds it, trained or beside an adapter on it; 0: it does
 * not. */
static int64_t stored_rows(const ds_safetensors *st, const char *param)
{
    char module[NAME_BYTES];
    char name[2 * NAME_BYTES];
    module_of(param, module);
    (void)snprintf(name, sizeof name, "%s%s", DSI_ADAPTER_PREFIX, param);
    const ds_safetensor *tensor = ds_safetensors_find(st, name);
    if (tensor == NULL) {
        (void)snprintf(name, sizeof name, "%s%s.base_layer.weight", DSI_ADAPTER_PREFIX, module);
        tensor = ds_safetensors_find(st, name);
    }
    return tensor != NULL && tensor->meta.shape.n_dims == 2 ? tensor->meta.shape.dims[0] : 0;
}

/* Whether the adapter makes another thing of an embedding than of the output head. */
static ds_status parts_them(const ds_adapter *a, const ds_model_info *info, bool *out)
{
    char module[NAME_BYTES];
    dsi_adapter_layer layer;
    bool on = false, head = false;
    if (!a->all_linear) {
        module_of(info->embedding, module);
        DS_TRY(dsi_adapter_match(a, module, false, &on, &layer));
        module_of(head_of(info), module);
        DS_TRY(dsi_adapter_match(a, module, true, &head, &layer));
    }
    *out =
        on || head || dsi_adapter_saves(a, info->embedding) || dsi_adapter_saves(a, head_of(info));
    return DS_OK;
}

static ds_status find_vocab(const ds_adapter *a, const ds_model_info *info, int64_t *vocab_out)
{
    ds_safetensors *st = NULL;
    char *path = a->folder != NULL ? dsi_path_join(a->folder, DSI_ADAPTER_WEIGHTS) : NULL;
    *vocab_out = 0;
    if (a->folder == NULL || path == NULL) {
        return a->folder == NULL ? DS_OK
                                 : ds_fail(a->ctx, DS_ERR_NOMEM, "no memory for an adapter");
    }
    const ds_status status = ds_safetensors_open(a->ctx, path, &st);
    free(path);
    if (status < 0) { /* whoever reads the weights says what is wrong with the file */
        return DS_OK;
    }
    const int64_t rows[2] = {stored_rows(st, info->embedding), stored_rows(st, head_of(info))};
    *vocab_out = rows[0] > rows[1] ? rows[0] : rows[1];
    ds_safetensors_close(&st);
    return DS_OK;
}

ds_status ds_adapter_task(const ds_adapter *a, uint32_t *task_out, uint32_t *n_classes_out)
{
    static const char *const heads[] = {"classifier.weight", "classifier.out_proj.weight"};
    char *path = a->folder != NULL ? dsi_path_join(a->folder, DSI_ADAPTER_WEIGHTS) : NULL;
    ds_safetensors *st = NULL;
    int64_t n = 0;
    if (path == NULL) {
        return ds_fail(a->ctx, a->folder != NULL ? DS_ERR_NOMEM : DS_ERR_ARG,
                       "ds_adapter_task: expected an adapter that was opened from a folder");
    }
    const ds_status status = ds_safetensors_open(a->ctx, path, &st);
    free(path);
    DS_TRY(status);
    for (size_t i = 0; i < sizeof heads / sizeof heads[0] && n == 0; ++i) {
        n = stored_rows(st, heads[i]);
    }
    ds_safetensors_close(&st);
    *task_out = a->task;
    *n_classes_out = n < UINT32_MAX ? (uint32_t)n : 0;
    return DS_OK;
}

ds_status ds_adapter_fit(const ds_adapter *a, ds_model **model)
{
    const ds_model_info *info = ds_model_get_info(*model);
    ds_model_changes changes = {0};
    ds_model *made = NULL;
    int64_t vocab = 0;
    for (uint32_t i = 0; a != NULL && i < a->n_frozen; ++i) {
        DS_TRY(ds_adapter_fit(a->frozen[i], model));
    }
    for (uint32_t i = 0; a != NULL && i < a->n_others; ++i) {
        DS_TRY(ds_adapter_fit(a->others[i], model));
    }
    info = ds_model_get_info(*model);
    if (a == NULL || info->vocab_size == 0 || info->embedding == NULL) {
        return DS_OK;
    }
    DS_TRY(find_vocab(a, info, &vocab));
    changes.vocab_size = vocab > info->vocab_size ? vocab : 0;
    DS_TRY(info->tied_embeddings ? parts_them(a, info, &changes.untie) : DS_OK);
    if (changes.vocab_size == 0 && !changes.untie) {
        return DS_OK;
    }
    DS_TRY(ds_model_change(*model, &changes, &made));
    ds_model_destroy(model);
    *model = made;
    return DS_OK;
}

ds_status dsi_adapter_check_vocab(const ds_adapter *a, const ds_model *model)
{
    const ds_model_info *info = ds_model_get_info(model);
    const bool grows = info->stored_vocab > 0 && info->stored_vocab < info->vocab_size;
    const bool kept = a == NULL || !grows ||
                      (dsi_adapter_saves(a, info->embedding) &&
                       (info->tied_embeddings || dsi_adapter_saves(a, head_of(info))));
    return kept
               ? DS_OK
               : ds_fail(a->ctx, DS_ERR_UNSUPPORTED,
                         "adapter: the vocabulary is enlarged from %lld to %lld tokens, whose rows "
                         "would neither be trained nor saved: modules_to_save must have the "
                         "embedding (%s) and the output head (%s)",
                         (long long)info->stored_vocab, (long long)info->vocab_size,
                         info->embedding, head_of(info));
}

ds_status dsi_adapter_check_pairs(const ds_adapter *a, const ds_model *model)
{
    const ds_model_info *info = ds_model_get_info(model);
    if (a == NULL) {
        return DS_OK;
    }
    for (uint32_t i = 0; i < a->n_frozen; ++i) {
        DS_TRY(dsi_adapter_check_pairs(a->frozen[i], model));
    }
    if (!a->any_task && a->pairs != info->pairs) {
        return ds_fail(a->ctx, DS_ERR_UNSUPPORTED, "adapter: its task_type is %s, and %s %s",
                       a->pairs ? "SEQ_2_SEQ_LM" : "another", info->architecture,
                       info->pairs ? "learns targets of sources (SEQ_2_SEQ_LM)"
                                   : "learns no targets of sources");
    }
    if (!info->pairs) {
        return DS_OK;
    }
    char module[NAME_BYTES];
    dsi_adapter_layer layer;
    bool on = false;
    if ((info->tied_embeddings || info->stored_tied) && !a->all_linear) {
        module_of(head_of(info), module);
        DS_TRY(dsi_adapter_match(a, module, true, &on, &layer));
    }
    if (on) {
        return ds_fail(a->ctx, DS_ERR_UNSUPPORTED,
                       "adapter: target_modules means %s, which is the embedding of encoder and "
                       "decoder too: leave it out",
                       module);
    }
    module_of(info->embedding, module);
    DS_TRY(dsi_adapter_match(a, module, false, &on, &layer));
    return !(on && !a->all_linear) && !dsi_adapter_saves(a, info->embedding)
               ? DS_OK
               : ds_fail(a->ctx, DS_ERR_UNSUPPORTED,
                         "adapter: it means %s, which encoder and decoder share, and PEFT changes "
                         "in neither: leave it out of target_modules and modules_to_save",
                         module);
}
