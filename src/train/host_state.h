/* SPDX-License-Identifier: Apache-2.0 */
/* What the host of an engine holds and a checkpoint keeps besides tensors: counters, the loss
 * scaler, the seed. Texts to values and back; nothing here touches an engine. */
#ifndef DSI_TRAIN_HOST_STATE_H
#define DSI_TRAIN_HOST_STATE_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct dsi_host_state {
    uint64_t global_steps, skipped_steps, global_samples;
    double forced_lr; /* negative: the schedule's */
    double scale;     /* of the loss, > 0 */
    int64_t iteration, last_overflow, hysteresis_left;
    bool has_seed;
    uint64_t seed;
    bool zenflow; /* the rest is there: see dsi_zenflow_state */
    bool chosen, late;
    int64_t waiting, chosen_updates, rest_updates;
    bool has_decay, has_average; /* older checkpoints, and those of others, lack them */
    bool decay_all, average_targets;
} dsi_host_state;

/* The JSON texts of the sections "engine", "loss_scaler" and "random". */
typedef struct dsi_host_state_texts {
    const char *engine, *loss_scaler, *random;
} dsi_host_state_texts;

/* Checks and reads the texts of `path` (for messages). loss_scaler NULL: left out, its values stay
 * 1 and 0; random NULL: left out, has_seed stays false. Errors: ERR_FORMAT, naming section and key.
 */
ds_status dsi_host_state_parse(ds_ctx *ctx, const char *path, const dsi_host_state_texts *texts,
                               dsi_host_state *state_out);

enum { DSI_HOST_STATE_BYTES = 512 };

/* Writes the text of one section ("engine", "loss_scaler", "random"). */
void dsi_host_state_print(const dsi_host_state *state, const char *section,
                          char text[DSI_HOST_STATE_BYTES]);

#endif
