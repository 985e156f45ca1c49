/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a Hugging Face model folder: config.json, weights as safetensors, tokenizer files.
 *
 *     ds_hf_export *e;
 *     DS_TRY(ds_hf_export_begin(ctx, &(ds_hf_export_params){.folder = "out", …}, &e));
 *     … DS_TRY_GOTO(status, ds_hf_export_add(e, &source), undo) for each tensor …
 *     DS_TRY(ds_hf_export_finish(&e));
 *
 * Everything is written in a temporary folder, synced, and renamed; a folder that exists keeps its
 * other files, and each file of the model replaces the old one whole. Memory is bounded: data is
 * read, converted and written block by block. One thread at a time.
 */
#ifndef DEEPSPEED_HF_EXPORT_H
#define DEEPSPEED_HF_EXPORT_H

#include <deepspeed/safetensors.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_hf_export ds_hf_export;

typedef struct ds_hf_export_params {
    const char *folder;       /* to be written; the folder above it is created when missing */
    const char *config_json;  /* text of config.json */
    ds_dtype dtype;           /* of all real tensors, and of "torch_dtype"/"dtype" in config.json;
                                 default NONE: as the sources, config.json unchanged */
    uint64_t max_shard_bytes; /* default 0: one file whatever its size */
    const char *copy_from;    /* default NULL: none; a model folder whose tokenizer files and
                                 generation_config.json are copied, those that are there */
    uint32_t task; /* a ds_task: what a head for classes is of; default TOKENS: as names of tensors
                      and config_json say */
    DS_RESERVED(7);
} ds_hf_export_params;

/* Starts an export. Errors: ERR_FORMAT (config_json), ERR_NOT_FOUND (copy_from), ERR_IO, ERR_ARG,
 * ERR_NOMEM. */
DS_API ds_status ds_hf_export_begin(ds_ctx *ctx, const ds_hf_export_params *params,
                                    ds_hf_export **export_out);

/* Adds a tensor under its Hugging Face name, of the dtype that the source says, else of the
 * export's. The source is copied; its name and data are borrowed
 * until the finish. */
DS_API ds_status ds_hf_export_add(ds_hf_export *export_, const ds_tensor_source *source);

/* The temporary folder, for files that others write: ds_tokenizer_save(ctx, tok, folder). */
DS_API const char *ds_hf_export_folder(const ds_hf_export *export_);

/* Writes the weights and gives the folder its name. Frees *export_ whatever the outcome; after an
 * error the folder is as it was. Errors: as ds_safetensors_write_folder. */
DS_API ds_status ds_hf_export_finish(ds_hf_export **export_);

/* Gives up. Accepts NULL and *export_ == NULL. */
DS_API void ds_hf_export_abort(ds_hf_export **export_);

#ifdef __cplusplus
}
#endif
#endif
