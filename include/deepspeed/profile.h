/* SPDX-License-Identifier: Apache-2.0 */
/* What a run did, for people and tools: the timeline of its steps, and where its memory lies.
 *
 *     DS_TRY(ds_engine_trace_start(engine, 2, 3));     // the second and third optimizer step
 *     … train …
 *     DS_TRY(ds_engine_trace_save(engine, "run.json")); // open it in ui.perfetto.dev
 *
 * One thread calls an engine. See also ds_engine_step_times (engine.h), the FLOPs profiler
 * (flops_profiler in the configuration) and the log of collectives (comm.h).
 */
#ifndef DEEPSPEED_PROFILE_H
#define DEEPSPEED_PROFILE_H

#include <deepspeed/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- timeline ----
 *
 * Every rank notes begin and end of each step of its plan: kernels, collectives, transfers between
 * device, host and disk, and the waits for them. The file is Chrome's trace format, as `ds_plan
 * --trace` writes it, with the same threads, names, categories and arguments; `ds_plan diff` lays
 * the two over each other. A rank is a process. Without a trace nothing is measured.
 */

/* Records optimizer steps first_step to last_step, counted from 1 over the whole training
 * (ds_engine_global_steps() + 1 is the next). Takes the memory for it, 32 bytes a step of the plan,
 * so that steps allocate nothing. Between optimizer steps, on every rank alike; not collective.
 * Errors: ERR_ARG (no such range, or its first step is over), ERR_STATE (in the middle of a step,
 * or a trace is held already), ERR_LIMIT (more than 1 GiB), ERR_NOMEM. */
DS_API ds_status ds_engine_trace_start(ds_engine *engine, uint64_t first_step, uint64_t last_step);
/* Whether a trace is held, and all its steps are done. */
DS_API bool ds_engine_trace_is_done(const ds_engine *engine);
/* Writes what all ranks recorded so far to a file of rank 0 (which appears whole or not at all) and
 * ends the trace. Clocks of other hosts are set by that of rank 0, to half of a message's way.
 * Collective. Errors: ERR_STATE (no trace is held), ERR_IO, ERR_PEER, ERR_NOMEM. */
DS_API ds_status ds_engine_trace_save(ds_engine *engine, const char *path);
/* Ends the trace without a file; without one nothing happens. Not collective. */
DS_API void ds_engine_trace_drop(ds_engine *engine);

/* ---- memory ----
 *
 * What the plan says, and what the system measures. With memory_breakdown in the configuration the
 * engine logs the report on rank 0 where DeepSpeed does: before and after its memory is made, and
 * before and after each forward, backward and step.
 */

/* Bytes of this rank. */
typedef struct ds_memory_info {
    /* planned */
    size_t in_use;      /* cells and values that hold something now */
    size_t in_use_peak; /* the most since the last report */
    size_t mapped;      /* for cells and arenas; does not change */
    size_t host, disk;  /* storage of offloaded cells */
    size_t planned;     /* of the process: mapped, host, copies of checkpoints, program and plans */
    /* measured; 0 where the system does not say */
    size_t resident; /* anonymous memory and the share of shared memory, which is part of it */
    size_t resident_shared; /* that share */
    size_t resident_files;  /* mapped files: programs, libraries, weights */
    size_t resident_peak;   /* the most of all three so far */
    size_t machine_used, machine_memory;
    DS_RESERVED(8);
} ds_memory_info;

/* Local. Allocates when called for the first time. Errors: ERR_NOMEM. */
DS_API ds_status ds_engine_memory_info(ds_engine *engine, ds_memory_info *info_out);
/* DeepSpeed's see_memory_usage as text: the message, its two lines (MA and Max_MA are in_use and
 * in_use_peak, CA is mapped), then each kind: planned, the most since the last report, resident.
 * Local. free() the text. Errors: ERR_NOMEM. */
DS_API ds_status ds_engine_memory_report(ds_engine *engine, const char *message, char **text_out);

#ifdef __cplusplus
}
#endif
#endif
