/* STREAM: windows of T tokens over documents joined end to end. */
#include "data/loader.h"

#include "base/rng.h"

enum { SITE_PHASE = 0x50484153 };

/* Token at which the epoch's first window starts. */
static uint64_t phase_of(const ds_loader *loader, uint64_t epoch)
{
    const uint64_t length = (uint64_t)loader->params.seq_length;
    const uint64_t n = loader->dataset->info.n_tokens;
    if (!loader->params.shuffle || n < 2 * length + 1) {
        return 0;
    }
    return dsi_rng_below(loader->params.seed, SITE_PHASE, epoch, length);
}

/* Windows whose inputs start inside; in evaluation the last one may be short. */
uint64_t dsi_loader_stream_rows(const ds_loader *loader, uint64_t epoch)
{
    const uint64_t length = (uint64_t)loader->params.seq_length;
    const uint64_t usable = loader->dataset->info.n_tokens - 1 - phase_of(loader, epoch);
    return loader->params.shuffle ? usable / length : (usable + length - 1) / length;
}

ds_status dsi_loader_check_stream(ds_loader *loader)
{
    const uint64_t n = loader->dataset->info.n_tokens;
    if (n < 2 || dsi_loader_stream_rows(loader, 0) == 0) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "the data holds %llu tokens, less than one row of %lld and its target",
                       (unsigned long long)n, (long long)loader->params.seq_length);
    }
    return DS_OK;
}

static void fill(ds_loader *loader, dsi_row row, uint64_t start)
{
    const ds_dataset *dataset = loader->dataset;
    const dsi_tokens *tokens = dataset->tokens;
    const int64_t length = loader->params.seq_length;
    const uint64_t end = dataset->begin[dataset->n_docs];
    uint64_t d = dsi_dataset_document(dataset, start);
    int64_t origin = 0; /* row position at which the current document starts */
    int64_t i = 0;
    for (; i < length && start + (uint64_t)i < end; ++i) {
        const uint64_t at = start + (uint64_t)i;
        while (at == dataset->begin[d + 1]) { /* more than once: empty documents */
            ++d;
            origin = i;
        }
        const uint64_t next = at + 1;
        const bool counts =
            next < dataset->begin[d + 1] && (tokens->counted == NULL || tokens->counted[next] != 0);
        row.input_ids[i] = dsi_loader_id(loader, at);
        row.targets[i] = counts ? dsi_loader_id(loader, next) : -100;
        row.positions[i] = (int32_t)(i - origin);
        row.first[i] = (int32_t)origin;
    }
    loader->batch_tokens += (uint64_t)i;
    dsi_loader_clear_row(row, i, length);
}

bool dsi_loader_row_stream(ds_loader *loader, const dsi_row *row, bool once)
{
    uint64_t rows = dsi_loader_stream_rows(loader, loader->epoch);
    if (loader->next >= rows) {
        if (once) {
            return false;
        }
        loader->epoch += 1;
        loader->next = 0;
        rows = dsi_loader_stream_rows(loader, loader->epoch);
    }
    const uint64_t at = loader->next++;
    if (row != NULL) {
        const uint64_t window =
            loader->params.shuffle ? dsi_permute(at, rows, loader->params.seed, loader->epoch) : at;
        fill(loader, *row,
             loader->dataset->begin[0] + phase_of(loader, loader->epoch) +
                 window * (uint64_t)loader->params.seq_length);
    }
    return true;
}
