/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF file as --model of ds_generate and ds_serve: its model folder in a temporary place, which
 * is gone again when the model is open. SIGINT and SIGTERM wait meanwhile, so that it does not
 * stay. */
#ifndef DSI_TOOLS_UNPACKED_H
#define DSI_TOOLS_UNPACKED_H

#include <deepspeed/tensor.h>
#include <signal.h>

#define UNPACKED_QUANTIZE_CHOICES "file|q8_0|q4_0|q4_1|q5_0|q5_1|q4_k|q5_k|q6_k"
#define UNPACKED_QUANTIZE_DOC                                                                      \
    "Round the matrices of linear layers to blocks of 32 or 256 values as they are read, and "     \
    "what "                                                                                        \
    "they are multiplied with to bytes. file: each matrix as it is there, of a GGUF file or of a " \
    "folder of GPTQ, AWQ or packed compressed-tensors."

/* What is asked of a model, and what came of it. Texts are borrowed from argv. */
typedef struct unpacked {
    const char *file;     /* the GGUF file; NULL: the model is a folder */
    const char *quantize; /* as --quantize says; NULL: real numbers */
    bool rounds_later;    /* the dtype of --model's numbers is not known yet */
    bool keeps;        /* a folder's matrices in blocks stay so: ds_generator_params.keep_blocks */
    char folder[2100]; /* "": none, or gone */
    sigset_t before;   /* the signals that were held before */
} unpacked;

/* An empty folder for `what`, which the signals that end a program do not leave behind: they are
 * held until unpacked_remove(). */
ds_status unpacked_make(ds_ctx *ctx, unpacked *u, const char *what);
bool unpacked_is_file(const char *model);
/* Makes the folder where *model is a GGUF file, and sets *model to it; *dtype NULL becomes "bf16"
 * beside quantize, of what is in no block. Of a folder: `file` keeps its own blocks. Errors: those
 * of ds_gguf_to_folder. */
ds_status unpacked_open(ds_ctx *ctx, unpacked *u, const char **model, const char **dtype,
                        bool no_tokenizer);
/* For ds_generator_params. */
ds_dtype unpacked_quantize(const unpacked *u);
const char *unpacked_gguf(const unpacked *u);
/* What is mapped stays. May be called again. */
void unpacked_remove(unpacked *u);

#endif
