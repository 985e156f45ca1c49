/* SAMPLES: whole samples packed into rows in the epoch's order; a row ends where the next sample
 * would not fit. */
#include "data/loader.h"

ds_status dsi_loader_check_samples(ds_loader *loader)
{
    const ds_dataset *dataset = loader->dataset;
    for (uint64_t d = 0; d < dataset->n_docs; ++d) {
        const uint64_t n = dataset->begin[d + 1] - dataset->begin[d];
        if (n > (uint64_t)loader->params.seq_length) {
            return ds_fail(loader->ctx, DS_ERR_ARG,
                           "sample %llu has %llu tokens, more than the sequence length %lld",
                           (unsigned long long)d, (unsigned long long)n,
                           (long long)loader->params.seq_length);
        }
    }
    return DS_OK;
}

static uint64_t sample_at(const ds_loader *loader, uint64_t epoch, uint64_t index)
{
    return loader->params.shuffle
               ? dsi_permute(index, loader->dataset->n_docs, loader->params.seed, epoch)
               : index;
}

static int64_t length_of(const ds_dataset *dataset, uint64_t d)
{
    return (int64_t)(dataset->begin[d + 1] - dataset->begin[d]);
}

/* Copies sample d to row position `origin`. */
static void place(ds_loader *loader, dsi_row row, uint64_t d, int64_t origin)
{
    const dsi_tokens *tokens = loader->dataset->tokens;
    const uint64_t begin = loader->dataset->begin[d];
    const int64_t n = length_of(loader->dataset, d);
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t next = begin + (uint64_t)i + 1;
        const bool counts = i + 1 < n && (tokens->counted == NULL || tokens->counted[next] != 0);
        row.input_ids[origin + i] = dsi_loader_id(loader, begin + (uint64_t)i);
        row.targets[origin + i] = counts ? dsi_loader_id(loader, next) : -100;
        row.positions[origin + i] = (int32_t)i;
        row.first[origin + i] = (int32_t)origin;
    }
}

uint64_t dsi_loader_samples_rows(const ds_loader *loader, uint64_t epoch)
{
    const int64_t length = loader->params.seq_length;
    uint64_t rows = 0;
    int64_t used = length; /* no row is begun */
    for (uint64_t i = 0; i < loader->dataset->n_docs; ++i) {
        const int64_t n = length_of(loader->dataset, sample_at(loader, epoch, i));
        rows += n > length - used;
        used = n > length - used ? n : used + n;
    }
    return rows;
}

bool dsi_loader_row_samples(ds_loader *loader, const dsi_row *row, bool once)
{
    const ds_dataset *dataset = loader->dataset;
    const int64_t length = loader->params.seq_length;
    int64_t used = 0;
    if (loader->next >= dataset->n_docs) {
        if (once) {
            return false;
        }
        loader->epoch += 1;
        loader->next = 0;
    }
    while (loader->next < dataset->n_docs) {
        const uint64_t d = sample_at(loader, loader->epoch, loader->next);
        const int64_t n = length_of(dataset, d);
        if (n > length - used) {
            break;
        }
        if (row != NULL) {
            place(loader, *row, d, used);
        }
        used += n;
        loader->next += 1;
    }
    if (row != NULL) {
        loader->batch_tokens += (uint64_t)used;
        dsi_loader_clear_row(*row, used, length);
    }
    return true;
}
