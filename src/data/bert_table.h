/* SPDX-License-Identifier: Apache-2.0 */
/* What BertNormalizer does to code points; bert_table.c is made by scripts/make_bert_table.py. */
#ifndef DSI_DATA_BERT_TABLE_H
#define DSI_DATA_BERT_TABLE_H

#include <stddef.h>
#include <stdint.h>

typedef struct dsi_point_range {
    uint32_t first, last;
} dsi_point_range;

/* Every step-th code point of [first,last] has its lower case so many further. */
typedef struct dsi_lower_run {
    uint32_t first, last, step;
    int32_t difference;
} dsi_lower_run;

/* Each sorted, without overlap. */
extern const dsi_point_range dsi_bert_dropped[]; /* by cleaning */
extern const size_t dsi_bert_dropped_n;
extern const dsi_point_range dsi_bert_apart[]; /* a space before and after */
extern const size_t dsi_bert_apart_n;
extern const dsi_point_range dsi_bert_marks[]; /* dropped with accents, after NFD */
extern const size_t dsi_bert_marks_n;
extern const dsi_lower_run dsi_bert_lower[];
extern const size_t dsi_bert_lower_n;

#endif
