/* SPDX-License-Identifier: Apache-2.0 */
/* Models of the Hugging Face Hub by their names, where they were downloaded before: in the local
 * cache that huggingface_hub and transformers share. Nothing is downloaded, and nothing is ever
 * written there.
 *
 *     ds_hub_find(ctx, "Qwen/Qwen2.5-0.5B", NULL, DS_HUB_MODEL, &folder);
 *     … ds_tokenizer_open(ctx, folder, …); free(folder);
 *
 * The cache is $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else hub in $HF_HOME, else
 * huggingface/hub in $XDG_CACHE_HOME or ~/.cache.
 */
#ifndef DEEPSPEED_HUB_H
#define DEEPSPEED_HUB_H

#include <deepspeed/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What must be there whole: DS_HUB_CONFIG config.json, DS_HUB_TOKENIZER the tokenizer's files,
 * DS_HUB_WEIGHTS *.safetensors. */
enum {
    DS_HUB_CONFIG = 1,
    DS_HUB_TOKENIZER = 2,
    DS_HUB_WEIGHTS = 4,
    DS_HUB_MODEL = DS_HUB_CONFIG | DS_HUB_WEIGHTS
};

/* The folder that a model's name stands for. A folder of that name wins, as in transformers (for
 * DS_HUB_TOKENIZER alone also anything else that is there), and so does a path that is no name of
 * the Hub ("./gpt2"); else it is the snapshot of `revision` in the cache: a branch, a tag or a
 * whole commit, NULL: "main". The caller frees *folder_out. Errors: ERR_NOT_FOUND (neither; or not
 * this revision: says the folder that was looked at and the command that gets it), ERR_FORMAT (a
 * download that was broken off: names the file), ERR_ARG (a revision of a plain folder), ERR_IO,
 * ERR_NOMEM. */
DS_API ds_status ds_hub_find(ds_ctx *ctx, const char *name, const char *revision, uint32_t needs,
                             char **folder_out);

/* The folder of the cache, whether it is there or not. The caller frees *folder_out. */
DS_API ds_status ds_hub_cache(ds_ctx *ctx, char **folder_out);

#ifdef __cplusplus
}
#endif
#endif
