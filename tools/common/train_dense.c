/* SPDX-License-Identifier: Apache-2.0 */
/* Modules Dense of a folder of sentence-transformers that is trained: they are parameters of the
 * engine (ds_dense), which begin as the folder has them, and go back into it at the end. Called by
 * train_task.c and ds_train.c. */
#include "common/train.h"
#include "nn/nn.h"

#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 64 };

static void name_of(uint32_t which, const char *tensor, char name[NAME_BYTES])
{
    (void)snprintf(name, NAME_BYTES, DSI_DENSE_SCOPE "%u.%s", which, tensor);
}

static size_t count_of(const sentence_tensor *t)
{
    return (size_t)(t->rows * (t->columns > 0 ? t->columns : 1));
}

ds_status train_dense_open(train_run *run)
{
    const sentence_form *form = &run->form;
    DS_TRY(sentence_form_check(run->ctx, form, ds_model_get_info(run->model)->hidden_size));
    for (uint32_t i = 0; i < form->n_dense; ++i) {
        const sentence_dense *d = &form->dense[i];
        run->dense[i] = (ds_dense){.n_in = d->n_in,
                                   .n_out = d->n_out,
                                   .function = (uint32_t)d->activation,
                                   .bias = d->bias != NULL,
                                   .adds = d->adds};
    }
    run->task_params.contrast.dense = run->dense;
    run->task_params.contrast.n_dense = form->n_dense;
    return DS_OK;
}

ds_status train_dense_begin(train_run *run)
{
    char name[NAME_BYTES];
    sentence_tensor t;
    for (uint32_t i = 0; i < run->form.n_dense; ++i) {
        for (int k = 0; sentence_dense_tensor(&run->form.dense[i], k, &t); ++k) {
            name_of(i, t.name, name);
            DS_TRY(ds_engine_set(run->engine, DS_CELL_PARAM, name, t.data, count_of(&t)));
        }
    }
    return DS_OK;
}

ds_status train_dense_end(train_run *run)
{
    char name[NAME_BYTES];
    sentence_tensor t;
    for (uint32_t i = 0; i < run->form.n_dense; ++i) {
        for (int k = 0; sentence_dense_tensor(&run->form.dense[i], k, &t); ++k) {
            name_of(i, t.name, name);
            DS_TRY(ds_engine_get(run->engine, DS_CELL_PARAM, name, t.data, count_of(&t)));
        }
    }
    return DS_OK;
}

ds_status train_dense_read(void *user, uint32_t which, const char *name, float *data, size_t n)
{
    const train_run *run = user;
    sentence_tensor t;
    for (int k = 0; sentence_dense_tensor(&run->form.dense[which], k, &t); ++k) {
        if (strcmp(t.name, name) == 0 && count_of(&t) == n) {
            memcpy(data, t.data, n * sizeof *data);
            return DS_OK;
        }
    }
    return ds_fail(run->ctx, DS_ERR_NOT_FOUND, "the module Dense %u has no %s of that size", which,
                   name);
}
