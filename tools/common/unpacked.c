/* SPDX-License-Identifier: Apache-2.0 */
/* See unpacked.h. */
#include "common/unpacked.h"

#include <deepspeed/context.h>
#include <deepspeed/gguf.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

bool unpacked_is_file(const char *model)
{
    const size_t n = strlen(model);
    return n > 5 && strcmp(model + n - 5, ".gguf") == 0;
}

static bool of_file(const unpacked *u)
{
    return u->quantize != NULL && strcmp(u->quantize, "file") == 0;
}

ds_status unpacked_make(ds_ctx *ctx, unpacked *u, const char *what)
{
    const char *base = getenv("TMPDIR");
    sigset_t signals;
    (void)snprintf(u->folder, sizeof u->folder, "%.2000s/ds_model.XXXXXX",
                   base != NULL && base[0] != '\0' ? base : "/tmp");
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &signals, &u->before);
    if (mkdtemp(u->folder) != NULL) {
        return DS_OK;
    }
    const ds_status status = ds_fail(
        ctx, DS_ERR_IO, "cannot make the folder %s for %s; TMPDIR names another", u->folder, what);
    u->folder[0] = '\0';
    (void)pthread_sigmask(SIG_SETMASK, &u->before, NULL);
    return status;
}

/* In fp32 where something is rounded later, as what is in no block beside quantize: once. */
static ds_status unpack(ds_ctx *ctx, unpacked *u, const char *dtype, bool no_tokenizer)
{
    DS_TRY(unpacked_make(ctx, u, u->file));
    const ds_gguf_params params = {.file = u->file,
                                   .folder = u->folder,
                                   .dtype = u->quantize != NULL || u->rounds_later ? DS_DTYPE_F32
                                            : dtype != NULL ? ds_dtype_from_name(dtype)
                                                            : DS_DTYPE_NONE,
                                   .no_tokenizer = no_tokenizer,
                                   .blocks_stay = of_file(u)};
    ds_log(ctx, DS_LOG_JOB, "unpacking %s into %s, which is removed when it is open%s", u->file,
           u->folder,
           u->quantize == NULL && !u->rounds_later
               ? "; its blocks become real numbers, --quantize file takes them as they are"
               : "");
    return ds_gguf_to_folder(ctx, &params);
}

ds_status unpacked_open(ds_ctx *ctx, unpacked *u, const char **model, const char **dtype,
                        bool no_tokenizer)
{
    if (*model == NULL || !unpacked_is_file(*model)) {
        u->keeps = of_file(u); /* of a folder's own blocks */
        return DS_OK;
    }
    u->file = *model;
    DS_TRY(unpack(ctx, u, *dtype, no_tokenizer));
    *dtype = *dtype == NULL && u->quantize != NULL ? "bf16" : *dtype;
    *model = u->folder;
    return DS_OK;
}

ds_dtype unpacked_quantize(const unpacked *u)
{
    return u->quantize != NULL && !of_file(u) ? ds_dtype_from_name(u->quantize) : DS_DTYPE_NONE;
}

const char *unpacked_gguf(const unpacked *u)
{
    return u->quantize != NULL ? u->file : NULL;
}

void unpacked_remove(unpacked *u)
{
    char path[PATH_BYTES];
    if (u->folder[0] == '\0') {
        return;
    }
    DIR *dir = opendir(u->folder);
    for (const struct dirent *file = dir != NULL ? readdir(dir) : NULL; file != NULL;
         file = readdir(dir)) {
        (void)snprintf(path, sizeof path, "%s/%s", u->folder, file->d_name);
        (void)unlink(path); /* not "." and ".." */
    }
    if (dir != NULL) {
        (void)closedir(dir);
        (void)rmdir(u->folder);
    }
    u->folder[0] = '\0';
    (void)pthread_sigmask(SIG_SETMASK, &u->before, NULL);
}
