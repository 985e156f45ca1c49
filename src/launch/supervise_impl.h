/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the launcher's loop. Shared by supervise.c (start and loop) and supervise_*.c alone. */
#ifndef DSI_LAUNCH_SUPERVISE_IMPL_H
#define DSI_LAUNCH_SUPERVISE_IMPL_H

#include "comm/launcher_note.h"
#include "launch/guard.h"
#include "launch/oom.h"
#include "launch/supervise.h"
#include <deepspeed/context.h>

#include <poll.h>
#include <sys/types.h>

typedef enum dsi_stop {
    DSI_STOP_NONE,
    DSI_STOP_FAILED, /* a task failed */
    DSI_STOP_SIGNAL, /* a signal to the launcher */
    DSI_STOP_LOST,   /* the control channel ended */
    DSI_STOP_LIMIT   /* see dsi_limit */
} dsi_stop;

typedef struct dsi_running {
    const dsi_task *task;
    dsi_process process;
    dsi_output output;
    double started, ended; /* clock seconds */
    bool alive;
    bool stopped;   /* by SIGSTOP or the like, now */
    bool killed;    /* SIGKILL was sent by the launcher */
    bool told;      /* it was told to end before it ended */
    pid_t stand_in; /* process in its place after it ended with 0; 0: none */
    bool missed;    /* others reported that it ended before it joined */
    bool absent;    /* it ended with 0, and others wait for it to join */
    double awaited; /* seconds after which others gave up waiting for it to join; 0: none did */
    char coords[DSI_COORDS_BYTES + 3]; /* in the mesh: " (dp 2, tp 1)"; "": not known */
    int wait_status;
    bool oom;
    dsi_buf oom_how;
} dsi_running;

typedef struct dsi_job {
    ds_ctx *ctx;
    const dsi_supervise_params *params;
    dsi_running *tasks;
    size_t n, n_alive, n_started;
    dsi_terminal terminal;
    dsi_guard guard;
    dsi_oom oom;
    int signals; /* signalfd */
    dsi_stop stop;
    int stop_signal;
    bool signalled; /* a signal that ends came, whatever else ended the job */
    int *relays;    /* descriptors of processes that reported their number */
    size_t n_relays;
    dsi_launcher_note elsewhere; /* a rank of another host that was waited for in vain; 0 s: none */
    bool awaited;                /* with `ways`: a node reports such a rank */
    uint32_t awaited_rank;
    char notice_label[256];
    int notice_code; /* exit code that another process reported */
    double deadline; /* when to kill; 0: never */
    bool killing;    /* SIGKILL was sent to all */
    bool gave_up;
    size_t first;  /* as in dsi_outcome */
    dsi_buf lines; /* of control and notice, unfinished */
    double started;
    double next_look; /* when dsi_limits_check looks at memory and files again */
    dsi_limit limit;
    size_t peak_bytes;
} dsi_job;

/* ---- supervise_stop.c: ending ---- */

/* Sends a signal on to a task, or to what waits for it: another launcher, relays. */
void dsi_job_forward(const dsi_job *job, const dsi_running *running, int signal);
/* Tells all that is alive to end. */
void dsi_job_tell(dsi_job *job, int signal);
/* Begins to end the job; grace < 0: waits as long as it takes. */
void dsi_job_stop(dsi_job *job, dsi_stop why, int signal, double grace);
void dsi_job_kill(dsi_job *job);
/* After the grace: kills; after that: gives up. */
void dsi_job_at_deadline(dsi_job *job);
/* A process that reported its number while it waits: the descriptor keeps naming it alone. */
void dsi_job_add_relay(dsi_job *job, pid_t pid);

/* ---- supervise_hear.c: each reads what is there on its descriptor ---- */

void dsi_job_read_signals(dsi_job *job);
void dsi_job_read_control(dsi_job *job);
void dsi_job_read_notice(dsi_job *job);
/* What ranks report, see comm/launcher_note.h. */
void dsi_job_read_reports(dsi_job *job);

/* ---- supervise_output.c ---- */

/* Reads what is there. Returns whether anything was. */
bool dsi_running_pump(dsi_running *running, int stream);
/* Adds the outputs of all tasks; returns their number. */
nfds_t dsi_outputs_poll(const dsi_job *job, struct pollfd *fds);
/* Of those that fds says; NULL: of all. */
void dsi_outputs_read(dsi_job *job, const struct pollfd *fds);
bool dsi_outputs_open(const dsi_job *job);

/* ---- supervise_end.c: ends and their cause ---- */

/* Takes the ends of processes; the first failure ends the job. */
void dsi_job_reap(dsi_job *job);
/* Of those that ended together, the one that a signal killed is the likelier cause. */
void dsi_job_find_first(dsi_job *job);
/* Descendants that outlived their parents became the launcher's children. Whether there were any.
 */
bool dsi_job_kill_strays(const dsi_job *job);
/* Of independent tasks. */
void dsi_job_name_failed(dsi_job *job);
int dsi_job_largest_code(const dsi_job *job);

/* ---- supervise_report.c, supervise_limits.c ---- */

bool dsi_running_failed(const dsi_running *running);
int dsi_running_code(const dsi_running *running);
/* "failed with exit code 3", "cannot be reached, …" for what a way to a node ended with. */
const char *dsi_way_end(int code, char *text, size_t size);
/* One line, of a node that failed: `how` is dsi_way_end's. */
void dsi_report_way(const dsi_job *job, const char *node, const char *how, const char *then);
/* The rank of another host for which a node's ranks waited, by the end of its launcher's report. */
bool dsi_report_awaited(const dsi_output *output, uint32_t *rank_out);
/* Seconds until dsi_limits_check wants to be called, negative: never. */
double dsi_limits_wait(const dsi_job *job);
/* Looks whether a limit is reached; then says which one, and whose, and ends the job. */
void dsi_limits_check(dsi_job *job);

/* One line at the moment of the first failure. */
void dsi_report_first(dsi_job *job);
/* The report at the end of a job that failed. */
void dsi_report_end(dsi_job *job);

#endif
