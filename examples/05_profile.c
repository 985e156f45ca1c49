/* SPDX-License-Identifier: Apache-2.0 */
/* Where time and memory go: the timeline of two steps, for ui.perfetto.dev, and the memory in use
 * between forward and backward.
 *
 *     05_profile CONFIG.json TRACE.json
 *
 * CONFIG.json is a model's. Under `deepspeed --num_gpus 2` the trace has a process for each rank.
 */
#include <deepspeed/profile.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, SEQ = 32, STEPS = 4 };

static const char config_text[] = "{\n"
                                  "  \"train_micro_batch_size_per_gpu\": 2,\n"
                                  "  \"bf16\": {\"enabled\": true},\n"
                                  "  \"optimizer\": {\"type\": \"AdamW\"},\n"
                                  "  \"zero_optimization\": {\"stage\": 2}\n"
                                  "}\n";

/* Rows that count upwards, each a document of its own. */
static ds_batch make_batch(int32_t data[4][BATCH * SEQ], ds_named_tensor tensors[4])
{
    static const char *const names[4] = {"input_ids", "targets", "positions", "first"};
    const ds_meta meta = {DS_DTYPE_I32, ds_shape_2d(BATCH, SEQ)};
    for (int32_t i = 0; i < BATCH * SEQ; ++i) {
        data[0][i] = i;
        data[1][i] = i + 1;
        data[2][i] = i % SEQ;
        data[3][i] = 0;
    }
    for (int i = 0; i < 4; ++i) {
        tensors[i] = (ds_named_tensor){names[i], {data[i], meta}};
    }
    return (ds_batch){tensors, 4};
}

static ds_status show_memory(ds_engine *engine, ds_comm *comm)
{
    char *text = NULL;
    DS_TRY(ds_engine_memory_report(engine, "between forward and backward", &text));
    if (ds_comm_rank(comm) == 0) {
        (void)fputs(text, stdout);
    }
    free(text);
    return DS_OK;
}

static ds_status train(ds_engine *engine, ds_comm *comm, const char *path)
{
    int32_t data[4][BATCH * SEQ];
    ds_named_tensor tensors[4];
    const ds_batch batch = make_batch(data, tensors);
    DS_TRY(ds_engine_trace_start(engine, 2, 3)); /* the first step warms up */
    for (int step = 1; step <= STEPS; ++step) {
        DS_TRY(ds_engine_forward(engine, &batch));
        if (step == STEPS) {
            DS_TRY(show_memory(engine, comm));
        }
        DS_TRY(ds_engine_backward(engine));
        DS_TRY(ds_engine_step(engine));
        if (ds_engine_trace_is_done(engine)) {
            DS_TRY(ds_engine_trace_save(engine, path));
        }
    }
    if (ds_comm_rank(comm) == 0) {
        (void)printf("steps 2 and 3: %s\n", path);
    }
    return DS_OK;
}

static ds_status run(ds_ctx *ctx, ds_comm *comm, char **argv, ds_config **config, ds_model **model,
                     ds_engine **engine)
{
    DS_TRY(ds_config_load_text(ctx, "profile", config_text, strlen(config_text), NULL, config));
    DS_TRY(ds_config_resolve(*config, ds_comm_size(comm), NULL));
    DS_TRY(ds_model_from_config(ctx, argv[1], model));
    const ds_engine_params params = {
        .model = *model, .config = *config, .seq_length = SEQ, .seed = 1, .comm = comm};
    DS_TRY(ds_initialize(ctx, &params, engine));
    return train(*engine, comm, argv[2]);
}

int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    ds_comm *comm = NULL;
    ds_config *config = NULL;
    ds_model *model = NULL;
    ds_engine *engine = NULL;
    if (argc != 3 || ds_ctx_create(NULL, &ctx) < 0) {
        (void)fprintf(stderr, "usage: 05_profile CONFIG.json TRACE.json\n");
        return EXIT_FAILURE;
    }
    ds_status status = ds_comm_open(ctx, &comm);
    if (status == DS_OK) {
        status = run(ctx, comm, argv, &config, &model, &engine);
    }
    if (status < 0) {
        (void)fprintf(stderr, "05_profile: %s\n", ds_ctx_error(ctx));
        ds_comm_abort(comm, ds_ctx_error(ctx));
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    ds_config_destroy(&config);
    ds_comm_close(&comm);
    ds_ctx_destroy(&ctx);
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
