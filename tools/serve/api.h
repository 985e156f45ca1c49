/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the body of a request, between the api_*.c. All of the HTTP thread. */
#ifndef DS_TOOLS_SERVE_API_H
#define DS_TOOLS_SERVE_API_H

#include "serve/front.h"

/* What is read, besides the job's own. */
typedef struct api_reader {
    front *f;
    job *j;
    dsi_buf *ignored; /* names of fields without effect */
    api_error *e;
    bool ignore_eos, echo, has_seed, has_most;
    int64_t most, n, n_top;
    int64_t prompt_top; /* prompt_logprobs; -1: not given */
    json_t *stop_ids, *bias;
    bool beams;      /* use_beam_search */
    int64_t best_of; /* 0: not given */
    ds_beams beam;   /* length_penalty, early_stopping */
    const char *needs_beams;
    ds_dry dry; /* multiplier 0: none */
    json_t *breakers;
    const char *needs_dry, *needs_mirostat; /* the newest field that has no effect without */
    json_t *format, *structured;            /* response_format, structured_outputs */
    json_t *tools, *tool_choice, *parallel; /* NULL: not given */
} api_reader;

/* ---- api_value.c: values; false: *r->e is filled ---- */
bool api_wrong(api_reader *r, const char *name, const char *expected);
bool api_unsupported(api_reader *r, const char *name, const char *what);
bool api_whole(api_reader *r, const char *name, json_t *v, int64_t least, int64_t most,
               int64_t *out);
bool api_number(api_reader *r, const char *name, json_t *v, double least, double most, double *out);
bool api_boolean(api_reader *r, const char *name, json_t *v, bool *out);

/* ---- api.c ---- */
bool api_check_model(api_reader *r, json_t *v);

/* ---- api_sampler.c: typical_p, DRY, mirostat ---- */
bool api_is_sampler(const char *name);
bool api_read_sampler(api_reader *r, const char *name, json_t *v);
/* After all fields: what goes together, and the job's own ds_dry. */
bool api_take_samplers(api_reader *r);

/* ---- api_beams.c ---- */
bool api_is_beam(const char *name);
bool api_read_beam(api_reader *r, const char *name, json_t *v);
/* After all fields: the job's own ds_beams. */
bool api_take_beams(api_reader *r, json_t *body);

/* ---- api_prompt.c ---- */
/* The choices of the job, with the ids that they go on from. */
bool api_take_prompts(api_reader *r, json_t *prompt);
bool api_take_messages(api_reader *r, json_t *body);

/* ---- api_form.c: which form the text has ---- */
/* response_format, structured_outputs and tools: the job's guide. */
bool api_take_form(api_reader *r);
/* Makes the bytes of tokens, which guides need. */
bool api_find_words(api_reader *r);
/* What became of making the job's guide for a field. */
bool api_end_form(api_reader *r, const char *name, ds_status status);

/* ---- api_tools.c ---- */
/* tools, tool_choice, parallel_tool_calls; leaves r->tools as the template gets them. */
bool api_take_tools(api_reader *r);
/* A message's tool_calls and tool_call_id; changes them to what templates want. */
bool api_check_calls(api_reader *r, json_t *message);
bool api_is_name(const char *text);

#endif
