/* SPDX-License-Identifier: Apache-2.0 */
/* ds_train's objectives as tasks of a model and rows of data; and the vectors of --objective
 * embeddings. See train.h. */
#include "common/train.h"
#include "train/engine.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool train_is_mlm(const train_options *o)
{
    return o->preference.objective != NULL && strcmp(o->preference.objective, "mlm") == 0;
}

uint32_t train_task(const train_options *o)
{
    const char *objective = o->preference.objective != NULL ? o->preference.objective : "";
    return strcmp(objective, "classes") == 0      ? DS_TASK_SEQUENCE_CLASSES
           : strcmp(objective, "tags") == 0       ? DS_TASK_TOKEN_CLASSES
           : strcmp(objective, "embeddings") == 0 ? DS_TASK_CONTRAST
                                                  : DS_TASK_TOKENS;
}

uint64_t train_rows(const train_run *run)
{
    switch (train_task(run->options)) {
    case DS_TASK_SEQUENCE_CLASSES:
        return run->task_params.problem == DS_PROBLEM_CLASSES ? DS_ROWS_CLASSES : DS_ROWS_VALUES;
    case DS_TASK_TOKEN_CLASSES:
        return DS_ROWS_TOKEN_CLASSES;
    case DS_TASK_CONTRAST:
        return DS_ROWS_CONTRAST;
    default:
        return ds_model_get_info(run->model)->pairs            ? DS_ROWS_SOURCES
               : !train_has_preference(run)                    ? DS_ROWS_TEXT
               : ds_preference_is_paired(run->preference.loss) ? DS_ROWS_PAIRS
                                                               : DS_ROWS_LABELLED;
    }
}

/* Vectors as the folder makes them, or as --pooling says. */
static ds_status open_embeddings(train_run *run)
{
    const train_options *o = run->options;
    run->form.pool = ds_model_get_info(run->model)->encoder ? DS_POOL_MEAN : DS_POOL_LAST;
    run->task_params.contrast = (ds_contrast){.scale = o->scale,
                                              .n_negatives = (uint32_t)o->negatives,
                                              .gather_across_devices = o->gather_across_devices,
                                              .mini_batch = (uint64_t)o->mini_batch};
    DS_TRY(sentence_folder(run->ctx, o->model != NULL ? o->model : "", o->pooling, &run->form));
    DS_TRY(train_dense_open(run));
    return run->form.pool != DS_POOL_MAX
               ? DS_OK
               : ds_fail(run->ctx, DS_ERR_UNSUPPORTED,
                         "--objective embeddings: vectors of the largest numbers (pooling max) are "
                         "not trained; give another --pooling");
}

/* For checkpoints, and the model folder at the end; how modules Dense begin. */
ds_status train_task_describe(train_run *run)
{
    char *text = NULL;
    DS_TRY(sentence_folder_describe(run->ctx, run->options->model, &run->form,
                                    ds_model_get_info(run->model)->hidden_size, &text));
    const ds_status status = dsi_engine_set_embeddings(run->engine, text);
    free(text);
    return status < 0 ? status : train_dense_begin(run);
}

ds_status train_task_open(train_run *run)
{
    const uint32_t task = train_task(run->options);
    run->task_params.token_types =
        task == DS_TASK_SEQUENCE_CLASSES && ds_model_get_info(run->model)->token_types > 1;
    return task == DS_TASK_TOKENS     ? DS_OK
           : task == DS_TASK_CONTRAST ? open_embeddings(run)
                                      : train_classes_open(run);
}
