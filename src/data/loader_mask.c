/* SPDX-License-Identifier: Apache-2.0 */
/* Masked language modelling: which tokens of a row are to be found again, and what stands in their
 * place (Devlin et al. 2018, 3.1, chosen anew in each epoch as Liu et al. 2019, 4.1). See
 * ds_masking.
 *
 * A choice is a function of the seed, the epoch and the token's place in the data, so that rows,
 * batches, ranks and resumes do not change it.
 */
#include "data/loader.h"

#include "base/rng.h"

enum { SITE_CHOSEN = 0x4d41534b, SITE_INSTEAD, SITE_WORD };

ds_status dsi_loader_check_masking(ds_ctx *ctx, const ds_masking *m)
{
    if (!(m->chance > 0.0 && m->chance < 1.0) || !(m->mask >= 0.0) || !(m->word >= 0.0) ||
        !(m->mask + m->word <= 1.0)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "masking: a chance of %g, of which %g masked and %g other words; expected "
                       "above 0 and below 1, and shares of at most 1 together",
                       m->chance, m->mask, m->word);
    }
    if (m->tokenizer == NULL || ds_tokenizer_mask_id(m->tokenizer) < 0) {
        return ds_fail(ctx, DS_ERR_ARG, "masking: the tokenizer's files name no \"mask_token\"");
    }
    return DS_OK;
}

/* [0,1) with 32 bits. */
static double chance_of(const dsi_lane *lane, uint32_t site, uint64_t at)
{
    return (double)dsi_rng_u32(lane->seed, site, (uint32_t)lane->epoch, at) * 0x1p-32;
}

/* What stands where a chosen token was. */
static int32_t instead(const ds_masking *m, const dsi_lane *lane, uint64_t at, int32_t id)
{
    const double r = chance_of(lane, SITE_INSTEAD, at);
    const double n_words = (double)ds_tokenizer_vocab_size(m->tokenizer);
    if (r < m->mask) {
        return (int32_t)ds_tokenizer_mask_id(m->tokenizer);
    }
    return r < m->mask + m->word ? (int32_t)(chance_of(lane, SITE_WORD, at) * n_words) : id;
}

void dsi_loader_mask(const ds_loader *loader, const dsi_lane *lane, dsi_row row, int64_t from,
                     uint64_t at, int64_t n)
{
    const ds_masking *m = &loader->masking;
    const uint8_t *counted = lane->dataset->tokens->counted;
    for (int64_t i = 0; i < n; ++i) {
        const int32_t id = row.input_ids[from + i];
        const uint64_t token = at + (uint64_t)i;
        const bool may = (counted == NULL || counted[token] != 0) && id >= 0 &&
                         !ds_tokenizer_is_special(m->tokenizer, (uint32_t)id);
        const bool is = may && chance_of(lane, SITE_CHOSEN, token) < m->chance;
        row.targets[from + i] = is ? id : -100;
        row.input_ids[from + i] = is ? instead(m, lane, token, id) : id;
    }
}
