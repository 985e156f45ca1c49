/* SPDX-License-Identifier: Apache-2.0 */
/* An engine as one stage of a pipeline: its part of the messages between stages, and the pieces of
 * the programs that only a pipeline has (pipe/pipe_schedule.h has the order).
 *
 * A message is one of the list that all stages have (place/stage_cut.h), between the ranks at the
 * same place of two stages, over the engine's communicator of all ranks. What is sent stays where
 * it is, in a cell of the micro-batch's slot, until it is received.
 */
#ifndef DSI_TRAIN_ENGINE_PIPE_H
#define DSI_TRAIN_ENGINE_PIPE_H

#include "compile/rank_plan.h"
#include "pipe/pipe_list.h"
#include "train/engine.h"

typedef struct dsi_pipe_call {
    dsi_comm_part part;
    dsi_comm_ticket ticket;
    dsi_comm *comm; /* that carries it */
    bool sent;      /* and not yet waited for */
} dsi_pipe_call;

/* The messages of a stage in a program. */
typedef struct dsi_pipe_line {
    uint32_t n;
    const dsi_stage_message **messages; /* n of `all` */
    dsi_program_message *names;         /* n */
    char (*texts)[96];
    dsi_pipe_call *calls; /* n × n_calls: for each slot or buffer */
    uint32_t n_calls;
    dsi_stage_messages all;
} dsi_pipe_line;

typedef struct dsi_engine_pipe {
    uint32_t stage, n_stages, n_slots;
    dsi_schedule schedule;
    dsi_stage_parts parts;
    dsi_pipe_line train, eval;
    dsi_comm *across; /* the ranks at the same place of each stage; borrowed */
    dsi_comm *past;   /* all ranks once more, for messages that others may pass; NULL: there are
                         none. Owned */
    ds_batch_fn next; /* of the call in progress */
    void *user;
    ds_batch batch;
    uint32_t n_sent; /* messages that are not waited for yet */
    int64_t fed;     /* micro-batches begun */
    int64_t ended;   /* of which the last stage has the loss */
    int64_t weighed; /* and of which it has the gradients of the head's weights, put off */
    double *counts;  /* by slot: targets of a micro-batch that has the loss; owned */
    double loss;     /* of those that have ended, as often as each counts; behind the last
                        micro-batch that of all ranks, on all stages */
    double newest;   /* of the newest of them alone, of this rank's samples; on all stages */
} dsi_engine_pipe;

/* Whether this rank has the last stage, which has the loss. */
bool dsi_pipe_has_loss(const dsi_engine_pipe *pipe);

/* Takes the messages over from a rank's plan and makes what they need; nothing without stages.
 * Errors: ERR_GRAPH: the schedule would block. */
ds_status dsi_pipe_open(ds_engine *engine, dsi_stage_messages *train, dsi_stage_messages *eval);
/* Makes all communicators that any stage needs, in an order that all ranks have. Collective. */
ds_status dsi_pipe_join(ds_engine *engine, const int64_t *axes, uint32_t n_axes);
void dsi_pipe_close(ds_engine *engine);

/* Adds the micro-batches of a step; the copies of weights behind an update; an evaluation. */
ds_status dsi_pipe_add_batch(const ds_engine *engine, dsi_program *p);
void dsi_pipe_add_copies(const ds_engine *engine, dsi_program *p);
ds_status dsi_pipe_add_evaluation(const ds_engine *engine, dsi_program *p);
/* The client of a program's messages. */
ds_status dsi_pipe_message(ds_engine *engine, const dsi_pipe_line *line, const dsi_instr *instr);

/* What the last stage has, on all stages. Collective. */
ds_status dsi_pipe_share(ds_engine *engine, double *values, uint32_t n);

#endif
