/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator: from steps in plan order to a timeline of one training step.
 *
 * Every rank runs the same steps, so one rank is simulated. A host thread issues the steps in
 * order; RUN occupies its stream and holds the thread; START puts its work on its stream, which
 * goes on by itself as far as the device overlaps, behind what it waits for of other streams; WAIT
 * holds the thread until that work has ended.
 * Phases are simulated once, and the step is composed of them as the engine runs them: accumulation
 * × (forward, backward), then the phases behind them. A move may end in a later phase than it
 * starts in, or in the forward phase of the next step, whose WAIT then stands before its START
 * (plan.h, invariant 8): then a step is simulated before the one that counts, which begins with
 * what is under way.
 *
 * Pure and deterministic: no clock, no device. The caller keeps the steps and their texts until the
 * timeline is destroyed.
 */
#ifndef DSI_COST_SIMULATE_H
#define DSI_COST_SIMULATE_H

#include "cost/device.h"

#include "ir/phase.h"
#include "ir/step_kind.h"

#define DSI_SIM_STREAM_LIST(X)                                                                     \
    X(COMPUTE, "compute")                                                                          \
    X(COMM, "communication")                                                                       \
    X(HOST_IN, "host to device")                                                                   \
    X(HOST_OUT, "device to host")                                                                  \
    X(HOST, "host compute")                                                                        \
    X(DISK_READ, "disk read")                                                                      \
    X(DISK_WRITE, "disk write")

typedef enum dsi_sim_stream {
#define X(id, text) DSI_STREAM_##id,
    DSI_SIM_STREAM_LIST(X)
#undef X
        DSI_STREAM_COUNT
} dsi_sim_stream;

const char *dsi_sim_stream_name(dsi_sim_stream stream);

typedef struct dsi_sim_step {
    dsi_step_kind kind;
    uint32_t start; /* of a WAIT: index of its START; one behind it is of the step before */
    ds_phase phase;
    dsi_sim_stream stream;
    const char *op;        /* operator's name */
    const char *scope;     /* may be NULL */
    dsi_work work;         /* of COMPUTE; of the other streams only work.bytes: what is moved */
    ds_comm_op coll;       /* of COMM */
    dsi_group group;       /* of COMM */
    int64_t axes;          /* of COMM: those of the mesh (place/mesh.h) */
    double seconds;        /* above 0: known from elsewhere, used instead of the model */
    const uint32_t *after; /* of START: earlier STARTs that end before its work begins */
    uint32_t n_after;
} dsi_sim_step;

typedef struct dsi_sim_spec {
    const dsi_device *device;  /* of one rank: dsi_device_of_rank */
    const dsi_sim_step *steps; /* sorted by phase */
    uint32_t n_steps;
    uint32_t local_ranks;        /* ranks of this node that share host and disk; 0: 1 */
    int64_t accumulation;        /* micro-batches of a step; 0: 1 */
    const dsi_phases *phases;    /* names and flags; kept by the caller, as the steps */
    double share[DS_MAX_PHASES]; /* of steps that run the phase at all; 0: all, below 0: none */
    double idle_share;           /* of the time of micro-batches, what a pipeline's stage waits */
    double clear_bytes;          /* of accumulators set to zero once a step; 0: none */
    double model_flops;  /* of one micro-batch, forward and backward, without recompute: MFU */
    double tokens;       /* of one micro-batch; 0: not known */
    ds_dtype peak_dtype; /* MFU and HFU are shares of this peak */
} dsi_sim_spec;

/* What one step did, in seconds from the start of its phase; the end may lie behind that of the
 * phase. A WAIT has an event only when it stalls: on COMPUTE, `stall`. */
typedef struct dsi_sim_event {
    uint32_t step;
    ds_phase phase; /* of the step */
    dsi_sim_stream stream;
    bool stall;
    double start, end;
} dsi_sim_event;

/* Sums of one phase run once, or of the whole step. */
typedef struct dsi_sim_sum {
    double seconds;
    double compute;      /* the device computes */
    double comm;         /* collectives are under way, hidden or not */
    double exposed_comm; /* nothing but a collective goes on: the device waits for it */
    double moves;        /* between device, host and disk, hidden or not */
    double exposed_moves;
    double bubble; /* idle for another reason: none of the above */
    double flops;  /* of the hardware, recompute included */
    double comm_bytes, move_bytes;
} dsi_sim_sum;

/* Where the time of the whole step goes: one row for each class of operators or collective, and
 * phase group. Sorted, slowest first. */
typedef struct dsi_sim_row {
    const char *name; /* class, or collective */
    dsi_sim_stream stream;
    int64_t axes; /* of collectives */
    ds_phase phase;
    uint64_t calls;
    double seconds, exposed; /* exposed: of streams other than COMPUTE */
    double flops, bytes;
} dsi_sim_row;

typedef struct dsi_timeline {
    dsi_sim_spec spec;     /* as given */
    dsi_device device;     /* a copy; spec.device points to it */
    dsi_sim_event *events; /* by phase, then by start */
    uint32_t n_events;
    uint32_t phase_begin[DS_MAX_PHASES + 1]; /* of events */
    dsi_sim_sum phases[DS_MAX_PHASES];
    dsi_sim_sum step; /* of the whole step */
    dsi_sim_row *rows;
    uint32_t n_rows;
    double mfu, hfu;          /* of spec.peak_dtype */
    double tokens_per_second; /* of one rank; 0: not known */
} dsi_timeline;

/* Errors: ERR_GRAPH names a step that is malformed (a WAIT without START, phases out of order),
 * ERR_NOMEM. ctx is for messages. */
ds_status dsi_simulate(ds_ctx *ctx, const dsi_sim_spec *spec, dsi_timeline **timeline_out);
void dsi_timeline_destroy(dsi_timeline **timeline);

/* How often a phase runs in one step, on average. */
double dsi_timeline_repeats(const dsi_timeline *timeline, ds_phase phase);

/* A page of text: times of phases, exposed communication, what dominates. */
void dsi_timeline_print(const dsi_timeline *timeline, dsi_buf *text);
/* The same as one JSON object. */
void dsi_timeline_json(const dsi_timeline *timeline, dsi_buf *text);

#endif
