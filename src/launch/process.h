/* SPDX-License-Identifier: Apache-2.0 */
/* Starts one process of a job: its own process group, its outputs in pipes, and its death with the
 * launcher's. Called by supervise.c.
 */
#ifndef DSI_LAUNCH_PROCESS_H
#define DSI_LAUNCH_PROCESS_H

#include "launch/words.h"
#include <sched.h>
#include <sys/types.h>

/* What to start. All borrowed. */
typedef struct dsi_command {
    const char *program; /* path of the executable, see dsi_program_find */
    const dsi_words *argv;
    const dsi_words *env;
    const cpu_set_t *cpus; /* NULL: as the launcher */
    size_t cpus_bytes;
    int memory_node;    /* NUMA node to which memory is bound; -1: none */
    bool wants_control; /* standard input is a pipe from the launcher; else /dev/null */
    bool ignores_end;   /* started with the signals that end or tell ignored */
    size_t
        data_bytes; /* most private memory that it may ask for (RLIMIT_DATA); 0: as the launcher */
} dsi_command;

typedef struct dsi_process {
    pid_t pid;    /* also its process group; 0: not started */
    int out, err; /* non-blocking ends for reading; -1: closed */
    int control;  /* end for writing of its standard input; -1: none */
} dsi_process;

/* Where a program lies: NAME with a slash is a path; else the launcher's own folder for the tools
 * of this project (ds_…), then PATH. The caller frees *path_out. Errors: ERR_NOT_FOUND names the
 * places; ERR_ARG when a file is there but may not be executed. */
ds_status dsi_program_find(ds_ctx *ctx, const char *name, char **path_out);

/* Starts it. Errors: ERR_IO when the system refuses (names program and reason), also when the
 * executable itself cannot be run: the child reports errno before it ends. */
ds_status dsi_process_start(ds_ctx *ctx, const dsi_command *command, dsi_process *process_out);

/* Sends a signal to the whole group. */
void dsi_process_signal(const dsi_process *process, int signal);
/* Whether it has begun to end: its outputs and sockets may be closed already, and others may have
 * noticed, before it can be waited for. */
bool dsi_process_is_ending(const dsi_process *process);
/* Closes what is open of out, err and control. */
void dsi_process_close(dsi_process *process);

/* "SIGKILL", or "signal 40". */
const char *dsi_signal_name(int signal, char *text, size_t size);

#endif
