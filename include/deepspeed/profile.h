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
 * ends the trace. Clocks of other hosts are set by those of rank 0, to about the time of a barrier.
 * Collective. Errors: ERR_STATE (no trace is held), ERR_IO, ERR_PEER, ERR_NOMEM. */
DS_API ds_status ds_engine_trace_save(ds_engine *engine, const char *path);
/* Ends the trace without a file; without one nothing happens. Not collective. */
DS_API void ds_engine_trace_drop(ds_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
