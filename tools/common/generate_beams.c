/* SPDX-License-Identifier: Apache-2.0 */
/* ds_generate --num_beams: a server of one request. See generate.h. */
#include "common/generate.h"

#include <deepspeed/serve.h>
#include <stdlib.h>
#include <string.h>

static ds_status open_server(ds_ctx *ctx, generate_options *o, const generate_parts *parts,
                             int64_t length, ds_server **server_out)
{
    enum { BLOCK = 64 };
    ds_serve_params params = {.max_sequences = o->num_beams, .max_batch_tokens = 256};
    ds_status status = generate_params(ctx, o, parts, length, &params.source);
    if (status >= 0) {
        const int64_t whole = (params.source.max_length + BLOCK - 1) / BLOCK * BLOCK;
        const int64_t sources = ds_model_get_info(parts->model)->pairs ? 1 : 0;
        params.kv_tokens = (o->num_beams + sources) * whole;
        status = ds_serve_create(ctx, &params, server_out);
    }
    unpacked_remove(&o->unpacked);
    return status;
}

static ds_status print(ds_ctx *ctx, const generate_parts *parts, const ds_beam *beam)
{
    char *text = NULL;
    size_t size = 0;
    DS_TRY(ds_tokenizer_decode(parts->tokenizer, beam->ids,
                               (size_t)(beam->n - (beam->stopped ? 1 : 0)),
                               DS_DECODE_SKIP_SPECIAL | DS_DECODE_REPAIR, &text, &size));
    const bool written = fwrite(text, 1, size, stdout) == size;
    free(text);
    return written ? DS_OK : ds_fail(ctx, DS_ERR_IO, "cannot write the text");
}

static ds_status search(ds_ctx *ctx, const generate_options *o, const generate_parts *parts,
                        ds_server *server, const ds_serve_request *request)
{
    ds_serve_event *events = calloc((size_t)o->num_beams, sizeof *events);
    uint64_t uid = 0;
    size_t n = 0;
    ds_status status = events != NULL ? ds_serve_submit(server, request, &uid)
                                      : ds_fail(ctx, DS_ERR_NOMEM, "no memory for beams");
    while (status >= 0 && n == 0) {
        status = ds_serve_step(server, events, &n);
    }
    if (status >= 0) {
        status = events[0].finish == DS_SERVE_BEAMS
                     ? print(ctx, parts, &events[0].beams[0])
                     : ds_fail(ctx, DS_ERR_NUMERIC,
                               "the model's logits are not finite: its weights are spoiled, or too "
                               "large for the dtype");
    }
    free(events);
    return status;
}

ds_status generate_beams(ds_ctx *ctx, generate_options *o, const generate_parts *parts,
                         const uint32_t *ids, size_t n)
{
    if (ds_comm_size(o->comm) > 1) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "--num_beams goes with one rank");
    }
    const uint32_t v = ds_tokenizer_vocab_size(parts->tokenizer);
    const ds_beams beams = {.n = o->num_beams,
                            .length_penalty = o->length_penalty,
                            .end = strcmp(o->early_stopping, "true") == 0    ? DS_BEAM_EARLY
                                   : strcmp(o->early_stopping, "never") == 0 ? DS_BEAM_NEVER
                                                                             : DS_BEAM_LIKELY};
    ds_server *server = NULL;
    uint32_t *stops = malloc((v + 1) * sizeof *stops);
    if (stops == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for beams");
    }
    const int64_t length = generate_positions(o, parts->model, n);
    ds_serve_request request = {.ids = ids,
                                .n = n,
                                .max_new_tokens = o->max_new_tokens,
                                .stop_ids = stops,
                                .beams = &beams};
    if (request.max_new_tokens > length - (int64_t)n) {
        request.max_new_tokens = length - (int64_t)n;
    }
    for (uint32_t id = 0; id < v; ++id) {
        if (ds_tokenizer_is_eos(parts->tokenizer, id)) {
            stops[request.n_stop_ids++] = id;
        }
    }
    ds_status status = open_server(ctx, o, parts, length, &server);
    status = status < 0 ? status : search(ctx, o, parts, server, &request);
    ds_serve_destroy(&server);
    free(stops);
    return status;
}
