/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters, gradients and optimizer states of a running engine, whole or this rank's part, on
 * every ZeRO stage: DeepSpeed's safe_get_full_*, safe_set_full_*, safe_get_local_*,
 * safe_set_local_* and GatheredParameters. Values are fp32, whatever the engine stores.
 *
 *     ds_engine_get_full_grad(engine, name, data, count);          // between backward and step
 *     ds_engine_set_full_optimizer_state(engine, name, "exp_avg", data, count);
 *
 * Full ones are collective: every rank makes the same calls in the same order, and a setter gives
 * the same values. A rank that asks for something else, or gives other values, is an ERR_PEER on
 * every rank that names it, and nothing is changed. Local ones are local. Thread rule: as the
 * engine's.
 */
#ifndef DEEPSPEED_ENGINE_STATES_H
#define DEEPSPEED_ENGINE_STATES_H

#include <deepspeed/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- whole tensors; data: `count` elements, all of the tensor ---------------------------------
 * Errors: ERR_NOT_FOUND (no such parameter, or it is frozen and has no such state), ERR_SHAPE
 * (count), ERR_STATE (a gradient outside of backward … step), ERR_ARG (a state that the optimizer
 * does not have; the message lists what it has), ERR_PEER, ERR_NOMEM. */

/* The fp32 master where there is one, else the parameter. */
DS_API ds_status ds_engine_get_full_fp32_param(ds_engine *engine, const char *name, float *data,
                                               size_t count);
/* Sets master and parameter (which is rounded once). */
DS_API ds_status ds_engine_set_full_fp32_param(ds_engine *engine, const char *name,
                                               const float *data, size_t count);
/* What has been accumulated since the last step, averaged over ranks (or summed, as the
 * configuration asks), without loss scale, before clipping. ERR_STATE where the backward pass uses
 * gradients up: bf16.check_grad_overflow false, no clipping, no accumulation. */
DS_API ds_status ds_engine_get_full_grad(ds_engine *engine, const char *name, float *data,
                                         size_t count);
/* Replaces it. It is rounded to the type of the gradients. */
DS_API ds_status ds_engine_set_full_grad(ds_engine *engine, const char *name, const float *data,
                                         size_t count);
/* state: "exp_avg", "exp_avg_sq", "momentum" or PyTorch's names of them ("momentum_buffer" of SGD,
 * "sum" of Adagrad). */
DS_API ds_status ds_engine_get_full_optimizer_state(ds_engine *engine, const char *name,
                                                    const char *state, float *data, size_t count);
DS_API ds_status ds_engine_set_full_optimizer_state(ds_engine *engine, const char *name,
                                                    const char *state, const float *data,
                                                    size_t count);

/* ---- this rank's part: elements [begin, begin + count) of the tensor in row-major order --------
 * All of it where the tensor is not cut (one rank, stage 0). Besides the errors above:
 * ERR_UNSUPPORTED for a gradient that is not reduced before the step (accumulation in stages 0 and
 * 1), and for setting what every rank holds whole: use the full ones. */

typedef enum ds_state_kind {
    DS_STATE_PARAM,
    DS_STATE_GRAD,
    DS_STATE_OPTIMIZER /* named by `state` */
} ds_state_kind;

/* state: NULL but for DS_STATE_OPTIMIZER. */
DS_API ds_status ds_engine_local_range(const ds_engine *engine, ds_state_kind kind,
                                       const char *name, const char *state, int64_t *begin_out,
                                       int64_t *count_out);
DS_API ds_status ds_engine_get_local_fp32_param(ds_engine *engine, const char *name, float *data,
                                                size_t count);
DS_API ds_status ds_engine_set_local_fp32_param(ds_engine *engine, const char *name,
                                                const float *data, size_t count);
DS_API ds_status ds_engine_get_local_grad(ds_engine *engine, const char *name, float *data,
                                          size_t count);
DS_API ds_status ds_engine_set_local_grad(ds_engine *engine, const char *name, const float *data,
                                          size_t count);
DS_API ds_status ds_engine_get_local_optimizer_state(ds_engine *engine, const char *name,
                                                     const char *state, float *data, size_t count);
DS_API ds_status ds_engine_set_local_optimizer_state(ds_engine *engine, const char *name,
                                                     const char *state, const float *data,
                                                     size_t count);

/* ---- parameters gathered for a while, as with GatheredParameters ------------------------------
 */

typedef struct ds_gathered ds_gathered;

/* Gathers whole parameters into memory of fp32 copies. modifier: the rank whose changes count, or
 * -1: they are read only. Collective. Errors: as above, and ERR_STATE (a parameter is gathered
 * already). The caller ends it with ds_gathered_end before the engine ends. */
DS_API ds_status ds_engine_gather(ds_engine *engine, const char *const *names, uint32_t n,
                                  int64_t modifier, ds_gathered **gathered_out);
/* The copy of names[i]; *count_out (may be NULL): its elements. NULL for i out of range. */
DS_API float *ds_gathered_data(ds_gathered *gathered, uint32_t i, size_t *count_out);
/* Takes over what the modifier's rank wrote, on every rank; frees, nulls, whatever the outcome.
 * Collective. Errors: ERR_STATE (no modifier was given and a copy was changed; or a step was taken
 * meanwhile, which the copies would undo). Accepts NULL and *gathered == NULL on all ranks. */
DS_API ds_status ds_gathered_end(ds_gathered **gathered);

#ifdef __cplusplus
}
#endif
#endif
