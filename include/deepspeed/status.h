/* SPDX-License-Identifier: Apache-2.0 */
/* What every fallible function returns, and how an error message is recorded.
 *
 * Rule: the function that decides an error records it once with ds_fail(); callers only forward
 * with DS_TRY(). Outputs are written only on success. The library never exits the process.
 */
#ifndef DEEPSPEED_STATUS_H
#define DEEPSPEED_STATUS_H

#include <deepspeed/version.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DS_PRINTF(fmt, arg) __attribute__((format(printf, fmt, arg)))
#else
#define DS_PRINTF(fmt, arg)
#endif

/* name, value, text. Grouped by what the error kills: call, object, device, rank, job. */
#define DS_STATUS_LIST(X)                                                                          \
    X(OK, 0, "success")                                                                            \
    X(IN_PROGRESS, 1, "operation still in progress")                                               \
    X(ERR_ARG, -1, "invalid argument")                                                             \
    X(ERR_STATE, -2, "call not allowed in this state")                                             \
    X(ERR_LIMIT, -3, "a limit was exceeded")                                                       \
    X(ERR_UNSUPPORTED, -4, "not supported")                                                        \
    X(ERR_NOT_FOUND, -5, "not found")                                                              \
    X(ERR_CONFIG, -20, "invalid configuration")                                                    \
    X(ERR_FORMAT, -21, "malformed file or text")                                                   \
    X(ERR_CORRUPT, -22, "checksum or consistency failure")                                         \
    X(ERR_SHAPE, -23, "shape or dtype mismatch")                                                   \
    X(ERR_GRAPH, -24, "invalid graph or plan")                                                     \
    X(ERR_NOMEM, -40, "out of memory")                                                             \
    X(ERR_DEVICE, -41, "device failure")                                                           \
    X(ERR_IO, -60, "input or output failed")                                                       \
    X(ERR_INTERRUPTED, -61, "interrupted")                                                         \
    X(ERR_NUMERIC, -80, "numeric failure")                                                         \
    X(ERR_PEER, -81, "another rank failed, is missing or disagrees")                               \
    X(ERR_INTERNAL, -99, "internal error: please report")

typedef enum ds_status {
#define X(name, value, text) DS_##name = (value),
    DS_STATUS_LIST(X)
#undef X
} ds_status;

typedef struct ds_ctx ds_ctx; /* see context.h */

/* Short constant text for a status, never NULL. Any thread. */
DS_API const char *ds_status_text(ds_status status);

/* Constant name ("ERR_CONFIG") for a status, never NULL. Any thread. */
DS_API const char *ds_status_name(ds_status status);

/* Records `status` with a formatted message (truncated at 4 KiB) and the place in the source, and
 * returns `status`. ctx may be NULL: then only the status survives. Use through ds_fail(). Any
 * thread; the newest message wins. */
DS_API ds_status ds_fail_at(ds_ctx *ctx, const char *file, int line, ds_status status,
                            const char *format, ...) DS_PRINTF(5, 6);

#define ds_fail(ctx, status, ...) ds_fail_at((ctx), __FILE__, __LINE__, (status), __VA_ARGS__)

/* Forwards an error (a negative status) to the caller. */
#define DS_TRY(call)                                                                               \
    do {                                                                                           \
        const ds_status ds_try_status_ = (call);                                                   \
        if (ds_try_status_ < 0) {                                                                  \
            return ds_try_status_;                                                                 \
        }                                                                                          \
    } while (0)

/* Same inside a function with cleanup: stores the error in `status` and jumps to `label`. */
#define DS_TRY_GOTO(status, call, label)                                                           \
    do {                                                                                           \
        (status) = (call);                                                                         \
        if ((status) < 0) {                                                                        \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
