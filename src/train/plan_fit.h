/* Searches for a configuration that fits: changes of one that does not, and the best of all. Every
 * candidate is planned whole; nothing is guessed from formulas.
 *
 * The global batch stays as it is where the configuration says it: a smaller micro-batch means more
 * accumulation. A candidate that the configuration's rules or the planner refuse is left out.
 */
#ifndef DSI_TRAIN_PLAN_FIT_H
#define DSI_TRAIN_PLAN_FIT_H

#include "train/plan_choice.h"
#include "train/plan_report.h"

enum { DSI_CANDIDATE_SETTINGS = 16, DSI_CANDIDATE_CHANGES = 3, DSI_FIT_CEILING = 1024 };

/* One configuration that was planned, and what it needs and costs. */
typedef struct dsi_candidate {
    const char *paths[DSI_CANDIDATE_SETTINGS];
    char values[DSI_CANDIDATE_SETTINGS][32];   /* as JSON; "": the key is taken away */
    const char *texts[DSI_CANDIDATE_SETTINGS]; /* borrowed, in place of a value; NULL: none */
    uint32_t n_settings;
    bool planned, fits;
    uint32_t stage;
    ds_recompute recompute;
    ds_offload_device states, params; /* where they live between their uses */
    int64_t micro_batch, accumulation;
    size_t need;                              /* bytes that count against the rank's memory */
    size_t host, disk;                        /* bytes there */
    size_t activations;                       /* of need, at the peak */
    double model_flops, hardware_flops, sent; /* a step of a rank */
    double seconds;                           /* of a step, 0 without a device profile */
} dsi_candidate;

/* The best changes of a plan that does not fit, cheapest first: of one thing where that is enough,
 * else of several. *n_out up to DSI_CANDIDATE_CHANGES; 0 when none fits; then changes_out[0] is the
 * one that needs least (planned, not fits). Errors: ERR_NOMEM. */
ds_status dsi_fit_changes(ds_ctx *ctx, const dsi_plan_report *report, dsi_candidate *changes_out,
                          uint32_t *n_out);

typedef struct dsi_fit {
    dsi_candidate *tried;
    uint32_t n_tried;
    uint32_t best; /* UINT32_MAX: none fits; then the one that needs least is `least` */
    uint32_t least;
    dsi_buf folder; /* as JSON; candidates borrow it */
} dsi_fit;

/* What a search may change. */
typedef struct dsi_fit_scope {
    bool stage, recompute;
    bool fixed_batch;      /* not the micro-batch */
    bool offload;          /* unless the configuration asks for some: with times known wherever it
                              may help, else when nothing fits without */
    const char *nvme_path; /* folders for what goes to disk; NULL: nothing does */
    bool free_batch;       /* the global batch too: nobody gave it */
} dsi_fit_scope;

/* Searches for the fastest configuration that fits request->memory (no limit: 0): by simulated time
 * where the request has a device, else by the fewest operations, then bytes sent, then the largest
 * micro-batch. The caller frees with dsi_fit_free. */
ds_status dsi_fit_search(ds_ctx *ctx, const dsi_report_request *request, const dsi_fit_scope *scope,
                         dsi_fit *fit_out);
void dsi_fit_free(dsi_fit *fit);

/* Its value number i, as JSON; "": the key is taken away. */
const char *dsi_candidate_value(const dsi_candidate *candidate, uint32_t i);

/* The settings of a candidate, for dsi_config_text_with; room for DSI_CANDIDATE_SETTINGS. */
uint32_t dsi_candidate_settings(const dsi_candidate *candidate, dsi_setting *settings);

#endif
