/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP thread of a server of a model: what its paths answer. See front.h. */
#ifndef DS_TOOLS_SERVE_HTTP_H
#define DS_TOOLS_SERVE_HTTP_H

#include "serve/front.h"

static inline front *front_of(const exchange *x)
{
    return x->door->owner;
}

/* ---- http_jobs.c ---- */
/* Whether another text may be asked for now; false: *e is filled. */
bool http_may_begin(front *f, api_error *e);
/* kind: how its id begins. NULL: no memory. */
job *http_make_job(exchange *x, const char *kind);
/* The HTTP thread lets go of a job. */
void http_drop(void *job);
/* A connection that waited for its whole text. */
enum MHD_Result http_resume(exchange *x);

/* ---- answers of routes ---- */
enum MHD_Result http_health(exchange *x, const char *behind);
enum MHD_Result http_ready(exchange *x, const char *behind);
enum MHD_Result http_slots(exchange *x, const char *behind);
enum MHD_Result http_models(exchange *x, const char *behind);
enum MHD_Result http_model(exchange *x, const char *behind);
enum MHD_Result http_metrics(exchange *x, const char *behind);
enum MHD_Result http_healthz(exchange *x, const char *behind);
enum MHD_Result http_page(exchange *x, const char *behind);
enum MHD_Result http_tokenize(exchange *x, const char *behind);
enum MHD_Result http_detokenize(exchange *x, const char *behind);
enum MHD_Result http_template(exchange *x, const char *behind);
enum MHD_Result http_chat(exchange *x, const char *behind);
enum MHD_Result http_completion(exchange *x, const char *behind);
enum MHD_Result http_embeddings(exchange *x, const char *behind);
enum MHD_Result http_response(exchange *x, const char *behind);
enum MHD_Result http_mii(exchange *x, const char *behind);
enum MHD_Result http_load(exchange *x, const char *behind);
enum MHD_Result http_unload(exchange *x, const char *behind);
enum MHD_Result http_reload(exchange *x, const char *behind);

#endif
