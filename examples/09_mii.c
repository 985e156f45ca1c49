/* SPDX-License-Identifier: Apache-2.0 */
/* Texts as by DeepSpeed-MII: a pipeline of this process, then a server and its client.
 *
 *     09_mii FOLDER [SERVER]
 *
 * FOLDER is a model folder with a tokenizer; SERVER is the program ds_serve, without which the
 * second part is left out.
 */
#include <deepspeed/deepspeed.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const prompts[] = {"DeepSpeed is", "Once upon a time"};
enum { N = sizeof prompts / sizeof prompts[0] };

static void show(const ds_text_response *r)
{
    (void)printf("%lld + %lld tokens: %s\n", (long long)r->prompt_length,
                 (long long)r->generated_length, r->text);
}

/* mii.pipeline(model)(prompts, …); the texts are copied. */
static ds_status in_process(ds_ctx *ctx, const char *folder, const ds_text_options *options,
                            char *texts[N])
{
    ds_pipeline *pipeline = NULL;
    const ds_text_response *responses = NULL;
    const ds_pipeline_params params = {.model = folder};
    DS_TRY(ds_pipeline_create(ctx, &params, &pipeline));
    const ds_status status = ds_pipeline_generate(pipeline, prompts, N, options, &responses);
    for (size_t i = 0; status >= 0 && i < N; ++i) {
        show(&responses[i]);
        texts[i] = strdup(responses[i].text);
    }
    ds_pipeline_destroy(&pipeline);
    return status;
}

/* mii.serve(model), client.generate(prompts, …), client.terminate_server(). */
static ds_status by_server(ds_ctx *ctx, const char *folder, const char *server,
                           const ds_text_options *options, char *texts[N])
{
    ds_client *client = NULL;
    const ds_text_response *responses = NULL;
    const ds_deployment_params params = {.model = folder, .name = "example", .program = server};
    DS_TRY(ds_client_serve(ctx, &params, &client));
    ds_status status = ds_client_generate(client, prompts, N, options, &responses);
    for (size_t i = 0; status >= 0 && i < N; ++i) {
        show(&responses[i]);
        if (texts[i] == NULL || strcmp(responses[i].text, texts[i]) != 0) {
            status = ds_fail(ctx, DS_ERR_NUMERIC, "the server's text is another one");
        }
    }
    const ds_status ended = ds_client_terminate(client);
    ds_client_close(&client);
    return status < 0 ? status : ended;
}

int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    char *texts[N] = {NULL};
    const ds_text_options options = {.greedy = true, .max_new_tokens = 16};
    if (argc < 2 || ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    ds_status status = in_process(ctx, argv[1], &options, texts);
    if (status >= 0 && argc > 2) {
        status = by_server(ctx, argv[1], argv[2], &options, texts);
    }
    if (status < 0) {
        (void)fprintf(stderr, "09_mii: %s\n", ds_ctx_error(ctx));
    }
    for (size_t i = 0; i < N; ++i) {
        free(texts[i]);
    }
    ds_ctx_destroy(&ctx);
    return status < 0 ? 1 : 0;
}
