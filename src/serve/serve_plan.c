/* SPDX-License-Identifier: Apache-2.0 */
/* What a server takes, before it is made. See serve.h and serve_plan.h. */
#include "serve/serve_plan.h"

#include "accel/accel.h"
#include "base/machine_memory.h"
#include "plan/plan_sim.h"
#include "serve/server.h"

#include <stdlib.h>

/* What ds_server has beside the generator: scratch for drawing ids, of each thread, and tables. */
static size_t own_bytes(const ds_server *s)
{
    const size_t threads = ds_ctx_n_threads(s->ctx);
    const size_t vocabulary = (size_t)s->generator->vocab_size;
    const size_t sampled = 2 * sizeof(float) + sizeof(uint32_t);
    const size_t drawn = sizeof(float) + sampled + sizeof(uint16_t);
    return threads * (vocabulary * drawn + (size_t)s->max_length * sizeof(int32_t)) +
           vocabulary * sampled;
}

static void fill(const ds_server *s, uint32_t n_ranks, ds_serve_needs *out)
{
    const ds_generator *g = s->generator;
    const size_t device = dsi_accel_device_memory(g->ctx, &g->accel);
    const int64_t tokens = g->paged.blocks * g->paged.block;
    dsi_generator_needs needs;
    dsi_generator_count(g, &needs);
    needs.batch += own_bytes(s);
    *out = (ds_serve_needs){.weights = needs.weights,
                            .stored = needs.stored + needs.stored_keys,
                            .keys_values = needs.keys_values,
                            .states = needs.states,
                            .batch = needs.batch,
                            .process = needs.process,
                            .total = dsi_generator_needs_sum(&needs),
                            .available = device > 0 ? device : dsi_machine_memory() / n_ranks,
                            .position = (needs.keys_values + needs.stored_keys) / (size_t)tokens,
                            .kv_tokens = tokens,
                            .max_length = s->max_length,
                            .max_sequences = s->max_sequences,
                            .state_rows = s->carries ? g->paged.states : 0,
                            .state_snapshots = s->n_snapshots,
                            .max_batch_tokens = s->max_batch_tokens,
                            .dtype = g->dtype,
                            .kv_type =
                                g->paged.kv_type != DS_DTYPE_NONE ? g->paged.kv_type : g->dtype};
    for (ds_cell c = 0; c < ds_cells_count(g->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(g->cells, c);
        out->parameters +=
            cell->kind == DS_CELL_PARAM ? (uint64_t)ds_shape_count(cell->meta.shape) : 0;
    }
}

/* Of the drafter, which has a position of its own for each of the model's; its libraries are there.
 */
static ds_status add_drafter(const ds_server *s, const ds_serve_params *params, ds_serve_needs *out)
{
    ds_serve_params own;
    ds_serve_needs n;
    DS_TRY(dsi_serve_drafter(s, params, &own));
    DS_TRY(ds_serve_plan(s->ctx, &own, &n));
    out->weights += n.weights;
    out->keys_values += n.keys_values;
    out->batch += n.batch;
    out->position += n.position;
    out->total += n.weights + n.keys_values + n.batch;
    return DS_OK;
}

/* Seconds of one run of the shortest piece from `piece` on with these many tokens and logits. */
static ds_status time_piece_from(const ds_server *s, const dsi_piece *piece,
                                 const dsi_device *device, int64_t tokens, int64_t rows,
                                 double *seconds_out)
{
    const uint32_t n_ranks = s->generator->plan_ranks > 1 ? s->generator->plan_ranks : 1;
    dsi_sim_step *steps = NULL;
    dsi_timeline *timeline = NULL;
    while (piece->length < tokens || piece->rows < rows) {
        ++piece;
    }
    DS_TRY(
        dsi_plan_sim_steps(piece->plan, n_ranks, dsi_generator_residencies(s->generator), &steps));
    const dsi_sim_spec spec = {.device = device,
                               .steps = steps,
                               .n_steps = piece->plan->n_steps,
                               .phases = &piece->plan->phases,
                               .peak_dtype = s->generator->dtype};
    const ds_status status = dsi_simulate(s->ctx, &spec, &timeline);
    *seconds_out = status >= 0 ? timeline->step.seconds : 0.0;
    dsi_timeline_destroy(&timeline);
    free(steps);
    return status;
}

static ds_status time_piece(const ds_server *s, const dsi_device *device, int64_t tokens,
                            int64_t rows, double *seconds_out)
{
    return time_piece_from(s, s->generator->pieces, device, tokens, rows, seconds_out);
}

/* Of as many tokens of prompts as a batch has; sources are read one by one, the longest here. */
static ds_status time_prompt(const ds_server *s, const dsi_device *device, double *seconds_out)
{
    const ds_generator *g = s->generator;
    if (!s->pairs) {
        return time_piece(s, device, s->max_batch_tokens, 1, seconds_out);
    }
    DS_TRY(time_piece_from(s, &g->pieces[g->n_texts], device, s->max_length, 1, seconds_out));
    *seconds_out *= (double)s->max_batch_tokens / (double)s->max_length;
    return DS_OK;
}

ds_status dsi_serve_plan_on(ds_ctx *ctx, const ds_serve_params *params, uint32_t n_ranks,
                            const dsi_device *device, ds_serve_needs *needs_out,
                            dsi_serve_times *times_out)
{
    ds_server s;
    ds_status status = dsi_serve_plan(ctx, params, n_ranks, &s);
    if (status >= 0) {
        fill(&s, n_ranks > 0 ? n_ranks : 1, needs_out);
        status = params->draft != NULL ? add_drafter(&s, params, needs_out) : DS_OK;
    }
    if (status >= 0 && device != NULL) {
        *times_out = (dsi_serve_times){0};
        status = time_piece(&s, device, 1, 1, &times_out->one);
        status = status < 0
                     ? status
                     : time_piece(&s, device, s.max_sequences, s.max_sequences, &times_out->all);
        status = status < 0 ? status : time_prompt(&s, device, &times_out->prompt);
    }
    ds_generator_destroy(&s.generator);
    return status;
}

ds_status ds_serve_plan(ds_ctx *ctx, const ds_serve_params *params, ds_serve_needs *needs_out)
{
    return dsi_serve_plan_on(ctx, params, 1, NULL, needs_out, NULL);
}
