/* SPDX-License-Identifier: Apache-2.0 */
/* ds_bench --serve: a load generator for servers that speak OpenAI's HTTP interface.
 *
 *     work (what is sent, when) -> run (one thread, many connections) -> report (text, JSON, page)
 *
 * One thread: it polls its connections, so that a time is taken when the bytes are there and no
 * lock stands between. What a request is (lengths, ids, arrival) is a function of the seed and its
 * number. Latencies count from a request's arrival, not from when a client was free for it: a slow
 * server must not slow down its own judge.
 */
#ifndef DSI_TOOLS_LOAD_H
#define DSI_TOOLS_LOAD_H

#include "base/buf.h"
#include "io/link.h"

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stdint.h>

enum { LOAD_ERROR_BYTES = 160, LOAD_MOST_CLIENTS = 4096 };

/* The flags. Lengths are distributions: see load_work.c. Times in milliseconds unless named. */
typedef struct load_options {
    const char *url; /* NULL: no load is asked for */
    const char *endpoint, *model, *api_key_file;
    const char *cacert; /* of https: authorities, PEM; NULL: the machine's */
    bool insecure;      /* of https: any certificate */
    const char *prompt_tokens, *output_tokens, *trace;
    const char *html;
    int64_t requests, clients, warmups, shared_prefix, prefixes, seed, timeout_seconds;
    double rate, duration;              /* requests a second, 0: no waiting; seconds, 0: none */
    double slo_ttft, slo_tpot, slo_e2e; /* 0: no limit */
    bool keep_eos, json, overwrite, requests_given;
} load_options;

/* Where requests go. */
typedef struct load_target {
    char host[256], port[8], path[256]; /* path: before /v1, without a slash at its end */
    char model[512];
    char key[512];          /* "": none */
    bool tls;               /* https */
    const dsi_trust *trust; /* of https; borrowed */
    bool chat;
    int64_t vocab;      /* 0: prompts are words */
    int64_t max_length; /* 0: unknown */
} load_target;

/* ---- what is sent: load_work.c, load_trace.c ---- */
typedef struct load_request {
    double due; /* seconds from the start; 0 without a rate */
    int64_t prompt, output;
    const uint32_t *blocks; /* of a trace: parts of 512 ids, the same under the same number */
    size_t n_blocks;
} load_request;

typedef struct load_work {
    const load_options *o;
    const load_target *target;
    int64_t n;  /* requests; INT64_MAX: as many as the duration takes */
    double due; /* of the newest one that was made */
    load_request *trace;
    size_t n_trace;
    uint32_t *blocks;
    size_t n_blocks;
} load_work;

/* Reads lengths and trace. Errors: ERR_ARG names the flag; ERR_FORMAT names file and line. */
ds_status load_work_open(ds_ctx *ctx, const load_options *o, const load_target *target,
                         load_work *work);
void load_work_close(load_work *work);
/* Request k, in order from 0. */
void load_work_next(load_work *work, int64_t k, load_request *out);
/* Its HTTP request, appended. */
void load_work_put(const load_work *work, int64_t k, const load_request *request, dsi_buf *body,
                   dsi_buf *text);
/* Fills work->trace. */
ds_status load_trace_read(ds_ctx *ctx, const char *path, load_work *work);

/* ---- one answer: load_http.c, load_frame.c ---- */
typedef struct load_frame { /* what an answer, or a frame of its stream, says */
    bool has_text, has_usage, has_error;
    int64_t n_prompt, n_output, n_cached;
    char error[LOAD_ERROR_BYTES];
} load_frame;
/* Errors: ERR_FORMAT. scratch: as many bytes as the text. */
ds_status load_frame_read(ds_ctx *ctx, const char *text, size_t n, char *scratch, load_frame *out);

/* Takes the bytes of a stream's frame behind "data: ", or of a whole answer; false ends it. */
typedef bool (*load_take_fn)(void *user, const char *text, size_t n);

typedef enum load_http_place {
    LOAD_HTTP_HEAD,
    LOAD_HTTP_SIZE,  /* of a chunk */
    LOAD_HTTP_CHUNK, /* its bytes */
    LOAD_HTTP_CRLF,  /* behind them */
    LOAD_HTTP_TAIL,  /* headers behind the last chunk */
    LOAD_HTTP_BODY,  /* content_length bytes, or all until the end */
    LOAD_HTTP_DONE
} load_http_place;

/* An answer that is read as its bytes come, in pieces of any size. */
typedef struct load_http {
    load_http_place place;
    int status;
    bool chunked, events, closes, until_end;
    int64_t left;      /* bytes of the chunk or body */
    dsi_buf line;      /* of the head */
    dsi_buf body;      /* what is not taken yet */
    const char *error; /* of a malformed answer */
    /* set behind load_http_begin: */
    bool raw; /* the bytes of the body are taken as they come, whatever they are */
    void (*header)(void *user, const char *line); /* NULL: nobody wants the lines of the head */
} load_http;

void load_http_begin(load_http *h); /* keeps the buffers' memory */
void load_http_free(load_http *h);
/* false: malformed (h->error), or take returned false. */
bool load_http_feed(load_http *h, const char *data, size_t n, load_take_fn take, void *user);
/* The other side closed: whether the answer was whole. */
bool load_http_end(load_http *h, load_take_fn take, void *user);

/* ---- running: load_run.c ---- */
typedef struct load_result {
    double due, sent, first, last;               /* seconds from the start; first 0: no text */
    int64_t n_prompt, n_cached, n_output, asked; /* tokens, as the server counts; asked: by us */
    int status;                                  /* HTTP's; 0: none came */
    bool failed;
    char error[LOAD_ERROR_BYTES];
} load_result;

typedef struct load_samples {
    float *items;
    size_t n, capacity;
} load_samples;

typedef struct load_run {
    load_result *results;
    size_t n, capacity;
    load_samples frames; /* when texts came, seconds from the start */
    load_samples gaps;   /* between two of one request, seconds */
    double seconds;      /* from the start to the last answer */
    bool interrupted;    /* by Ctrl-C: fewer requests than were asked for */
} load_run;

/* Sends everything. Errors: those of this machine (sockets, memory); a request that fails is a
 * result. Ctrl-C: no further request begins. */
ds_status load_run_all(ds_ctx *ctx, const load_options *o, const load_target *target,
                       load_work *work, load_run *run);
void load_run_free(load_run *run);
/* ---- the server: load_target.c ---- */
/* Host, port and path of "http[s]://HOST[:PORT][/PATH]"; HOST may be [IPv6]. Errors: ERR_ARG, with
 * the flag. */
ds_status load_target_read(ds_ctx *ctx, const char *flag, const char *url, load_target *target);
/* Finds host, model, its vocabulary and longest text, by /v1/models. *trust_out: of https, the
 * caller closes it. Errors: ERR_ARG names the flag; ERR_PEER (nobody answers, or something else).
 */
ds_status load_target_find(ds_ctx *ctx, const load_options *o, load_target *target,
                           dsi_trust **trust_out);
/* A connection in non-blocking mode that may still be on its way. false: errno says why. */
bool load_connect(const load_target *target, dsi_link *link);

/* ---- what came of it: load_report.c, load_html.c ---- */
enum { LOAD_TTFT, LOAD_TPOT, LOAD_GAP, LOAD_E2E, LOAD_MEASURES };
typedef struct load_measure {
    double *values; /* milliseconds, sorted */
    size_t n;
    double mean, p50, p90, p95, p99, most;
} load_measure;

typedef struct load_report {
    const load_options *o;
    const load_target *target;
    const load_run *run;
    load_measure measures[LOAD_MEASURES];
    size_t n_done, n_failed, n_good;
    double requests_s, input_s, output_s, good_s; /* a second */
    int64_t n_input, n_cached, n_output;
} load_report;

extern const char *const load_measure_names[LOAD_MEASURES];
/* Errors: ERR_NOMEM. */
ds_status load_report_make(ds_ctx *ctx, const load_options *o, const load_target *target,
                           const load_run *run, load_report *report);
void load_report_free(load_report *report);
void load_report_text(const load_report *report, dsi_buf *text);
void load_report_json(const load_report *report, dsi_buf *text);
void load_report_html(const load_report *report, dsi_buf *page);
/* Whether a result is within the limits. */
bool load_is_good(const load_options *o, const load_result *r);
/* The value below which that part of n sorted values is, between neighbours linearly; n >= 1. */
double load_quantile(const double *sorted, size_t n, double part);

/* The whole of it, for ds_bench. *failed_out: requests that failed. */
ds_status load_main(ds_ctx *ctx, const load_options *o, size_t *failed_out);

#endif
