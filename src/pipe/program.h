/* SPDX-License-Identifier: Apache-2.0 */
/* A program: a short list over plans. It owns the order of micro-batches and the slots: what runs
 * in which call of its client, what the host does in between, what is skipped when.
 *
 *     await forward
 *       do   load_batch
 *       run  train forward, slot 0
 *     await backward
 *       …
 *
 * It is a ring: behind the last instruction comes the first. A client makes calls; a call runs from
 * the AWAIT that names it to the next AWAIT, and is refused where another one is awaited: there is
 * no state beside the cursor. Whoever builds a program knows its client; this file knows neither
 * plans nor engines beyond names, phases and slots.
 *
 * Invariants (dsi_program_check):
 *  1. the first instruction is an AWAIT, and none stands within an IF;
 *  2. every IF has its END; they nest;
 *  3. RUN and START name a plan of the program, a phase of it, and a slot below n_slots;
 *  4. a slot's forward phase is followed by its backward phase before the next forward phase of
 * that slot, and the ring ends with every slot as it began (of plans with a backward phase); so are
 * those of each chunk, and the parts of a backward phase follow one another;
 *  5. START is of the plan's side phase, and nothing else of a program runs that;
 *  6. SEND, SENT and RECEIVE name a message of the program and a slot; what was sent from a slot is
 * SENT before it is sent again from there, and when the ring ends.
 */
#ifndef DSI_PIPE_PROGRAM_H
#define DSI_PIPE_PROGRAM_H

#include "base/buf.h"
#include "place/stages.h"
#include "plan/plan.h"

/* What the client does on the host, and what it knows; one const instance each, in its own file. */
typedef struct dsi_program_action {
    const char *name;
    ds_status (*run)(void *client);
} dsi_program_action;

typedef struct dsi_program_test {
    const char *name;
    bool (*holds)(const void *client);
} dsi_program_test;

typedef enum dsi_instr_kind {
    DSI_INSTR_AWAIT, /* the call that is expected here */
    DSI_INSTR_DO,
    DSI_INSTR_RUN,     /* a phase of a plan, in a slot */
    DSI_INSTR_START,   /* the side phase of a plan; it goes on by itself */
    DSI_INSTR_SEND,    /* starts a message to another stage, from a slot */
    DSI_INSTR_SENT,    /* waits until what was sent from a slot, if anything was, is received */
    DSI_INSTR_RECEIVE, /* waits for a message from another stage, into a slot */
    DSI_INSTR_IF,      /* what stands up to its END is left out unless the test holds */
    DSI_INSTR_END
} dsi_instr_kind;

typedef struct dsi_instr {
    dsi_instr_kind kind;
    uint32_t call;    /* of AWAIT: the client's number */
    const char *name; /* of AWAIT: of the call */
    bool once;        /* of AWAIT: a call that fails is over, the next one is awaited; else it may
                         be made again */
    uint32_t end;     /* of IF: its END */
    uint32_t plan;    /* of RUN and START: index of the program's plans */
    ds_phase phase;   /* of RUN and START */
    uint32_t slot;    /* of RUN and messages; of those with buffers, which of them */
    uint32_t message; /* of SEND, SENT and RECEIVE: index of the program's messages */
    const dsi_program_action *action; /* of DO */
    const dsi_program_test *test;     /* of IF */
} dsi_instr;

enum { DSI_PROGRAM_PLANS = 4, DSI_PROGRAM_INSTRS = 1 << 16 };

typedef struct dsi_program_message {
    const char *name; /* borrowed */
    uint32_t peer;    /* the other stage */
    uint32_t buffers; /* that its instructions name in place of slots; 0: slots */
} dsi_program_message;

typedef struct dsi_program_plan {
    const char *name;
    const dsi_plan *plan; /* borrowed */
} dsi_program_plan;

typedef struct dsi_program {
    const char *name;
    dsi_program_plan plans[DSI_PROGRAM_PLANS];
    uint32_t n_plans, n_slots;
    dsi_stage_parts parts;               /* phases of a micro-batch; {0}: one chunk, whole */
    const dsi_program_message *messages; /* borrowed */
    uint32_t n_messages;
    dsi_instr *instrs; /* owned */
    uint32_t n, capacity;
    bool full; /* more were added than there is memory for, or than DSI_PROGRAM_INSTRS */
} dsi_program;

/* Building: each adds one instruction. Names, actions and tests are borrowed. */
void dsi_program_await(dsi_program *p, uint32_t call, const char *name);
void dsi_program_await_once(dsi_program *p, uint32_t call, const char *name);
void dsi_program_do(dsi_program *p, const dsi_program_action *action);
void dsi_program_run(dsi_program *p, uint32_t plan, ds_phase phase, uint32_t slot);
void dsi_program_start(dsi_program *p, uint32_t plan);
void dsi_program_if(dsi_program *p, const dsi_program_test *test);
void dsi_program_end(dsi_program *p);
void dsi_program_send(dsi_program *p, uint32_t message, uint32_t slot);
void dsi_program_sent(dsi_program *p, uint32_t message, uint32_t slot);
void dsi_program_receive(dsi_program *p, uint32_t message, uint32_t slot);
void dsi_program_free(dsi_program *p); /* its instructions; it is empty then */

/* The invariants above; fills dsi_instr.end. Call it once, when the program is built. Errors:
 * ERR_GRAPH names instruction and invariant. */
ds_status dsi_program_check(ds_ctx *ctx, dsi_program *p);
/* One line an instruction, indented by IF. */
void dsi_program_print(const dsi_program *p, dsi_buf *text);

/* Who runs a program. run and start: a phase of a plan. message: of the three kinds. */
typedef struct dsi_program_client {
    void *user;
    ds_status (*run)(void *user, const dsi_instr *instr);
    ds_status (*start)(void *user, const dsi_instr *instr);   /* NULL: the program has no START */
    ds_status (*message)(void *user, const dsi_instr *instr); /* NULL: it has no messages */
} dsi_program_client;

/* The AWAIT where the program stands; 0 at its begin. */
typedef uint32_t dsi_program_at;

static inline const dsi_instr *dsi_program_awaits(const dsi_program *p, dsi_program_at at)
{
    return &p->instrs[at];
}

/* Makes a call: runs up to the next AWAIT, and stands there. Errors: ERR_STATE when another call is
 * awaited; those of actions and phases: the program then stands where it stood, or at the next
 * AWAIT (dsi_instr.once). */
ds_status dsi_program_call(ds_ctx *ctx, const dsi_program *p, const dsi_program_client *client,
                           uint32_t call, dsi_program_at *at_inout);

#endif
