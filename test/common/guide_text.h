/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that are drawn at random from what a guide allows, as a model without sense would. */
#ifndef DS_TEST_GUIDE_TEXT_H
#define DS_TEST_GUIDE_TEXT_H

#include "base/buf.h"
#include "guide/guide.h"

/* All bytes, and pieces of JSON as a model's vocabulary has them; the last token is special. */
ds_status guide_words_make(ds_ctx *ctx, dsi_vocabulary **words_out);
/* The token that ends a text. */
uint32_t guide_words_end(const dsi_vocabulary *words);
/* Draws until the text ends, or n tokens are there; closes what is open the more eagerly the longer
 * it is. Whether it ended. */
bool guide_text_draw(dsi_guide *guide, const dsi_vocabulary *words, uint64_t seed, size_t n,
                     dsi_buf *text_out);

#endif
