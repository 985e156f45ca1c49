/* SPDX-License-Identifier: Apache-2.0 */
/* Searches for the best configuration that fits. Every candidate is planned whole; nothing is
 * guessed from formulas.
 *
 * The global batch stays as it is where the configuration says it: a smaller micro-batch means more
 * accumulation.
 */
#ifndef DSI_REPORT_PLAN_FIT_H
#define DSI_REPORT_PLAN_FIT_H

#include "report/plan_candidate.h"

enum { DSI_FIT_CEILING = 4096 };

/* Why candidates have no plan: one reason, its first candidate, and of how many. */
typedef struct dsi_refusal {
    ds_status status;
    char text[512];
    dsi_candidate first;
    uint32_t n;
} dsi_refusal;
enum { DSI_REFUSALS = 8 };

typedef struct dsi_fit {
    dsi_candidate *tried;
    uint32_t n_tried;
    uint32_t best; /* UINT32_MAX: none fits; then the one that needs least is `least` */
    uint32_t least;
    dsi_refusal refusals[DSI_REFUSALS];
    uint32_t n_refusals;
    uint32_t n_unsaid; /* candidates refused for further reasons */
    dsi_buf folder;    /* as JSON; candidates borrow it */
} dsi_fit;

/* What a search may change. */
typedef struct dsi_fit_scope {
    bool stage, recompute;
    bool fixed_batch;      /* not the micro-batch */
    bool offload;          /* unless the configuration asks for some: with times known wherever it
                              may help, else when nothing fits without */
    const char *nvme_path; /* folders for what goes to disk; NULL: nothing does */
    bool free_batch;       /* the global batch too: nobody gave it */
    bool share; /* ranks may share layers, sequences and the model, as far as the configuration says
                   nothing of it, where nothing fits without, or, with times known, where it may
                   help; the best of them in halves (domino), and its stages in any order */
} dsi_fit_scope;

/* Searches for the fastest configuration that fits request->memory (no limit: 0): by simulated time
 * where the request has a device, else by the fewest operations, then bytes sent, then the largest
 * micro-batch. The caller frees with dsi_fit_free. */
ds_status dsi_fit_search(ds_ctx *ctx, const dsi_report_request *request, const dsi_fit_scope *scope,
                         dsi_fit *fit_out);
void dsi_fit_free(dsi_fit *fit);

#endif
