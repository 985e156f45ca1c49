/* SPDX-License-Identifier: Apache-2.0 */
/* The context: error record, log sink and thread pool of one user of the library.
 *
 * It is the first parameter of whatever can fail or log; there is no global state besides it.
 */
#ifndef DEEPSPEED_CONTEXT_H
#define DEEPSPEED_CONTEXT_H

#include <deepspeed/status.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Levels by event rate: a job, an object, a step, a plan step, a tensor. */
typedef enum ds_log_level {
    DS_LOG_ERROR = 0,
    DS_LOG_WARN = 1,   /* notices that the user should read once */
    DS_LOG_JOB = 2,    /* default ceiling: a few lines a job */
    DS_LOG_OBJECT = 3, /* a line an object */
    DS_LOG_STEP = 4,
    DS_LOG_TENSOR = 5
} ds_log_level;

/* Receives one line, without newline. May be called from any thread, one at a time. */
typedef void (*ds_log_fn)(void *user, ds_log_level level, const char *line);

typedef struct ds_ctx_params {
    ds_log_fn log;       /* default NULL: lines go to stderr */
    void *log_user;      /* default NULL; borrowed for the life of the context */
    ds_log_level level;  /* default DS_LOG_JOB; less urgent lines are dropped */
    uint32_t n_threads;  /* default 0: as many as cores this process may run on */
    uint32_t rank;       /* default 0; prefixes log lines when world_size > 1 */
    uint32_t world_size; /* default 1 */
    DS_RESERVED(8);
} ds_ctx_params;

/* The defaults named above. */
DS_API ds_ctx_params ds_ctx_params_default(void);

/* Creates a context and starts its worker threads. params NULL means the defaults. The caller owns
 * *ctx_out. Errors: ERR_NOMEM. */
DS_API ds_status ds_ctx_create(const ds_ctx_params *params, ds_ctx **ctx_out);

/* Stops the threads, frees, and nulls *ctx. Accepts NULL and *ctx == NULL. Everything that was
 * created with this context must be gone. */
DS_API void ds_ctx_destroy(ds_ctx **ctx);

/* Message of the newest error, "" when there was none. Owned by the context, valid until the next
 * error. Read it on the thread that saw the failing call. */
DS_API const char *ds_ctx_error(const ds_ctx *ctx);

/* "src/config/reader.c:120" of the newest error, "" when there was none. */
DS_API const char *ds_ctx_error_place(const ds_ctx *ctx);

/* Number of threads that work takes part in, the caller included. */
DS_API uint32_t ds_ctx_n_threads(const ds_ctx *ctx);

/* Sends one formatted line to the log sink. Any thread. */
DS_API void ds_log(ds_ctx *ctx, ds_log_level level, const char *format, ...) DS_PRINTF(3, 4);

#ifdef __cplusplus
}
#endif
#endif
