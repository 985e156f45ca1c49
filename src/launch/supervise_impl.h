/* What supervise.c and supervise_report.c share. */
#ifndef DSI_LAUNCH_SUPERVISE_IMPL_H
#define DSI_LAUNCH_SUPERVISE_IMPL_H

#include "launch/guard.h"
#include "launch/oom.h"
#include "launch/supervise.h"
#include <deepspeed/context.h>

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
    bool stopped; /* by SIGSTOP or the like, now */
    bool killed;  /* SIGKILL was sent by the launcher */
    bool told;    /* it was told to end before it ended */
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
    int *relays;    /* descriptors of processes that told their number */
    size_t n_relays;
    char notice_label[256];
    int notice_code; /* exit code that another process told */
    double deadline; /* when to kill; 0: never */
    bool killing;    /* SIGKILL was sent to all */
    bool gave_up;
    size_t first;  /* as in dsi_outcome */
    dsi_buf lines; /* of control and notice, unfinished */
    double started;
    double next_look; /* when dsi_limits_reached looks at memory and files again */
    dsi_limit limit;
    size_t peak_bytes;
} dsi_job;

bool dsi_running_failed(const dsi_running *running);
int dsi_running_code(const dsi_running *running);
/* "failed with exit code 3", "cannot be reached, …" for what a way to a node ended with. */
const char *dsi_way_end(int code, char *text, size_t size);
/* Seconds until dsi_limits_reached wants to be called, negative: never. */
double dsi_limits_wait(const dsi_job *job);
/* Looks whether a limit is reached; says which one, and whose. */
dsi_limit dsi_limits_reached(dsi_job *job);

/* One line at the moment of the first failure. */
void dsi_report_first(dsi_job *job);
/* The report at the end of a job that failed. */
void dsi_report_end(dsi_job *job);

#endif
